/* op_dims.h: the sizes of an operator's arrays by name ("T", "D"), bound once and held to from then on. A shape is
 * written as words, "T H*d": each a number, a name, or a product or quotient of them. */
#ifndef QR_TOOLS_OP_DIMS_H
#define QR_TOOLS_OP_DIMS_H

#include "base/status.h"

enum { DIMS_MAX = 96 };

/* Zero-initialise. */
struct op_dims {
    struct {
        const char *name; /* [length], in the text that bound it: it must outlive this */
        size_t length;
        int64_t value;
    } items[DIMS_MAX];
    int32_t count;
};

/* Binds a name that is free; one that is bound already keeps its value. */
void dims_bind(struct op_dims *d, const char *name, int64_t value);
/* Gives a name a value, bound or not. */
void dims_set(struct op_dims *d, const char *name, int64_t value);
/* Whether a name is bound. */
bool dims_has(const struct op_dims *d, const char *name);
/* The value of a word; 0 when a name of it is free. */
int64_t dims_value(const struct op_dims *d, const char *word);

/* Holds an array to the shape written in `words`, binding the names that are still free. Refused as bad shape, naming
 * `array`, the shape found and the one wanted. `*` for a word fits any extent. */
qr_status dims_match(struct op_dims *d, const char *array, const char *words, int32_t rank, const int64_t *shape,
                     qr_error *err);
/* The shape that `words` stand for (all names bound) into shape[TENSOR_MAX_RANK]; returns the rank. */
int32_t dims_shape(const struct op_dims *d, const char *words, int64_t *shape);

#endif
