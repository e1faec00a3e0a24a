/* grammar.h: what an answer may be: an automaton with a stack, over bytes and added tokens. Rules call each other; a rule
 * is a graph of nodes from its entry to `GRAMMAR_RETURN`. It is built from its end to its beginning: each function gets
 * what follows and returns where to enter. Compiled once, then read-only and shared by any number of threads. */
#ifndef QR_TEXT_GRAMMAR_H
#define QR_TEXT_GRAMMAR_H

#include <stdatomic.h>

#include "base/status.h"

typedef uint32_t grammar_node_id;

enum { GRAMMAR_RETURN = 0, GRAMMAR_NOTHING = 1 }; /* nodes that every grammar has: the rule ends; no way on */
enum { GRAMMAR_MOST_NODES = 1 << 17 };

enum grammar_node_kind { NODE_RETURN, NODE_NOTHING, NODE_BYTE, NODE_BYTES, NODE_TOKEN, NODE_EITHER, NODE_CALL };

struct grammar_node {
    uint8_t kind;
    bool lives;       /* from here the end of its rule can be reached */
    uint32_t what;    /* byte, set of bytes, token, other way, rule */
    grammar_node_id next;
};

struct byte_set {
    uint64_t bits[4];
};
static inline void byte_set_add(struct byte_set *s, unsigned first, unsigned last)
{
    for (unsigned b = first; b <= last; b++)
        s->bits[b >> 6] |= UINT64_C(1) << (b & 63);
}
static inline void byte_set_drop(struct byte_set *s, unsigned byte) { s->bits[byte >> 6] &= ~(UINT64_C(1) << (byte & 63)); }
static inline bool byte_set_has(const struct byte_set *s, unsigned byte) { return s->bits[byte >> 6] >> (byte & 63) & 1; }

struct grammar_rule {
    grammar_node_id entry;
    bool known;     /* its entry was set */
    bool recursive; /* it was called before that: it can be inside of itself */
};

struct grammar {
    _Atomic int holders;
    struct grammar_node *nodes;
    struct byte_set *sets;
    struct grammar_rule *rules;
    size_t node_count, node_room, set_count, set_room, rule_count, rule_room;
    uint32_t start; /* the rule of the whole */
    bool no_memory, too_large; /* while it is built */
};

/* ---- building ---- */

struct grammar *grammar_begin(void); /* NULL without memory */
/* Nothing is added any more: finds out which nodes lead to an end. QR_NO_MEMORY; QR_BAD_REQUEST when there are too many
 * nodes, or when nothing at all fits. On failure the grammar is released. */
qr_status grammar_finish(struct grammar *g, uint32_t start, struct grammar **out, qr_error *err);
struct grammar *grammar_hold(struct grammar *g);
void grammar_release(struct grammar *g); /* NULL is fine */
uint64_t grammar_bytes(const struct grammar *g);

/* Building goes on after a failure, to no effect: worth asking in long loops. */
bool grammar_failed(const struct grammar *g);

/* A rule to be called before it is known; rules are numbered from 0. */
uint32_t grammar_rule(struct grammar *g);
void grammar_set_rule(struct grammar *g, uint32_t rule, grammar_node_id entry);

grammar_node_id grammar_set(struct grammar *g, const struct byte_set *set, grammar_node_id next);
grammar_node_id grammar_byte(struct grammar *g, unsigned byte, grammar_node_id next);
grammar_node_id grammar_text(struct grammar *g, const char *text, size_t length, grammar_node_id next);
grammar_node_id grammar_puts(struct grammar *g, const char *text, grammar_node_id next);
grammar_node_id grammar_token(struct grammar *g, int32_t token, grammar_node_id next);
grammar_node_id grammar_either(struct grammar *g, grammar_node_id one, grammar_node_id other);
grammar_node_id grammar_call(struct grammar *g, uint32_t rule, grammar_node_id next);
/* A place to come back to, whose ways are given later. */
grammar_node_id grammar_loop(struct grammar *g);
void grammar_set_loop(struct grammar *g, grammar_node_id loop, grammar_node_id one, grammar_node_id other);

/* One of the texts, which need not differ nor be in order; common beginnings are shared. `texts` is sorted. */
struct grammar_choice {
    const char *text;
    size_t length;
    grammar_node_id next; /* what follows this one */
};
grammar_node_id grammar_choose(struct grammar *g, struct grammar_choice *choices, size_t count);

#endif
