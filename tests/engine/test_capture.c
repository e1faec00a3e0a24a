/* label: A22 release */
/* Which sizes of steps may be asked for to be recorded ahead (runtime.md 8; 11, E35). */
#include "engine/capture.h"
#include "support/engines.h"
#include "support/support.h"

#include <string.h>

enum { SEQS = 8, ROWS = 16 };

static struct capture_sizes choose(const char *list, enum graph_mode graphs, bool records, int32_t width,
                                   struct rule_list *broken)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    const struct run_mode mode = {.graphs = graphs};
    o.cudagraph_capture_sizes = list;
    o.max_num_seqs = SEQS;
    o.max_num_batched_tokens = ROWS;
    *broken = (struct rule_list){.used = 0};
    return capture_choose(&o, &mode, records, width, broken);
}

static void ascending_numbers_within_the_engine_are_taken(void **state)
{
    (void)state;
    struct rule_list broken;
    struct capture_sizes s = choose("1,2,8", GRAPHS_FULL, true, 2, &broken);
    assert_int_equal(broken.count, 0);
    assert_int_equal(s.count, 3);
    assert_true(s.requests[0] == 1 && s.requests[1] == 2 && s.requests[2] == 8);
    s = choose(NULL, GRAPHS_NONE, false, 1, &broken);
    assert_true(broken.count == 0 && s.count == 0);
}

static void every_other_list_is_refused_and_says_why(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        enum graph_mode graphs;
        bool records;
        int32_t width;
        const char *why;
    } cases[] = {{"", GRAPHS_FULL, true, 1, "wanted at most 64 numbers"},
                 {"0,1", GRAPHS_FULL, true, 1, "wanted at most 64 numbers from 1 on, ascending"},
                 {"2,2", GRAPHS_FULL, true, 1, "ascending"},
                 {"4,2", GRAPHS_FULL, true, 1, "ascending"},
                 {"1,,2", GRAPHS_FULL, true, 1, "with commas between them"},
                 {"1,2,", GRAPHS_FULL, true, 1, "with commas between them"},
                 {"-1", GRAPHS_FULL, true, 1, "from 1 on"},
                 {"[1,2]", GRAPHS_FULL, true, 1, "wanted at most"},
                 {"99999999999999999999", GRAPHS_FULL, true, 1, "wanted at most"},
                 {"1,9", GRAPHS_FULL, true, 1, "9 requests are more than max-num-seqs 8"},
                 {"1,8", GRAPHS_FULL, true, 3, "8 requests of 3 rows are more than max-num-batched-tokens 16"},
                 {"1,2", GRAPHS_NONE, true, 1, "cudagraph-mode NONE"},
                 {"1,2", GRAPHS_NONE, false, 1, "this device records no graphs"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rule_list broken;
        const struct capture_sizes s = choose(cases[i].list, cases[i].graphs, cases[i].records, cases[i].width, &broken);
        assert_int_equal(s.count, 0);
        assert_int_equal(broken.count, 1);
        assert_memory_equal(broken.text, "E35 cudagraph-capture-sizes is ", 31);
        if (!strstr(broken.text, cases[i].why))
            fail_msg("\"%s\": %s", cases[i].list, broken.text);
    }
}

/* Which tokens come, with their log probabilities. */
static struct reply answer_of(const struct opened *o, int32_t count)
{
    int32_t tokens[40];
    qr_request q = QR_REQUEST;
    for (int i = 0; i < 40; i++)
        tokens[i] = 3 + (i * 7 + count) % 50;
    q.tokens = tokens;
    q.token_count = (size_t)count;
    q.max_tokens = 12;
    q.ignore_eos = true;
    q.logprobs = 2;
    return reply_of(o, &q);
}

static struct opened open_engine(const char *model)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.kv_ram_bytes = 64 << 20;
    o.max_model_len = 512;
    o.max_num_seqs = 4;
    return engine_open(model, "cpu", 1, &o);
}

/* The requests that are run to record their steps leave nothing that others find. */
static void what_runs_to_be_recorded_changes_no_answer(void **state)
{
    (void)state;
    static const char *const models[] = {"models/tiny-v41", "models/tiny-v4"};
    const struct capture_sizes sizes = {3, {1, 2, 4}};
    for (int m = 0; m < 2; m++) {
        qr_error err = {0};
        struct opened fresh = open_engine(models[m]), used = open_engine(models[m]);
        must(capture_run(used.engine, &sizes, &err), &err);
        for (int32_t count = 5; count <= 40; count += 35) {
            struct reply a = answer_of(&fresh, count), b = answer_of(&used, count);
            assert_same_reply(&a, &b, "behind steps that were run to be recorded");
            reply_free(&a);
            reply_free(&b);
        }
        engine_close(&fresh);
        engine_close(&used);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ascending_numbers_within_the_engine_are_taken),
        cmocka_unit_test(every_other_list_is_refused_and_says_why),
        cmocka_unit_test(what_runs_to_be_recorded_changes_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
