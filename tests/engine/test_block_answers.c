/* label: full */
/* What a request asks of its tokens holds inside an accepted block (speculation.md 4.7, 4.8; 12: T2, T14, T21): each part of
 * the chain, each way to end and the log probabilities, alone, gives what it gives without drafts, where it decides about
 * something; and under ratio and block verification an end cuts the answer and changes nothing before it. */
#include <stdio.h>
#include <string.h>

#include "support/drafters.h"
#include "support/support.h"

enum { SEEDS = 12, ANSWER = 40, FIRST = 97, SPOKEN = 5, VOCAB = 263, MODEL = 0 };
static const int32_t prompt[] = {104, 98, 101, 99, 97, 98};
static const qr_logit_bias rare[] = {{FIRST + 4, -2}, {FIRST + 2, -0.7}}; /* the second is the end token */
static const qr_logit_bias bias[] = {{FIRST + 4, -2}, {FIRST, 1.5}, {FIRST + 3, -3}};
static const int32_t ends[] = {FIRST + 2};
static const char *const stops[] = {"\x01\x02", "dba", "aaa"};

struct asked {
    int32_t banned[VOCAB + 1];
    qr_sampling sampling;
    qr_request request;
};

/* Five letters may be said, so that a drafter of random weights is often right. */
static void ask(int seed, struct asked *a)
{
    a->sampling = (qr_sampling)QR_SAMPLING;
    a->request = (qr_request)QR_REQUEST;
    for (int32_t id = 0; id < VOCAB; id++)
        if (id < FIRST || id >= FIRST + SPOKEN)
            a->banned[a->sampling.banned_count++] = id;
    a->sampling.banned = a->banned;
    a->sampling.seed = seed;
    a->sampling.temperature = 0.6;
    a->sampling.logit_bias = rare;
    a->sampling.logit_bias_count = sizeof rare / sizeof *rare;
    a->request.tokens = prompt;
    a->request.token_count = sizeof prompt / sizeof *prompt;
    a->request.sampling = &a->sampling;
    a->request.max_tokens = ANSWER;
    a->request.ignore_eos = true;
}

/* ---- one thing more that a request asks for ---- */

static void nothing(struct asked *a) { (void)a; }
static void repetition(struct asked *a) { a->sampling.repetition_penalty = 1.4; }
static void frequency(struct asked *a) { a->sampling.frequency_penalty = 0.3; }
static void presence(struct asked *a) { a->sampling.presence_penalty = 0.8; }
static void colder(struct asked *a) { a->sampling.temperature = 0; }
static void top_k(struct asked *a) { a->sampling.top_k = 2; }
static void top_p(struct asked *a) { a->sampling.top_p = 0.6; }
static void min_p(struct asked *a) { a->sampling.min_p = 0.5; }
static void bans(struct asked *a) { a->banned[a->sampling.banned_count++] = FIRST + 1; }
static void length(struct asked *a) { a->request.max_tokens = ANSWER - 7 - (int32_t)a->sampling.seed; }

static void biases(struct asked *a)
{
    a->sampling.logit_bias = bias;
    a->sampling.logit_bias_count = sizeof bias / sizeof *bias;
}

static void end_token(struct asked *a)
{
    a->request.stop_tokens = ends;
    a->request.stop_token_count = 1;
}

static void end_token_later(struct asked *a)
{
    end_token(a);
    a->request.min_tokens = 15;
}

static void stop_string(struct asked *a)
{
    a->request.stop = stops;
    a->request.stop_count = sizeof stops / sizeof *stops;
}

static void stop_string_later_and_kept(struct asked *a)
{
    stop_string(a);
    a->request.include_stop = true;
    a->request.min_tokens = 11;
}

static void log_probabilities(struct asked *a) { a->request.logprobs = 3; }

static void everything(struct asked *a)
{
    repetition(a);
    frequency(a);
    presence(a);
    biases(a);
    end_token_later(a);
    log_probabilities(a);
}

static const struct {
    const char *name;
    void (*more)(struct asked *a);
    bool ends; /* the answer, before its length */
} cases[] = {{"nothing more", nothing, false},
             {"a repetition penalty", repetition, false},
             {"a frequency penalty", frequency, false},
             {"a presence penalty", presence, false},
             {"temperature 0", colder, false},
             {"top-k", top_k, false},
             {"top-p", top_p, false},
             {"min-p", min_p, false},
             {"a banned token", bans, false},
             {"biases", biases, false},
             {"a length", length, true},
             {"an end token", end_token, true},
             {"an end token after some", end_token_later, true},
             {"stop strings", stop_string, true},
             {"stop strings after some, kept", stop_string_later_and_kept, true},
             {"log probabilities", log_probabilities, false},
             {"everything", everything, false}};
enum { CASES = sizeof cases / sizeof *cases };

static void run(const struct opened *o, void (*more)(struct asked *a), struct reply *out)
{
    static struct asked asked[SEEDS];
    qr_handle handles[SEEDS];
    qr_error err = {0};
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < SEEDS; i++) {
        ask(i, &asked[i]);
        more(&asked[i]);
        must(qr_submit(o->engine, &asked[i].request, NULL, NULL, &handles[i], &err), &err);
    }
    for (int i = 0; i < SEEDS; i++) {
        out[i] = (struct reply){0};
        reply_rest(o, handles[i], &out[i]);
        assert_true(out[i].finish == QR_FINISH_LENGTH || out[i].finish == QR_FINISH_STOP);
    }
}

static void free_all(struct reply *r)
{
    for (int i = 0; i < SEEDS; i++)
        reply_free(&r[i]);
}

static uint64_t dropped_behind_ends(const struct opened *o)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(o->engine, &m);
    return m.drafts.dropped_by_stop;
}

static int differing(const struct reply *a, const struct reply *b)
{
    int n = 0;
    for (int i = 0; i < SEEDS; i++)
        n += a[i].count != b[i].count || memcmp(a[i].tokens, b[i].tokens, a[i].count * sizeof *a[i].tokens) != 0;
    return n;
}

static void each_thing_asked_for_holds_inside_a_block(void **state)
{
    (void)state;
    struct opened plain = drafter_open(MODEL, NULL, NULL), drafted = drafter_open(MODEL, "match", NULL);
    struct reply base[SEEDS], without[SEEDS], with[SEEDS];
    run(&plain, nothing, base);
    for (int c = 0; c < CASES; c++) {
        const uint64_t before = dropped_behind_ends(&drafted);
        int accepted = 0;
        run(&plain, cases[c].more, without);
        run(&drafted, cases[c].more, with);
        for (int i = 0; i < SEEDS; i++) {
            assert_same_reply(&without[i], &with[i], cases[c].name);
            accepted += with[i].usage.draft_accepted;
        }
        if (accepted < SEEDS)
            fail_msg("%s: %d drafts right, nothing is shown", cases[c].name, accepted);
        if (cases[c].more != nothing && cases[c].more != log_probabilities && differing(base, without) < SEEDS / 2)
            fail_msg("%s: changes nothing", cases[c].name);
        if (cases[c].ends && cases[c].more != length && dropped_behind_ends(&drafted) == before)
            fail_msg("%s: no answer ends inside a block", cases[c].name);
        free_all(without);
        free_all(with);
    }
    free_all(base);
    engine_close(&plain);
    engine_close(&drafted);
}

/* An answer that ends early is a beginning of the one that goes on. */
static bool begins(const struct reply *whole, const struct reply *cut)
{
    return cut->count <= whole->count && memcmp(whole->tokens, cut->tokens, cut->count * sizeof *cut->tokens) == 0;
}

static void ends_cut_answers_of_other_verifiers(void **state)
{
    (void)state;
    static const char *const verifiers[] = {"ratio", "block"};
    static void (*const more[])(struct asked * a) = {end_token, end_token_later, stop_string, stop_string_later_and_kept};
    for (int v = 0; v < 2; v++) {
        struct opened o = drafter_open(MODEL, verifiers[v], NULL);
        struct reply whole[SEEDS], cut[SEEDS];
        run(&o, nothing, whole);
        for (size_t c = 0; c < sizeof more / sizeof *more; c++) {
            const bool later = more[c] == end_token_later || more[c] == stop_string_later_and_kept;
            run(&o, more[c], cut);
            for (int i = 0; i < SEEDS; i++) {
                assert_true(cut[i].count >= (later ? 11 : 1));
                if (more[c] != end_token_later && !begins(&whole[i], &cut[i])) /* which bans its end token for a while */
                    fail_msg("%s, seed %d: another answer", verifiers[v], i);
            }
            free_all(cut);
        }
        assert_true(dropped_behind_ends(&o) > 0);
        free_all(whole);
        engine_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_thing_asked_for_holds_inside_a_block),
        cmocka_unit_test(ends_cut_answers_of_other_verifiers),
    };
    return cmocka_run_group_tests(tests, drafters_make, drafters_remove);
}
