/* label: full */
/* A V4 DSpark block made wider than its checkpoint's (speculation.md 2.9, 12: T1, T2): rings, tails and images hold the
 * wider block, and answers are those without drafts, bit for bit, with every number of drafts a step. */
#include <stdio.h>
#include <string.h>

#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

enum { OWN = 5, WIDEST = 7, REQUESTS = 6, PROMPT = 40, ANSWER = 70, SPOKEN = 6 };

static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = small_folder_of("tests/data/config/v4-tiny-dspark.json");
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static qr_engine_options wide(int32_t width, int32_t tokens)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = width ? "dspark" : "none";
    o.draft_width = width;
    o.num_speculative_tokens = tokens;
    o.max_num_seqs = 3;
    o.max_model_len = 160;
    o.kv_ram_bytes = 64 << 20;
    return o;
}

/* Few tokens may be said, so that a drafter of random weights is right now and then. */
struct asked {
    int32_t tokens[PROMPT], banned[263];
    qr_sampling sampling;
    qr_request request;
};

static void ask(int i, struct asked *a)
{
    a->request = (qr_request)QR_REQUEST;
    a->sampling = (qr_sampling)QR_SAMPLING;
    for (int32_t t = 0; t < PROMPT; t++)
        a->tokens[t] = 5 + (i * 31 + t * t * 7 + 3 * t) % 250;
    for (int32_t id = 0; id < 263; id++)
        if (id < 100 || id >= 100 + SPOKEN)
            a->banned[a->sampling.banned_count++] = id;
    a->sampling.banned = a->banned;
    a->sampling.temperature = i % 3 * 0.4;
    a->sampling.top_p = i % 2 ? 0.9 : 1;
    a->sampling.seed = 50 + i;
    a->request.tokens = a->tokens;
    a->request.token_count = (size_t)(PROMPT - i * 7);
    a->request.sampling = &a->sampling;
    a->request.max_tokens = ANSWER;
    a->request.ignore_eos = true;
    a->request.logprobs = 1;
}

static void run(const qr_engine_options *options, struct asked *asked, struct reply *replies)
{
    struct opened o = engine_open(folder, NULL, 2, options);
    qr_handle handles[REQUESTS];
    qr_error err = {0};
    for (int i = 0; i < REQUESTS; i++)
        must(qr_submit(o.engine, &asked[i].request, NULL, NULL, &handles[i], &err), &err);
    for (int i = 0; i < REQUESTS; i++)
        reply_rest(&o, handles[i], &replies[i]);
    engine_close(&o);
}

static void free_all(struct reply *replies)
{
    for (int i = 0; i < REQUESTS; i++)
        reply_free(&replies[i]);
}

static void answers_with_a_wider_block_are_those_without_drafts(void **state)
{
    (void)state;
    static struct asked asked[REQUESTS];
    struct reply plain[REQUESTS] = {0};
    const qr_engine_options without = wide(0, 0);
    for (int i = 0; i < REQUESTS; i++)
        ask(i, &asked[i]);
    run(&without, asked, plain);
    for (int32_t width = OWN; width <= WIDEST; width++)
        for (int32_t tokens = width == WIDEST ? 1 : width; tokens <= width; tokens++) {
            struct reply drafted[REQUESTS] = {0};
            const qr_engine_options o = wide(width, tokens);
            int accepted = 0, proposed = 0;
            run(&o, asked, drafted);
            for (int i = 0; i < REQUESTS; i++) {
                char what[60];
                snprintf(what, sizeof what, "width %d, %d drafts, request %d", width, tokens, i);
                assert_same_reply(&plain[i], &drafted[i], what);
                accepted += drafted[i].usage.draft_accepted;
                proposed += drafted[i].usage.draft_proposed;
            }
            print_message("width %d, %d drafts: %d of %d right\n", width, tokens, accepted, proposed);
            assert_true(accepted > 0 && proposed > accepted);
            free_all(drafted);
        }
    free_all(plain);
}

static int told;

static void count_lines(void *user, qr_log_severity severity, const char *line)
{
    (void)user;
    told += severity <= QR_SEVERITY_INFO && strstr(line, "drafts a step are right in a short check") != NULL;
}

static void a_short_answer_checks_a_wider_block_at_the_start(void **state)
{
    (void)state;
    for (int32_t width = OWN; width <= WIDEST; width++) {
        qr_model_options model = QR_MODEL_OPTIONS;
        const qr_engine_options options = wide(width, 0);
        struct opened o;
        qr_error err = {0};
        qr_metrics m = {.size = sizeof m};
        model.log = count_lines;
        model.log_level = QR_SEVERITY_INFO;
        must(qr_model_open(folder, &model, &o.model, &err), &err);
        must(qr_engine_create(o.model, &options, &o.engine, &err), &err);
        qr_get_metrics(o.engine, &m);
        assert_int_equal(told, width - OWN);
        assert_int_equal(m.requests_finished + m.requests_failed, width > OWN);
        engine_close(&o);
    }
}

static void states_and_workspace_grow_with_the_block(void **state)
{
    (void)state;
    qr_plan_bytes own, given, wider;
    qr_error err = {0};
    const qr_engine_options a = wide(OWN, 0), b = wide(WIDEST, OWN), c = wide(WIDEST, 0);
    must(qr_plan(folder, NULL, &a, &own, &err), &err);
    must(qr_plan(folder, NULL, &b, &given, &err), &err);
    must(qr_plan(folder, NULL, &c, &wider, &err), &err);
    assert_true(given.state_bytes > own.state_bytes);
    assert_int_equal(given.state_bytes, wider.state_bytes);
    assert_true(given.workspace > own.workspace && wider.workspace > given.workspace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_with_a_wider_block_are_those_without_drafts),
        cmocka_unit_test(a_short_answer_checks_a_wider_block_at_the_start),
        cmocka_unit_test(states_and_workspace_grow_with_the_block),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
