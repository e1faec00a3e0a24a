/* order.h: which operators of a list wait for which. Two operators keep their order when one writes what the other
 * reads or writes; others may run beside each other. Memory is told apart by its first byte: a buffer of the workspace,
 * a plane or ring of the cache always comes by the same address. Lists in which that does not hold keep their chain. */
#ifndef QR_OPS_CUDA_ORDER_H
#define QR_OPS_CUDA_ORDER_H

#include "ops/cuda/cuda.h"

#define NUMBER(NAME) OP_##NAME,
enum op_number { QR_OPERATORS(NUMBER) OP_copy, OPS };
#undef NUMBER

struct op_copy {
    void *to;
    const void *from;
    int64_t bytes;
};

union any_op {
#define MEMBER(NAME) struct op_##NAME NAME;
    QR_OPERATORS(MEMBER)
#undef MEMBER
    struct op_copy copy;
    uint8_t bytes[1];
};

struct order;

/* An order of at most `most` operators. */
qr_status order_open(size_t most, struct order **out, qr_error *err);
void order_close(struct order *o); /* NULL is fine */

/* The next operator of the list; its number in the order is the count of those before it. `joined`: it is started together
 * with the one before, and has its number. */
void order_add(struct order *o, enum op_number number, const union any_op *op, bool joined);
/* Those that operator i waits for, ascending; what they wait for is left out. More than MOST_EARLIER: they cannot be told,
 * and everything waits for what is before it. */
enum { MOST_EARLIER = 32 };
size_t order_earlier(struct order *o, size_t i, const uint32_t **earlier);

#endif
