#include "engine/draft_budget.h"

/* The offer whose next draft is likeliest; -1: none is left. */
static int32_t likeliest(const struct draft_offer *offers, int32_t count)
{
    int32_t best = -1;
    for (int32_t i = 0; i < count; i++) {
        const struct draft_offer *o = &offers[i];
        if (o->length < o->made && (best < 0 || o->survival[o->length] > offers[best].survival[offers[best].length]))
            best = i;
    }
    return best;
}

static void clear(struct draft_offer *offers, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        offers[i].length = 0;
}

double draft_budget(const struct draft_profile *p, struct draft_offer *offers, int32_t count, int32_t others)
{
    const int32_t requests = count + others;
    const double drafting = draft_cost_ms(&p->drafts, count);
    double tokens = requests, best = tokens / (drafting + draft_cost_ms(&p->steps, requests));
    int32_t kept = 0, taken = 0;
    clear(offers, count);
    for (int32_t i; (i = likeliest(offers, count)) >= 0;) {
        tokens += offers[i].survival[offers[i].length++];
        taken++;
        const double rate = tokens / (drafting + draft_cost_ms(&p->steps, requests + taken));
        if (rate > best) {
            best = rate;
            kept = taken;
        }
    }
    clear(offers, count);
    for (taken = 0; taken < kept; taken++)
        offers[likeliest(offers, count)].length++;
    return best;
}
