/* label: full */
/* V4's DSpark point (v4-model.md appendix D) in one process: 64 requests, blocks of seven drafts, eight rows of each in a step.
 * A synthetic checkpoint of small dimensions; its answers are those without drafts, bit for bit. */
#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>

#define POINT "tests/data/config/v4-tiny-dspark-point.json"
#define FIVE "tests/data/config/v4-tiny-dspark.json"

enum { REQUESTS = 64, WIDTH = 7, ROWS = WIDTH + 1, LONGEST = 150, ANSWER = 40 };

struct asked {
    int32_t tokens[LONGEST];
    qr_sampling sampling;
    qr_request request;
};

/* Request i: short and longer prompts, on both sides of the window's end and of a group's; every third greedy. */
static void ask(int i, struct asked *a)
{
    const int32_t count = i % 8 == 7 ? 120 + i / 8 : 3 + i % 29;
    for (int32_t t = 0; t < count; t++)
        a->tokens[t] = 5 + (i * 31 + t * t * 7 + 3 * t) % 250;
    a->sampling = (qr_sampling)QR_SAMPLING;
    a->sampling.temperature = i % 3 ? 0.5 + 0.1 * (i % 5) : 0;
    a->sampling.top_p = i % 4 == 1 ? 0.9 : 1;
    a->sampling.repetition_penalty = i % 7 == 2 ? 1.2 : 1;
    a->sampling.seed = 1000 + i;
    a->request = (qr_request)QR_REQUEST;
    a->request.tokens = a->tokens;
    a->request.token_count = (size_t)count;
    a->request.sampling = &a->sampling;
    a->request.max_tokens = ANSWER;
    a->request.ignore_eos = true;
    a->request.logprobs = i % 5 == 0;
}

struct run {
    struct reply replies[REQUESTS];
    qr_metrics metrics;
    int steps, proposed, accepted;
};

static struct opened open_point(const char *dir, const char *profile, const char *method, int32_t width)
{
    qr_model_options model = QR_MODEL_OPTIONS;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    struct opened o;
    qr_error err = {0};
    model.profile = profile;
    model.device = getenv("QUIRE_TEST_DEVICE"); /* NULL: the CPU */
    model.threads = 2;
    options.method = method;
    options.draft_width = width;
    options.max_num_seqs = REQUESTS;
    options.max_model_len = 256;
    options.kv_ram_bytes = 64 << 20;
    if (qr_model_open(dir, &model, &o.model, &err) != QR_OK || qr_engine_create(o.model, &options, &o.engine, &err) != QR_OK)
        fail_msg("%s", err.message);
    return o;
}

static void run_all(struct opened o, struct asked *asked, struct run *out)
{
    qr_handle handles[REQUESTS];
    qr_metrics before = {.size = sizeof before}; /* a block that is made wider is tried at the start */
    qr_get_metrics(o.engine, &before);
    assert_int_equal(qr_engine_sleep(o.engine, QR_SLEEP_KV_CACHE, NULL), QR_OK); /* so that they begin together */
    for (int i = 0; i < REQUESTS; i++)
        assert_int_equal(qr_submit(o.engine, &asked[i].request, NULL, NULL, &handles[i], NULL), QR_OK);
    assert_int_equal(qr_engine_wake(o.engine, QR_SLEEP_KV_CACHE, NULL), QR_OK);
    for (int i = 0; i < REQUESTS; i++) {
        reply_rest(&o, handles[i], &out->replies[i]);
        assert_int_equal(out->replies[i].count, ANSWER);
        out->steps += out->replies[i].usage.draft_steps;
        out->proposed += out->replies[i].usage.draft_proposed;
        out->accepted += out->replies[i].usage.draft_accepted;
    }
    out->metrics.size = sizeof out->metrics;
    qr_get_metrics(o.engine, &out->metrics);
    out->metrics.steps -= before.steps;
    out->metrics.decode_rows -= before.decode_rows;
    engine_close(&o);
}

/* `width`: of a block, where the checkpoint has another. */
static void answers_are_those_without_drafts(const char *config, const char *profile, int32_t width)
{
    char *dir = small_folder_of(config);
    struct asked *asked = calloc(REQUESTS, sizeof *asked);
    struct run *runs = calloc(2, sizeof *runs);
    for (int i = 0; i < REQUESTS; i++)
        ask(i, &asked[i]);
    run_all(open_point(dir, profile, "none", 0), asked, &runs[0]);
    run_all(open_point(dir, profile, "dspark", width), asked, &runs[1]);
    for (int i = 0; i < REQUESTS; i++) {
        char what[40];
        snprintf(what, sizeof what, "request %d", i);
        assert_same_reply(&runs[0].replies[i], &runs[1].replies[i], what);
    }
    print_message("%s: %d verify steps of a request, %d drafts, %d right; %llu steps, %llu rows of decoding\n", profile,
                  runs[1].steps, runs[1].proposed, runs[1].accepted, (unsigned long long)runs[1].metrics.steps,
                  (unsigned long long)runs[1].metrics.decode_rows);
    assert_int_equal(runs[0].steps, 0);
    assert_true(runs[1].proposed > 6 * runs[1].steps);
    assert_true(runs[1].metrics.decode_rows > runs[1].metrics.steps * REQUESTS * ROWS / 2);
    for (int i = 0; i < 2 * REQUESTS; i++)
        reply_free(&runs[i / REQUESTS].replies[i % REQUESTS]);
    free(runs);
    free(asked);
    scratch_remove(dir);
}

static void sixty_four_requests_of_eight_rows_answer_as_without_drafts(void **state)
{
    (void)state;
    answers_are_those_without_drafts(POINT, "reference", 0);
}

static void the_same_holds_of_the_int8_deployment(void **state)
{
    (void)state;
    answers_are_those_without_drafts(POINT, "w8a8", 0);
}

/* A window of 24 tokens, so that rings go round. */
static void the_same_holds_of_a_block_of_five_made_wider(void **state)
{
    (void)state;
    answers_are_those_without_drafts(FIVE, "reference", WIDTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixty_four_requests_of_eight_rows_answer_as_without_drafts),
        cmocka_unit_test(the_same_holds_of_the_int8_deployment),
        cmocka_unit_test(the_same_holds_of_a_block_of_five_made_wider),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
