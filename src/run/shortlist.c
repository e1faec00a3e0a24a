#include "run/shortlist.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = SHORTLIST_PARTS * SHORTLIST_LENGTH };

/* What rounding may do to a key of the backend, and, relative to the numbers, to two arrivals or two sums of masses that
 * were formed in different orders. Both are far more than it does. */
static double key_slack(double key, double scaled) { return 1e-4 + 1e-6 * (fabs(key) + fabs(scaled)); }
static const double near_tie = 1e-9;

/* Below that temperature keys of a race leave the range of a float. */
static const double coldest = 1e-4;

bool shortlist_helps(const struct sampling_params *p)
{
    return !sampling_wants_counts(p) && p->bias_count == 0 && (p->temperature == 0 || p->temperature >= coldest);
}

static bool cuts_by_number(const struct sampling_params *p) { return p->top_k > 0; }

/* A draw from all ids, by their probabilities as they are. */
static bool is_race(const struct sampling_params *p)
{
    return p->temperature > 0 && !cuts_by_number(p) && p->top_p >= 1.0 && p->min_p <= 0.0;
}

/* Only top-p alone asks for the part of the whole that an id has. */
static bool weighs(const struct sampling_params *p)
{
    return p->temperature > 0 && !cuts_by_number(p) && p->top_p < 1.0;
}

struct shortlist_ask shortlist_ask(const struct sampling_params *p, int64_t position, int32_t row)
{
    return (struct shortlist_ask){.row = row,
                                  .race = is_race(p),
                                  .weigh = weighs(p),
                                  .temperature = p->temperature,
                                  .seed = p->seed,
                                  .position = position,
                                  .tag = STREAM_TARGET};
}

/* ---- entries ---- */

struct entry {
    int32_t id;
    float logit, key;
};

/* Ids that may be drawn, and the largest key of those that are not among them for another reason than a ban. */
struct entries {
    int32_t count;
    float bound;
    struct entry at[MOST];
};

static bool is_banned(const struct sampling_row *row, int32_t id)
{
    if (row->allowed && !(row->allowed[id >> 5] >> (id & 31) & 1))
        return true;
    for (int32_t l = 0; l < row->banned_lists; l++)
        for (int32_t i = 0; i < row->banned[l].count; i++)
            if (row->banned[l].ids[i] == id)
                return true;
    return false;
}

static bool comes_before(const struct entry *a, const struct entry *b)
{
    return a->key != b->key ? a->key > b->key : a->id < b->id;
}

static int by_key(const void *a, const void *b) { return comes_before(b, a) - comes_before(a, b); }
static int by_id(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* The entries whose keys are above every part's bound. False: a part has a logit that is no number, or a key is none. */
static bool gather(const struct shortlist_part *parts, struct entries *out)
{
    out->count = 0;
    out->bound = -INFINITY;
    for (int p = 0; p < SHORTLIST_PARTS; p++) {
        if (parts[p].count < 0 || !(parts[p].bound < INFINITY))
            return false;
        out->bound = parts[p].bound > out->bound ? parts[p].bound : out->bound;
    }
    for (int p = 0; p < SHORTLIST_PARTS; p++)
        for (int32_t i = 0; i < parts[p].count; i++) {
            if (!isfinite(parts[p].keys[i]))
                return false;
            if (parts[p].keys[i] > out->bound)
                out->at[out->count++] = (struct entry){parts[p].ids[i], parts[p].logits[i], parts[p].keys[i]};
        }
    return true;
}

/* Brings the first entry that is not banned to the front; the banned ones before it are gone. False: there is none. */
static bool first_allowed(const struct sampling_row *row, struct entries *e)
{
    while (e->count > 0) {
        struct entry *first = e->at;
        for (int32_t i = 1; i < e->count; i++)
            if (comes_before(&e->at[i], first))
                first = &e->at[i];
        const struct entry found = *first;
        if (!is_banned(row, found.id)) {
            *first = e->at[0];
            e->at[0] = found;
            return true;
        }
        *first = e->at[--e->count];
    }
    return false;
}

/* Sorts the entries and takes the banned ones out of the first of them until `wanted` are left. Returns how many are. */
static int32_t sort_allowed(const struct sampling_row *row, struct entries *e, int32_t wanted)
{
    int32_t kept = 0;
    qsort(e->at, (size_t)e->count, sizeof *e->at, by_key);
    for (int32_t i = 0; i < e->count && kept < wanted; i++)
        if (!is_banned(row, e->at[i].id))
            e->at[kept++] = e->at[i];
    return kept;
}

/* ---- the race ---- */

/* Of entries, ids ascending or not, by E / e^((l - top) / T): the unit of mass is nobody's concern. False: two are so near
 * that the order of the whole row's sum could decide. */
static bool race(const struct sampling_params *p, const struct entry *at, int32_t count, int64_t position, int32_t *token)
{
    const struct keyed_stream stream = {.seed = p->seed, .position = position, .tag = STREAM_TARGET};
    double best = INFINITY, second = INFINITY, top = -INFINITY;
    for (int32_t i = 0; i < count; i++)
        top = fmax(top, (double)at[i].logit);
    for (int32_t i = 0; i < count; i++) {
        const double arrival =
            stream_exponential(stream_word(&stream, (uint32_t)at[i].id)) / exp(((double)at[i].logit - top) / p->temperature);
        if (arrival < best) {
            second = best;
            best = arrival;
            *token = at[i].id;
        } else if (arrival < second) {
            second = arrival;
        }
    }
    return best < INFINITY && second > best * (1 + near_tie);
}

static bool draw_of_all(const struct sampling_params *p, const struct sampling_row *row, int64_t position, struct entries *e,
                        int32_t *token)
{
    if (!first_allowed(row, e))
        return false;
    const struct entry first = e->at[0];
    const double slack = key_slack(first.key, (double)first.logit / p->temperature), least = first.key - 2 * slack;
    if (e->bound >= least)
        return false;
    int32_t near = 1; /* those that might come before it */
    for (int32_t i = 1; i < e->count; i++)
        if (e->at[i].key >= least && !is_banned(row, e->at[i].id))
            e->at[near++] = e->at[i];
    return race(p, e->at, near, position, token);
}

/* ---- cuts ---- */

static bool draw_among(const struct sampling_params *p, struct entry *at, int32_t count, int64_t position,
                       struct sampler_scratch *scratch, int32_t *token)
{
    const struct keyed_stream stream = {.seed = p->seed, .position = position, .tag = STREAM_TARGET};
    int32_t ids[MOST];
    float logits[MOST];
    struct distribution d;
    qsort(at, (size_t)count, sizeof *at, by_id);
    for (int32_t i = 0; i < count; i++) {
        ids[i] = at[i].id;
        logits[i] = at[i].logit;
    }
    sampling_among(p, ids, logits, count, scratch, &d);
    *token = d.count == 1 ? d.ids[0] : distribution_draw(&d, &stream);
    return true;
}

/* No other id is as heavy as the lightest that min-p lets through. */
static bool draw_of_heavy(const struct sampling_params *p, const struct sampling_row *row, int64_t position, struct entries *e,
                          struct sampler_scratch *scratch, int32_t *token)
{
    const int32_t count = sort_allowed(row, e, MOST);
    if (count == 0 || exp(((double)e->bound - (double)e->at[0].logit) / p->temperature) * (1 + near_tie) >= p->min_p)
        return false;
    return draw_among(p, e->at, count, position, scratch, token);
}

/* Everything but what the parts left out. */
static double whole_mass(const struct sampling_params *p, const struct shortlist_part *parts, float top)
{
    double sum = 0;
    for (int i = 0; i < SHORTLIST_PARTS; i++)
        if (parts[i].largest > -INFINITY)
            sum += parts[i].mass * exp(((double)parts[i].largest - (double)top) / p->temperature);
    return sum;
}

/* Whether what `mass` left out is what is banned, all and nothing else. */
static bool leaves_out(const struct sampling_row *row, const struct id_list *left_out)
{
    bool banned = left_out->count == 0;
    for (int32_t l = 0; l < row->banned_lists; l++) {
        const bool same = row->banned[l].ids == left_out->ids && row->banned[l].count == left_out->count;
        if (row->banned[l].count > 0 && !same)
            return false;
        banned |= same;
    }
    return banned && !row->allowed;
}

/* The shortest beginning that reaches top_p is among the entries, and the sums on both sides of its end are clear of it. */
static bool draw_of_nucleus(const struct sampling_params *p, const struct sampling_row *row, const struct id_list *left_out,
                            int64_t position, const struct shortlist_part *parts, struct entries *e, int32_t *token)
{
    double sum = 0, whole = 0;
    int32_t kept = 0;
    if (p->min_p > 0 || !leaves_out(row, left_out))
        return false;
    qsort(e->at, (size_t)e->count, sizeof *e->at, by_key);
    for (int32_t i = 0; i < e->count && sum < p->top_p + near_tie; i++) {
        if (kept > 0 && sum > p->top_p - near_tie)
            return false;
        if (is_banned(row, e->at[i].id))
            continue;
        if (kept == 0)
            whole = whole_mass(p, parts, e->at[i].logit);
        e->at[kept++] = e->at[i];
        sum += exp(((double)e->at[kept - 1].logit - (double)e->at[0].logit) / p->temperature) / whole;
    }
    if (kept == 0 || sum < p->top_p + near_tie)
        return false;
    *token = e->at[0].id;
    return kept == 1 || race(p, e->at, kept, position, token);
}

bool shortlist_draw(const struct sampling_params *p, const struct sampling_row *row, const struct id_list *left_out,
                    int64_t position, const struct shortlist_part parts[SHORTLIST_PARTS], struct sampler_scratch *scratch,
                    int32_t *token)
{
    struct entries e;
    if (!gather(parts, &e))
        return false;
    if (is_race(p))
        return draw_of_all(p, row, position, &e, token);
    if (p->temperature == 0) {
        const bool found = first_allowed(row, &e);
        *token = found ? e.at[0].id : *token;
        return found;
    }
    if (cuts_by_number(p))
        return sort_allowed(row, &e, p->top_k) == p->top_k && draw_among(p, e.at, p->top_k, position, scratch, token);
    if (p->top_p < 1.0)
        return draw_of_nucleus(p, row, left_out, position, parts, &e, token);
    return draw_of_heavy(p, row, position, &e, scratch, token);
}
