/* The blocks of a DSpark drafter in the runner (speculation.md 2.4 to 2.6, 3, 12: T9, T10, T12): which rows they read, where
 * they stand, and that each of their rows sees all of them. */
#include "support/rig.h"

#include <string.h>

#include "base/alloc.h"
#include "cache/row_places.h"
#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model"
enum { TOKENS = 40, WIDTH = 3 };

struct fixture {
    struct rig rig;
    int32_t tokens[TOKENS + 1];
    struct rig_request q;
    size_t bytes; /* of the logits of a block */
    uint8_t *first, *second;
};

static void set_up(struct fixture *f)
{
    rig_open(&f->rig, &(struct rig_options){.model = SPEC_V41, .draft_width = WIDTH, .draft_rows = WIDTH, .max_requests = 1});
    rig_tokens(&f->rig, 5, f->tokens, TOKENS + 1);
    f->q = rig_request(&f->rig, f->tokens, TOKENS, 0, 1, 1);
    rig_run(&f->rig, &f->q, (const int32_t[]){7, 0});
    f->bytes = WIDTH * (size_t)f->rig.config.vocab_size * sizeof(float);
    f->first = qr_malloc(f->bytes);
    f->second = qr_malloc(f->bytes);
    assert_true(f->first && f->second);
}

static void tear_down(struct fixture *f)
{
    qr_free(f->first);
    qr_free(f->second);
    rig_request_free(&f->q);
    rig_close(&f->rig);
}

static void draft(struct fixture *f, int32_t valid_from, const struct model_observer *observer, uint8_t *out)
{
    const struct block_draft block = {
        .slot = 0, .position = TOKENS, .anchor = f->tokens[TOKENS], .valid_from = valid_from};
    qr_error err = {0};
    must(runner_block_draft(f->rig.runner, &block, 1, observer, &err), &err);
    rig_read(&f->rig, out, runner_workspace(f->rig.runner)->logits, (int64_t)f->bytes);
}

/* The rows of positions [from, to) in the drafter's rings. */
static void spoil(struct fixture *f, int32_t from, int32_t to)
{
    const struct model_cache cache = runner_cache(f->rig.runner);
    const struct row_pool pool = {.geometry = cache.geometry, .layout = cache.pool, .base = cache.base};
    uint8_t nan[1024];
    qr_error err = {0};
    memset(nan, 0xFF, sizeof nan);
    for (int32_t layer = f->rig.plan.layers; layer < cache.geometry->ring_layers; layer++)
        for (int32_t p = from; p < to; p++) {
            const struct row_bytes row = place_window(&pool, 0, layer, p);
            must(f->rig.backend->upload(f->rig.backend, row.at, nan, row.bytes, &err), &err);
        }
}

static void no_row_below_the_first_valid_one_is_read(void **state)
{
    (void)state;
    const int32_t window = 8;
    struct fixture f;
    set_up(&f);
    assert_int_equal(f.rig.config.sliding_window, window);
    draft(&f, 0, NULL, f.first);
    draft(&f, TOKENS - window, NULL, f.second); /* the whole window is there */
    assert_memory_equal(f.first, f.second, f.bytes);
    draft(&f, TOKENS - 3, NULL, f.first);
    spoil(&f, TOKENS - window, TOKENS - 3);
    draft(&f, TOKENS - 3, NULL, f.second); /* what stands below may be anything */
    assert_memory_equal(f.first, f.second, f.bytes);
    draft(&f, TOKENS - 4, NULL, f.second);
    assert_memory_not_equal(f.first, f.second, f.bytes);
    tear_down(&f);
}

/* Every row of the window is read, the oldest too, and none older. */
static void the_window_of_a_block_ends_before_its_anchor(void **state)
{
    (void)state;
    struct fixture f;
    for (int32_t p = TOKENS - 11; p < TOKENS; p++) {
        set_up(&f);
        draft(&f, 0, NULL, f.first);
        spoil(&f, p, p + 1);
        draft(&f, 0, NULL, f.second);
        assert_int_equal(memcmp(f.first, f.second, f.bytes) != 0, p >= TOKENS - 8);
        tear_down(&f);
    }
}

/* Turns one row of the block into another before the first stage. */
static qr_status change_last_row(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct fixture *f = user;
    const struct streams *x = &ws->streams;
    const int64_t bytes = (int64_t)x->count * x->hidden * (x->format == ACT_BF16 ? 2 : 4);
    uint8_t *rows = x->data;
    (void)err;
    if (point == POINT_BLOCK_INPUT && layer == f->rig.plan.layers)
        return f->rig.backend->copy(f->rig.backend, rows + 2 * bytes, rows, bytes, err);
    return QR_OK;
}

/* A causal mask would leave the first row's logits as they were. */
static void the_first_row_of_a_block_sees_the_last(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    const struct model_observer observer = {.user = &f, .at = change_last_row};
    const size_t row = (size_t)f.rig.config.vocab_size * sizeof(float);
    draft(&f, 0, NULL, f.first);
    draft(&f, 0, &observer, f.second);
    for (size_t k = 0; k < WIDTH; k++)
        assert_memory_not_equal(f.first + k * row, f.second + k * row, row);
    tear_down(&f);
}

static qr_status (*real_fence)(struct backend *backend, qr_error *err);
static int fences;

static qr_status count_fence(struct backend *backend, qr_error *err)
{
    fences++;
    return real_fence(backend, err);
}

/* However many requests draft, the host waits once for a slot of all of them; and each gets what it gets alone. */
static void a_slot_of_all_blocks_waits_once(void **state)
{
    (void)state;
    enum { REQUESTS = 3 };
    struct rig r;
    int32_t tokens[TOKENS + 1], anchors[REQUESTS];
    struct block_draft blocks[REQUESTS];
    struct rig_request q[REQUESTS];
    float confidence[REQUESTS], *alone;
    const float *logits;
    qr_error err = {0};
    rig_open(&r, &(struct rig_options){.model = SPEC_V41, .draft_width = WIDTH, .draft_rows = REQUESTS * WIDTH,
                                       .max_requests = REQUESTS});
    rig_tokens(&r, 5, tokens, TOKENS + 1);
    const size_t vocab = (size_t)r.config.vocab_size;
    alone = qr_calloc(REQUESTS * vocab, sizeof *alone);
    assert_non_null(alone);
    for (int32_t b = 0; b < REQUESTS; b++) {
        const int32_t count = TOKENS - 5 * b;
        q[b] = rig_request(&r, tokens, count, b, 1 + 4 * b, 1);
        rig_run(&r, &q[b], NULL);
        anchors[b] = tokens[count];
        blocks[b] = (struct block_draft){.slot = b, .position = count, .anchor = anchors[b]};
        must(runner_block_draft(r.runner, &blocks[b], 1, NULL, &err), &err);
        must(runner_block_next(r.runner, 0, &anchors[b], &err), &err);
        must(block_drafts_logits(runner_blocks(r.runner), 0, &logits, &err), &err);
        memcpy(alone + (size_t)b * vocab, logits, vocab * sizeof *alone);
        confidence[b] = block_drafts_confidence(runner_blocks(r.runner), 0);
    }
    must(runner_block_draft(r.runner, blocks, REQUESTS, NULL, &err), &err);
    real_fence = r.backend->fence;
    r.backend->fence = count_fence;
    fences = 0;
    must(runner_block_next(r.runner, 0, anchors, &err), &err);
    r.backend->fence = real_fence;
    assert_int_equal(fences, 1);
    for (int32_t b = 0; b < REQUESTS; b++) {
        must(block_drafts_logits(runner_blocks(r.runner), b, &logits, &err), &err);
        assert_memory_equal(alone + (size_t)b * vocab, logits, vocab * sizeof *alone);
        assert_true(confidence[b] == block_drafts_confidence(runner_blocks(r.runner), b));
        rig_request_free(&q[b]);
    }
    qr_free(alone);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_row_below_the_first_valid_one_is_read),
        cmocka_unit_test(the_window_of_a_block_ends_before_its_anchor),
        cmocka_unit_test(the_first_row_of_a_block_sees_the_last),
        cmocka_unit_test(a_slot_of_all_blocks_waits_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
