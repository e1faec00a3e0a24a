/* label: release A16 */
/* Answers with drafts are the answers without, bit for bit: tokens, log probabilities, texts and ends, greedy and sampled,
 * whatever is verified and whoever runs beside them (speculation.md 4.9, 12: T1, T2, T14, T21). */
#include "support/engines.h"

#include <stdio.h>
#include <string.h>

#include "support/support.h"

struct drafted {
    const char *dir, *method;
    int32_t width;
};
static const struct drafted models[] = {{"models/tiny-v41", "dspark", 5}, {"models/tiny-v4", "mtp", 1}};
enum { MODELS = sizeof models / sizeof *models, REQUESTS = 10, ANSWER = 40 };

static struct opened open_with(const struct drafted *d, const char *method, int32_t tokens, int32_t at_once)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = method;
    o.num_speculative_tokens = tokens;
    o.max_num_seqs = at_once;
    o.max_model_len = 640;
    return engine_open(d->dir, NULL, 2, &o);
}

struct asked {
    qr_prompt prompt;
    qr_sampling sampling;
    qr_request request;
};

static const char *const questions[REQUESTS] = {"Add 17 and 25.",
                                                "Tell me a story about a dragon.",
                                                "Say the word river four times.",
                                                "What is 6 plus 7?",
                                                "Copy this: the old stone bridge.",
                                                "Tell me a story about a cat.",
                                                "Once upon a time",
                                                "Reverse the word lamp.",
                                                "Add 3 and 4.",
                                                "Tell me a story about the sea."};
static const char *const stops[] = {"the", "."};

/* Request i: everything that decides about a token, and about where an answer ends, comes up. */
static void ask(const struct opened *o, int i, struct asked *a)
{
    a->prompt = chat_prompt(o, questions[i]);
    a->sampling = (qr_sampling)QR_SAMPLING;
    a->sampling.temperature = i % 2 ? 0.9 : 0;
    a->sampling.top_k = i % 4 == 1 ? 20 : 0;
    a->sampling.top_p = i % 4 == 3 ? 0.8 : 1;
    a->sampling.repetition_penalty = i % 5 == 2 ? 1.3 : 1;
    a->sampling.frequency_penalty = i % 5 == 3 ? 0.4 : 0;
    a->sampling.seed = 100 + i;
    a->request = (qr_request)QR_REQUEST;
    a->request.tokens = a->prompt.tokens.data;
    a->request.token_count = a->prompt.tokens.count;
    a->request.sampling = &a->sampling;
    a->request.max_tokens = i == 6 ? 1 : ANSWER - i;
    a->request.min_tokens = i == 4 ? 12 : 0;
    a->request.ignore_eos = i % 3 == 0;
    a->request.logprobs = i % 3;
    a->request.prompt_logprobs = i == 7 ? 1 : -1;
    a->request.stop = stops;
    a->request.stop_count = i == 5 ? 2 : 0;
}

/* The requests of one model, and what each gives alone without drafts. */
struct plain {
    struct asked asked[REQUESTS];
    struct reply without[REQUESTS];
};

static void open_plain(const struct drafted *d, struct plain *p)
{
    struct opened o = open_with(d, NULL, 0, 1);
    for (int i = 0; i < REQUESTS; i++) {
        ask(&o, i, &p->asked[i]);
        p->without[i] = reply_of(&o, &p->asked[i].request);
        assert_int_equal(p->without[i].usage.draft_steps, 0);
    }
    engine_close(&o);
}

static void close_plain(struct plain *p)
{
    for (int i = 0; i < REQUESTS; i++) {
        reply_free(&p->without[i]);
        qr_prompt_free(&p->asked[i].prompt);
    }
}

static void same_with_drafts(const struct drafted *d, const struct plain *p, const char *method, int32_t tokens)
{
    struct opened o = open_with(d, method, tokens, 4);
    qr_handle handles[REQUESTS];
    int right = 0, steps = 0;

    for (int i = 0; i < REQUESTS; i++)
        assert_int_equal(qr_submit(o.engine, &p->asked[i].request, NULL, NULL, &handles[i], NULL), QR_OK);
    for (int i = 0; i < REQUESTS; i++) {
        char what[80];
        struct reply r = {0};
        snprintf(what, sizeof what, "%s, %s, %d drafts, request %d", d->dir, method, (int)tokens, i);
        reply_rest(&o, handles[i], &r);
        assert_same_reply(&p->without[i], &r, what);
        right += r.usage.draft_accepted;
        steps += r.usage.draft_steps;
        assert_true(r.usage.draft_proposed <= tokens * r.usage.draft_steps);
        reply_free(&r);
    }
    print_message("%s, %s, %d drafts: %d steps, %d right\n", d->dir, method, (int)tokens, steps, right);
    assert_true(steps > 0 && 3 * right >= steps); /* the drafter is a trained one */
    engine_close(&o);
}

/* Always, and with drafts that rest when they do not pay. */
static void drafts_change_no_bit_of_an_answer(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        const struct drafted *d = &models[m];
        struct plain p;
        open_plain(d, &p);
        for (int32_t tokens = 1; tokens <= d->width; tokens += 2)
            same_with_drafts(d, &p, d->method, tokens);
        same_with_drafts(d, &p, "auto", d->width);
        close_plain(&p);
    }
}

static void a_drafter_that_is_not_there_or_too_many_drafts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *method;
        int32_t tokens;
        const char *says;
    } cases[] = {{"models/tiny-v41", "mtp", 0, "E08 method is mtp, the checkpoint's drafter is dspark"},
                 {"models/tiny-v4", "dspark", 0, "E08 method is dspark, the checkpoint's drafter is mtp"},
                 {"models/tiny-v41", "dspark", 6, "E08 6 drafts in a step, wanted 1 to 5"},
                 {"models/tiny-v4", "mtp", 2, "E08 2 drafts in a step, wanted 1 to 1"},
                 {"models/tiny-v4", "magic", 0, "E08 method is \"magic\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qr_engine_options o = QR_ENGINE_OPTIONS;
        qr_plan_bytes plan;
        qr_error err = {0};
        o.method = cases[i].method;
        o.num_speculative_tokens = cases[i].tokens;
        assert_refused(qr_plan(source_path(cases[i].dir), NULL, &o, &plan, &err), &err, QR_REFUSED, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drafter_that_is_not_there_or_too_many_drafts_are_refused),
        cmocka_unit_test(drafts_change_no_bit_of_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
