#include "engine/payoff.h"

/* What is kept of the sums with every step; of a request's estimate with every verdict. */
#define KEPT 0.99
#define REQUEST_KEPT 0.8
/* Steps before their times say anything. */
enum { KNOWN_STEPS = 3 };

void payoff_step(struct payoff *p, int32_t requests, int32_t rows, double seconds)
{
    struct payoff_steps *kind = rows > requests ? &p->verify : &p->plain;
    kind->steps = KEPT * kind->steps + 1;
    kind->rows = KEPT * kind->rows + rows;
    kind->seconds = KEPT * kind->seconds + seconds;
}

void payoff_draft(struct payoff *p, int32_t requests, double seconds)
{
    p->drafted = KEPT * p->drafted + requests;
    p->draft_seconds = KEPT * p->draft_seconds + seconds;
}

void payoff_verified(struct payoff_request *r, int32_t right)
{
    r->right = r->verified == 0 ? right : REQUEST_KEPT * r->right + (1 - REQUEST_KEPT) * right;
    r->verified++;
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

static bool is_tried(const struct payoff_request *r)
{
    return r->verified == 0 || (r->rest > 0 && r->rested >= r->rest);
}

/* Tokens a second when those with at least `least` drafts right a step draft, and those that are tried. */
static double rate(const struct payoff *p, struct payoff_request *const *requests, int32_t count, int32_t limit, double least)
{
    double tokens = count;
    int32_t drafting = 0;
    for (int32_t i = 0; i < count; i++)
        if (is_tried(requests[i]) || requests[i]->right >= least) {
            tokens += requests[i]->right;
            drafting++;
        }
    const double draft = p->drafted > 0 ? p->draft_seconds / p->drafted : 0;
    return tokens / (step_seconds(p, count + (double)drafting * limit) + drafting * draft);
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
}

bool payoff_known(const struct payoff *p)
{
    return p->plain.steps >= KNOWN_STEPS && p->verify.steps >= KNOWN_STEPS && p->plain.seconds > 0;
}

void payoff_choose(const struct payoff *p, struct payoff_request *const *requests, int32_t count, int32_t limit, bool *drafts)
{
    if (!payoff_known(p)) {
        for (int32_t i = 0; i < count; i++)
            drafts[i] = p->verify.steps <= p->plain.steps;
        return;
    }
    double best = rate(p, requests, count, limit, 1e9), least = 1e9; /* nobody but those tried */
    for (int32_t i = 0; i < count; i++) {
        const double with = rate(p, requests, count, limit, requests[i]->right);
        if (with > best) {
            best = with;
            least = requests[i]->right;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        const bool tried = is_tried(requests[i]);
        drafts[i] = tried || requests[i]->right >= least;
        note(requests[i], drafts[i], tried && requests[i]->right < least);
    }
}
