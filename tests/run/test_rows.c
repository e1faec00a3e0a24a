/* label: release A10 */
/* Rows that nothing later reads are not run, and nobody can tell: a trimmed prompt, a prefix taken over from another
 * request's blocks, and one restored from a copied state go on with the bits of a cold, untrimmed pass
 * (runtime.md 7.5). */
#include "support/support.h"

#include <string.h>

#include "support/rig.h"

static const char *const models[] = {"tests/golden/v41/spec-13.1/model", "tests/golden/v41/pad/model",
                                     "models/tiny-v41"};
enum { MODELS = sizeof models / sizeof *models, LONGEST = 330, DECODED = 12 };

struct fixture {
    struct rig rig;
    int32_t tokens[LONGEST];
    struct rig_request cold; /* untrimmed, in slot 3 */
    int32_t end;             /* of the prompt; DECODED tokens follow */
};

static void set_up(struct fixture *f, int model, int32_t end)
{
    rig_open(&f->rig, &(struct rig_options){.model = models[model], .device = "cpu", .max_rows = LONGEST});
    rig_tokens(&f->rig, 100 + (uint32_t)model, f->tokens, LONGEST);
    f->end = end;
    f->cold = rig_request(&f->rig, f->tokens, end + DECODED, 3, 50, 1);
    rig_run(&f->rig, &f->cold, NULL);
}

static void tear_down(struct fixture *f)
{
    rig_request_free(&f->cold);
    rig_close(&f->rig);
}

/* Runs the rest of the prompt on the rows of `rows`, cut into chunks of `chunk`, the logits of its last token only. The
 * first span places the slot when `place`. */
static void run_prompt(struct fixture *f, struct rig_request *q, const struct row_plan *rows, int32_t write_from,
                       bool place, int32_t chunk)
{
    size_t vocab = (size_t)f->rig.config.vocab_size;
    q->position = rows->first;
    while (q->position < f->end) {
        int32_t left = f->end - q->position, count = chunk < left ? chunk : left,
                history = q->position < 3 ? q->position : 3;
        struct batch_span span = rig_span(&f->rig, q, count);
        struct batch batch = {.count = 1, .spans = &span};
        qr_error err = {0};
        span.rows = rows;
        span.write_from = write_from;
        span.logits_from = count == left ? count - 1 : count;
        span.place = place;
        span.before = q->tokens + q->position - history;
        span.before_mask = q->image_mask + q->position - history;
        span.before_count = history;
        if (runner_step(f->rig.runner, &batch, NULL, &err) != QR_OK)
            fail_msg("%s", err.message);
        q->position += count;
        place = false;
    }
    rig_read(&f->rig, q->logits + (size_t)(f->end - 1) * vocab, runner_workspace(f->rig.runner)->logits,
             (int64_t)(vocab * sizeof *q->logits));
}

/* Decodes past the prompt and compares everything from the prompt's last token on. */
static void decode_and_compare(struct fixture *f, struct rig_request *q, const char *what)
{
    size_t vocab = (size_t)f->rig.config.vocab_size;
    rig_run(&f->rig, q, (const int32_t[]){1, 0});
    for (int32_t p = f->end - 1; p < f->end + DECODED; p++)
        if (memcmp(q->logits + (size_t)p * vocab, f->cold.logits + (size_t)p * vocab, vocab * sizeof(float)) != 0)
            fail_msg("%s: the logits of position %d differ", what, p);
}

static void a_trimmed_prompt_goes_on_with_the_bits_of_a_full_one(void **state)
{
    (void)state;
    static const int32_t chunks[] = {LONGEST, 100, 37};
    for (int m = 0; m < MODELS; m++) {
        struct fixture f;
        set_up(&f, m, 311);
        const struct rows_request request = {.end = f.end, .boundary = -1, .first_logits = f.end - 1};
        struct row_plan rows, every;
        rows_exact(&f.rig.plan, &request, &rows);
        rows_all(&f.rig.plan, 0, f.end, &every);
        assert_true(rows_query_total(&f.rig.plan, &rows) < rows_query_total(&f.rig.plan, &every));
        for (int i = 0; i < 3; i++) {
            struct rig_request q = rig_request(&f.rig, f.tokens, f.end + DECODED, 0, 2, 3);
            rig_poison(&f.rig);
            run_prompt(&f, &q, &rows, 0, false, chunks[i]);
            decode_and_compare(&f, &q, models[m]);
            rig_request_free(&q);
        }
        tear_down(&f);
    }
}

/* Another request has left the blocks of the first `cached` tokens; there is no state. */
static void a_prefix_without_a_state_is_rebuilt_from_its_blocks(void **state)
{
    (void)state;
    static const int32_t cached[] = {32, 96, 160, 288};
    for (int m = 0; m < MODELS; m++) {
        for (int i = 0; i < 4; i++) {
            struct fixture f;
            set_up(&f, m, cached[i] + (i == 1 ? 1 : 21));
            const struct rows_request request = {
                .cached = cached[i], .end = f.end, .boundary = -1, .first_logits = f.end - 1};
            struct row_plan rows;
            struct rig_request first = rig_request(&f.rig, f.tokens, cached[i], 1, 1, 1),
                               q = rig_request(&f.rig, f.tokens, f.end + DECODED, 0, 1, 1);
            rig_poison(&f.rig);
            rig_run(&f.rig, &first, NULL);
            rows_exact(&f.rig.plan, &request, &rows);
            for (int32_t b = cached[i] / 32; b * 32 < q.count; b++)
                q.blocks[b] = 40 - b; /* its own from here on */
            run_prompt(&f, &q, &rows, cached[i], true, i % 2 ? 50 : LONGEST);
            decode_and_compare(&f, &q, models[m]);
            rig_request_free(&first);
            rig_request_free(&q);
            tear_down(&f);
        }
    }
}

/* The same with a copy of the state at the boundary: only the suffix is run. */
static void a_prefix_with_a_copied_state_goes_on_where_it_was(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct fixture f;
        int32_t cached = 128;
        int64_t bytes;
        set_up(&f, m, cached + 40);
        struct rig_request first = rig_request(&f.rig, f.tokens, cached, 1, 1, 1),
                           q = rig_request(&f.rig, f.tokens, f.end + DECODED, 0, 1, 1);
        const struct rows_request request = {
            .rings_from = cached, .cached = cached, .end = f.end, .boundary = -1, .first_logits = f.end - 1};
        struct row_plan rows;
        rig_poison(&f.rig);
        rig_run(&f.rig, &first, NULL);

        const struct pool_layout *pool = runner_cache(f.rig.runner).pool;
        uint8_t *states = rig_pool(&f.rig, &bytes) + pool->state_offset;
        int64_t entry = f.rig.geometry.state_bytes;
        memcpy(states, states + entry, (size_t)entry);
        memset(states + entry, 0xFF, (size_t)entry);
        assert_int_equal(runner_restored(f.rig.runner, 0, NULL), QR_OK);
        rows_exact(&f.rig.plan, &request, &rows);
        assert_int_equal(rows.first, cached);
        run_prompt(&f, &q, &rows, cached, false, 17);
        decode_and_compare(&f, &q, models[m]);
        rig_request_free(&first);
        rig_request_free(&q);
        tear_down(&f);
    }
}

static void logits_of_a_row_that_is_not_run_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 0, 100);
    const struct rows_request request = {.end = f.end, .boundary = -1, .first_logits = f.end - 1};
    struct row_plan rows;
    rows_exact(&f.rig.plan, &request, &rows);
    struct rig_request q = rig_request(&f.rig, f.tokens, f.end, 0, 1, 1);
    struct batch_span span = rig_span(&f.rig, &q, f.end);
    struct batch batch = {.count = 1, .spans = &span};
    qr_error err = {0};
    span.rows = &rows;
    span.logits_from = f.end - 2;
    assert_int_equal(runner_step(f.rig.runner, &batch, NULL, &err), QR_INTERNAL);
    assert_non_null(strstr(err.message, "logits of position 98, the last layer runs from 99"));
    rig_request_free(&q);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trimmed_prompt_goes_on_with_the_bits_of_a_full_one),
        cmocka_unit_test(a_prefix_without_a_state_is_rebuilt_from_its_blocks),
        cmocka_unit_test(a_prefix_with_a_copied_state_goes_on_where_it_was),
        cmocka_unit_test(logits_of_a_row_that_is_not_run_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
