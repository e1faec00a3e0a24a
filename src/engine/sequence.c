#include "engine/engine.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

qr_status sequence_open(struct qr_engine *engine, int32_t slot, struct sequence *out, qr_error *err)
{
    const int32_t block = engine->geometry.options.block_tokens;
    const size_t blocks = (size_t)((engine->max_model_len + block - 1) / block);
    *out = (struct sequence){.engine = engine, .slot = slot};
    out->table = qr_calloc(blocks, sizeof *out->table);
    out->mask = qr_calloc((size_t)engine->max_rows, 1);
    if (!out->table || !out->mask) {
        sequence_close(out);
        return qr_fail(err, QR_NO_MEMORY, "no memory for a table of %zu blocks", blocks);
    }
    return QR_OK;
}

/* What the metrics say of the pools. */
static void note_pools(struct qr_engine *engine, bool slot_taken)
{
    pthread_mutex_lock(&engine->lock);
    engine->metrics.blocks_free = (uint64_t)blocks_free(engine->blocks);
    engine->metrics.slots_free = engine->metrics.slots_total - slot_taken;
    pthread_mutex_unlock(&engine->lock);
}

void sequence_close(struct sequence *s)
{
    if (s->blocks) {
        blocks_release(s->engine->blocks, s->table, s->blocks);
        note_pools(s->engine, false);
    }
    qr_free(s->table);
    qr_free(s->mask);
    *s = (struct sequence){0};
}

static qr_status grow(struct sequence *s, int32_t end, qr_error *err)
{
    const int32_t block = s->engine->geometry.options.block_tokens, need = (end + block - 1) / block;
    if (need <= s->blocks)
        return QR_OK;
    if (!blocks_take(s->engine->blocks, need - s->blocks, s->table + s->blocks))
        return qr_fail(err, QR_BUSY, "position %d needs %d more pages of %d tokens, %lld are free", end - 1,
                       need - s->blocks, block, (long long)blocks_free(s->engine->blocks));
    s->blocks = need;
    note_pools(s->engine, true);
    return QR_OK;
}

void sequence_plan(struct sequence *s, int32_t end, int32_t first_logits)
{
    const struct rows_request request = {.end = end, .boundary = -1, .first_logits = first_logits};
    rows_exact(&s->engine->model->plan, &request, &s->rows);
}

qr_status sequence_forward(struct sequence *s, int32_t end, int32_t logits_from, qr_error *err)
{
    struct qr_engine *engine = s->engine;
    const int32_t image = engine->model->config.image_token_id, count = end - s->position;
    bool images = false;
    qr_status st = grow(s, end, err);
    if (st != QR_OK)
        return st;
    for (int32_t i = 0; i < count; i++) {
        s->mask[i] = image >= 0 && s->tokens[s->position + i] == image;
        images |= s->mask[i];
    }
    const struct batch_span span = {
        .slot = s->slot, .blocks = s->table, .block_count = s->blocks, .first_position = s->position, .count = count,
        .tokens = s->tokens + s->position, .image_mask = images ? s->mask : NULL,
        .logits_from = logits_from > s->position ? logits_from - s->position : 0,
        .rows = s->position < s->rows.end ? &s->rows : NULL};
    const struct batch batch = {.count = 1, .spans = &span};
    const double start = clock_seconds();
    st = runner_step(engine->runner, &batch, NULL, err);
    const double spent = clock_seconds() - start;
    s->seconds += spent;
    pthread_mutex_lock(&engine->lock);
    engine->metrics.steps++;
    engine->metrics.step_seconds += spent;
    *(s->position < s->rows.end ? &engine->metrics.prefill_rows : &engine->metrics.decode_rows) += (uint64_t)count;
    pthread_mutex_unlock(&engine->lock);
    if (st == QR_OK)
        s->position = end;
    return st;
}

qr_status sequence_logits(struct sequence *s, int32_t i, const float **out, qr_error *err)
{
    struct qr_engine *engine = s->engine;
    const int64_t vocab = engine->model->config.vocab_size;
    const float *row = runner_workspace(engine->runner)->logits + i * vocab;
    *out = engine->logits;
    return engine->backend->download(engine->backend, engine->logits, row, vocab * (int64_t)sizeof *row, err);
}
