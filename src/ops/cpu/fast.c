#include "ops/cpu/fast.h"

#include <string.h>

#include "base/alloc.h"
#include "ops/cpu/reference/reference.h"
#include "ops/limits.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Hands out pieces of one allocation; with memory NULL it only counts. */
struct carve {
    uint8_t *memory;
    int64_t used;
};

static void *carve(struct carve *c, int64_t bytes)
{
    void *p = c->memory ? c->memory + c->used : NULL;
    c->used += (bytes + 63) / 64 * 64;
    return p;
}

static void place(struct fast *f, struct carve *c)
{
    const int64_t rows = PRODUCT_ROWS, word = sizeof(float);
    f->decoded_memory = carve(c, decoded_bytes(f->max_k));
    f->inner_memory = carve(c, decoded_bytes(f->max_inner));
    f->gate = carve(c, rows * f->max_inner * word);
    f->up = carve(c, rows * f->max_inner * word);
    f->codes = carve(c, rows * f->max_inner);
    f->code_scales = carve(c, rows * f->max_inner / 32 + rows);
    f->pairs = carve(c, f->max_pairs * (int64_t)sizeof(int32_t));
    f->expert_start = carve(c, ((int64_t)f->max_experts + 1) * (int64_t)sizeof(int32_t));
    f->thread_scratch = carve(c, f->threads * f->thread_floats * word);
}

static void take_numbers(struct fast *f, const struct op_limits *limits, int threads)
{
    const struct qr_config *c = &limits->plan->config;
    f->threads = threads;
    f->max_k = (int32_t)limits_widest_input(c);
    f->max_inner = c->moe_intermediate_size;
    f->max_experts = (int32_t)larger(c->n_routed_experts, c->dspark_n_routed_experts);
    f->max_pairs = (int64_t)limits->max_rows * larger(larger(c->n_experts_per_tok, c->dspark_n_experts_per_tok), 1);
    f->thread_floats = PRODUCT_SCRATCH + PRODUCT_ROWS * PRODUCT_TILE;
    f->thread_floats = larger(f->thread_floats, attend_scratch_floats(c->head_dim));
    f->thread_floats = larger(f->thread_floats, index_scratch_floats(c->index_n_heads, c->index_head_dim, c->index_topk,
                                                                     c->candidate_topk_blocks));
    f->thread_floats = (f->thread_floats + 15) / 16 * 16;
}

int64_t fast_scratch_bytes(const struct op_limits *limits, int threads)
{
    struct fast f = {0};
    struct carve count = {0};
    take_numbers(&f, limits, threads);
    place(&f, &count);
    return count.used;
}

static qr_status reserve(struct fast *f, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    struct carve count = {0};
    qr_free(f->memory);
    f->memory = NULL;
    take_numbers(f, limits, pool_threads(f->pool));
    place(f, &count);
    f->memory = qr_aligned_alloc(64, (size_t)count.used);
    if (!f->memory)
        return qr_fail(err, QR_NO_MEMORY, "%s backend: no memory for %lld bytes of scratch", f->kernels->name,
                       (long long)count.used);
    struct carve real = {.memory = f->memory};
    place(f, &real);
    decoded_place(&f->decoded, f->decoded_memory, f->max_k);
    decoded_place(&f->inner, f->inner_memory, f->max_inner);
    *bytes += count.used;
    return QR_OK;
}

static qr_status fast_reserve(struct backend *b, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    struct fast *f = fast_of(b);
    qr_status st = f->reference_reserve(b, limits, bytes, err);
    return st == QR_OK ? reserve(f, limits, bytes, err) : st;
}

qr_status fast_install(struct cpu_backend *cpu, const struct cpu_kernels *kernels, qr_error *err)
{
    struct fast *f = qr_calloc(1, sizeof *f);
    if (!f)
        return qr_fail(err, QR_NO_MEMORY, "%s backend: no memory for its state", kernels->name);
    f->pool = cpu->pool;
    f->kernels = kernels;
    f->reference_reserve = cpu->base.reserve;
    cpu->fast = f;
    cpu->dot = kernels->dot;
    cpu->base.reserve = fast_reserve;
    cpu->base.linear = fast_linear;
    cpu->base.expert = fast_expert;
    cpu->base.attend = fast_attend;
    cpu->base.index_select = fast_index_select;
    return QR_OK;
}

void fast_close(struct fast *f)
{
    if (!f)
        return;
    qr_free(f->memory);
    qr_free(f);
}
