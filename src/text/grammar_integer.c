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
