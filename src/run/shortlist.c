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

static bool holds(const struct id_list *list, int32_t id)
{
    for (int32_t i = 0; i < list->count; i++)
        if (list->ids[i] == id)
            return true;
    return false;
}

static bool is_banned(const struct sampling_row *row, int32_t id)
{
    if (row->allowed && !(row->allowed[id >> 5] >> (id & 31) & 1))
        return true;
    for (int32_t l = 0; l < row->banned_lists; l++)
        if (holds(&row->banned[l], id))
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

/* Ids that are banned beside those that `mass` left out. */
enum { MOST_OTHERS = 4 };
struct others {
    int32_t ids[MOST_OTHERS], count;
};

/* False: not all of what `mass` left out is banned, or more than a few ids beside it are. */
static bool find_others(const struct sampling_row *row, const struct id_list *left_out, struct others *out)
{
    bool banned = left_out->count == 0;
    out->count = 0;
    for (int32_t l = 0; l < row->banned_lists; l++) {
        const struct id_list *list = &row->banned[l];
        const bool same = list->ids == left_out->ids && list->count == left_out->count;
        banned |= same;
        for (int32_t i = 0; !same && i < list->count; i++) {
            if (holds(left_out, list->ids[i]) || holds(&(struct id_list){out->ids, out->count}, list->ids[i]))
                continue;
            if (out->count == MOST_OTHERS)
                return false;
            out->ids[out->count++] = list->ids[i];
        }
    }
    return banned && !row->allowed;
}

/* Takes the masses of the others out of the whole: of those that are listed; what the rest weigh at most is `slack`. False:
 * they are too much of it for what remains to be exact. */
static bool take_off(const struct sampling_params *p, const struct others *others, const struct entries *e, float top, double *whole,
                     double *slack)
{
    const double before = *whole;
    *slack = 0;
    for (int32_t k = 0; k < others->count; k++) {
        int32_t i = 0;
        while (i < e->count && e->at[i].id != others->ids[k])
            i++;
        const double mass = exp(((double)(i < e->count ? e->at[i].logit : e->bound) - (double)top) / p->temperature);
        *(i < e->count ? whole : slack) += i < e->count ? -mass : mass;
    }
    return *whole - *slack > before / 2;
}

/* The shortest beginning that reaches top_p is among the entries, and the sums on both sides of its end are clear of it: the
 * least and the most that they can be. */
static bool draw_of_nucleus(const struct sampling_params *p, const struct sampling_row *row, const struct id_list *left_out,
                            int64_t position, const struct shortlist_part *parts, struct entries *e, int32_t *token)
{
    struct others others;
    double least = 0, most = 0, slack;
    int32_t first = 0, kept = 0;
    if (p->min_p > 0 || !find_others(row, left_out, &others))
        return false;
    qsort(e->at, (size_t)e->count, sizeof *e->at, by_key);
    while (first < e->count && is_banned(row, e->at[first].id))
        first++;
    if (first == e->count)
        return false;
    const float top = e->at[first].logit;
    double whole = whole_mass(p, parts, top);
    if (!take_off(p, &others, e, top, &whole, &slack))
        return false;
    for (int32_t i = first; i < e->count && least < p->top_p + near_tie; i++) {
        if (kept > 0 && most > p->top_p - near_tie)
            return false;
        if (is_banned(row, e->at[i].id))
            continue;
        const double mass = exp(((double)e->at[i].logit - (double)top) / p->temperature);
        e->at[kept++] = e->at[i];
        least += mass / whole;
        most += mass / (whole - slack);
    }
    if (least < p->top_p + near_tie)
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
