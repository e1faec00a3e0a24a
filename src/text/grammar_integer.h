/* grammar_integer.h: numbers of a range, written as JSON writes them: no sign but -, no zero in front, no exponent. */
#ifndef QR_TEXT_GRAMMAR_INTEGER_H
#define QR_TEXT_GRAMMAR_INTEGER_H

#include "text/grammar.h"

struct integer_range {
    bool bounded_below, bounded_above;
    int64_t least, most;
};

/* Without fraction. GRAMMAR_NOTHING for an empty range. */
grammar_node_id grammar_integer(struct grammar *g, const struct integer_range *range, grammar_node_id next);

/* A range of any numbers between two whole ones, which belong to it unless `above_least`, `below_most` say that they do not. */
struct decimal_range {
    struct integer_range whole;
    bool above_least, below_most;
};
/* With or without fraction. */
grammar_node_id grammar_decimal(struct grammar *g, const struct decimal_range *range, grammar_node_id next);

#endif
