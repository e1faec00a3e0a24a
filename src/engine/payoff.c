#include "engine/payoff.h"

/* What is kept of estimates with every verdict. */
#define REQUEST_KEPT 0.8
#define DOUBTED_KEPT 0.3
#define ALL_KEPT 0.95
/* The part of the time that trials may take, and rows whose time they may take beside it. */
#define TRIALS 0.005
#define TRIAL_ROWS 8
/* What a row for the drafter is taken for, in plain ones, where it is made within the step and has no time of its own. */
#define ROW_PART 0.03
/* Steps before their times say anything. */
enum { KNOWN_STEPS = 3 };

static double smaller(double a, double b) { return a < b ? a : b; }
static int32_t fewer(int32_t a, int32_t b) { return a < b ? a : b; }

/* ---- times ---- */

static void add_time(struct payoff_times *t, double rows, double seconds)
{
    t->rows[t->count % PAYOFF_SAMPLES] = rows;
    t->seconds[t->count % PAYOFF_SAMPLES] = seconds;
    t->count += t->count < INT32_MAX - PAYOFF_SAMPLES;
}

void payoff_step(struct payoff *p, int32_t requests, int32_t rows, double seconds)
{
    const bool verified = rows > requests;
    add_time(verified ? &p->verify : &p->plain, rows, seconds);
    p->since_plain = verified ? p->since_plain + 1 : 0;
    p->spent += seconds;
}

void payoff_draft(struct payoff *p, int32_t requests, double seconds)
{
    add_time(&p->draft, requests, seconds);
    p->spent += seconds;
}

void payoff_rows(struct payoff *p, int32_t rows, double seconds)
{
    add_time(&p->rows, rows, seconds);
    p->spent += seconds;
}

bool payoff_known(const struct payoff *p)
{
    return p->plain.count >= KNOWN_STEPS && p->verify.count >= KNOWN_STEPS;
}

struct typical {
    double rows, seconds;
};

/* The lower median of n values. */
static double median(const double *values, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t below = 0, same = 0;
        for (int32_t k = 0; k < n; k++) {
            below += values[k] < values[i];
            same += values[k] == values[i];
        }
        if (below <= (n - 1) / 2 && (n - 1) / 2 < below + same)
            return values[i];
    }
    return 0;
}

/* The mean of the last times but for those that took over twice the median, by step and by row: there something else had
 * the processor. Zeros when there are none. */
static struct typical typical_of(const struct payoff_times *t)
{
    const int32_t n = fewer(t->count, PAYOFF_SAMPLES);
    struct typical mean = {0};
    double each[PAYOFF_SAMPLES];
    int32_t taken = 0;
    for (int32_t i = 0; i < n; i++)
        each[i] = t->seconds[i] / t->rows[i];
    const double step = median(t->seconds, n), row = median(each, n);
    for (int32_t i = 0; i < n; i++)
        if (t->seconds[i] <= 2 * step || each[i] <= 2 * row) {
            mean.rows += t->rows[i];
            mean.seconds += t->seconds[i];
            taken++;
        }
    if (taken > 0) {
        mean.rows /= taken;
        mean.seconds /= taken;
    }
    return mean;
}

/* What things take. */
struct costs {
    struct typical plain;
    double slope; /* of a row more in a step */
    double draft; /* of a request in a pass */
    double row;   /* of a row for the drafter */
};

/* Steps lie on the line through the typical ones of both kinds, neither of whose parts is negative. */
static struct costs costs_of(const struct payoff *p)
{
    const struct typical plain = typical_of(&p->plain), verify = typical_of(&p->verify), draft = typical_of(&p->draft),
                         rows = typical_of(&p->rows);
    double slope = verify.rows > plain.rows + 0.5 ? (verify.seconds - plain.seconds) / (verify.rows - plain.rows) : 0;
    slope = slope < 0 ? 0 : smaller(slope, smaller(plain.seconds / plain.rows, verify.seconds / verify.rows));
    return (struct costs){.plain = plain,
                          .slope = slope,
                          .draft = draft.rows > 0 ? draft.seconds / draft.rows : 0,
                          .row = rows.rows > 0 ? rows.seconds / rows.rows : ROW_PART * plain.seconds / plain.rows};
}

static double step_seconds(const struct costs *c, double rows) { return c->plain.seconds + c->slope * (rows - c->plain.rows); }

/* ---- how often drafts are right ---- */

/* What a request is taken for before anything is known of it. */
static double expected(const struct payoff *p, const struct payoff_request *r) { return r->verified > 0 ? r->right : p->right; }

void payoff_verified(struct payoff *p, struct payoff_request *r, int32_t right)
{
    const bool guessed = r->verified == 0 || r->doubted;
    const double kept = !guessed ? REQUEST_KEPT : p->verdicts > 0 ? DOUBTED_KEPT : 0;
    const double all_kept = smaller(ALL_KEPT, p->verdicts / (p->verdicts + 1.0)); /* the mean of the first ones */
    r->right = kept * expected(p, r) + (1 - kept) * right;
    r->verified++;
    r->doubted = false;
    p->right = all_kept * p->right + (1 - all_kept) * right;
    p->verdicts++;
}

/* ---- trials ---- */

/* Whether trials may take that much more. */
static bool allows(const struct payoff *p, const struct costs *c, double more)
{
    return p->tried + more <= TRIALS * p->spent + TRIAL_ROWS * c->plain.seconds / c->plain.rows;
}

static double trial_seconds(const struct costs *c, int32_t limit) { return c->slope * limit + c->draft; }

/* The same of a request that is new: with its prompt's rows for the drafter, and those that layers run for these alone. */
static double start_seconds(const struct payoff *p, const struct costs *c, int32_t limit)
{
    return trial_seconds(c, limit) + 2 * p->window * c->row;
}

/* A request whose drafts do not pay by what is known drafts all the same. One that lacks rows first makes them. */
static bool is_tried(struct payoff *p, struct payoff_request *r, const struct costs *c, int32_t limit)
{
    if (r->warms)
        return !r->lacks_rows;
    const bool is_new = r->verified == 0 && r->rest == 0;
    if (!is_new && (r->rest == 0 || r->rested < r->rest))
        return false;
    const double more = r->lacks_rows ? trial_seconds(c, limit) + p->window * c->row
                        : is_new      ? start_seconds(p, c, limit)
                                      : trial_seconds(c, limit);
    if (!allows(p, c, more))
        return false;
    p->tried += more;
    r->warms = r->lacks_rows;
    return !r->lacks_rows;
}

static void note(struct payoff_request *r, bool drafts, bool tried)
{
    if (drafts) {
        const bool again = tried && r->rest > 0;
        r->rest = !again ? 0 : fewer(2 * r->rest, PAYOFF_LONGEST_REST);
        r->rested = 0;
        r->doubted = tried;
        r->warms = r->spares_rows = false;
        return;
    }
    r->rested++;
    r->rest = r->rest > 0 ? r->rest : PAYOFF_REST;
    const bool soon = r->verified > 0 && r->rest == PAYOFF_REST && r->rested < r->rest;
    r->spares_rows = !r->warms && (r->lacks_rows || !soon);
}

/* ---- the choice ---- */

/* Tokens a second when those with at least `least` drafts right a step draft. */
static double rate(const struct payoff *p, const struct costs *c, struct payoff_request *const *requests, int32_t count,
                   int32_t limit, double least)
{
    double tokens = count;
    int32_t drafting = 0;
    for (int32_t i = 0; i < count; i++)
        if (expected(p, requests[i]) >= least) {
            tokens += expected(p, requests[i]);
            drafting++;
        }
    return tokens / (step_seconds(c, count + (double)drafting * limit) + drafting * c->draft);
}

#define NOBODY 1e9
/* The drafts right a step from which on requests draft. */
static double least_that_pays(const struct payoff *p, const struct costs *c, struct payoff_request *const *requests,
                              int32_t count, int32_t limit)
{
    double best = rate(p, c, requests, count, limit, NOBODY), least = NOBODY;
    for (int32_t i = 0; i < count; i++) {
        const double with = rate(p, c, requests, count, limit, expected(p, requests[i]));
        if (with > best) {
            best = with;
            least = expected(p, requests[i]);
        }
    }
    return least;
}

static void nobody(bool *drafts, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        drafts[i] = false;
}

/* Steps of both kinds by turns; with drafts of the request that has the fewest verdicts. */
static void learn(struct payoff *p, struct payoff_request *const *requests, int32_t count, int32_t limit, bool *drafts)
{
    int32_t one = -1;
    nobody(drafts, count);
    for (int32_t i = 0; i < count; i++)
        if (!requests[i]->lacks_rows && (one < 0 || requests[i]->verified < requests[one]->verified))
            one = i;
    if (one < 0 || p->verify.count > p->plain.count)
        return;
    drafts[one] = true;
    if (p->plain.count > 0) {
        const struct costs c = costs_of(p);
        p->tried += p->verify.count > 0 ? trial_seconds(&c, limit) : 0;
    }
}

void payoff_choose(struct payoff *p, struct payoff_request *const *requests, int32_t count, int32_t limit, bool *drafts)
{
    if (!payoff_known(p)) {
        learn(p, requests, count, limit, drafts);
        return;
    }
    if (p->since_plain >= PAYOFF_PLAIN) {
        nobody(drafts, count);
        return;
    }
    const struct costs c = costs_of(p);
    const double least = least_that_pays(p, &c, requests, count, limit);
    for (int32_t i = 0; i < count; i++) {
        struct payoff_request *r = requests[i];
        const bool pays = expected(p, r) >= least, tried = !pays && is_tried(p, r, &c, limit);
        drafts[i] = (pays && !r->lacks_rows) || tried;
        r->warms |= pays;
        note(r, drafts[i], tried);
    }
}

bool payoff_starts_without(const struct payoff *p, int32_t limit)
{
    struct payoff_request one = {0}, *all = &one;
    if (!payoff_known(p))
        return false;
    const struct costs c = costs_of(p);
    return least_that_pays(p, &c, &all, 1, limit) == NOBODY && !allows(p, &c, start_seconds(p, &c, limit));
}
