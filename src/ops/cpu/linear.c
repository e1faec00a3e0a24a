#include "ops/cpu/fast.h"

#include "ops/cpu/reference/product.h"
#include "number/bf16.h"

/* One call's state, shared by the workers. Rows are taken PRODUCT_ROWS at a time, outputs PRODUCT_TILE at a time. */
struct linear_job {
    struct fast *f;
    const struct op_linear *op;
    struct decoded *d;
    int32_t base, groups, parts, tiles_per_group;
};

static void decode_rows(void *user, int64_t item, int thread)
{
    const struct linear_job *job = user;
    (void)thread;
    decoded_set(job->f->kernels, job->d, (int32_t)item, &job->op->in, row_at(&job->op->rows, job->base + (int32_t)item));
}

/* Writes a tile of f32 results in the format of `out`. */
static void store_tile(const struct activation *out, int64_t row, int64_t column, const float *y, int32_t n)
{
    if (out->format == ACT_F32) {
        float *to = (float *)out->codes + row * out->cols + column;
        for (int32_t j = 0; j < n; j++)
            to[j] = y[j];
    } else {
        uint16_t *to = (uint16_t *)out->codes + row * out->cols + column;
        for (int32_t j = 0; j < n; j++)
            to[j] = bf16_encode(y[j]);
    }
}

static void multiply_tile(void *user, int64_t item, int thread)
{
    const struct linear_job *job = user;
    struct fast *f = job->f;
    const struct weight *w = job->op->weight;
    const int32_t per_group = w->spec.n / job->groups;
    const int32_t tile = (int32_t)(item % job->tiles_per_group);
    const int32_t block = (int32_t)(item / job->tiles_per_group); /* group, or piece of the row */
    const int32_t first = tile * PRODUCT_TILE;
    const int32_t n = per_group - first < PRODUCT_TILE ? per_group - first : PRODUCT_TILE;
    float *scratch = f->thread_scratch + thread * f->thread_floats;
    float *y = scratch + PRODUCT_SCRATCH;
    const enum product_use use = job->op->out.format == ACT_F32 ? PRODUCT_TO_F32 : PRODUCT_TO_BF16;
    const int32_t output = job->groups > 1 ? block * per_group + first : first;
    const int64_t column = job->parts > 1 ? (int64_t)block * w->spec.n + first : output;

    product_tile(f->kernels, job->d, w, block * w->spec.k, output, n, use, y, PRODUCT_TILE, scratch);
    for (int32_t r = 0; r < job->d->rows; r++)
        store_tile(&job->op->out, row_at(&job->op->rows, job->base + r), column, y + r * PRODUCT_TILE, n);
}

qr_status fast_linear(struct backend *b, const struct op_linear *op, qr_error *err)
{
    struct fast *f = fast_of(b);
    struct linear_job job = {.f = f, .op = op, .d = &f->decoded};
    job.groups = op->groups > 1 ? op->groups : 1;
    job.parts = op->parts > 1 ? op->parts : 1;
    const int32_t blocks = job.groups > job.parts ? job.groups : job.parts;
    const int32_t per_group = op->weight->spec.n / job.groups;
    qr_status st = product_check("linear", &op->in, op->weight, err);
    if (st != QR_OK)
        return st;
    if (op->in.cols != op->weight->spec.k * blocks || (job.groups > 1 && job.parts > 1))
        return qr_fail(err, QR_BAD_ARGUMENT, "linear %s: input has %d columns, wanted %d", op->weight->spec.name,
                       op->in.cols, op->weight->spec.k * blocks);
    if (op->in.cols > f->max_k)
        return qr_fail(err, QR_BAD_ARGUMENT, "linear %s: %d input columns, scratch was reserved for %d",
                       op->weight->spec.name, op->in.cols, f->max_k);
    job.tiles_per_group = (per_group + PRODUCT_TILE - 1) / PRODUCT_TILE;
    job.d->k = op->in.cols;
    job.d->format = op->in.format;
    job.d->block = op->in.block ? op->in.block : op->in.cols;
    for (job.base = 0; job.base < op->rows.count; job.base += PRODUCT_ROWS) {
        const int32_t left = op->rows.count - job.base;
        job.d->rows = left < PRODUCT_ROWS ? left : PRODUCT_ROWS;
        pool_run(f->pool, job.d->rows, decode_rows, &job);
        pool_run(f->pool, (int64_t)job.tiles_per_group * blocks, multiply_tile, &job);
    }
    return QR_OK;
}
