/* grammar_integer.h: whole numbers of a range, written as JSON writes them: no sign but -, no zero in front, no fraction. */
#ifndef QR_TEXT_GRAMMAR_INTEGER_H
#define QR_TEXT_GRAMMAR_INTEGER_H

#include "text/grammar.h"

struct integer_range {
    bool bounded_below, bounded_above;
    int64_t least, most;
};

/* GRAMMAR_NOTHING for an empty range. */
grammar_node_id grammar_integer(struct grammar *g, const struct integer_range *range, grammar_node_id next);

#endif
