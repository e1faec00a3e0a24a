#include "text/code_points.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sets ---- */

void code_points_add(struct code_points *s, uint32_t first, uint32_t last)
{
    if (last > CODE_LAST)
        last = CODE_LAST;
    if (first > last)
        return;
    if (s->count == CODE_RANGES)
        code_points_settle(s);
    if (s->count == CODE_RANGES)
        s->full = true;
    else
        s->ranges[s->count++] = (struct code_range){first, last};
}

void code_points_join(struct code_points *s, const struct code_points *other)
{
    for (uint32_t i = 0; i < other->count; i++)
        code_points_add(s, other->ranges[i].first, other->ranges[i].last);
    s->full |= other->full;
}

static int by_first(const void *left, const void *right)
{
    const struct code_range *a = left, *b = right;
    return a->first < b->first ? -1 : a->first > b->first;
}

void code_points_settle(struct code_points *s)
{
    uint32_t kept = 0;
    qsort(s->ranges, s->count, sizeof *s->ranges, by_first);
    for (uint32_t i = 0; i < s->count; i++) {
        const struct code_range r = s->ranges[i];
        if (kept && r.first <= s->ranges[kept - 1].last + 1) {
            if (r.last > s->ranges[kept - 1].last)
                s->ranges[kept - 1].last = r.last;
        } else {
            s->ranges[kept++] = r;
        }
    }
    s->count = kept;
}

void code_points_turn(struct code_points *s)
{
    struct code_points others = {.full = s->full};
    uint32_t from = 0;
    code_points_settle(s);
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ranges[i].first > from)
            code_points_add(&others, from, s->ranges[i].first - 1);
        from = s->ranges[i].last + 1;
    }
    code_points_add(&others, from, CODE_LAST);
    *s = others;
}

bool code_points_have(const struct code_points *s, uint32_t c)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (c >= s->ranges[i].first && c <= s->ranges[i].last)
            return true;
    return false;
}

void code_points_cut(const struct code_points *s, uint32_t first, uint32_t last, struct code_points *out)
{
    *out = (struct code_points){.full = s->full};
    for (uint32_t i = 0; i < s->count; i++) {
        const struct code_range r = s->ranges[i];
        const uint32_t from = r.first > first ? r.first : first, to = r.last < last ? r.last : last;
        if (from <= to)
            code_points_add(out, from, to);
    }
}

/* ---- UTF-8 ---- */

static size_t utf8_write(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

/* Whether the last n bytes of both are all lowest and all highest, so that every byte may stand there. */
static bool is_whole(const uint8_t *a, const uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != 0x80 || b[i] != 0xbf)
            return false;
    return true;
}

static grammar_node_id any_tail(struct grammar *g, size_t n, grammar_node_id next)
{
    struct byte_set set = {{0}};
    byte_set_add(&set, 0x80, 0xbf);
    while (n-- > 0)
        next = grammar_set(g, &set, next);
    return next;
}

/* Bytes from a to b, both of n bytes and of the same number of them as characters. */
static grammar_node_id byte_range(struct grammar *g, const uint8_t *a, const uint8_t *b, size_t n, grammar_node_id next)
{
    static const uint8_t low[3] = {0x80, 0x80, 0x80}, high[3] = {0xbf, 0xbf, 0xbf};
    if (n == 0)
        return next;
    if (a[0] == b[0])
        return grammar_byte(g, a[0], byte_range(g, a + 1, b + 1, n - 1, next));
    unsigned first = a[0], last = b[0];
    grammar_node_id ways = GRAMMAR_NOTHING;
    if (!is_whole(a + 1, high, n - 1)) /* the first byte's tail does not begin at its lowest */
        ways = grammar_either(g, ways, grammar_byte(g, first++, byte_range(g, a + 1, high, n - 1, next)));
    if (!is_whole(low, b + 1, n - 1))
        ways = grammar_either(g, ways, grammar_byte(g, last--, byte_range(g, low, b + 1, n - 1, next)));
    if (first <= last) {
        struct byte_set set = {{0}};
        byte_set_add(&set, first, last);
        ways = grammar_either(g, ways, grammar_set(g, &set, any_tail(g, n - 1, next)));
    }
    return ways;
}

static grammar_node_id utf8_range(struct grammar *g, uint32_t first, uint32_t last, grammar_node_id next)
{
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, CODE_LAST};
    grammar_node_id ways = GRAMMAR_NOTHING;
    uint32_t from = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; from = ends[i++] + 1) {
        const uint32_t a = first > from ? first : from, b = last < ends[i] ? last : ends[i];
        uint8_t x[4], y[4];
        if (a > b || ends[i] == 0xdfff)
            continue;
        const size_t n = utf8_write(a, x);
        utf8_write(b, y);
        ways = grammar_either(g, ways, byte_range(g, x, y, n, next));
    }
    return ways;
}

static grammar_node_id utf8_node(struct grammar *g, const struct code_points *s, grammar_node_id next)
{
    struct byte_set ascii = {{0}};
    grammar_node_id ways = GRAMMAR_NOTHING;
    bool any = false;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct code_range r = s->ranges[i];
        if (r.first < 0x80) {
            byte_set_add(&ascii, r.first, r.last < 0x7f ? r.last : 0x7f);
            any = true;
        }
        if (r.last >= 0x80)
            ways = grammar_either(g, ways, utf8_range(g, r.first < 0x80 ? 0x80 : r.first, r.last, next));
    }
    return any ? grammar_either(g, grammar_set(g, &ascii, next), ways) : ways;
}

/* ---- in JSON ---- */

static bool is_escaped(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

size_t code_point_write(uint32_t c, enum code_form form, char out[8])
{
    static const char shorts[] = "\"\"\\\\b\bf\fn\nr\rt\t"; /* what stands behind the backslash, and what it means */
    if (form == CODE_PLAIN || !is_escaped(c))
        return utf8_write(c, (uint8_t *)out);
    for (size_t i = 0; i + 1 < sizeof shorts; i += 2)
        if ((uint32_t)shorts[i + 1] == c) {
            out[0] = '\\';
            out[1] = shorts[i];
            return 2;
        }
    return (size_t)snprintf(out, 8, "\\u%04x", c);
}

static grammar_node_id json_node(struct grammar *g, const struct code_points *s, grammar_node_id next)
{
    struct code_points plain;
    grammar_node_id ways = GRAMMAR_NOTHING;
    char text[8];
    for (uint32_t c = 0; c <= '\\'; c++)
        if (is_escaped(c) && code_points_have(s, c))
            ways = grammar_either(g, ways, grammar_text(g, text, code_point_write(c, CODE_JSON, text), next));
    plain = *s;
    code_points_turn(&plain);
    code_points_add(&plain, 0, 0x1f);
    code_points_add(&plain, '"', '"');
    code_points_add(&plain, '\\', '\\');
    code_points_turn(&plain);
    return grammar_either(g, utf8_node(g, &plain, next), ways);
}

grammar_node_id code_points_node(struct grammar *g, const struct code_points *s, enum code_form form, grammar_node_id next)
{
    return form == CODE_JSON ? json_node(g, s, next) : utf8_node(g, s, next);
}
