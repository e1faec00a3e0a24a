#include "text/grammar_integer.h"

#include <stdio.h>
#include <string.h>

enum { MOST_DIGITS = 20 };

static grammar_node_id digits(struct grammar *g, char first, char last, grammar_node_id next)
{
    struct byte_set set = {{0}};
    byte_set_add(&set, (uint8_t)first, (uint8_t)last);
    return grammar_set(g, &set, next);
}

static bool all(const char *s, size_t n, char digit)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != digit)
            return false;
    return true;
}

/* Numbers of n digits from a to b. */
static grammar_node_id same_length(struct grammar *g, const char *a, const char *b, size_t n, grammar_node_id next)
{
    static const char zeros[] = "00000000000000000000", nines[] = "99999999999999999999";
    if (n == 0)
        return next;
    if (a[0] == b[0])
        return digits(g, a[0], a[0], same_length(g, a + 1, b + 1, n - 1, next));
    char first = a[0], last = b[0];
    grammar_node_id ways = GRAMMAR_NOTHING;
    if (!all(a + 1, n - 1, '0')) {
        ways = grammar_either(g, ways, digits(g, first, first, same_length(g, a + 1, nines, n - 1, next)));
        first++;
    }
    if (!all(b + 1, n - 1, '9')) {
        ways = grammar_either(g, ways, digits(g, last, last, same_length(g, zeros, b + 1, n - 1, next)));
        last--;
    }
    if (first <= last) {
        grammar_node_id rest = next;
        for (size_t i = 1; i < n; i++)
            rest = digits(g, '0', '9', rest);
        ways = grammar_either(g, ways, digits(g, first, last, rest));
    }
    return ways;
}

/* From `least` up to `most`, which is the largest there is when `endless`. */
static grammar_node_id magnitudes(struct grammar *g, uint64_t least, uint64_t most, bool endless, grammar_node_id next)
{
    char a[MOST_DIGITS + 1], b[MOST_DIGITS + 1], low[MOST_DIGITS + 1], high[MOST_DIGITS + 1];
    const size_t from = (size_t)snprintf(a, sizeof a, "%llu", (unsigned long long)least);
    const size_t to = endless ? from : (size_t)snprintf(b, sizeof b, "%llu", (unsigned long long)most);
    grammar_node_id ways = GRAMMAR_NOTHING;
    if (!endless && least > most)
        return GRAMMAR_NOTHING;
    for (size_t n = from; n <= to; n++) {
        memset(low, '0', n);
        memset(high, '9', n);
        low[0] = '1';
        ways = grammar_either(g, ways, same_length(g, n == from ? a : low, !endless && n == to ? b : high, n, next));
    }
    if (endless) { /* and all that are longer */
        const grammar_node_id loop = grammar_loop(g);
        grammar_set_loop(g, loop, digits(g, '0', '9', loop), next);
        grammar_node_id longer = loop;
        for (size_t i = 0; i < from; i++)
            longer = digits(g, '0', '9', longer);
        ways = grammar_either(g, ways, digits(g, '1', '9', longer));
    }
    return ways;
}

grammar_node_id grammar_integer(struct grammar *g, const struct integer_range *r, grammar_node_id next)
{
    grammar_node_id ways = GRAMMAR_NOTHING;
    if (r->bounded_below && r->bounded_above && r->least > r->most)
        return ways;
    if (!r->bounded_above || r->most >= 0)
        ways = magnitudes(g, r->bounded_below && r->least > 0 ? (uint64_t)r->least : 0, (uint64_t)r->most, !r->bounded_above, next);
    if (!r->bounded_below || r->least < 0) {
        const uint64_t least = r->bounded_above && r->most < 0 ? -(uint64_t)r->most : 1;
        ways = grammar_either(g, ways, grammar_byte(g, '-', magnitudes(g, least, -(uint64_t)r->least, !r->bounded_below, next)));
    }
    return ways;
}

/* ---- with a fraction ---- */

/* Digits behind the point: any, all zero, not all zero. */
static grammar_node_id any_digits(struct grammar *g, char first, char last, grammar_node_id next)
{
    const grammar_node_id loop = grammar_loop(g);
    grammar_set_loop(g, loop, digits(g, first, last, loop), next);
    return loop;
}

static grammar_node_id some_digits(struct grammar *g, char last, grammar_node_id next)
{
    return grammar_byte(g, '.', digits(g, '0', last, any_digits(g, '0', last, next)));
}

static grammar_node_id not_all_zero(struct grammar *g, grammar_node_id next)
{
    const grammar_node_id zeros = grammar_loop(g);
    grammar_set_loop(g, zeros, grammar_byte(g, '0', zeros), digits(g, '1', '9', any_digits(g, '0', '9', next)));
    return grammar_byte(g, '.', zeros);
}

/* Without a sign, between two whole numbers; `open`: the end itself does not belong to it. */
struct span {
    uint64_t least, most;
    bool open_least, open_most, endless;
};

static grammar_node_id fractions(struct grammar *g, const struct span *s, grammar_node_id next)
{
    grammar_node_id ways = GRAMMAR_NOTHING;
    uint64_t from = s->least;
    if (!s->endless && (s->least > s->most || (s->least == s->most && (s->open_least || s->open_most))))
        return ways;
    if (s->open_least && (s->endless || s->least < s->most))
        ways = magnitudes(g, from, from, false, not_all_zero(g, next));
    from += s->open_least;
    if (s->endless || from < s->most)
        ways = grammar_either(g, ways, magnitudes(g, from, s->endless ? 0 : s->most - 1, s->endless, some_digits(g, '9', next)));
    if (!s->endless && !s->open_most)
        ways = grammar_either(g, ways, magnitudes(g, s->most, s->most, false, some_digits(g, '0', next)));
    return ways;
}

static grammar_node_id whole_numbers(struct grammar *g, const struct decimal_range *r, grammar_node_id next)
{
    struct integer_range whole = r->whole;
    if ((r->above_least && whole.bounded_below && whole.least == INT64_MAX) ||
        (r->below_most && whole.bounded_above && whole.most == INT64_MIN))
        return GRAMMAR_NOTHING;
    whole.least += r->above_least && whole.bounded_below;
    whole.most -= r->below_most && whole.bounded_above;
    return grammar_integer(g, &whole, next);
}

grammar_node_id grammar_decimal(struct grammar *g, const struct decimal_range *r, grammar_node_id next)
{
    const struct integer_range *w = &r->whole;
    grammar_node_id ways = whole_numbers(g, r, next);
    if (!w->bounded_above || w->most >= 0) {
        const bool zero = !w->bounded_below || w->least < 0; /* the range goes on below it */
        const struct span above = {.least = zero ? 0 : (uint64_t)w->least, .most = (uint64_t)w->most, .endless = !w->bounded_above,
                                   .open_least = !zero && r->above_least, .open_most = r->below_most};
        ways = grammar_either(g, ways, fractions(g, &above, next));
    }
    if (!w->bounded_below || w->least < 0) {
        const bool zero = !w->bounded_above || w->most > 0;
        const struct span below = {.least = zero ? 0 : -(uint64_t)w->most, .most = -(uint64_t)w->least, .endless = !w->bounded_below,
                                   .open_least = !zero && r->below_most, .open_most = r->above_least};
        ways = grammar_either(g, ways, grammar_byte(g, '-', fractions(g, &below, next)));
    }
    return ways;
}
