/* label: full once */
/* Answers with ratio and block verification have the distribution of answers without drafts (speculation.md 12: T3). */
#include <math.h>
#include <string.h>

#include "support/chi_square.h"
#include "support/drafters.h"
#include "support/support.h"

static const char *const verifiers[] = {"ratio", "block"};
static const int32_t prompt[] = {7, 90, 41, 12};
enum { PROMPT = sizeof prompt / sizeof *prompt };

/* A slice of the vocabulary, so that target and drafter speak of the same tokens; of its five, four at most are drawn. */
enum { FIRST = 40, SLICE = 5, TOP = 4, TOKENS = 3, BINS = SLICE * SLICE * SLICE, ANSWERS = 1200, MOST_VOCAB = 512 };
static const double temperature = 0.4;

static void digits_of(int bin, int32_t out[TOKENS])
{
    for (int i = TOKENS - 1; i >= 0; i--, bin /= SLICE)
        out[i] = bin % SLICE;
}

/* Of the slice's probabilities behind some tokens, what temperature and top-k leave. */
static void shape(double p[SLICE])
{
    double sum = 0, least = INFINITY;
    for (int i = 0; i < SLICE; i++) {
        p[i] = pow(p[i], 1 / temperature);
        least = p[i] < least ? p[i] : least;
    }
    for (int i = 0; i < SLICE; i++) {
        p[i] = p[i] > least ? p[i] : 0;
        sum += p[i];
    }
    for (int i = 0; i < SLICE; i++)
        p[i] /= sum;
}

/* p(token at `place` is each of the slice | the digits before it), from scores. */
static void chances_behind(const struct opened *o, const int32_t *digits, int place, double p[SLICE])
{
    int32_t tokens[PROMPT + TOKENS];
    qr_error err = {0};
    memcpy(tokens, prompt, sizeof prompt);
    for (int i = 0; i < place; i++)
        tokens[PROMPT + i] = FIRST + digits[i];
    for (int v = 0; v < SLICE; v++) {
        double score;
        tokens[PROMPT + place] = FIRST + v;
        must(qr_score(o->engine, tokens, (size_t)(PROMPT + place + 1), (size_t)(PROMPT + place), &score, &err), &err);
        p[v] = exp(score);
    }
    shape(p);
}

static void law_without_drafts(int m, double law[BINS])
{
    struct opened o = drafter_open(m, NULL, NULL);
    double first[SLICE], second[SLICE], third[SLICE];
    for (int bin = 0; bin < BINS; bin++) {
        int32_t digits[TOKENS];
        digits_of(bin, digits);
        if (bin == 0)
            chances_behind(&o, digits, 0, first);
        if (bin % (SLICE * SLICE) == 0)
            chances_behind(&o, digits, 1, second);
        if (bin % SLICE == 0)
            chances_behind(&o, digits, 2, third);
        law[bin] = first[digits[0]] * second[digits[1]] * third[digits[2]];
    }
    engine_close(&o);
}

static int bin_of(const struct reply *r)
{
    int bin = 0;
    for (int i = 0; i < TOKENS; i++) {
        assert_in_range(r->tokens[i], FIRST, FIRST + SLICE - 1);
        bin = bin * SLICE + r->tokens[i] - FIRST;
    }
    return bin;
}

static int32_t others(const struct opened *o, int32_t out[MOST_VOCAB])
{
    qr_model_info info;
    int32_t n = 0;
    qr_model_get_info(o->model, &info);
    assert_true(info.vocab_size <= MOST_VOCAB);
    for (int32_t id = 0; id < info.vocab_size; id++)
        if (id < FIRST || id >= FIRST + SLICE)
            out[n++] = id;
    return n;
}

/* Counts answers of many seeds, eight at a time; returns how many drafts stood. */
static int count_answers(int m, const char *verifier, const char *sampling, double counts[BINS])
{
    enum { AT_ONCE = 8 };
    struct opened o = drafter_open(m, verifier, sampling);
    int32_t banned[MOST_VOCAB];
    qr_sampling s = QR_SAMPLING;
    qr_request q = QR_REQUEST;
    int stood = 0;
    s.temperature = temperature;
    s.top_k = TOP;
    s.allow_special = true;
    s.banned = banned;
    s.banned_count = (size_t)others(&o, banned);
    q.tokens = prompt;
    q.token_count = PROMPT;
    q.sampling = &s;
    q.max_tokens = TOKENS + 2;
    q.ignore_eos = true;
    memset(counts, 0, BINS * sizeof *counts);
    for (int turn = 0; turn < ANSWERS; turn += AT_ONCE) {
        qr_handle handles[AT_ONCE];
        qr_error err = {0};
        for (int i = 0; i < AT_ONCE; i++) {
            s.seed = 1000 + turn + i;
            must(qr_submit(o.engine, &q, NULL, NULL, &handles[i], &err), &err);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            struct reply r = {0};
            reply_rest(&o, handles[i], &r);
            counts[bin_of(&r)]++;
            stood += r.usage.draft_accepted;
            reply_free(&r);
        }
    }
    engine_close(&o);
    return stood;
}

static bool follows(const double law[BINS], const double counts[BINS])
{
    struct fit fit = {0};
    double answers = 0;
    for (int bin = 0; bin < BINS; bin++)
        answers += counts[bin];
    for (int bin = 0; bin < BINS; bin++)
        fit_add(&fit, law[bin] * answers, counts[bin]);
    return fit_holds(&fit);
}

static void answers_have_the_law_of_answers_without_drafts(void **state)
{
    (void)state;
    for (int m = 0; m < DRAFTERS; m++) {
        double law[BINS], counts[BINS];
        law_without_drafts(m, law);
        for (int v = 0; v < 2; v++) {
            const int stood = count_answers(m, verifiers[v], NULL, counts);
            print_message("%s, %s: %d drafts stood\n", drafter_name(m), verifiers[v], stood);
            assert_true(stood > ANSWERS / 5);
            if (!follows(law, counts))
                fail_msg("%s, %s: another law", drafter_name(m), verifiers[v]);
        }
        double wrong[BINS]; /* a law not far from it */
        for (int bin = 0; bin < BINS; bin++)
            wrong[bin] = law[bin] * 0.9 + 0.1 / BINS;
        assert_false(follows(wrong, counts));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_have_the_law_of_answers_without_drafts),
    };
    return cmocka_run_group_tests(tests, drafters_make, drafters_remove);
}
