/* label: release */
/* One answer (architecture.md, promise 2) at the setting that is used unless another is named, where drafts come, rest, leave out
 * their rows and come again: the bits of a request are those that it has alone and without drafts, in a batch, in chunks, behind
 * cached pages, preempted, with one thread and two. And a drafter that left out rows says afterwards what it would have
 * said. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/speculate.h"
#include "support/engines.h"
#include "support/support.h"

enum { REQUESTS = 2, MOST = 134, ANSWER = 12, BANNED = 5 };

static const struct family {
    const char *dir, *method;
    int32_t window, block, prompt;
} families[] = {{"tests/golden/v41/spec-13.1/model", "dspark", 8, 32, 40}, {"tests/golden/v4/tiny/model", "mtp", 128, 128, 134}};
enum { FAMILIES = sizeof families / sizeof *families };

struct asked {
    int32_t tokens[MOST];
    qr_logit_bias bias[BANNED];
    qr_sampling sampling;
    qr_request request;
};

/* Request i: greedy, or drawn. Ids that the vocabulary of the small V4 has no text for are not drawn. */
static void ask(const struct family *f, int i, struct asked *a)
{
    for (int32_t p = 0; p < f->prompt; p++)
        a->tokens[p] = 10 + p * 37 % 229;
    for (int32_t b = 0; b < BANNED; b++)
        a->bias[b] = (qr_logit_bias){.token = 259 + b, .bias = -1e9f};
    a->sampling = (qr_sampling)QR_SAMPLING;
    a->sampling.temperature = i;
    a->sampling.seed = 7;
    a->sampling.logit_bias = a->bias;
    a->sampling.logit_bias_count = BANNED;
    a->request = (qr_request)QR_REQUEST;
    a->request.tokens = a->tokens;
    a->request.token_count = (size_t)(f->prompt - i);
    a->request.sampling = &a->sampling;
    a->request.max_tokens = ANSWER;
    a->request.ignore_eos = true;
    a->request.logprobs = 2;
}

static struct opened open_family(const struct family *f, const char *method, int threads, int32_t rows)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = method;
    o.max_model_len = 384;
    o.max_num_seqs = REQUESTS;
    o.max_num_batched_tokens = rows;
    o.block_size = f->block;
    return engine_open_ids(f->dir, threads, &o);
}

/* Whatever the clocks say: phases of drafts, of rests, and of rests without rows, other ones for each request. */
static void by_phases(void *user, const struct sched_request *r, bool *drafts, bool *spares_rows)
{
    const int32_t phase = (r->count / 3 + (int32_t)r->id) % 3;
    (void)user;
    *drafts = phase == 0;
    *spares_rows = phase == 1;
}

struct way {
    const char *what;
    int threads;
    int32_t rows;
    bool phases, together, preempted;
};
static const struct way ways[] = {
    {"alone", 1, 0, true, false, false},
    {"in a batch, by the clocks", 2, 0, false, true, false},
    {"in a batch, in chunks, preempted", 2, 50, true, true, true},
};

static void answer_all(const struct opened *o, const struct family *f, const struct way *w, struct reply *out)
{
    qr_handle handles[REQUESTS];
    struct asked a[REQUESTS];
    qr_error err = {0};
    for (int i = 0; i < REQUESTS; i++) {
        ask(f, i, &a[i]);
        if (!w->together) {
            out[i] = reply_of(o, &a[i].request);
            continue;
        }
        must(qr_submit(o->engine, &a[i].request, NULL, NULL, &handles[i], &err), &err);
        for (uint64_t step = 5; w->preempted && step < 14; step += 4)
            assert_int_equal(qr_inject(o->engine, QR_INJECT_PREEMPT, handles[i], step + (uint64_t)i, NULL), QR_OK);
    }
    for (int i = 0; w->together && i < REQUESTS; i++) {
        out[i] = (struct reply){0};
        reply_rest(o, handles[i], &out[i]);
    }
}

/* Twice: the second time behind the pages of the first. */
static void same_in_this_way(const struct family *f, const struct way *w, const struct reply *alone)
{
    struct opened o = open_family(f, "auto", w->threads, w->rows);
    const struct draft_hook hook = {.choose = w->phases ? by_phases : NULL};
    struct reply r[REQUESTS];
    qr_metrics m = {.size = sizeof m};
    speculation_hook(o.engine->speculation, &hook);
    for (int turn = 0; turn < 2; turn++) {
        answer_all(&o, f, w, r);
        for (int i = 0; i < REQUESTS; i++) {
            char what[160];
            snprintf(what, sizeof what, "%s, %s, request %d, turn %d", f->dir, w->what, i, turn);
            assert_same_reply(&alone[i], &r[i], what);
            assert_true(turn == 0 || r[i].usage.cached_tokens > 0);
            reply_free(&r[i]);
        }
    }
    qr_get_metrics(o.engine, &m);
    assert_true(m.drafts.verify_steps > 0);
    assert_true(!w->preempted || m.preemptions > 0);
    engine_close(&o);
}

static void the_automatic_setting_changes_no_bit_of_an_answer(void **state)
{
    (void)state;
    static const struct way plain = {.what = "without drafts"};
    for (int f = 0; f < FAMILIES; f++) {
        struct reply alone[REQUESTS];
        struct opened o = open_family(&families[f], "none", 1, 0);
        answer_all(&o, &families[f], &plain, alone);
        engine_close(&o);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
            same_in_this_way(&families[f], &ways[w], alone);
        for (int i = 0; i < REQUESTS; i++)
            reply_free(&alone[i]);
    }
}

/* ---- behind a gap ---- */

enum { START = 20, TOKENS = START + 170, FROM = 2, GAP = 3 };

/* What was said behind each number of tokens. */
struct said {
    int32_t drafts[TOKENS][SCHED_MAX_WIDTH], made[TOKENS];
};

static int32_t note(void *user, const struct sched_request *r, int32_t *drafts, int32_t count, int32_t limit)
{
    struct said *said = user;
    (void)limit;
    memcpy(said->drafts[r->count], drafts, (size_t)count * sizeof *drafts);
    said->made[r->count] = count;
    for (int32_t i = 0; i < count; i++) /* all wrong in a vocabulary of this size, so that every place comes up */
        drafts[i] = 3;
    return count;
}

/* Rows of some of the first tokens of the answer are left out; drafts are wanted whenever they can be made. */
static void with_gap(void *user, const struct sched_request *r, bool *drafts, bool *spares_rows)
{
    (void)user;
    *spares_rows = r->count >= r->prompt + FROM && r->count < r->prompt + FROM + GAP;
    *drafts = !*spares_rows;
}

static void answer_noting(const struct family *f, bool gap, struct said *said)
{
    struct opened o = open_family(f, gap ? "auto" : f->method, 1, 0);
    const struct draft_hook hook = {.replace = note, .choose = gap ? with_gap : NULL, .user = said};
    const int32_t answer = f->window + 30;
    struct asked a;
    *said = (struct said){0};
    speculation_hook(o.engine->speculation, &hook);
    ask(f, 0, &a);
    a.request.token_count = START;
    a.request.max_tokens = answer;
    struct reply r = reply_of(&o, &a.request);
    if ((int32_t)r.count != answer)
        fail_msg("%s: %d tokens, %s", f->dir, (int)r.count, r.error.message);
    reply_free(&r);
    engine_close(&o);
}

static void drafts_behind_rows_that_were_left_out_are_those_of_a_drafter_that_made_them_all(void **state)
{
    (void)state;
    static struct said all, some;
    for (int f = 0; f < FAMILIES; f++) {
        const int32_t gap = START + FROM, ready = gap + GAP + families[f].window;
        answer_noting(&families[f], false, &all);
        answer_noting(&families[f], true, &some);
        for (int32_t n = START + 1; n < START + families[f].window + 20; n++) {
            if (all.made[n] == 0)
                fail_msg("%s: no drafts behind %d tokens", families[f].dir, (int)n);
            if ((some.made[n] > 0) != (n < gap || n >= ready))
                fail_msg("%s: %d drafts behind %d tokens, the rows behind %d to %d were left out", families[f].dir,
                         (int)some.made[n], (int)n, (int)gap, (int)gap + GAP - 1);
            if (some.made[n] > 0 && memcmp(all.drafts[n], some.drafts[n], (size_t)some.made[n] * sizeof **some.drafts) != 0)
                fail_msg("%s: other drafts behind %d tokens than without the gap", families[f].dir, (int)n);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_automatic_setting_changes_no_bit_of_an_answer),
        cmocka_unit_test(drafts_behind_rows_that_were_left_out_are_those_of_a_drafter_that_made_them_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
