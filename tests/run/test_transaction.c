/* label: A14 */
/* A step is one transaction: what it does not name it does not touch, and what fails changes nothing
 * (runtime.md 3.8, 3.9; invariants I1, I2, I10 of 4.11). */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/rig.h"

#define MODEL "tests/golden/v41/pad/model"
enum { TOKENS = 100 };

struct fixture {
    struct rig rig;
    int32_t tokens[TOKENS];
    struct rig_request whole; /* the reference, in slot 3 */
    uint8_t *before;          /* copy of the pools */
    int64_t pool_bytes;
};

static void set_up(struct fixture *f, int32_t draft_width)
{
    rig_open(&f->rig, &(struct rig_options){.model = MODEL, .draft_width = draft_width});
    rig_tokens(&f->rig, 77, f->tokens, TOKENS);
    for (int i = 20; i < 24; i++)
        f->tokens[i] = f->rig.config.image_token_id;
    f->whole = rig_request(&f->rig, f->tokens, TOKENS, 3, 50, 1);
    rig_run(&f->rig, &f->whole, NULL);
    rig_pool(&f->rig, &f->pool_bytes);
    f->before = qr_malloc((size_t)f->pool_bytes);
    assert_non_null(f->before);
}

static void tear_down(struct fixture *f)
{
    rig_request_free(&f->whole);
    qr_free(f->before);
    rig_close(&f->rig);
}

static void remember(struct fixture *f) { memcpy(f->before, rig_pool(&f->rig, &f->pool_bytes), (size_t)f->pool_bytes); }

static void assert_pool_unchanged(struct fixture *f)
{
    assert_memory_equal(f->before, rig_pool(&f->rig, &f->pool_bytes), (size_t)f->pool_bytes);
}

static void assert_refused(struct fixture *f, const struct batch *batch, const char *part)
{
    struct cursor cursors[4], now;
    qr_error err = {0};
    for (int s = 0; s < 4; s++)
        cursors[s] = runner_cursor(f->rig.runner, s);
    remember(f);
    assert_int_equal(runner_step(f->rig.runner, batch, NULL, &err), QR_INTERNAL);
    if (!strstr(err.message, part))
        fail_msg("'%s' does not say '%s'", err.message, part);
    assert_pool_unchanged(f);
    for (int s = 0; s < 4; s++) {
        now = runner_cursor(f->rig.runner, s);
        assert_memory_equal(&cursors[s], &now, sizeof now);
    }
}

static void a_refused_step_changes_nothing_and_the_next_one_goes_on(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 0);
    struct rig_request q = rig_request(&f.rig, f.tokens, TOKENS, 0, 1, 1),
                       other = rig_request(&f.rig, f.tokens, TOKENS, 1, 5, 1);
    int32_t count = 37, bad_tokens[2] = {5, 320};
    rig_step(&f.rig, (struct rig_request *[]){&q}, &count, 1);
    rig_step(&f.rig, (struct rig_request *[]){&other}, &count, 1);

    struct batch_span good = rig_span(&f.rig, &q, 10), spans[2] = {good, rig_span(&f.rig, &other, 10)};
    struct batch batch = {.count = 2, .spans = spans};
    spans[1].first_position = 36;
    assert_refused(&f, &batch, "request 1 of the step starts at position 36, the cursor of its slot 1 is at 37");
    spans[1].first_position = 38;
    assert_refused(&f, &batch, "starts at position 38, the cursor of its slot 1 is at 37");
    spans[1] = rig_span(&f.rig, &other, 2);
    spans[1].tokens = bad_tokens;
    assert_refused(&f, &batch, "token 320 at position 38");
    spans[1] = rig_span(&f.rig, &other, 10);
    spans[1].slot = 0;
    assert_refused(&f, &batch, "same slot 0");
    spans[1] = rig_span(&f.rig, &other, 10);
    spans[1].blocks = q.blocks;
    assert_refused(&f, &batch, "written by request");
    batch.tentative = true;
    assert_refused(&f, &batch, "draft width of 0");

    rig_run(&f.rig, &q, (const int32_t[]){5, 0});
    rig_run(&f.rig, &other, NULL);
    assert_same_logits(&f.rig, &f.whole, &q, "after refused steps");
    assert_same_logits(&f.rig, &f.whole, &other, "after refused steps");
    rig_request_free(&q);
    rig_request_free(&other);
    tear_down(&f);
}

/* Marks the bytes of a block and of a slot as ones that may change. */
static void allow(struct fixture *f, uint8_t *allowed, const int32_t *blocks, int32_t count, int32_t slot)
{
    struct model_cache cache = runner_cache(f->rig.runner);
    const struct geometry *g = cache.geometry;
    const struct pool_layout *p = cache.pool;
    for (int32_t i = 0; i < count; i++) {
        memset(allowed + p->main_offset + blocks[i] * g->main_page_bytes, 1, (size_t)g->main_page_bytes);
        for (int32_t o = 0; o < g->owners; o++) {
            memset(allowed + p->index_offset[o] + blocks[i] * g->owner[o].index_block_bytes, 1,
                   (size_t)g->owner[o].index_block_bytes);
            memset(allowed + p->index_scale_offset[o] + blocks[i] * g->owner[o].index_scale_block_bytes, 1,
                   (size_t)g->owner[o].index_scale_block_bytes);
        }
    }
    memset(allowed + p->state_offset + slot * g->state_bytes, 1, (size_t)g->state_bytes);
}

static void a_step_touches_its_own_blocks_and_slots_only(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 0);
    rig_poison(&f.rig);
    struct rig_request q = rig_request(&f.rig, f.tokens, TOKENS, 0, 7, 2);
    static const int32_t counts[] = {40, 1, 1, 30, 28};
    for (int i = 0; i < 5; i++) {
        int32_t first = q.position / 32, last = (q.position + counts[i] - 1) / 32;
        uint8_t *allowed = qr_calloc((size_t)f.pool_bytes, 1);
        assert_non_null(allowed);
        allow(&f, allowed, q.blocks + first, last - first + 1, 0);
        remember(&f);
        rig_step(&f.rig, (struct rig_request *[]){&q}, &counts[i], 1);
        const uint8_t *now = rig_pool(&f.rig, &f.pool_bytes);
        for (int64_t b = 0; b < f.pool_bytes; b++)
            if (now[b] != f.before[b] && !allowed[b])
                fail_msg("step %d changed byte %lld of the pools, which it does not name", i, (long long)b);
        qr_free(allowed);
    }
    assert_same_logits(&f.rig, &f.whole, &q, "poisoned neighbours");
    rig_request_free(&q);
    tear_down(&f);
}

static qr_status stop_at_layer(void *user, enum model_point point, int32_t layer, const struct workspace *ws,
                               qr_error *err)
{
    (void)ws;
    if (point == POINT_BLOCK_INPUT && layer == *(const int32_t *)user)
        return qr_fail(err, QR_CANCELLED, "stopped at layer %d", layer);
    return QR_OK;
}

static void a_forward_that_breaks_off_costs_its_own_slot_only(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 0);
    for (int32_t layer = 0; layer < 4; layer++) {
        struct rig_request q = rig_request(&f.rig, f.tokens, TOKENS, 0, 1, 1),
                           other = rig_request(&f.rig, f.tokens, TOKENS, 1, 5, 1);
        struct model_observer observer = {.user = &layer, .at = stop_at_layer};
        int32_t count = 37;
        qr_error err = {0};
        rig_step(&f.rig, (struct rig_request *[]){&q}, &count, 1);
        rig_step(&f.rig, (struct rig_request *[]){&other}, &count, 1);

        struct batch_span span = rig_span(&f.rig, &q, 10);
        struct batch batch = {.count = 1, .spans = &span};
        assert_int_equal(runner_step(f.rig.runner, &batch, &observer, &err), QR_CANCELLED);
        assert_refused(&f, &batch, "starts at position 37, the cursor of its slot 0 is at -1");

        rig_run(&f.rig, &other, NULL);
        assert_same_logits(&f.rig, &f.whole, &other, "beside a failed step");
        q.position = 0;
        rig_run(&f.rig, &q, (const int32_t[]){50, 1, 0});
        assert_same_logits(&f.rig, &f.whole, &q, "after a failed step");
        rig_request_free(&q);
        rig_request_free(&other);
    }
    tear_down(&f);
}

/* Verify steps of up to `width` wrong or right drafts, any number of which is accepted: the request goes on as if it
 * had never been drafted. */
static void rejected_tokens_leave_no_trace(void **state)
{
    (void)state;
    enum { WIDTH = 5 };
    struct fixture f;
    set_up(&f, WIDTH);
    for (int32_t seed = 0; seed < 4; seed++) {
        struct rig_request q = rig_request(&f.rig, f.tokens, TOKENS, 0, 1, 1);
        size_t vocab = (size_t)f.rig.config.vocab_size;
        int32_t first = 1 + seed * 13;
        rig_step(&f.rig, (struct rig_request *[]){&q}, &first, 1);
        for (int32_t turn = seed; q.position < TOKENS; turn++) {
            int32_t left = TOKENS - q.position, rows = turn % (WIDTH + 1) + 1, drafts[WIDTH + 1];
            rows = rows < left ? rows : left;
            int32_t accepted = turn * 7 % rows + 1;
            for (int32_t i = 0; i < rows; i++) /* wrong from the first rejected one on */
                drafts[i] = i < accepted ? q.tokens[q.position + i] : (q.tokens[q.position + i] + 9) % 300 + 3;
            struct batch_span span = rig_span(&f.rig, &q, rows);
            struct batch batch = {.count = 1, .spans = &span, .tentative = true};
            qr_error err = {0};
            span.tokens = drafts;
            span.image_mask = NULL;
            uint8_t mask[WIDTH + 1];
            for (int32_t i = 0; i < rows; i++)
                mask[i] = drafts[i] == f.rig.config.image_token_id;
            span.image_mask = mask;
            if (runner_step(f.rig.runner, &batch, NULL, &err) != QR_OK)
                fail_msg("%s", err.message);
            memcpy(q.logits + (size_t)q.position * vocab, runner_workspace(f.rig.runner)->logits,
                   (size_t)accepted * vocab * sizeof *q.logits);
            assert_int_equal(runner_step(f.rig.runner, &batch, NULL, &err), QR_INTERNAL);
            assert_non_null(strstr(err.message, "outstanding"));
            assert_int_equal(runner_commit(f.rig.runner, &accepted, &err), QR_OK);
            assert_int_equal(runner_commit(f.rig.runner, &accepted, &err), QR_INTERNAL);
            q.position += accepted;
        }
        assert_same_logits(&f.rig, &f.whole, &q, "drafted");
        rig_request_free(&q);
    }
    tear_down(&f);
}

/* A slot that takes over pages of an earlier request at a block boundary: only the window is missing, so the rows of
 * the last window are run again from where the history says. */
static void a_placed_slot_starts_with_the_history_it_is_given(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 0);
    struct rig_request q = rig_request(&f.rig, f.tokens, TOKENS, 0, 1, 1);
    int32_t count = 26;
    rig_step(&f.rig, (struct rig_request *[]){&q}, &count, 1);
    struct cursor wanted = runner_cursor(f.rig.runner, 0), found;

    struct batch_span span = rig_span(&f.rig, &q, 1);
    struct batch batch = {.count = 1, .spans = &span, .tentative = false};
    qr_error err = {0};
    span.slot = 2;
    span.place = true;
    span.before = f.tokens + 23;
    span.before_mask = q.image_mask + 23;
    span.before_count = 3;
    assert_int_equal(runner_step(f.rig.runner, &batch, NULL, &err), QR_OK);
    count = 1;
    rig_step(&f.rig, (struct rig_request *[]){&q}, &count, 1);
    wanted = runner_cursor(f.rig.runner, 0);
    found = runner_cursor(f.rig.runner, 2);
    assert_memory_equal(&wanted, &found, sizeof wanted);

    /* The STATE entry holds the same cursor. */
    assert_int_equal(runner_restored(f.rig.runner, 2, &err), QR_OK);
    found = runner_cursor(f.rig.runner, 2);
    assert_memory_equal(&wanted, &found, sizeof wanted);
    rig_request_free(&q);
    tear_down(&f);
}

/* A cursor that goes on carries its history along. Debug builds make it again from the tokens that stand before the span
 * (runtime.md 3.7), and find one of other tokens; others do not look. */
static void a_carried_history_is_held_to_the_tokens(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 0);
    struct rig_request q = rig_request(&f.rig, f.tokens, TOKENS, 0, 1, 1);
    int32_t count = 26;
    rig_step(&f.rig, (struct rig_request *[]){&q}, &count, 1);
    struct batch_span span = rig_span(&f.rig, &q, 1);
    struct batch batch = {.count = 1, .spans = &span, .tentative = false};
    qr_error err = {0};
    span.before_count = 3;
    span.before_mask = q.image_mask + 23;
#ifdef QR_DEBUG
    int32_t others[3];
    for (int i = 0; i < 3; i++)
        others[i] = f.tokens[23 + i] + (f.tokens[23 + i] > 10 ? -7 : 7);
    span.before = others;
    assert_int_equal(runner_step(f.rig.runner, &batch, NULL, &err), QR_INTERNAL);
    assert_non_null(strstr(err.message, "history of other tokens"));
#endif
    span.before = f.tokens + 23;
    assert_int_equal(runner_step(f.rig.runner, &batch, NULL, &err), QR_OK);
    rig_request_free(&q);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_step_changes_nothing_and_the_next_one_goes_on),
        cmocka_unit_test(a_step_touches_its_own_blocks_and_slots_only),
        cmocka_unit_test(a_forward_that_breaks_off_costs_its_own_slot_only),
        cmocka_unit_test(rejected_tokens_leave_no_trace),
        cmocka_unit_test(a_placed_slot_starts_with_the_history_it_is_given),
        cmocka_unit_test(a_carried_history_is_held_to_the_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
