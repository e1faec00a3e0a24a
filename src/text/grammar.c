#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"

/* ---- life ---- */

static grammar_node_id add_node(struct grammar *g, enum grammar_node_kind kind, uint32_t what, grammar_node_id next)
{
    if (grammar_failed(g))
        return GRAMMAR_NOTHING;
    if (g->node_count == GRAMMAR_MOST_NODES) {
        g->too_large = true;
        return GRAMMAR_NOTHING;
    }
    if (g->node_count == g->node_room && !array_grow(&g->nodes, &g->node_room, g->node_count, sizeof *g->nodes)) {
        g->no_memory = true;
        return GRAMMAR_NOTHING;
    }
    g->nodes[g->node_count] = (struct grammar_node){.kind = (uint8_t)kind, .what = what, .next = next};
    return (grammar_node_id)g->node_count++;
}

struct grammar *grammar_begin(void)
{
    struct grammar *g = qr_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    atomic_init(&g->holders, 1);
    add_node(g, NODE_RETURN, 0, 0);
    add_node(g, NODE_NOTHING, 0, 0);
    return g;
}

struct grammar *grammar_hold(struct grammar *g)
{
    atomic_fetch_add(&g->holders, 1);
    return g;
}

void grammar_release(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->holders, 1) > 1)
        return;
    qr_free(g->nodes);
    qr_free(g->sets);
    qr_free(g->rules);
    qr_free(g);
}

uint64_t grammar_bytes(const struct grammar *g)
{
    return sizeof *g + g->node_room * sizeof *g->nodes + g->set_room * sizeof *g->sets + g->rule_room * sizeof *g->rules;
}

bool grammar_failed(const struct grammar *g) { return g->no_memory || g->too_large; }

/* ---- parts ---- */

uint32_t grammar_rule(struct grammar *g)
{
    if (g->rule_count == g->rule_room && !array_grow(&g->rules, &g->rule_room, g->rule_count, sizeof *g->rules)) {
        g->no_memory = true;
        return 0;
    }
    g->rules[g->rule_count] = (struct grammar_rule){.entry = GRAMMAR_NOTHING};
    return (uint32_t)g->rule_count++;
}

void grammar_set_rule(struct grammar *g, uint32_t rule, grammar_node_id entry)
{
    if (grammar_failed(g))
        return;
    g->rules[rule].entry = entry;
    g->rules[rule].known = true;
}

/* Sets are few and used often. */
static uint32_t find_set(struct grammar *g, const struct byte_set *set)
{
    const size_t nearest = g->set_count > 64 ? g->set_count - 64 : 0;
    for (size_t i = g->set_count; i-- > nearest;)
        if (memcmp(&g->sets[i], set, sizeof *set) == 0)
            return (uint32_t)i;
    if (g->set_count == g->set_room && !array_grow(&g->sets, &g->set_room, g->set_count, sizeof *g->sets)) {
        g->no_memory = true;
        return 0;
    }
    g->sets[g->set_count] = *set;
    return (uint32_t)g->set_count++;
}

grammar_node_id grammar_set(struct grammar *g, const struct byte_set *set, grammar_node_id next)
{
    return next == GRAMMAR_NOTHING ? next : add_node(g, NODE_BYTES, find_set(g, set), next);
}

grammar_node_id grammar_byte(struct grammar *g, unsigned byte, grammar_node_id next)
{
    return next == GRAMMAR_NOTHING ? next : add_node(g, NODE_BYTE, byte, next);
}

grammar_node_id grammar_text(struct grammar *g, const char *text, size_t length, grammar_node_id next)
{
    while (length-- > 0)
        next = grammar_byte(g, (uint8_t)text[length], next);
    return next;
}

grammar_node_id grammar_puts(struct grammar *g, const char *text, grammar_node_id next)
{
    return grammar_text(g, text, strlen(text), next);
}

grammar_node_id grammar_token(struct grammar *g, int32_t token, grammar_node_id next)
{
    return next == GRAMMAR_NOTHING || token < 0 ? GRAMMAR_NOTHING : add_node(g, NODE_TOKEN, (uint32_t)token, next);
}

grammar_node_id grammar_either(struct grammar *g, grammar_node_id one, grammar_node_id other)
{
    if (one == GRAMMAR_NOTHING || one == other)
        return other;
    return other == GRAMMAR_NOTHING ? one : add_node(g, NODE_EITHER, other, one);
}

grammar_node_id grammar_call(struct grammar *g, uint32_t rule, grammar_node_id next)
{
    if (next == GRAMMAR_NOTHING || grammar_failed(g))
        return GRAMMAR_NOTHING;
    if (!g->rules[rule].known)
        g->rules[rule].recursive = true; /* a way round goes through one rule at least that is not finished */
    return add_node(g, NODE_CALL, rule, next);
}

grammar_node_id grammar_loop(struct grammar *g) { return add_node(g, NODE_EITHER, GRAMMAR_NOTHING, GRAMMAR_NOTHING); }

void grammar_set_loop(struct grammar *g, grammar_node_id loop, grammar_node_id one, grammar_node_id other)
{
    if (grammar_failed(g))
        return;
    g->nodes[loop].next = one;
    g->nodes[loop].what = other;
}

/* ---- choices ---- */

static int by_text(const void *left, const void *right)
{
    const struct grammar_choice *a = left, *b = right;
    const size_t common = a->length < b->length ? a->length : b->length;
    const int order = common ? memcmp(a->text, b->text, common) : 0;
    if (order)
        return order;
    return a->length < b->length ? -1 : a->length > b->length;
}

/* Bytes from `depth` that all of them share: they are sorted, so the first and the last say it. */
static size_t common_bytes(const struct grammar_choice *c, size_t count, size_t depth)
{
    const struct grammar_choice *last = &c[count - 1];
    size_t n = 0;
    while (depth + n < c->length && depth + n < last->length && c->text[depth + n] == last->text[depth + n])
        n++;
    return n;
}

/* Recursion goes as deep as texts branch, which sorting halves at best and their number bounds at worst: `depth` of them. */
static grammar_node_id choose_from(struct grammar *g, const struct grammar_choice *c, size_t count, size_t depth)
{
    grammar_node_id ways = GRAMMAR_NOTHING;
    const size_t common = common_bytes(c, count, depth), at = depth + common;
    size_t i = 0;
    for (; i < count && c[i].length == at; i++)
        ways = grammar_either(g, c[i].next, ways);
    while (i < count && !grammar_failed(g)) {
        size_t end = i + 1;
        while (end < count && c[end].text[at] == c[i].text[at])
            end++;
        ways = grammar_either(g, choose_from(g, c + i, end - i, at), ways);
        i = end;
    }
    return grammar_text(g, c->text + depth, common, ways);
}

grammar_node_id grammar_choose(struct grammar *g, struct grammar_choice *choices, size_t count)
{
    if (count == 0)
        return GRAMMAR_NOTHING;
    qsort(choices, count, sizeof *choices, by_text);
    return choose_from(g, choices, count, 0);
}

/* ---- what leads to an end ---- */

static bool now_lives(const struct grammar *g, const struct grammar_node *n)
{
    const struct grammar_node *next = &g->nodes[n->next];
    switch ((enum grammar_node_kind)n->kind) {
    case NODE_RETURN: return true;
    case NODE_NOTHING: return false;
    case NODE_BYTE:
    case NODE_BYTES:
    case NODE_TOKEN: return next->lives;
    case NODE_EITHER: return next->lives || g->nodes[n->what].lives;
    case NODE_CALL: return next->lives && g->nodes[g->rules[n->what].entry].lives;
    }
    return false;
}

/* Nodes stand behind what follows them, but for loops and rules that hold themselves: few passes do it. */
static void find_living(struct grammar *g)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < g->node_count; i++)
            if (!g->nodes[i].lives && now_lives(g, &g->nodes[i]))
                g->nodes[i].lives = changed = true;
    }
}

/* Gives back what was room to grow. */
static void shrink(void *array_pointer, size_t *room, size_t count, size_t size)
{
    void **array = array_pointer;
    void *smaller = count && count < *room ? qr_realloc_array(*array, count, size) : NULL;
    if (!smaller)
        return;
    *array = smaller;
    *room = count;
}

qr_status grammar_finish(struct grammar *g, uint32_t start, struct grammar **out, qr_error *err)
{
    qr_status st = QR_OK;
    *out = NULL;
    if (g->too_large)
        st = qr_fail(err, QR_BAD_REQUEST, "the grammar is too large: it takes more than %d nodes", GRAMMAR_MOST_NODES);
    else if (g->no_memory)
        st = qr_fail(err, QR_NO_MEMORY, "no memory for a grammar of %zu nodes", g->node_count);
    if (st == QR_OK) {
        g->start = start;
        find_living(g);
        if (!g->nodes[g->rules[start].entry].lives)
            st = qr_fail(err, QR_BAD_REQUEST, "no answer can fit the grammar");
    }
    if (st != QR_OK) {
        grammar_release(g);
        return st;
    }
    shrink(&g->nodes, &g->node_room, g->node_count, sizeof *g->nodes);
    shrink(&g->sets, &g->set_room, g->set_count, sizeof *g->sets);
    shrink(&g->rules, &g->rule_room, g->rule_count, sizeof *g->rules);
    *out = g;
    return QR_OK;
}
