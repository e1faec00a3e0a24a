#include "tools/verify_line.h"

#include "base/alloc.h"
#include "number/philox.h"
#include "tools/trace_download.h"

void line_close(struct line *l)
{
    runner_close(l->runner);
    qr_free(l->tokens);
    qr_free(l->blocks);
    qr_free(l->sources);
}

qr_status line_open(const struct machine *m, struct backend *backend, int32_t count, int32_t rows, int32_t logits, bool drafts,
                    struct line *out, qr_error *err)
{
    int32_t block = m->geometry.options.block_tokens;
    *out = (struct line){.m = m, .count = count, .block_count = (count + block - 1) / block};
    out->tokens = qr_calloc((size_t)count + 1, sizeof *out->tokens);
    out->blocks = qr_calloc((size_t)out->block_count, sizeof *out->blocks);
    out->sources = qr_calloc((size_t)rows, sizeof *out->sources);
    if (!out->tokens || !out->blocks || !out->sources)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a request of %d tokens", count);
    for (int32_t i = 0; i < out->block_count; i++) /* not in the order of a plain array */
        out->blocks[i] = out->block_count - i;
    for (int32_t i = 0; i < rows; i++)
        out->sources[i] = i;
    const int32_t draft_rows = m->config.drafter == QR_DRAFTER_DSPARK ? m->config.dspark_block_size : rows;
    if (drafts && m->config.drafter == QR_DRAFTER_DSPARK && logits < draft_rows)
        logits = draft_rows;
    const struct runner_options options = {.blocks = out->block_count + 1, .slots = 1,
                                           .model = {.max_rows = rows, .max_requests = 1, .max_logits = logits, .max_positions = count,
                                                     .max_draft_rows = drafts ? draft_rows : 0}};
    return runner_open(m->checkpoint, &m->plan, &m->geometry, backend, m->config.n_engram > 0 ? &m->map : NULL, &options,
                       &out->runner, err);
}

qr_status line_step(struct line *l, int32_t count, int32_t logits, qr_error *err)
{
    const struct batch_span span = {.request = 1, .blocks = l->blocks, .block_count = l->block_count, .first_position = l->position,
                                    .count = count, .tokens = l->tokens + l->position, .logits_from = count - logits, .final = true};
    const struct batch batch = {.step = (uint64_t)l->position + 1, .count = 1, .spans = &span};
    TRY(runner_step(l->runner, &batch, l->observer.at ? &l->observer : NULL, err));
    l->position += count;
    return QR_OK;
}

static qr_status draft_layer(struct line *l, int32_t count, qr_error *err)
{
    const struct draft_span span = {.first_position = l->position - count, .count = count, .tokens = l->tokens + l->position - count + 1,
                                    .sources = l->sources, .logits_from = count - 1};
    return runner_draft(l->runner, &span, 1, l->observer.at ? &l->observer : NULL, err);
}

static qr_status draft_block(struct line *l, qr_error *err)
{
    const struct qr_config *c = &l->m->config;
    int32_t before = l->tokens[l->position];
    const struct block_draft request = {.position = l->position, .anchor = before};
    TRY(runner_block_draft(l->runner, &request, 1, l->observer.at ? &l->observer : NULL, err));
    for (int32_t k = 0; k < c->dspark_block_size; k++) {
        TRY(runner_block_next(l->runner, k, &before, err));
        const float *logits;
        TRY(block_drafts_logits(runner_blocks(l->runner), 0, &logits, err));
        before = trace_best(logits, c->vocab_size);
    }
    return QR_OK;
}

qr_status line_draft(struct line *l, int32_t count, qr_error *err)
{
    return l->m->config.drafter == QR_DRAFTER_MTP ? draft_layer(l, count, err) : draft_block(l, err);
}

void line_draw_tokens(const struct machine *m, int32_t *out, int32_t count)
{
    const struct keyed_stream stream = {.seed = 4, .tag = STREAM_TARGET};
    for (int32_t i = 0; i < count; i++) {
        out[i] = (int32_t)(stream_word(&stream, (uint32_t)i) % (uint32_t)m->config.vocab_size);
        if (out[i] == m->config.image_token_id)
            out[i] = 0;
    }
}
