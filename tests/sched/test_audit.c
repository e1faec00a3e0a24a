/* label: A10 */
/* Which rows each layer runs (runtime.md 13, A10): in every mode, however a prompt is cut, exactly those of the row plan. */
#include <string.h>

#include "support/fake.h"
#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model/config.json"
#define TINY_V4 "tests/golden/v4/tiny/model/config.json"

static struct fake f;

static void open_in(const char *config, int32_t block, int32_t rows, enum replay decoder, enum replay encoder, bool images)
{
    fake_open(&f, &(struct fake_options){.config = config,
                                         .block = block,
                                         .blocks = 60,
                                         .slots = 2,
                                         .sched = {.max_prefill_rows = -1,
                                                   .max_rows = rows,
                                                   .prefix_cache = true,
                                                   .images = images,
                                                   .decoder_replay = decoder,
                                                   .encoder_replay = encoder}});
}

static void open(const char *config, int32_t block, int32_t rows, enum replay decoder, bool images)
{
    open_in(config, block, rows, decoder, REPLAY_EXACT, images);
}

static void count_from_here(void)
{
    memset(f.layer_rows, 0, sizeof f.layer_rows);
    memset(f.layer_keys, 0, sizeof f.layer_keys);
    f.rows = 0;
}

static int32_t from(int32_t first, int32_t start) { return start > first ? start : first; }

static void ran_the_plan(const struct row_plan *rows)
{
    assert_int_equal(f.rows, rows->end - rows->first);
    for (int32_t layer = 0; layer < f.plan.layers; layer++) {
        assert_int_equal(f.layer_rows[layer], rows->end - from(rows->first, rows->layer[layer].query));
        assert_int_equal(f.layer_keys[layer], rows->end - from(rows->first, rows->layer[layer].key));
    }
}

/* An answer of one token: its only rows are the prompt's. */
static void runs_exactly(const char *config, int32_t block, int32_t rows, int32_t count)
{
    struct row_plan plan;
    open(config, block, rows, REPLAY_EXACT, false);
    fake_prompt(&f, 1, count, count, 1);
    fake_run(&f);
    struct rows_request wanted = {.end = count, .boundary = -1, .first_logits = count - 1};
    rows_exact(&f.plan, &wanted, &plan);
    ran_the_plan(&plan);

    count_from_here();
    const int32_t hit = fake_prompt(&f, 1, count, count, 1); /* the whole prompt is cached but its last block */
    fake_run(&f);
    wanted.cached = (count - 1) / block * block;
    assert_int_equal(fake_of(&f, hit)->cached, wanted.cached);
    rows_exact(&f.plan, &wanted, &plan);
    ran_the_plan(&plan);
    assert_int_equal(fake_of(&f, hit)->rows_rerun, wanted.cached - plan.first);
    fake_close(&f);
}

static void a_v41_prompt_runs_the_rows_of_the_plan(void **state)
{
    (void)state;
    for (int32_t rows = 11; rows < 300; rows += 47)
        for (int32_t count = 1; count < 400; count += 57)
            runs_exactly(SPEC_V41, 32, rows, count);
}

static void a_v4_prompt_runs_the_rows_of_the_plan(void **state)
{
    (void)state;
    for (int32_t rows = 150; rows < 600; rows += 220)
        for (int32_t count = 1; count < 900; count += 255)
            runs_exactly(TINY_V4, 128, rows, count);
}

static void without_trimming_every_layer_runs_every_row(void **state)
{
    (void)state;
    for (int32_t rows = 30; rows < 300; rows += 90) {
        open(SPEC_V41, 32, rows, REPLAY_OFF, true);
        fake_prompt(&f, 1, 333, 333, 1);
        fake_run(&f);
        for (int32_t layer = 0; layer < f.plan.layers; layer++) {
            assert_int_equal(f.layer_rows[layer], 333);
            assert_int_equal(f.layer_keys[layer], 333);
        }
        fake_close(&f);
    }
}

/* A hit on an image forwards one row, then decodes. */
static void a_whole_prompt_in_an_image_forwards_one_row(void **state)
{
    (void)state;
    open(TINY_V4, 128, 600, REPLAY_EXACT, true);
    fake_prompt(&f, 1, 512, 512, 1);
    fake_run(&f);
    count_from_here();
    const int32_t hit = fake_prompt(&f, 1, 512, 513, 1);
    fake_run(&f);
    assert_int_equal(fake_of(&f, hit)->cached, 512);
    assert_int_equal(f.rows, 1);
    assert_int_equal(sched_metrics(f.sched).restores, 1);
    fake_close(&f);
}

/* ---- bounded: table 7.1 ---- */

enum { WINDOW = 8, DECODER = 5, LAST = 7 }; /* of the small model; layers 5 to 7 are its decoder, 5 owns rows */

static int64_t finished_rows; /* of the forwards that finished a prompt */

/* Every batch: what its prompt's chunk may run, and see. */
static void watch_bounded(struct fake *world, const struct batch *batch)
{
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        if (!s->rows)
            continue;
        const int32_t end = s->first_position + s->count, tail = s->rows->end > WINDOW ? s->rows->end - WINDOW : 0;
        assert_int_equal(s->final, end == s->rows->end);
        for (int32_t layer = 0; layer < DECODER; layer++) {
            assert_true(s->rows->layer[layer].query <= s->first_position);
            assert_true(s->rows->layer[layer].key <= s->first_position);
        }
        for (int32_t layer = DECODER; layer < world->plan.layers; layer++) {
            const struct layer_start *l = &s->rows->layer[layer];
            assert_int_equal(l->key, s->final ? tail : s->rows->end);
            assert_int_equal(l->query, s->final ? (layer == LAST ? s->rows->end - 1 : tail) : s->rows->end);
            assert_int_equal(l->low, tail);
        }
        if (s->final) {
            assert_true(s->first_position <= tail); /* the whole tail lies in this forward */
            finished_rows += s->count;
        }
    }
}

static void runs_a_window_in_the_decoder(int32_t rows, int32_t count)
{
    const int32_t tail = count < WINDOW ? count : WINDOW;
    open_in(SPEC_V41, 32, rows, REPLAY_BOUNDED, REPLAY_BOUNDED, false);
    f.watch = watch_bounded;
    fake_prompt(&f, 1, count, count, 1);
    fake_run(&f);
    const int64_t again = sched_metrics(f.sched).rows_backed_off;
    for (int32_t layer = 0; layer < DECODER; layer++)
        assert_int_equal(f.layer_rows[layer], count + again);
    for (int32_t layer = DECODER; layer < LAST; layer++)
        assert_int_equal(f.layer_rows[layer], tail);
    assert_int_equal(f.layer_rows[LAST], 1);
    assert_int_equal(f.layer_keys[LAST], tail);

    count_from_here(); /* the whole prompt is cached but its last block: one block below it is run again */
    const int32_t hit = fake_prompt(&f, 1, count, count, 1), cached = (count - 1) / 32 * 32;
    fake_run(&f);
    const int64_t more = sched_metrics(f.sched).rows_backed_off - again;
    assert_int_equal(fake_of(&f, hit)->cached, cached);
    assert_int_equal(fake_of(&f, hit)->rows_rerun, cached > 0 ? 32 : 0);
    assert_int_equal(f.layer_rows[0], count - cached + (cached > 0 ? 32 : 0) + more);
    assert_int_equal(f.layer_rows[DECODER], tail);
    fake_close(&f);
}

static void a_bounded_prompt_runs_one_window_in_the_decoder(void **state)
{
    (void)state;
    for (int32_t rows = 65; rows < 300; rows += 47)
        for (int32_t count = 1; count < 400; count += 13)
            runs_a_window_in_the_decoder(rows, count);
    assert_true(finished_rows > 0);
}

/* A prompt that finds its last chunk shorter than the window goes back one whole block. */
static void a_short_last_chunk_backs_off(void **state)
{
    (void)state;
    for (int32_t count = 97; count < 96 + WINDOW; count++) {
        open_in(SPEC_V41, 32, 96, REPLAY_BOUNDED, REPLAY_BOUNDED, false);
        f.watch = watch_bounded;
        fake_prompt(&f, 1, count, count, 1);
        fake_run(&f);
        /* 96 rows fit: the chunk is cut at 64, which leaves the window; so nothing is run again */
        assert_int_equal(sched_metrics(f.sched).rows_backed_off, 0);
        fake_close(&f);
        fake_open(&f, &(struct fake_options){.config = SPEC_V41,
                                             .blocks = 60,
                                             .slots = 2,
                                             .sched = {.max_prefill_rows = -1,
                                                       .max_rows = 96,
                                                       .long_prefill_cap = 32,
                                                       .decoder_replay = REPLAY_BOUNDED}});
        f.watch = watch_bounded;
        fake_prompt(&f, 1, count, count, 1);
        fake_run(&f);
        /* 0, 32, 64, 96: the cap is no grid that could be lowered to; from 96 it goes back to 64 */
        assert_int_equal(sched_metrics(f.sched).rows_backed_off, 32);
        fake_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_v41_prompt_runs_the_rows_of_the_plan),
        cmocka_unit_test(a_v4_prompt_runs_the_rows_of_the_plan),
        cmocka_unit_test(without_trimming_every_layer_runs_every_row),
        cmocka_unit_test(a_whole_prompt_in_an_image_forwards_one_row),
        cmocka_unit_test(a_bounded_prompt_runs_one_window_in_the_decoder),
        cmocka_unit_test(a_short_last_chunk_backs_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
