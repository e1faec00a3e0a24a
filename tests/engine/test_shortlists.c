/* label: full */
/* Answers whose tokens are drawn from lists of likeliest ids (engine/shortlists.h), as on a device that finds them, are those
 * drawn from whole rows: tokens, texts, ends and what is told of drafts. */
#include "support/engines.h"

#include <string.h>

#include "engine/engine.h"
#include "ops/cpu/reference/reference.h"
#include "support/support.h"

enum { REQUESTS = 12, ANSWER = 24 };

static const struct {
    const char *dir, *method;
    int32_t width;
} models[] = {{"models/tiny-v41", "dspark", 5}, {"models/tiny-v4", "mtp", 1}, {"models/tiny-v41", "none", 0}};

static const char *const questions[] = {"Add 17 and 25.", "Tell me a story about a dragon.", "Say the word river four times.",
                                        "Reverse the word lamp."};

static struct opened open_model(int m, const char *verifier, bool lists)
{
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.method = models[m].method;
    options.num_speculative_tokens = models[m].width;
    options.verifier = verifier;
    options.max_num_seqs = 6;
    options.max_model_len = 256;
    struct opened o = engine_open(models[m].dir, NULL, 2, &options);
    struct qr_engine *e = o.engine;
    if (lists) { /* nothing runs yet */
        const struct id_list never = {o.model->banned.data, (int32_t)o.model->banned.count};
        qr_error err = {0};
        e->backend->shortlist = reference_shortlist;
        must(shortlists_open(e->backend, o.model->config.vocab_size, 64, &never, &e->lists, &err), &err);
        assert_non_null(e->lists);
    }
    return o;
}

/* Request i: ways of drawing with lists and without, grammars, bans, log probabilities and minimums among them. */
static void ask(int i, const qr_prompt *prompt, const int32_t *banned, qr_sampling *s, const qr_grammar *grammar, qr_request *q)
{
    *s = (qr_sampling)QR_SAMPLING;
    s->temperature = i % 4 == 0 ? 0 : 0.4 + 0.1 * i;
    s->top_p = i % 4 == 2 ? 0.9 : 1;
    s->top_k = i % 4 == 3 ? 30 : 0;
    s->min_p = i == 5 ? 0.05 : 0;
    s->presence_penalty = i == 9 ? 0.5 : 0;
    s->seed = 40 + i;
    s->banned = banned;
    s->banned_count = i % 3 == 0 ? 2 : 0;
    s->allow_special = i == 6;
    *q = (qr_request)QR_REQUEST;
    q->tokens = prompt->tokens.data;
    q->token_count = prompt->tokens.count;
    q->sampling = s;
    q->max_tokens = ANSWER;
    q->min_tokens = i == 7 ? 8 : 0;
    q->logprobs = i == 10 ? 2 : -1;
    if (i == 8 || i == 11)
        q->grammar = grammar;
}

struct told {
    struct reply replies[REQUESTS];
    qr_draft_metrics drafts;
};

static void run(int m, const char *verifier, bool lists, struct told *out)
{
    struct opened o = open_model(m, verifier, lists);
    qr_handle handles[REQUESTS];
    qr_prompt prompts[4];
    qr_metrics metrics = {.size = sizeof metrics};
    static const int32_t banned[] = {300, 301};
    static const char words[] = "[a-z ]{10,60}";
    qr_grammar *grammar = NULL; /* not under a law */
    if (!verifier)
        assert_int_equal(qr_grammar_open(o.model, QR_GRAMMAR_REGEX, words, strlen(words), &grammar, NULL, NULL), QR_OK);
    for (int i = 0; i < 4; i++)
        prompts[i] = chat_prompt(&o, questions[i]);
    for (int i = 0; i < REQUESTS; i++) {
        qr_error err = {0};
        qr_sampling s;
        qr_request q;
        ask(i, &prompts[i % 4], banned, &s, grammar, &q);
        must(qr_submit(o.engine, &q, NULL, NULL, &handles[i], &err), &err);
    }
    for (int i = 0; i < REQUESTS; i++)
        reply_rest(&o, handles[i], &out->replies[i]);
    qr_get_metrics(o.engine, &metrics);
    out->drafts = metrics.drafts;
    if (lists) {
        int64_t drawn, open;
        shortlists_count(o.engine->lists, &drawn, &open);
        assert_true(drawn > (verifier ? ANSWER : REQUESTS * ANSWER / 3)); /* those at temperature 0 have no law */
        assert_true(drawn > 5 * open);
    }
    for (int i = 0; i < 4; i++)
        qr_prompt_free(&prompts[i]);
    qr_grammar_close(grammar);
    engine_close(&o);
}

static void same(int m, const char *verifier)
{
    struct told whole = {0}, listed = {0};
    run(m, verifier, false, &whole);
    run(m, verifier, true, &listed);
    for (int i = 0; i < REQUESTS; i++) {
        assert_string_equal(whole.replies[i].error.message, "");
        assert_same_reply(&whole.replies[i], &listed.replies[i], models[m].dir);
        reply_free(&whole.replies[i]);
        reply_free(&listed.replies[i]);
    }
    assert_int_equal(whole.drafts.accepted, listed.drafts.accepted);
    assert_int_equal(whole.drafts.proposed, listed.drafts.proposed);
}

static void tokens_from_lists_are_those_of_whole_rows(void **state)
{
    (void)state;
    for (int m = 0; m < 3; m++)
        same(m, NULL);
}

static void drafts_that_a_law_judges_are_too(void **state)
{
    (void)state;
    same(0, "ratio");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_from_lists_are_those_of_whole_rows),
        cmocka_unit_test(drafts_that_a_law_judges_are_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
