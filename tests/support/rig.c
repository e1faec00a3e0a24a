#include "ops/device.h"
#include "support/rig.h"

#include <string.h>

#include "base/alloc.h"
#include "plan/settle.h"
#include "support/shared_memory.h"
#include "support/support.h"

static void open_map(struct rig *r, const char *folder)
{
    struct tokenizer *tok;
    qr_error err = {0};
    must(tok_open_ids(folder, NULL, &tok, &err), &err);
    must(token_map_build(tok, &r->map, &err), &err);
    tok_close(tok);
}

void rig_open(struct rig *r, const struct rig_options *o)
{
    const char *folder = o->model[0] == '/' ? o->model : source_path(o->model);
    qr_error err = {0};
    memset(r, 0, sizeof *r);
    must(model_folder_open(folder, &r->config, &r->checkpoint, &err), &err);
    must(plan_make(&r->config, o->profile, &r->plan, &err), &err);
    r->max_rows = o->max_rows ? o->max_rows : 256;

    struct geometry_options g = geometry_defaults(&r->plan);
    if (r->plan.max_ratio <= 2)
        g.block_tokens = 32;
    if (o->block)
        g.block_tokens = o->block;
    g.draft_width = o->draft_width;
    if (o->formats) {
        g.main_format = o->main_format;
        g.index_format = o->index_format;
    }
    must(geometry_make(&r->plan, &g, &r->geometry, &err), &err);
    r->geometry.ring_rows -= o->ring_short;
    must(geometry_place(&r->geometry, &err), &err);
    if (r->config.n_engram > 0)
        open_map(r, folder);
    const char *usual = test_device_is_cuda() ? "cuda" : "cpu-reference";
    must(backend_open(o->device ? o->device : usual, o->threads ? o->threads : 1, NULL, &r->backend, &err),
         &err);

    const struct runner_options options = {.pads = o->pads,
                                           .blocks = o->blocks ? o->blocks : 64,
                                           .slots = o->slots ? o->slots : 4,
                                           .model = {.max_rows = r->max_rows,
                                                     .max_requests = o->max_requests ? o->max_requests : 4,
                                                     .max_logits = r->max_rows,
                                                     .attention_rows = o->attention_rows,
                                                     .max_draft_rows = o->draft_rows,
                                                     .max_positions = o->max_positions ? o->max_positions : 1024}};
    must(runner_open(r->checkpoint, &r->plan, &r->geometry, r->backend, r->config.n_engram > 0 ? &r->map : NULL,
                     &options, &r->runner, &err),
         &err);
}

void rig_close(struct rig *r)
{
    runner_close(r->runner);
    r->backend->close(r->backend);
    token_map_free(&r->map);
    checkpoint_close(r->checkpoint);
}

static int32_t blocks_of(const struct rig *r, int32_t tokens)
{
    int32_t block = r->geometry.options.block_tokens;
    return (tokens + block - 1) / block;
}

struct rig_request rig_request(const struct rig *r, const int32_t *tokens, int32_t count, int32_t slot,
                               int32_t first_block, int32_t step)
{
    struct rig_request q = {.tokens = tokens, .count = count, .slot = slot};
    q.image_mask = qr_calloc((size_t)count, 1);
    q.blocks = qr_calloc((size_t)blocks_of(r, count), sizeof *q.blocks);
    q.logits = qr_calloc((size_t)count * (size_t)r->config.vocab_size, sizeof *q.logits);
    assert_true(q.image_mask && q.blocks && q.logits);
    for (int32_t i = 0; i < blocks_of(r, count); i++)
        q.blocks[i] = first_block + i * step;
    for (int32_t i = 0; i < count; i++)
        q.image_mask[i] = tokens[i] == r->config.image_token_id;
    return q;
}

void rig_request_free(struct rig_request *q)
{
    qr_free(q->image_mask);
    qr_free(q->blocks);
    qr_free(q->logits);
}

struct batch_span rig_span(const struct rig *r, const struct rig_request *q, int32_t count)
{
    return (struct batch_span){.slot = q->slot,
                               .blocks = q->blocks,
                               .block_count = blocks_of(r, q->count),
                               .first_position = q->position,
                               .count = count,
                               .tokens = q->tokens + q->position,
                               .image_mask = q->image_mask + q->position};
}

void rig_read(const struct rig *r, void *out, const void *from, int64_t bytes)
{
    struct backend *b = r->backend;
    qr_error err = {0};
    must(b->download(b, out, from, bytes, &err), &err);
    must(b->fence(b, &err), &err);
}

void rig_step(struct rig *r, struct rig_request *const *requests, const int32_t *counts, int32_t n)
{
    struct batch_span spans[16];
    struct batch batch = {.spans = spans};
    qr_error err = {0};
    for (int32_t i = 0; i < n; i++)
        if (counts[i] > 0)
            spans[batch.count++] = rig_span(r, requests[i], counts[i]);
    must(runner_step(r->runner, &batch, NULL, &err), &err);

    const float *logits = runner_workspace(r->runner)->logits;
    size_t vocab = (size_t)r->config.vocab_size;
    for (int32_t i = 0; i < n; i++) {
        struct rig_request *q = requests[i];
        rig_read(r, q->logits + (size_t)q->position * vocab, logits,
                 (int64_t)((size_t)counts[i] * vocab * sizeof *logits));
        logits += (size_t)counts[i] * vocab;
        q->position += counts[i];
        if (counts[i] > 0)
            assert_int_equal(runner_cursor(r->runner, q->slot).position, q->position);
    }
}

void rig_run(struct rig *r, struct rig_request *q, const int32_t *chunks)
{
    while (q->position < q->count) {
        int32_t left = q->count - q->position, count = chunks && *chunks < left ? *chunks : left;
        rig_step(r, &q, &count, 1);
        if (chunks && chunks[1])
            chunks++;
    }
}

void assert_same_logits(const struct rig *r, const struct rig_request *a, const struct rig_request *b, const char *what)
{
    size_t vocab = (size_t)r->config.vocab_size;
    assert_int_equal(a->position, b->position);
    for (int32_t p = 0; p < a->position; p++)
        if (memcmp(a->logits + (size_t)p * vocab, b->logits + (size_t)p * vocab, vocab * sizeof(float)) != 0)
            fail_msg("%s: the logits of position %d differ", what, p);
}

uint8_t *rig_pool(const struct rig *r, int64_t *bytes)
{
    struct model_cache cache = runner_cache(r->runner);
    *bytes = cache.pool->bytes;
    return cache.base;
}

static void fill(struct backend *b, uint8_t *at, int64_t bytes)
{
    uint8_t *nan = qr_malloc((size_t)bytes);
    qr_error err = {0};
    assert_non_null(nan);
    memset(nan, 0xFF, (size_t)bytes);
    must(b->upload(b, at, nan, bytes, &err), &err);
    must(b->fence(b, &err), &err);
    qr_free(nan);
}

void rig_poison(struct rig *r)
{
    const struct workspace *ws = runner_workspace(r->runner);
    uint8_t *first = ws->streams.data; /* the first buffer of the workspace, and its last */
    uint8_t *end = (uint8_t *)(ws->logits + (size_t)r->max_rows * (size_t)r->config.vocab_size);
    int64_t kept = (int64_t)((size_t)r->max_rows * (size_t)r->config.hc_mult * sizeof(float)), bytes;
    float *pre_first = qr_malloc((size_t)kept);
    struct backend *b = r->backend;
    qr_error err = {0};

    assert_non_null(pre_first);
    rig_read(r, pre_first, ws->pre_first, kept);
    fill(b, first, end - first);
    must(b->upload(b, ws->pre_first, pre_first, kept, &err), &err);
    uint8_t *pool = rig_pool(r, &bytes);
    fill(b, pool, bytes);
    qr_free(pre_first);
}

void rig_tokens(const struct rig *r, uint32_t seed, int32_t *out, int32_t count)
{
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (int32_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        out[i] = 3 + (int32_t)((state >> 33) % (uint64_t)(r->config.vocab_size - 3));
    }
}
