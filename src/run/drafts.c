#include "run/drafts.h"

#include <string.h>

#include "base/alloc.h"

struct drafts {
    struct backend *backend;
    struct assembly_limits limits;
    struct assembly *assembly;
    struct batch_span *spans;        /* [max_requests] */
    struct draft_kept *kept;         /* [max_rows] */
    int32_t *source, *device_source; /* [max_rows] */
};

qr_status drafts_open(struct backend *backend, const struct assembly_limits *limits, struct drafts **out, qr_error *err)
{
    struct drafts *d = qr_calloc(1, sizeof *d);
    size_t rows = (size_t)limits->max_rows;
    void *device;
    if (!d)
        return qr_fail(err, QR_NO_MEMORY, "draft rows: no memory for their record");
    d->backend = backend;
    d->limits = *limits;
    d->spans = qr_calloc((size_t)limits->max_requests, sizeof *d->spans);
    d->kept = qr_calloc(rows, sizeof *d->kept);
    d->source = qr_calloc(rows, sizeof *d->source);
    qr_status st = d->spans && d->kept && d->source
                       ? assembly_open(backend, limits, &d->assembly, err)
                       : qr_fail(err, QR_NO_MEMORY, "draft rows: no memory for %d rows", limits->max_rows);
    if (st == QR_OK)
        st = backend->allocate(backend, (int64_t)(rows * sizeof *d->source), &device, err);
    if (st != QR_OK) {
        drafts_close(d);
        return st;
    }
    d->device_source = device;
    *out = d;
    return QR_OK;
}

void drafts_close(struct drafts *d)
{
    if (!d)
        return;
    assembly_close(d->assembly);
    if (d->device_source)
        d->backend->release(d->backend, d->device_source);
    qr_free(d->spans);
    qr_free(d->kept);
    qr_free(d->source);
    qr_free(d);
}

int64_t drafts_bytes(const struct drafts *d)
{
    return assembly_bytes(d->assembly) + d->limits.max_rows * (int64_t)sizeof *d->source;
}

int64_t drafts_bytes_for(const struct assembly_limits *l)
{
    return assembly_bytes_for(l) + (int64_t)sizeof(struct drafts) + l->max_requests * (int64_t)sizeof(struct batch_span) +
           l->max_rows * (int64_t)(sizeof(struct draft_kept) + 2 * sizeof(int32_t));
}

/* ---- checks ---- */

static qr_status check_span(const struct drafts *d, const struct draft_span *s, int32_t b, int32_t rows, qr_error *err)
{
    const struct assembly_limits *l = &d->limits;
    int32_t vocab = l->plan->config.vocab_size;
    if (s->slot < 0 || s->slot >= l->slots)
        return qr_fail(err, QR_INTERNAL, "draft span %d has slot %d, wanted 0 to %lld", b, s->slot,
                       (long long)l->slots - 1);
    if (s->count < 1 || s->first_position < 0 || (int64_t)s->first_position + s->count > l->max_positions)
        return qr_fail(err, QR_INTERNAL, "draft span %d: %d rows from position %d, wanted at least 1 within 0 to %d", b,
                       s->count, s->first_position, l->max_positions - 1);
    if (s->logits_from < 0 || s->logits_from > s->count)
        return qr_fail(err, QR_INTERNAL, "draft span %d wants logits from row %d of %d", b, s->logits_from, s->count);
    for (int32_t i = 0; i < s->count; i++) {
        if (s->tokens[i] < 0 || s->tokens[i] >= vocab)
            return qr_fail(err, QR_INTERNAL, "draft span %d: token %d after position %d, the vocabulary has %d", b,
                           s->tokens[i], s->first_position + i, vocab);
        if (s->sources[i] < -1 || s->sources[i] >= rows)
            return qr_fail(err, QR_INTERNAL, "draft span %d: streams of row %d, the last step had %d rows", b,
                           s->sources[i], rows);
    }
    return QR_OK;
}

qr_status drafts_check(const struct drafts *d, const struct draft_span *spans, int32_t count, int32_t rows,
                       qr_error *err)
{
    const struct assembly_limits *l = &d->limits;
    int64_t all = 0, logits = 0;
    if (count < 1 || count > l->max_requests)
        return qr_fail(err, QR_INTERNAL, "draft pass of %d spans, wanted 1 to %d", count, l->max_requests);
    for (int32_t b = 0; b < count; b++) {
        qr_status st = check_span(d, &spans[b], b, rows, err);
        if (st != QR_OK)
            return st;
        for (int32_t before = 0; before < b; before++)
            if (spans[before].slot == spans[b].slot)
                return qr_fail(err, QR_INTERNAL, "draft spans %d and %d have the same slot %d", before, b,
                               spans[b].slot);
        all += spans[b].count;
        logits += spans[b].count - spans[b].logits_from;
    }
    if (all > l->max_rows || logits > l->max_logits)
        return qr_fail(err, QR_INTERNAL, "draft pass of %lld rows, %lld with logits: its buffers hold %d and %d",
                       (long long)all, (long long)logits, l->max_rows, l->max_logits);
    return QR_OK;
}

/* ---- the step ---- */

/* Where the streams of each row come from; row 0 stands in for kept ones until they are copied. */
static int32_t find_sources(struct drafts *d, const struct draft_span *spans, int32_t count)
{
    int32_t row = 0, kept = 0;
    for (int32_t b = 0; b < count; b++)
        for (int32_t i = 0; i < spans[b].count; i++, row++) {
            d->source[row] = spans[b].sources[i] < 0 ? 0 : spans[b].sources[i];
            if (spans[b].sources[i] < 0)
                d->kept[kept++] = (struct draft_kept){.row = row, .slot = spans[b].slot};
        }
    return kept;
}

qr_status drafts_fill(struct drafts *d, const struct draft_span *spans, int32_t count, struct model_draft *out,
                      qr_error *err)
{
    const struct batch batch = {.count = count, .spans = d->spans};
    for (int32_t b = 0; b < count; b++)
        d->spans[b] = (struct batch_span){.slot = spans[b].slot,
                                          .first_position = spans[b].first_position,
                                          .count = spans[b].count,
                                          .tokens = spans[b].tokens,
                                          .logits_from = spans[b].logits_from};
    int32_t kept = find_sources(d, spans, count);
    qr_status st = assembly_fill(d->assembly, &batch, err);
    if (st != QR_OK)
        return st;
    const struct step *step = assembly_step(d->assembly);
    *out = (struct model_draft){.step = step,
                                .rows = assembly_rows(d->assembly),
                                .source = d->device_source,
                                .kept = d->kept,
                                .kept_count = kept};
    return d->backend->upload(d->backend, d->device_source, d->source, step->rows * (int64_t)sizeof *d->source, err);
}
