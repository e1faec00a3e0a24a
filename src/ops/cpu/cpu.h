/* cpu.h: what every path of the CPU backend shares: the handle, the workers, scratch and prepared weights. A path is a
 * filled table of operators; a faster one starts from the reference table and replaces entries (backend.c). */
#ifndef QR_OPS_CPU_CPU_H
#define QR_OPS_CPU_CPU_H

#include "base/pool.h"
#include "number/bf16.h"
#include "ops/ops.h"

struct cpu_backend {
    struct backend base; /* first: a struct backend * of this backend is one of these */
    struct worker_pool *pool;
    const struct qr_log *log;
    int threads;
    uint8_t *scratch;    /* threads pieces of scratch_bytes, made by reserve */
    int64_t scratch_bytes;
    /* f32 dot product of n values by the path's own rule; the operators that have one product each use it. */
    float (*dot)(const float *a, const float *b, int32_t n);
    struct fast *fast;   /* fast.h; NULL on the reference path */
};

/* A weight is used where it lies; the handle is the description, checked. */
struct weight {
    struct weight_spec spec;
    int64_t scale_cols;  /* scales of one row of tiles (FP8) or of one row (FP4) */
};

qr_status cpu_prepare_weight(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err);
void cpu_release_weight(struct backend *b, struct weight *w);

/* Scratch of one thread of the pool, at least `bytes` (cpu_need has seen to it). Valid until the operator returns. */
static inline void *cpu_scratch(const struct cpu_backend *cpu, int thread)
{
    return cpu->scratch + thread * cpu->scratch_bytes;
}

/* Fails when `bytes` of scratch a thread were not reserved; `operator` is named in the message. */
qr_status cpu_need(const struct cpu_backend *cpu, const char *operator, int64_t bytes, qr_error *err);

/* One call of an operator, as the workers see it. */
struct job {
    const struct cpu_backend *cpu;
    const void *op;
};

/* Runs body(job, item, thread) for every item. */
qr_status cpu_run(struct backend *b, const void *op, int64_t items,
                  void (*body)(void *job, int64_t item, int thread));

/* Number of the i-th row of a list. */
static inline int64_t row_at(const struct row_list *rows, int64_t i)
{
    return rows->index ? rows->index[i] : i;
}

static inline int32_t at_least_one(int32_t n)
{
    return n > 0 ? n : 1;
}

/* A thread's scratch handed out piece by piece; take() keeps 16-byte alignment. */
struct pieces {
    uint8_t *next;
};
static inline void *take(struct pieces *p, int64_t bytes)
{
    uint8_t *piece = p->next;
    p->next += (bytes + 15) / 16 * 16;
    return piece;
}
static inline float *take_floats(struct pieces *p, int64_t n)
{
    return take(p, n * (int64_t)sizeof(float));
}
/* Bytes that one take of n elements of `size` uses. */
static inline int64_t piece_bytes(int64_t n, int64_t size)
{
    return (n * size + 15) / 16 * 16;
}

#endif
