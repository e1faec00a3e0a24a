#include "run/block_drafts.h"

#include "base/alloc.h"

struct block_drafts {
    struct backend *backend;
    struct assembly_limits limits; /* of draft passes */
    struct assembly *assembly;
    int32_t width, requests; /* rows of a block; requests of the pass in hand */
    struct batch_span *spans;
    int32_t *tokens, *low;               /* [max_rows] */
    int32_t *device_low, *device_tokens; /* [max_rows], [max_requests] */
    float *logits, *base;                /* [vocab] of one request, and of it without the Markov head */
    struct block_rows rows;              /* of the slot in hand */
    float *confidence;                   /* [max_requests] the Markov head's part, in the end the whole */
    float *confidences;                  /* [max_rows] the rows' */
};

static qr_status allocate_device(struct block_drafts *d, qr_error *err)
{
    const int64_t word = (int64_t)sizeof(int32_t);
    void *low, *tokens;
    TRY(d->backend->allocate(d->backend, d->limits.max_rows * word, &low, err));
    d->device_low = low;
    TRY(d->backend->allocate(d->backend, d->limits.max_requests * word, &tokens, err));
    d->device_tokens = tokens;
    return QR_OK;
}

static qr_status allocate(struct block_drafts *d, qr_error *err)
{
    const struct assembly_limits *l = &d->limits;
    const size_t rows = (size_t)l->max_rows, requests = (size_t)l->max_requests;
    const size_t vocab = (size_t)l->plan->config.vocab_size;

    d->spans = qr_calloc(requests, sizeof *d->spans);
    d->tokens = qr_calloc(rows, sizeof *d->tokens);
    d->low = qr_calloc(rows, sizeof *d->low);
    d->logits = qr_calloc(vocab, sizeof *d->logits);
    d->base = qr_calloc(vocab, sizeof *d->base);
    d->confidence = qr_calloc(requests, sizeof *d->confidence);
    d->confidences = qr_calloc(rows, sizeof *d->confidences);
    if (!d->spans || !d->tokens || !d->low || !d->logits || !d->base || !d->confidence || !d->confidences)
        return qr_fail(err, QR_NO_MEMORY, "draft blocks: no memory for %zu rows of %zu requests", rows, requests);
    TRY(assembly_open(d->backend, l, &d->assembly, err));
    return allocate_device(d, err);
}

static struct assembly_limits limits_of_passes(const struct assembly_limits *steps)
{
    const int32_t width = steps->geometry->options.draft_width;
    struct assembly_limits out = *steps;
    out.max_rows = out.max_logits = steps->max_requests * width;
    out.max_positions = steps->max_positions + width; /* a block may look over the end */
    return out;
}

int64_t block_drafts_bytes_for(const struct assembly_limits *limits)
{
    const struct assembly_limits l = limits_of_passes(limits);
    const int64_t word = (int64_t)sizeof(int32_t), vocab = l.plan->config.vocab_size;
    return assembly_bytes_for(&l) + (int64_t)sizeof(struct block_drafts) +
           l.max_requests * ((int64_t)sizeof(struct batch_span) + 2 * word) + (2 * vocab + 4 * l.max_rows) * word;
}

qr_status block_drafts_open(struct backend *backend, const struct assembly_limits *limits, struct block_drafts **out,
                            qr_error *err)
{
    struct block_drafts *d = qr_calloc(1, sizeof *d);
    if (!d)
        return qr_fail(err, QR_NO_MEMORY, "draft blocks: no memory for their record");
    d->backend = backend;
    d->width = limits->geometry->options.draft_width;
    d->limits = limits_of_passes(limits);
    qr_status st = allocate(d, err);
    if (st != QR_OK) {
        block_drafts_close(d);
        return st;
    }
    *out = d;
    return QR_OK;
}

void block_drafts_close(struct block_drafts *d)
{
    if (!d)
        return;
    assembly_close(d->assembly);
    if (d->device_low)
        d->backend->release(d->backend, d->device_low);
    if (d->device_tokens)
        d->backend->release(d->backend, d->device_tokens);
    qr_free(d->spans);
    qr_free(d->tokens);
    qr_free(d->low);
    qr_free(d->logits);
    qr_free(d->base);
    qr_free(d->confidence);
    qr_free(d->confidences);
    qr_free(d);
}

int64_t block_drafts_bytes(const struct block_drafts *d)
{
    return assembly_bytes(d->assembly) + (d->limits.max_rows + d->limits.max_requests) * (int64_t)sizeof(int32_t);
}

/* ---- checks ---- */

static qr_status check_request(const struct block_drafts *d, const struct block_draft *r, int32_t b, qr_error *err)
{
    const struct assembly_limits *l = &d->limits;
    const int32_t vocab = l->plan->config.vocab_size;
    if (r->slot < 0 || r->slot >= l->slots)
        return qr_fail(err, QR_INTERNAL, "draft block %d has slot %d, wanted 0 to %lld", b, r->slot,
                       (long long)l->slots - 1);
    if (r->position < 1 || r->position > l->max_positions - d->width)
        return qr_fail(err, QR_INTERNAL, "draft block %d stands behind %d tokens, wanted 1 to %d", b, r->position,
                       l->max_positions - d->width);
    if (r->anchor < 0 || r->anchor >= vocab)
        return qr_fail(err, QR_INTERNAL, "draft block %d: anchor %d, the vocabulary has %d", b, r->anchor, vocab);
    if (r->valid_from < 0)
        return qr_fail(err, QR_INTERNAL, "draft block %d: ring rows from position %d, wanted at least 0", b,
                       r->valid_from);
    return QR_OK;
}

qr_status block_drafts_check(const struct block_drafts *d, const struct block_draft *requests, int32_t count,
                             qr_error *err)
{
    if (count < 1 || count > d->limits.max_requests)
        return qr_fail(err, QR_INTERNAL, "draft pass of %d blocks, wanted 1 to %d", count, d->limits.max_requests);
    for (int32_t b = 0; b < count; b++) {
        TRY(check_request(d, &requests[b], b, err));
        for (int32_t before = 0; before < b; before++)
            if (requests[before].slot == requests[b].slot)
                return qr_fail(err, QR_INTERNAL, "draft blocks %d and %d have the same slot %d", before, b,
                               requests[b].slot);
    }
    return QR_OK;
}

/* ---- the pass ---- */

qr_status block_drafts_fill(struct block_drafts *d, const struct block_draft *requests, int32_t count,
                            struct model_draft *out, qr_error *err)
{
    const struct batch batch = {.count = count, .spans = d->spans};
    const int32_t noise = d->limits.plan->config.dspark_noise_token_id;
    for (int32_t b = 0; b < count; b++) {
        int32_t *tokens = d->tokens + (int64_t)b * d->width, *low = d->low + (int64_t)b * d->width;
        for (int32_t i = 0; i < d->width; i++) {
            tokens[i] = i == 0 ? requests[b].anchor : noise;
            low[i] = requests[b].valid_from;
        }
        d->spans[b] = (struct batch_span){.slot = requests[b].slot,
                                          .first_position = requests[b].position,
                                          .count = d->width,
                                          .tokens = tokens};
    }
    d->requests = count;
    TRY(assembly_fill(d->assembly, &batch, err));
    *out = (struct model_draft){.step = assembly_step(d->assembly),
                                .rows = assembly_rows(d->assembly),
                                .window_low = d->device_low};
    return d->backend->upload(d->backend, d->device_low, d->low, out->step->rows * (int64_t)sizeof *d->low, err);
}

/* ---- the chain ---- */

/* How sure the drafter is of slot k of every request. One fence for all. */
static qr_status fetch(struct block_drafts *d, const struct workspace *ws, int32_t k, qr_error *err)
{
    const int64_t count = d->requests, word = (int64_t)sizeof(float);
    TRY(d->backend->download(d->backend, d->confidence, ws->markov_confidence.codes, count * word, err));
    TRY(d->backend->download(d->backend, d->confidences, ws->draft_confidence.codes, count * d->width * word, err));
    TRY(d->backend->fence(d->backend, err));
    for (int64_t b = 0; b < count; b++)
        d->confidence[b] += d->confidences[b * d->width + k];
    return QR_OK;
}

qr_status block_drafts_next(struct block_drafts *d, struct model *m, int32_t k, const int32_t *tokens, qr_error *err)
{
    const struct workspace *ws = model_workspace(m);
    const int64_t vocab = d->limits.plan->config.vocab_size, count = d->requests, word = (int64_t)sizeof(float);
    if (k < 0 || k >= d->width)
        return qr_fail(err, QR_INTERNAL, "slot %d of a draft block, wanted 0 to %d", k, d->width - 1);
    for (int32_t b = 0; b < count; b++)
        if (tokens[b] < 0 || tokens[b] >= vocab)
            return qr_fail(err, QR_INTERNAL, "draft block %d: token %d before slot %d, the vocabulary has %lld", b,
                           tokens[b], k, (long long)vocab);

    TRY(d->backend->upload(d->backend, d->device_tokens, tokens, count * word, err));
    TRY(model_markov(m, d->device_tokens, (int32_t)count, err));
    TRY(fetch(d, ws, k, err));
    d->rows = (struct block_rows){.logits = ws->logits, .bias = ws->markov_bias.codes, .first = k, .step = d->width};
    return QR_OK;
}

struct block_rows block_drafts_rows(const struct block_drafts *d) { return d->rows; }

qr_status block_drafts_logits(const struct block_drafts *d, int32_t b, const float **out, qr_error *err)
{
    const int64_t vocab = d->limits.plan->config.vocab_size, bytes = vocab * (int64_t)sizeof(float);
    const struct block_rows *r = &d->rows;
    TRY(d->backend->download(d->backend, d->base, r->logits + (r->first + b * r->step) * vocab, bytes, err));
    TRY(d->backend->download(d->backend, d->logits, r->bias + b * vocab, bytes, err));
    TRY(d->backend->fence(d->backend, err));
    for (int64_t i = 0; i < vocab; i++)
        d->logits[i] += d->base[i];
    *out = d->logits;
    return QR_OK;
}

float block_drafts_confidence(const struct block_drafts *d, int32_t b) { return d->confidence[b]; }
