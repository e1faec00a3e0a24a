#include "tools/accept_lab.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "engine/model.h"
#include "ops/device.h"
#include "run/page_watch.h"

static qr_status open_parts(struct lab *lab, qr_error *err)
{
    struct accept *a = lab->a;
    const qr_model *model = a->model;
    const struct qr_log log = model_options_log(a->options);
    struct geometry_options g = geometry_defaults(&a->plan);
    g.block_tokens = a->block;
    g.draft_width = 0;
    TRY(geometry_make(&a->plan, &g, &lab->geometry, err));
    TRY(backend_open(a->options->device, a->options->threads, &log, &lab->backend, err));
    const struct runner_options options = {.blocks = LAB_BLOCKS,
                                           .slots = LAB_SLOTS,
                                           .model = {.max_rows = lab->rows,
                                                     .max_requests = LAB_SLOTS,
                                                     .max_logits = lab->rows,
                                                     .max_positions = ACCEPT_LONGEST}};
    return runner_open(model->checkpoint, &a->plan, &lab->geometry, lab->backend,
                       a->config.n_engram > 0 ? &model->map : NULL, &options, &lab->runner, err);
}

qr_status lab_open(struct accept *a, int32_t rows, struct lab *out, qr_error *err)
{
    *out = (struct lab){.a = a, .rows = rows};
    const qr_status st = open_parts(out, err);
    if (st != QR_OK)
        lab_close(out);
    return st;
}

void lab_close(struct lab *lab)
{
    runner_close(lab->runner);
    if (lab->backend)
        lab->backend->close(lab->backend);
    lab->runner = NULL;
    lab->backend = NULL;
}

/* ---- requests ---- */

qr_status lab_request(const struct lab *lab, const int32_t *tokens, int32_t count, int32_t slot, bool logits,
                      struct lab_request *out, qr_error *err)
{
    const int32_t blocks = (count + lab->a->block - 1) / lab->a->block;
    *out = (struct lab_request){.tokens = tokens, .count = count, .slot = slot};
    for (int32_t i = 0; i < blocks; i++)
        out->blocks[i] = LAB_BLOCKS - 1 - 2 * i - (slot & 1) - (slot & 2) * (LAB_BLOCKS / 4);
    if (!logits)
        return QR_OK;
    out->logits = qr_calloc((size_t)count * (size_t)lab->a->config.vocab_size, sizeof *out->logits);
    return out->logits ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for logits of %d rows", count);
}

void lab_request_free(struct lab_request *q) { qr_free(q->logits); }

struct batch_span lab_span(const struct lab *lab, const struct lab_request *q, int32_t count)
{
    return (struct batch_span){.slot = q->slot,
                               .blocks = q->blocks,
                               .block_count = (q->count + lab->a->block - 1) / lab->a->block,
                               .first_position = q->position,
                               .count = count,
                               .tokens = q->tokens + q->position};
}

qr_status lab_step(struct lab *lab, struct lab_request *q, const struct batch_span *span,
                   const struct model_observer *observer, qr_error *err)
{
    const struct batch batch = {.count = 1, .spans = span};
    const int64_t vocab = lab->a->config.vocab_size;
    TRY(runner_step(lab->runner, &batch, observer, err));
    q->position = span->first_position + span->count;
    if (runner_cursor(lab->runner, q->slot).position != q->position)
        return qr_fail(err, QR_INTERNAL, "behind rows %d to %d the cursor stands at %lld", span->first_position,
                       q->position - 1, (long long)runner_cursor(lab->runner, q->slot).position);
    if (!q->logits || span->logits_from == span->count)
        return QR_OK;
    return lab_read(lab, q->logits + (span->first_position + span->logits_from) * vocab,
                    runner_workspace(lab->runner)->logits,
                    (span->count - span->logits_from) * vocab * (int64_t)sizeof(float), err);
}

qr_status lab_run(struct lab *lab, struct lab_request *q, const int32_t *chunks, qr_error *err)
{
    while (q->position < q->count) {
        const int32_t left = q->count - q->position, count = chunks && *chunks < left ? *chunks : left;
        const struct batch_span span = lab_span(lab, q, count);
        TRY(lab_step(lab, q, &span, NULL, err));
        if (chunks && chunks[1])
            chunks++;
    }
    return QR_OK;
}

qr_status lab_same(const struct lab *lab, const struct lab_request *alone, const struct lab_request *q,
                   const char *what, qr_error *err)
{
    const size_t vocab = (size_t)lab->a->config.vocab_size;
    for (int32_t p = 0; p < alone->position && p < q->position; p++)
        if (memcmp(alone->logits + (size_t)p * vocab, q->logits + (size_t)p * vocab, vocab * sizeof(float)) != 0)
            return qr_fail(err, QR_INTERNAL, "%s: the logits of position %d differ", what, p);
    return QR_OK;
}

/* ---- backend memory ---- */

qr_status lab_read(const struct lab *lab, void *out, const void *from, int64_t bytes, qr_error *err)
{
    TRY(lab->backend->download(lab->backend, out, from, bytes, err));
    return lab->backend->fence(lab->backend, err);
}

qr_status lab_fill(const struct lab *lab, void *at, int value, int64_t bytes, qr_error *err)
{
    uint8_t *filled = qr_malloc((size_t)bytes);
    if (!filled)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %lld bytes", (long long)bytes);
    memset(filled, value, (size_t)bytes);
    qr_status st = lab->backend->upload(lab->backend, at, filled, bytes, err);
    if (st == QR_OK)
        st = lab->backend->fence(lab->backend, err);
    qr_free(filled);
    return st;
}

qr_status lab_poison(const struct lab *lab, bool pools, qr_error *err)
{
    const struct workspace *ws = runner_workspace(lab->runner);
    const struct model_cache cache = runner_cache(lab->runner);
    const int64_t kept = lab->rows * (int64_t)lab->a->config.hc_mult * (int64_t)sizeof(float);
    uint8_t *first = ws->streams.data; /* the first buffer of the workspace, and its last */
    uint8_t *end = (uint8_t *)(ws->logits + (int64_t)lab->rows * lab->a->config.vocab_size);
    uint8_t *pre_first = qr_malloc((size_t)kept);
    if (!pre_first)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %lld bytes", (long long)kept);
    qr_status st = lab_read(lab, pre_first, ws->pre_first, kept, err);
    if (st == QR_OK)
        st = lab_fill(lab, first, 0xFF, end - first, err);
    if (st == QR_OK)
        st = lab->backend->upload(lab->backend, ws->pre_first, pre_first, kept, err);
    if (st == QR_OK && pools)
        st = lab_fill(lab, cache.base, 0xFF, cache.pool->bytes, err);
    if (st == QR_OK)
        st = lab->backend->fence(lab->backend, err);
    qr_free(pre_first);
    return st;
}

uint8_t *lab_pools(const struct lab *lab, qr_error *err)
{
    const struct model_cache cache = runner_cache(lab->runner);
    uint8_t *copy = qr_malloc((size_t)cache.pool->bytes);
    if (copy && lab_read(lab, copy, cache.base, cache.pool->bytes, err) != QR_OK) {
        qr_free(copy);
        copy = NULL;
    }
    return copy;
}

qr_status lab_others_unchanged(const struct lab *lab, const struct lab_request *q, const uint8_t *before, const uint8_t *after,
                               qr_error *err)
{
    const struct model_cache cache = runner_cache(lab->runner);
    const int64_t slot = cache.pool->state_offset, bytes = lab->geometry.state_bytes;
    if (!before || !after)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a copy of the pools");
    for (block_id id = 0; id < LAB_BLOCKS; id++) {
        bool own = false;
        for (int32_t i = 0; i * lab->a->block < q->count; i++)
            own |= q->blocks[i] == id;
        if (!own && page_sum(&lab->geometry, cache.pool, before, id) != page_sum(&lab->geometry, cache.pool, after, id))
            return qr_fail(err, QR_INTERNAL, "page %d, which no row names, was changed", id);
    }
    for (int32_t s = 0; s < LAB_SLOTS; s++)
        if (s != q->slot && memcmp(before + slot + s * bytes, after + slot + s * bytes, (size_t)bytes) != 0)
            return qr_fail(err, QR_INTERNAL, "slot %d, which no row names, was changed", s);
    return QR_OK;
}
