#include "tools/trace_drafts.h"

#include <math.h>
#include <stdio.h>

#include "base/alloc.h"

/* Drafts behind one prefix, and the keys of every stage up to the longest. */
struct prefix_arrays {
    float *logits, *base, *hidden, *confidence_logit, *confidence;
    int32_t *tokens;
};

struct sequence_drafts {
    struct prefix_arrays *prefix; /* [prefix_count]; zero where the same prefix stands earlier */
    uint8_t *codes[QR_MAX_LAYERS], *scales[QR_MAX_LAYERS];
    float *keys[QR_MAX_LAYERS]; /* instead, where keys are not codes alone: V4 */
    int32_t longest;
    const float *forced_taps; /* [count][targets * D] or NULL */
};

struct trace_drafts {
    struct trace_job job;
    struct trace_arrays *arrays;
    struct trace_download *reader;
    struct sequence_drafts *sequences;
};

/* Columns of a window key that share a scale (v41-model.md 5.2). */
enum { KEY_BLOCK = 32 };

static const struct qr_config *config(const struct trace_drafts *d) { return &d->job.plan->config; }

/* ---- the arrays ---- */

#define ADD(TARGET, DTYPE, SHAPE, ...) \
    TRY(arrays_add(d->arrays, TARGET, DTYPE, (int32_t)(sizeof(SHAPE) / sizeof *(SHAPE)), SHAPE, err, __VA_ARGS__))

static qr_status add_prefix(struct trace_drafts *d, const struct trace_sequence *s, int32_t n, struct prefix_arrays *out,
                            qr_error *err)
{
    const int64_t width = config(d)->dspark_block_size;
    const int64_t slots[] = {width}, rows[] = {width, config(d)->vocab_size}, hidden[] = {width, config(d)->hidden_size};

    ADD(&out->tokens, DTYPE_I32, slots, "%sdraft.%d.tokens", s->prefix, n);
    ADD(&out->logits, DTYPE_F32, rows, "%sdraft.%d.logits", s->prefix, n);
    ADD(&out->base, DTYPE_F32, rows, "%sdraft.%d.base", s->prefix, n);
    ADD(&out->hidden, DTYPE_F32, hidden, "%sdraft.%d.hidden", s->prefix, n);
    ADD(&out->confidence_logit, DTYPE_F32, slots, "%sdraft.%d.conf_logit", s->prefix, n);
    ADD(&out->confidence, DTYPE_F32, slots, "%sdraft.%d.conf", s->prefix, n);
    return QR_OK;
}

static qr_status add_rings(struct trace_drafts *d, const struct trace_sequence *s, struct sequence_drafts *out,
                           qr_error *err)
{
    const int64_t codes[] = {out->longest, config(d)->head_dim};
    const int64_t scales[] = {out->longest, config(d)->head_dim / KEY_BLOCK};
    for (int32_t stage = 0; stage < d->job.plan->draft_layers; stage++) {
        if (!runner_workspace(d->job.runner)->keys_packed.codes) {
            ADD(&out->keys[stage], DTYPE_F32, codes, "%sdraft.%d.ring.%d", s->prefix, out->longest, stage);
            continue;
        }
        ADD(&out->codes[stage], DTYPE_U8, codes, "%sdraft.%d.ring.%d.codes", s->prefix, out->longest, stage);
        ADD(&out->scales[stage], DTYPE_U8, scales, "%sdraft.%d.ring.%d.scales", s->prefix, out->longest, stage);
    }
    return QR_OK;
}

static bool stands_earlier(const struct trace_sequence *s, int32_t i)
{
    for (int32_t k = 0; k < i; k++)
        if (s->prefixes[k] == s->prefixes[i])
            return true;
    return false;
}

static qr_status find_taps(const struct trace_drafts *d, const struct trace_sequence *s, const float **out, qr_error *err)
{
    const int64_t wanted = (int64_t)s->count * config(d)->n_dspark_targets * config(d)->hidden_size;
    const struct tensor_view *view;
    char name[64];
    snprintf(name, sizeof name, "%staps", s->prefix);
    TRY(safetensors_get(d->job.force, name, &view, err));
    if (view->dtype != DTYPE_F32 || tensor_elements(view->rank, view->shape) != wanted)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has %lld values of %s, wanted %lld of F32",
                       safetensors_path(d->job.force), name, (long long)tensor_elements(view->rank, view->shape),
                       dtype_name(view->dtype), (long long)wanted);
    *out = view->data;
    return QR_OK;
}

static qr_status open_sequence(struct trace_drafts *d, const struct trace_sequence *s, struct sequence_drafts *out,
                               qr_error *err)
{
    if (s->prefix_count == 0)
        return QR_OK;
    out->prefix = qr_calloc((size_t)s->prefix_count, sizeof *out->prefix);
    if (!out->prefix)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the drafts behind %d prefixes", s->prefix_count);
    for (int32_t i = 0; i < s->prefix_count; i++) {
        const int32_t n = s->prefixes[i];
        if (n == s->count && s->next_token < 0)
            return qr_fail(err, QR_BAD_REQUEST, "draft_prefixes[%d] is %d, all of the tokens: next_token is missing", i, n);
        out->longest = n > out->longest ? n : out->longest;
        if (!stands_earlier(s, i))
            TRY(add_prefix(d, s, n, &out->prefix[i], err));
    }
    if (d->job.force)
        TRY(find_taps(d, s, &out->forced_taps, err));
    return add_rings(d, s, out, err);
}

static qr_status open_sequences(struct trace_drafts *d, qr_error *err)
{
    const int32_t count = d->job.input->count;
    d->sequences = qr_calloc((size_t)count, sizeof *d->sequences);
    if (!d->sequences)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the drafts of %d sequences", count);
    for (int32_t i = 0; i < count; i++)
        TRY(open_sequence(d, &d->job.input->sequences[i], &d->sequences[i], err));
    return QR_OK;
}

qr_status trace_drafts_open(const struct trace_job *job, struct trace_arrays *arrays, struct trace_download *reader,
                            struct trace_drafts **out, qr_error *err)
{
    struct trace_drafts *d = qr_calloc(1, sizeof *d);
    if (!d)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a trace of drafts");
    d->job = *job;
    d->arrays = arrays;
    d->reader = reader;
    qr_status st = open_sequences(d, err);
    if (st != QR_OK) {
        trace_drafts_close(d);
        return st;
    }
    *out = d;
    return QR_OK;
}

void trace_drafts_close(struct trace_drafts *d)
{
    if (!d)
        return;
    for (int32_t i = 0; d->sequences && i < d->job.input->count; i++)
        qr_free(d->sequences[i].prefix);
    qr_free(d->sequences);
    qr_free(d);
}

/* ---- while steps run ---- */

qr_status trace_drafts_force(struct trace_drafts *d, int32_t sequence, int32_t first_row, int32_t position,
                             int32_t count, const struct workspace *ws, qr_error *err)
{
    const int64_t cols = ws->taps.cols;
    const float *taps = d->sequences[sequence].forced_taps;
    if (!taps)
        return QR_OK;
    return trace_write_values(d->reader, ACT_BF16, ws->taps.codes, first_row * cols, taps + position * cols,
                              count * cols, err);
}

qr_status trace_drafts_keys(struct trace_drafts *d, int32_t sequence, int32_t stage, int32_t first_row,
                            int32_t position, int32_t count, const struct workspace *ws, qr_error *err)
{
    const struct sequence_drafts *s = &d->sequences[sequence];
    const int64_t n = config(d)->head_dim, scales = n / KEY_BLOCK, row = first_row, at = position;
    const int32_t left = s->longest - position, rows = count < left ? count : left;
    if (rows <= 0)
        return QR_OK;
    if (s->keys[stage])
        return trace_halves(d->reader, ws->keys, n, row, rows, s->keys[stage] + at * n, err);
    TRY(trace_bytes(d->reader, s->codes[stage] + at * n, (const uint8_t *)ws->keys_packed.codes + row * n, rows * n, err));
    return trace_bytes(d->reader, s->scales[stage] + at * scales,
                       (const uint8_t *)ws->keys_packed.scales + row * scales, rows * scales, err);
}

/* ---- drafts ---- */

/* The greedy chain behind the pass. */
static qr_status chain(struct trace_drafts *d, int32_t anchor, const struct prefix_arrays *out, qr_error *err)
{
    const int32_t vocab = config(d)->vocab_size;
    int32_t before = anchor;
    for (int32_t k = 0; k < config(d)->dspark_block_size; k++) {
        TRY(runner_block_next(d->job.runner, k, &before, err));
        const float *logits;
        TRY(block_drafts_logits(runner_blocks(d->job.runner), 0, &logits, err));
        for (int32_t v = 0; v < vocab; v++)
            out->logits[(int64_t)k * vocab + v] = logits[v];
        out->confidence_logit[k] = block_drafts_confidence(runner_blocks(d->job.runner), 0);
        out->confidence[k] = 1.0f / (1.0f + expf(-out->confidence_logit[k]));
        before = out->tokens[k] = trace_best(logits, vocab);
    }
    return QR_OK;
}

static qr_status draft(struct trace_drafts *d, int32_t slot, int32_t position, int32_t anchor,
                       const struct prefix_arrays *out, qr_error *err)
{
    const struct block_draft request = {.slot = slot, .position = position, .anchor = anchor};
    const struct workspace *ws = runner_workspace(d->job.runner);
    const int32_t width = config(d)->dspark_block_size;
    TRY(runner_block_draft(d->job.runner, &request, 1, NULL, err));
    TRY(trace_words(d->reader, ws->logits, config(d)->vocab_size, 0, width, out->base, err));
    TRY(trace_halves(d->reader, ws->draft_hidden.codes, config(d)->hidden_size, 0, width, out->hidden, err));
    return chain(d, anchor, out, err);
}

qr_status trace_drafts_at(struct trace_drafts *d, int32_t sequence, int32_t slot, int32_t position, qr_error *err)
{
    const struct trace_sequence *s = &d->job.input->sequences[sequence];
    for (int32_t i = 0; i < s->prefix_count; i++)
        if (s->prefixes[i] == position && d->sequences[sequence].prefix[i].tokens)
            TRY(draft(d, slot, position, position < s->count ? s->tokens[position] : s->next_token,
                      &d->sequences[sequence].prefix[i], err));
    return QR_OK;
}
