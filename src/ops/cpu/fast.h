/* fast.h: the operators that an instruction set speeds up; all others are the reference's. Each keeps its own bits for any
 * number of rows and threads, and they are the reference's: sums are exact before they are rounded (attend.c, index.c), or
 * formed again where an f32 one could be rounded otherwise (product.h). Only a sum that lies within a few parts in 2^53 of
 * a tie of f32, one in many millions, can part the two. */
#ifndef QR_OPS_CPU_FAST_H
#define QR_OPS_CPU_FAST_H

#include "ops/cpu/product.h"

/* What the fast operators own beside the reference's state. Sized by fast_reserve; a step allocates nothing. */
struct fast {
    struct worker_pool *pool;
    const struct cpu_kernels *kernels;
    int32_t threads, max_k, max_inner, max_experts;
    int64_t max_pairs;
    struct decoded decoded;       /* inputs of a product, PRODUCT_ROWS at a time */
    struct decoded inner;         /* inputs of w2 */
    float *gate, *up;             /* [PRODUCT_ROWS][inner] */
    uint8_t *codes, *code_scales; /* [PRODUCT_ROWS][inner], [PRODUCT_ROWS][inner / 32] */
    float code_scale[PRODUCT_ROWS];
    int32_t *pairs, *expert_start;/* [max_pairs], [max_experts + 1] */
    float *thread_scratch;        /* [threads][thread_floats] */
    int64_t thread_floats;
    void *decoded_memory, *inner_memory;
    qr_status (*reference_reserve)(struct backend *, const struct op_limits *, int64_t *, qr_error *);
    void *memory;                 /* one allocation behind all of them */
};

static inline struct fast *fast_of(struct backend *b) { return ((struct cpu_backend *)b)->fast; }

/* Gives the backend the inner loops `kernels` and puts the operators below into its table. */
qr_status fast_install(struct cpu_backend *cpu, const struct cpu_kernels *kernels, qr_error *err);
void fast_close(struct fast *f);

/* Bytes that reserve takes beside the reference's. */
int64_t fast_scratch_bytes(const struct op_limits *limits, int threads);

/* Floats of scratch a thread that the operators need. */
int64_t attend_scratch_floats(int32_t head_dim);
int64_t index_scratch_floats(int32_t heads, int32_t dim, int32_t topk, int32_t topk_blocks);

qr_status fast_linear(struct backend *b, const struct op_linear *op, qr_error *err);
qr_status fast_expert(struct backend *b, const struct op_expert *op, qr_error *err);
qr_status fast_attend(struct backend *b, const struct op_attend *op, qr_error *err);
qr_status fast_index_select(struct backend *b, const struct op_index_select *op, qr_error *err);

#endif
