/* label: A10 */
/* Which rows each layer runs (runtime.md 13, A10): in every mode, however a prompt is cut, exactly those of the row plan. */
#include <string.h>

#include "support/fake.h"
#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model/config.json"
#define TINY_V4 "tests/golden/v4/tiny/model/config.json"

static struct fake f;

static void open(const char *config, int32_t block, int32_t rows, enum replay decoder, bool images)
{
    fake_open(&f, &(struct fake_options){.config = config,
                                         .block = block,
                                         .blocks = 60,
                                         .slots = 2,
                                         .sched = {.max_prefill_rows = -1,
                                                   .max_rows = rows,
                                                   .prefix_cache = true,
                                                   .images = images,
                                                   .decoder_replay = decoder}});
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_v41_prompt_runs_the_rows_of_the_plan),
        cmocka_unit_test(a_v4_prompt_runs_the_rows_of_the_plan),
        cmocka_unit_test(without_trimming_every_layer_runs_every_row),
        cmocka_unit_test(a_whole_prompt_in_an_image_forwards_one_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
