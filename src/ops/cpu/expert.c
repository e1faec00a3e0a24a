#include "ops/cpu/fast.h"

#include <string.h>

#include "number/bf16.h"
#include "number/int8.h"
#include "number/quantize.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/scalar.h"

/* The (row, choice) pairs of a call are sorted by expert and taken PRODUCT_ROWS at a time, so that an expert's weight is
 * decoded once for all of its rows in the batch. A pair's result depends on the pair alone. */

struct segment {
    int32_t expert, from, to; /* places of the batch */
};

struct expert_job {
    struct fast *f;
    const struct op_expert *op;
    int32_t hidden, inner, choices; /* choices: pairs a row has */
    int32_t pairs;                  /* places in use in this batch */
    const int32_t *pair;            /* [pairs] row place * choices + choice */
    struct segment segment[PRODUCT_ROWS];
    int32_t segments, tiles;
};

static int64_t pair_row(const struct expert_job *job, int32_t place)
{
    return row_at(&job->op->rows, job->pair[place] / job->choices);
}

/* Places [from, to) of the decoded rows as a set of their own. */
static struct decoded part_of(const struct decoded *d, int32_t from, int32_t to)
{
    struct decoded part = *d;
    part.rows = to - from;
    part.values += (int64_t)from * d->k;
    part.scales += (int64_t)from * (d->format == ACT_Q8 ? d->k / d->block : 0);
    if (d->format == ACT_I8)
        for (int32_t i = from; i < to; i++) {
            part.codes[i - from] = d->codes[i];
            part.code_scales[i - from] = d->code_scales[i];
        }
    return part;
}

static void decode_input(void *user, int64_t item, int thread)
{
    const struct expert_job *job = user;
    (void)thread;
    decoded_set(job->f->kernels, &job->f->decoded, (int32_t)item, &job->op->x, pair_row(job, (int32_t)item));
}

static void up_tile(void *user, int64_t item, int thread)
{
    const struct expert_job *job = user;
    struct fast *f = job->f;
    const struct segment *s = &job->segment[item / job->tiles];
    const int32_t first = (int32_t)(item % job->tiles) * PRODUCT_TILE;
    const int32_t n = job->inner - first < PRODUCT_TILE ? job->inner - first : PRODUCT_TILE;
    const struct decoded d = part_of(&f->decoded, s->from, s->to);
    float *scratch = f->thread_scratch + thread * f->thread_floats;

    product_tile(f->kernels, &d, job->op->w1[s->expert], 0, first, n, PRODUCT_TO_BF16,
                 f->gate + (int64_t)s->from * job->inner + first, job->inner, scratch);
    product_tile(f->kernels, &d, job->op->w3[s->expert], 0, first, n, PRODUCT_TO_BF16,
                 f->up + (int64_t)s->from * job->inner + first, job->inner, scratch);
}

/* silu(g) u with the clamps of v41-model.md 7.2; the reference takes g and u as bf16 and applies the routing weight here. */
static void activate(void *user, int64_t item, int thread)
{
    const struct expert_job *job = user;
    const struct op_expert *op = job->op;
    struct fast *f = job->f;
    const int32_t place = (int32_t)item, n = job->inner;
    float *g = f->gate + (int64_t)place * n, *u = f->up + (int64_t)place * n;
    const float limit = op->swiglu_limit;
    const float weight =
        op->weight ? op->weight[pair_row(job, place) * op->active + job->pair[place] % job->choices] : 1.0f;
    (void)thread;
    for (int32_t i = 0; i < n; i++) {
        const float a = op->w8a8 ? g[i] : bf16_round(g[i]), b = op->w8a8 ? u[i] : bf16_round(u[i]);
        g[i] = swiglu(a, b, limit);
    }
    if (op->w8a8) {
        int8_t *codes = (int8_t *)f->codes + (int64_t)place * n;
        f->code_scale[place] = int8_quantize_row(g, n, codes) * weight;
        f->inner.codes[place] = codes;
        f->inner.code_scales[place] = &f->code_scale[place];
        return;
    }
    for (int32_t i = 0; i < n; i++)
        g[i] = bf16_round(op->weight ? g[i] * weight : g[i]);
    const int32_t block = op->x.block;
    uint8_t *codes = f->codes + (int64_t)place * n, *scales = f->code_scales + (int64_t)place * (n / 32);
    q8_quantize_f32(g, n, block, codes, scales);
    const struct activation v = {.format = ACT_Q8, .cols = n, .block = block, .codes = codes, .scales = scales};
    decoded_set(f->kernels, &f->inner, place, &v, 0);
}

static void down_tile(void *user, int64_t item, int thread)
{
    const struct expert_job *job = user;
    struct fast *f = job->f;
    const struct segment *s = &job->segment[item / job->tiles];
    const int32_t first = (int32_t)(item % job->tiles) * PRODUCT_TILE;
    const int32_t n = job->hidden - first < PRODUCT_TILE ? job->hidden - first : PRODUCT_TILE;
    const struct decoded d = part_of(&f->inner, s->from, s->to);
    float *scratch = f->thread_scratch + thread * f->thread_floats;
    float *y = scratch + PRODUCT_SCRATCH;

    product_tile(f->kernels, &d, job->op->w2[s->expert], 0, first, n, PRODUCT_TO_BF16, y, PRODUCT_TILE, scratch);
    for (int32_t place = s->from; place < s->to; place++) {
        uint16_t *out = (uint16_t *)job->op->out +
                        (pair_row(job, place) * job->choices + job->pair[place] % job->choices) * job->hidden + first;
        for (int32_t j = 0; j < n; j++)
            out[j] = bf16_encode(y[(place - s->from) * PRODUCT_TILE + j]);
    }
}

static void run_batch(struct expert_job *job)
{
    struct fast *f = job->f;
    f->decoded.rows = f->inner.rows = job->pairs;
    f->decoded.k = job->hidden;
    f->decoded.format = f->inner.format = job->op->x.format;
    f->decoded.block = job->op->x.block;
    f->inner.k = job->inner;
    f->inner.block = job->op->w8a8 ? job->inner : job->op->x.block;
    pool_run(f->pool, job->pairs, decode_input, job);
    job->tiles = (job->inner + PRODUCT_TILE - 1) / PRODUCT_TILE;
    pool_run(f->pool, (int64_t)job->segments * job->tiles, up_tile, job);
    pool_run(f->pool, job->pairs, activate, job);
    job->tiles = (job->hidden + PRODUCT_TILE - 1) / PRODUCT_TILE;
    pool_run(f->pool, (int64_t)job->segments * job->tiles, down_tile, job);
}

/* Counting sort of the pairs by expert, ascending rows within one. */
static void sort_pairs(struct fast *f, const struct op_expert *op, int32_t choices)
{
    int32_t *start = f->expert_start;
    memset(start, 0, ((size_t)op->experts + 1) * sizeof *start);
    for (int32_t i = 0; i < op->rows.count; i++)
        for (int32_t c = 0; c < choices; c++)
            start[op->idx[row_at(&op->rows, i) * op->active + c] + 1]++;
    for (int32_t e = 0; e < op->experts; e++)
        start[e + 1] += start[e];
    for (int32_t i = 0; i < op->rows.count; i++)
        for (int32_t c = 0; c < choices; c++)
            f->pairs[start[op->idx[row_at(&op->rows, i) * op->active + c]]++] = i * choices + c;
}

qr_status fast_expert(struct backend *b, const struct op_expert *op, qr_error *err)
{
    struct fast *f = fast_of(b);
    struct expert_job job = {.f = f, .op = op, .choices = op->idx ? op->active : 1};
    const int64_t total = (int64_t)op->rows.count * job.choices;
    qr_status st = expert_check(op, err);
    if (st != QR_OK || total == 0)
        return st;
    job.hidden = op->x.cols;
    const int32_t visited = op->idx ? op->idx[row_at(&op->rows, 0) * op->active] : 0;
    job.inner = op->w1[visited]->spec.n;
    if (total > f->max_pairs || job.hidden > f->max_k || job.inner > f->max_inner)
        return qr_fail(err, QR_BAD_ARGUMENT, "expert %s: %lld pairs of %d x %d, reserved for %lld of %d x %d",
                       op->w1[visited]->spec.name, (long long)total, job.hidden, job.inner, (long long)f->max_pairs, f->max_k,
                       f->max_inner);
    if (op->idx)
        sort_pairs(f, op, job.choices);
    else
        for (int32_t i = 0; i < op->rows.count; i++)
            f->pairs[i] = i;
    for (int64_t base = 0; base < total; base += PRODUCT_ROWS) {
        job.pair = f->pairs + base;
        job.pairs = (int32_t)(total - base < PRODUCT_ROWS ? total - base : PRODUCT_ROWS);
        job.segments = 0;
        for (int32_t i = 0; i < job.pairs; i++) {
            const int32_t e = op->idx ? op->idx[pair_row(&job, i) * op->active + job.pair[i] % job.choices] : 0;
            if (i == 0 || job.segment[job.segments - 1].expert != e)
                job.segment[job.segments++] = (struct segment){.expert = e, .from = i};
            job.segment[job.segments - 1].to = i + 1;
        }
        run_batch(&job);
    }
    return QR_OK;
}
