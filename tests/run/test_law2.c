/* label: threads release A01 A14 A15 */
/* A request's logits are the same bits however its tokens are cut into steps, whoever shares the step,
 * wherever its blocks lie, with any number of threads, and in any container of the caches (runtime.md 13, law 2). */
#define _GNU_SOURCE
#include "support/support.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "support/rig.h"
#include "support/scratch.h"
#include "support/shared_memory.h"

static const char *const models[] = {"tests/golden/v41/spec-13.1/model", "tests/golden/v41/wide/model",
                                     "tests/golden/v41/pad/model"};
enum { MODELS = sizeof models / sizeof *models, TOKENS = 96 };
#define TINY "models/tiny-v41"

/* The whole pass, in one step, alone: what everything is compared with. */
static struct rig_request whole_pass(struct rig *r, const int32_t *tokens, int32_t count)
{
    struct rig_request q = rig_request(r, tokens, count, 0, 1, 1);
    rig_run(r, &q, NULL);
    return q;
}

static void any_cut_into_steps_gives_the_bits_of_one_forward(void **state)
{
    (void)state;
    static const int32_t cuts[][5] = {{3, 1, 129, 0}, {1, 0}, {7, 0}, {64, 31, 1, 0}, {33, 1, 2, 0}};
    for (int m = 0; m < MODELS; m++) {
        struct rig r;
        int32_t tokens[TOKENS];
        rig_open(&r, &(struct rig_options){.model = models[m]});
        rig_tokens(&r, 11, tokens, TOKENS);
        struct rig_request whole = whole_pass(&r, tokens, TOKENS);
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            struct rig_request q = rig_request(&r, tokens, TOKENS, 2, 40, -3);
            rig_poison(&r);
            rig_run(&r, &q, cuts[i]);
            assert_same_logits(&r, &whole, &q, models[m]);
            rig_request_free(&q);
        }
        rig_request_free(&whole);
        rig_close(&r);
    }
}

static void tokens_of_an_image_may_be_cut_anywhere(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[40];
    rig_open(&r, &(struct rig_options){.model = models[2]});
    rig_tokens(&r, 5, tokens, 40);
    for (int i = 9; i < 21; i++)
        tokens[i] = r.config.image_token_id;
    struct rig_request whole = whole_pass(&r, tokens, 40);
    for (int32_t cut = 8; cut < 24; cut++) {
        struct rig_request q = rig_request(&r, tokens, 40, 1, 9, 1);
        rig_run(&r, &q, (const int32_t[]){cut, 40, 0});
        assert_same_logits(&r, &whole, &q, "image");
        rig_request_free(&q);
    }
    rig_request_free(&whole);
    rig_close(&r);
}

/* Decoding past several turns of the ring (window 64), the cursor's history included. */
static void rings_wrap_without_a_trace(void **state)
{
    (void)state;
    enum { LENGTH = 200 };
    struct rig r;
    int32_t tokens[LENGTH];
    rig_open(&r, &(struct rig_options){.model = TINY, .device = "cpu", .max_rows = LENGTH});
    rig_tokens(&r, 3, tokens, LENGTH);
    struct rig_request whole = whole_pass(&r, tokens, LENGTH), q = rig_request(&r, tokens, LENGTH, 1, 20, 2);
    struct cursor end = runner_cursor(r.runner, 0);
    rig_poison(&r);
    rig_run(&r, &q, (const int32_t[]){61, 1, 0});
    assert_same_logits(&r, &whole, &q, TINY);
    assert_int_equal(runner_cursor(r.runner, 1).position, LENGTH);
    assert_memory_equal(runner_cursor(r.runner, 1).history, end.history, sizeof end.history);
    rig_request_free(&whole);
    rig_request_free(&q);
    rig_close(&r);
}

/* Three requests of other lengths and paces in the same steps: prefill chunks beside decode rows. */
static void requests_that_share_steps_get_the_bits_of_being_alone(void **state)
{
    (void)state;
    static const int32_t paces[3][4] = {{17, 1, 1, 5}, {1, 40, 3, 1}, {9, 0, 2, 31}};
    const char *const all[] = {models[0], models[1], models[2], TINY};
    for (int m = 0; m < 4; m++) {
        struct rig r;
        int32_t tokens[3][90];
        struct rig_request alone[3], shared[3], *list[3];
        rig_open(&r, &(struct rig_options){.model = all[m], .device = m == 3 ? "cpu" : NULL});
        for (int i = 0; i < 3; i++) {
            rig_tokens(&r, 20 + (uint32_t)i, tokens[i], 90);
            alone[i] = rig_request(&r, tokens[i], 90 - 13 * i, 3, 1, 1);
            rig_run(&r, &alone[i], NULL);
        }
        rig_poison(&r);
        for (int i = 0; i < 3; i++) {
            shared[i] = rig_request(&r, tokens[i], 90 - 13 * i, i, 10 + i, 3);
            list[i] = &shared[i];
        }
        for (int step = 0; shared[0].position < 90 || shared[1].position < 77 || shared[2].position < 64; step++) {
            int32_t counts[3];
            for (int i = 0; i < 3; i++) {
                int32_t left = shared[i].count - shared[i].position, pace = paces[i][step % 4];
                counts[i] = pace < left ? pace : left;
            }
            if (counts[0] + counts[1] + counts[2] > 0)
                rig_step(&r, list, counts, 3);
        }
        for (int i = 0; i < 3; i++) {
            assert_same_logits(&r, &alone[i], &shared[i], all[m]);
            rig_request_free(&alone[i]);
            rig_request_free(&shared[i]);
        }
        rig_close(&r);
    }
}

/* Runs `tokens` on a rig of its own and compares with `whole`. */
static void compare_rig(const struct rig_options *options, const struct rig_request *whole, const int32_t *tokens,
                        const int32_t *chunks, const char *what)
{
    struct rig r;
    rig_open(&r, options);
    struct rig_request q = rig_request(&r, tokens, TOKENS, 1, 3, 2);
    rig_run(&r, &q, chunks);
    assert_same_logits(&r, whole, &q, what);
    rig_request_free(&q);
    rig_close(&r);
}

static void threads_and_containers_change_no_bit(void **state)
{
    (void)state;
    const char *const devices[] = {"cpu-reference", fast_device()};
    const char *const all[] = {models[2], models[0], TINY}; /* the first on both */
    for (int i = 0; i < 4; i++) {
        const char *model = all[i % 3], *device = devices[i > 0];
        struct rig r;
        int32_t tokens[TOKENS];
        rig_open(&r, &(struct rig_options){.model = model, .device = device});
        rig_tokens(&r, 31, tokens, TOKENS);
        struct rig_request whole = whole_pass(&r, tokens, TOKENS);
        const int32_t cut[] = {70, 1, 1, 24, 0};
        for (int threads = 2; threads <= 3; threads++)
            compare_rig(&(struct rig_options){.model = model, .device = device, .threads = threads}, &whole, tokens,
                        cut, "threads");
        for (int form = 1; form < 4; form++)
            compare_rig(&(struct rig_options){.model = model,
                                              .device = device,
                                              .formats = true,
                                              .main_format = form & 1 ? ROW_BF16 : ROW_FP4_E4M3,
                                              .index_format = form & 2 ? ROW_INDEX_FP8 : ROW_INDEX_FP4},
                        &whole, tokens, cut, "containers");
        rig_request_free(&whole);
        rig_close(&r);
    }
}

/* A model whose row-parallel weights are summed in eight uneven ranges of K. */
static void weights_split_along_k_obey_too(void **state)
{
    (void)state;
    const char *const devices[] = {"cpu-reference", fast_device()};
    char *dir = scratch_make();
    const char *folder = scratch_path(dir, "model");
    char *argv[] = {"synth",    "--quiet",
                    "--config", (char *)(uintptr_t)source_path("tests/data/config/v41-wide-k.json"),
                    "--out",    (char *)(uintptr_t)folder};
    assert_int_equal(tool_synth(6, argv), 0);
    for (int i = 0; i < 2; i++) {
        struct rig r;
        int32_t tokens[TOKENS];
        rig_open(&r, &(struct rig_options){.model = folder, .device = devices[i]});
        rig_tokens(&r, 8, tokens, TOKENS);
        struct rig_request whole = whole_pass(&r, tokens, TOKENS);
        compare_rig(&(struct rig_options){.model = folder, .device = devices[i], .threads = 3}, &whole, tokens,
                    (const int32_t[]){40, 1, 3, 0}, "splits");
        rig_request_free(&whole);
        rig_close(&r);
    }
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_into_steps_gives_the_bits_of_one_forward),
        cmocka_unit_test(tokens_of_an_image_may_be_cut_anywhere),
        cmocka_unit_test(rings_wrap_without_a_trace),
        cmocka_unit_test(requests_that_share_steps_get_the_bits_of_being_alone),
        cmocka_unit_test(threads_and_containers_change_no_bit),
        cmocka_unit_test(weights_split_along_k_obey_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
