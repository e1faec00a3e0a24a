#include "engine/payoff.h"

/* What is kept of the sums with every step; of estimates with every verdict. */
#define KEPT 0.97
#define REQUEST_KEPT 0.8
#define DOUBTED_KEPT 0.3
#define ALL_KEPT 0.95
/* The part of the time that trials may take. */
#define TRIALS 0.02
/* Steps before their times say anything. */
enum { KNOWN_STEPS = 3 };

void payoff_step(struct payoff *p, int32_t requests, int32_t rows, double seconds)
{
    struct payoff_steps *kind = rows > requests ? &p->verify : &p->plain;
    kind->steps = KEPT * kind->steps + 1;
    kind->rows = KEPT * kind->rows + rows;
    kind->seconds = KEPT * kind->seconds + seconds;
    p->since_plain = rows > requests ? p->since_plain + 1 : 0;
    p->spent += seconds;
}

void payoff_draft(struct payoff *p, int32_t requests, double seconds)
{
    p->drafted = KEPT * p->drafted + requests;
    p->draft_seconds = KEPT * p->draft_seconds + seconds;
    p->spent += seconds;
}

/* What a request is taken for before anything is known of it. */
static double expected(const struct payoff *p, const struct payoff_request *r) { return r->verified > 0 ? r->right : p->right; }

void payoff_verified(struct payoff *p, struct payoff_request *r, int32_t right)
{
    const bool guessed = r->verified == 0 || r->doubted;
    const double kept = !guessed ? REQUEST_KEPT : p->verdicts > 0 ? DOUBTED_KEPT : 0;
    r->right = kept * expected(p, r) + (1 - kept) * right;
    r->verified++;
    r->doubted = false;
    p->right = p->verdicts > 0 ? ALL_KEPT * p->right + (1 - ALL_KEPT) * right : right;
    p->verdicts++;
}

static double smaller(double a, double b) { return a < b ? a : b; }

/* A step of `rows` rows: the line through the means of both kinds, neither of whose parts is negative. */
static double step_seconds(const struct payoff *p, double rows)
{
    const double r0 = p->plain.rows / p->plain.steps, t0 = p->plain.seconds / p->plain.steps;
    const double r1 = p->verify.rows / p->verify.steps, t1 = p->verify.seconds / p->verify.steps;
    double slope = r1 > r0 + 0.5 ? (t1 - t0) / (r1 - r0) : 0;
    slope = slope < 0 ? 0 : smaller(slope, smaller(t0 / r0, t1 / r1));
    return t0 + slope * (rows - r0);
}

static double draft_seconds(const struct payoff *p) { return p->drafted > 0 ? p->draft_seconds / p->drafted : 0; }

/* Tokens a second when those with at least `least` drafts right a step draft. */
static double rate(const struct payoff *p, struct payoff_request *const *requests, int32_t count, int32_t limit, double least)
{
    double tokens = count;
    int32_t drafting = 0;
    for (int32_t i = 0; i < count; i++)
        if (expected(p, requests[i]) >= least) {
            tokens += expected(p, requests[i]);
            drafting++;
        }
    return tokens / (step_seconds(p, count + (double)drafting * limit) + drafting * draft_seconds(p));
}

/* A request whose drafts do not pay by what is known drafts all the same. */
static bool is_tried(struct payoff *p, const struct payoff_request *r, int32_t count, int32_t limit)
{
    const double more = step_seconds(p, count + (double)limit) - step_seconds(p, count) + draft_seconds(p);
    if ((r->verified > 0 && (r->rest == 0 || r->rested < r->rest)) || p->tried + more > TRIALS * p->spent)
        return false;
    p->tried += more;
    return true;
}

static void note(struct payoff_request *r, bool drafts, bool tried)
{
    if (!drafts) {
        r->rested++;
        r->rest = r->rest > 0 ? r->rest : PAYOFF_REST;
        return;
    }
    const bool again = tried && r->rest > 0;
    r->rest = !again ? 0 : 2 * r->rest < PAYOFF_LONGEST_REST ? 2 * r->rest : PAYOFF_LONGEST_REST;
    r->rested = 0;
    r->doubted = tried;
}

bool payoff_known(const struct payoff *p)
{
    return p->plain.steps >= KNOWN_STEPS - 0.5 && p->verify.steps >= KNOWN_STEPS - 0.5 && p->plain.seconds > 0;
}

static void all(bool *drafts, int32_t count, bool value)
{
    for (int32_t i = 0; i < count; i++)
        drafts[i] = value;
}

void payoff_choose(struct payoff *p, struct payoff_request *const *requests, int32_t count, int32_t limit, bool *drafts)
{
    if (!payoff_known(p)) {
        all(drafts, count, p->verify.steps <= p->plain.steps);
        return;
    }
    if (p->since_plain >= PAYOFF_PLAIN) {
        all(drafts, count, false);
        return;
    }
    double best = rate(p, requests, count, limit, 1e9), least = 1e9; /* nobody */
    for (int32_t i = 0; i < count; i++) {
        const double with = rate(p, requests, count, limit, expected(p, requests[i]));
        if (with > best) {
            best = with;
            least = expected(p, requests[i]);
        }
    }
    for (int32_t i = 0; i < count; i++) {
        const bool pays = expected(p, requests[i]) >= least, tried = !pays && is_tried(p, requests[i], count, limit);
        drafts[i] = pays || tried;
        note(requests[i], drafts[i], tried);
    }
}
