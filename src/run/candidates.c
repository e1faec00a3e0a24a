#include "run/candidates.h"

#include <string.h>

/* 11 bits: the first digit of a double is its sign and most of its exponent, the second ends well inside the mantissa,
 * so a third pass over more than a handful is rare; 2048 sums stay in the nearest cache. */
enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, KEY_BITS = 64 };

/* Bits that order as the logit does: ascending, and both zeros the same. */
static uint64_t key_of(double logit)
{
    const uint64_t sign = 1ull << 63;
    double no_negative_zero = logit + 0.0;
    uint64_t bits;
    memcpy(&bits, &no_negative_zero, sizeof bits);
    return bits & sign ? ~bits : bits | sign;
}

/* What the narrowing knows: the boundary lies among the `pool`, whose keys agree with `key` in the bits done so far;
 * the amount of everything above them is `above`. */
struct narrowing {
    const struct candidates *c;
    bool by_mass;
    double target;
    int32_t *pool;
    int32_t count;
    uint64_t key;
    double above;
};

static double amount_of(const struct narrowing *n, int32_t index) { return n->by_mass ? n->c->mass[index] : 1.0; }

/* The digit in which the target is reached, going down; the lowest there is when rounding keeps it from being reached.
 */
static uint64_t reaching_digit(struct narrowing *n, const double amount[DIGITS], const int32_t population[DIGITS])
{
    uint64_t last = 0;
    double above = n->above;
    for (int32_t d = DIGITS - 1; d >= 0; d--) {
        if (!population[d])
            continue;
        last = (uint64_t)d;
        n->above = above;
        if (above + amount[d] >= n->target)
            break;
        above += amount[d];
    }
    return last;
}

static void narrow(struct narrowing *n, int shift, uint64_t mask)
{
    double amount[DIGITS] = {0};
    int32_t population[DIGITS] = {0};
    for (int32_t i = 0; i < n->count; i++) {
        uint64_t digit = key_of(n->c->logits[n->pool[i]]) >> shift & mask;
        amount[digit] += amount_of(n, n->pool[i]);
        population[digit]++;
    }
    uint64_t chosen = reaching_digit(n, amount, population);
    int32_t kept = 0;
    for (int32_t i = 0; i < n->count; i++)
        if ((key_of(n->c->logits[n->pool[i]]) >> shift & mask) == chosen)
            n->pool[kept++] = n->pool[i];
    n->count = kept;
    n->key |= chosen << shift;
}

/* The pool holds equal logits in order of id. Returns the index of the last one to keep. */
static int32_t last_of_equals(const struct narrowing *n)
{
    double sum = n->above;
    int32_t i = 0;
    do
        sum += amount_of(n, n->pool[i++]);
    while (i < n->count && sum < n->target);
    return n->pool[i - 1];
}

static void keep(struct candidates *c, int32_t from, int32_t to)
{
    c->ids[to] = c->ids[from];
    c->logits[to] = c->logits[from];
    c->mass[to] = c->mass[from];
}

void candidates_cut(struct candidates *c, bool by_mass, double target, int32_t *work)
{
    struct narrowing n = {.c = c, .by_mass = by_mass, .target = target, .pool = work, .count = c->count};
    if (c->count == 0)
        return;
    for (int32_t i = 0; i < c->count; i++)
        work[i] = i;
    for (int shift = KEY_BITS; shift > 0 && n.count > 1;) {
        int bits = shift < DIGIT_BITS ? shift : DIGIT_BITS;
        shift -= bits;
        narrow(&n, shift, (1ull << bits) - 1);
    }
    int32_t last = last_of_equals(&n), kept = 0;
    uint64_t boundary = key_of(c->logits[last]);
    for (int32_t i = 0; i < c->count; i++) {
        uint64_t key = key_of(c->logits[i]);
        if (key > boundary || (key == boundary && i <= last))
            keep(c, i, kept++);
    }
    c->count = kept;
}

void candidates_drop_light(struct candidates *c, double floor)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < c->count; i++)
        if (c->mass[i] >= floor)
            keep(c, i, kept++);
    c->count = kept;
}
