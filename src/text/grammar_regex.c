#include "text/grammar_regex.h"

#include "text/regex_tree.h"

static grammar_node_id build(struct grammar *g, const struct regex *x, enum code_form form, grammar_node_id next);

/* Copies that must be, then copies that may be, or a loop. */
static grammar_node_id build_repeat(struct grammar *g, const struct regex *x, enum code_form form, grammar_node_id next)
{
    grammar_node_id at = next;
    if (x->most == REGEX_ENDLESS) {
        at = grammar_loop(g);
        grammar_set_loop(g, at, build(g, x->left, form, at), next);
    }
    for (uint32_t i = x->least; x->most != REGEX_ENDLESS && i < x->most && !grammar_failed(g); i++)
        at = grammar_either(g, build(g, x->left, form, at), next);
    for (uint32_t i = 0; i < x->least && !grammar_failed(g); i++)
        at = build(g, x->left, form, at);
    return at;
}

static grammar_node_id build(struct grammar *g, const struct regex *x, enum code_form form, grammar_node_id next)
{
    for (; x->kind == REGEX_THEN && !grammar_failed(g); x = x->left) /* long ones lean to the left */
        next = build(g, x->right, form, next);
    switch (x->kind) {
    case REGEX_CHARACTERS: return code_points_node(g, x->characters, form, next);
    case REGEX_OR: {
        grammar_node_id ways = GRAMMAR_NOTHING;
        for (; x->kind == REGEX_OR; x = x->left)
            ways = grammar_either(g, ways, build(g, x->right, form, next));
        return grammar_either(g, ways, build(g, x, form, next));
    }
    case REGEX_REPEAT: return build_repeat(g, x, form, next);
    case REGEX_THEN:
    case REGEX_EMPTY: break;
    }
    return next;
}

/* Any text, then `next`. */
static grammar_node_id anything(struct grammar *g, enum code_form form, grammar_node_id next)
{
    struct code_points all = {.count = 0};
    code_points_add(&all, 0, CODE_LAST);
    const grammar_node_id loop = grammar_loop(g);
    grammar_set_loop(g, loop, code_points_node(g, &all, form, loop), next);
    return loop;
}

/* One alternative that is in no group. */
static grammar_node_id build_found(struct grammar *g, const struct regex *x, enum code_form form, grammar_node_id next)
{
    const grammar_node_id behind = x->ends ? next : anything(g, form, next);
    const grammar_node_id found = build(g, x, form, behind);
    return x->begins ? found : anything(g, form, found);
}

qr_status grammar_regex(struct grammar *g, const char *text, size_t length, enum regex_ends ends, enum code_form form,
                        const char *name, grammar_node_id next, grammar_node_id *out, qr_error *err)
{
    struct arena arena;
    struct regex *tree;
    arena_init(&arena, 16 * 1024);
    *out = GRAMMAR_NOTHING;
    qr_status st = regex_read(text, length, name, &arena, &tree, err);
    if (st == QR_OK && ends == REGEX_WHOLE) {
        *out = build(g, tree, form, next);
    } else if (st == QR_OK) {
        const struct regex *x = tree;
        for (; x->kind == REGEX_OR; x = x->left)
            *out = grammar_either(g, *out, build_found(g, x->right, form, next));
        *out = grammar_either(g, *out, build_found(g, x, form, next));
    }
    arena_free(&arena);
    return st;
}
