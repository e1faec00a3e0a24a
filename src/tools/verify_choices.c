#include "tools/verify_choices.h"

#include <math.h>
#include <stddef.h>

static bool holds(const int32_t *ids, int32_t count, int32_t id)
{
    for (int32_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* An id that `ids` has and `others` lacks was a near tie with the last one chosen. */
static bool only_near_ties(const struct choice *c, const int32_t *ids, const int32_t *others, double last, bool *differs)
{
    for (int32_t i = 0; i < c->want_count; i++) {
        if (holds(others, c->want_count, ids[i]))
            continue;
        *differs = true;
        if (!(fabs(c->values[ids[i]] - last) <= c->slack))
            return false;
    }
    return true;
}

const char *choice_fault(const struct choice *c, bool *differs)
{
    double last = INFINITY;
    *differs = false;
    if (c->found_count != c->want_count)
        return "another number of ids";
    for (int32_t i = 0; i < c->want_count; i++) {
        if (c->found[i] < 0 || c->found[i] >= c->n)
            return "an id that does not exist";
        if (holds(c->found, i, c->found[i]))
            return "an id twice";
        if (c->order == CHOICE_ASCENDING && i > 0 && c->found[i] < c->found[i - 1])
            return "ids that do not ascend";
        last = fmin(last, c->values[c->want[i]]);
    }
    if (!only_near_ties(c, c->found, c->want, last, differs) || !only_near_ties(c, c->want, c->found, last, differs))
        return "another set, without a near tie";
    for (int32_t i = 0; c->order == CHOICE_BY_VALUE && i < c->want_count; i++)
        if (c->found[i] != c->want[i] && !(fabsf(c->values[c->found[i]] - c->values[c->want[i]]) <= c->slack))
            return "another order, without a near tie";
    return NULL;
}
