/* code_points.h: sets of characters, and the grammar of one of their characters, as UTF-8 or as it stands in a JSON
 * string. Surrogates are in no set. */
#ifndef QR_TEXT_CODE_POINTS_H
#define QR_TEXT_CODE_POINTS_H

#include "text/grammar.h"

struct code_range {
    uint32_t first, last;
};

enum { CODE_RANGES = 256, CODE_LAST = 0x10ffff };

/* Zero-initialise: the empty set. Ranges are in order once code_points_settle was called, and do not touch. */
struct code_points {
    struct code_range ranges[CODE_RANGES];
    uint32_t count;
    bool full; /* there was no room for more ranges */
};

void code_points_add(struct code_points *s, uint32_t first, uint32_t last);
void code_points_join(struct code_points *s, const struct code_points *other);
void code_points_settle(struct code_points *s);
/* All others; settles. */
void code_points_turn(struct code_points *s);
bool code_points_have(const struct code_points *s, uint32_t c); /* of a settled set */
/* Those of a settled set that are in first..last. */
void code_points_cut(const struct code_points *s, uint32_t first, uint32_t last, struct code_points *out);

enum code_form {
    CODE_PLAIN, /* UTF-8 */
    CODE_JSON   /* in a JSON string: what JSON wants escaped is, in its short form where it has one */
};

/* One character of a settled set. */
grammar_node_id code_points_node(struct grammar *g, const struct code_points *s, enum code_form form, grammar_node_id next);
/* One character; writes the bytes of its form to `out` (at most 6) and returns how many. */
size_t code_point_write(uint32_t c, enum code_form form, char out[8]);

#endif
