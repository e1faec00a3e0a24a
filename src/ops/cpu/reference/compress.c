#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/container.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/scalar.h"

/* Pooling of one compressed row (v41-model.md 5.3, v4-model.md 5.7). */

/* A member's value and score columns; both NULL: missing (value 0, score -inf). */
struct member {
    const float *value, *score;
};

static int64_t members_of(const struct op_compress *op)
{
    return op->kind == COMPRESSOR_OVERLAP ? 2 * (int64_t)op->ratio : op->ratio;
}

/* The compressor input of position q, columns from `column` on: computed by this forward or kept in the tail. */
static struct member member_at(const struct op_compress *op, int32_t request, int64_t q, int64_t column)
{
    const struct step *step = op->step;
    int64_t cols = op->kind == COMPRESSOR_OVERLAP ? 2 * (int64_t)op->width : op->width;
    struct row_address at;

    if (q >= 0 && q >= op->from[request]) {
        int64_t row = step->first_row[request] + (q - step->first_position[request]);
        return (struct member){op->values + row * cols + column, op->scores + row * cols + column};
    }
    if (op->tail.rows > 0 && ring_find(&op->tail, step, request, q, &at))
        return (struct member){(const float *)(const void *)at.values + column,
                               (const float *)(const void *)at.scales + column};
    return (struct member){NULL, NULL};
}

/* The members of the row whose last token is at position p. OVERLAP: the previous group with the first half of its
 * columns, then this group with the second half. */
static void find_members(const struct op_compress *op, int32_t request, int64_t p, struct member *out)
{
    int64_t ratio = op->ratio, first = p - ratio + 1;
    if (op->kind == COMPRESSOR_OVERLAP) {
        for (int64_t i = 0; i < ratio; i++) {
            out[i] = member_at(op, request, first - ratio + i, 0);
            out[ratio + i] = member_at(op, request, first + i, op->width);
        }
        return;
    }
    for (int64_t i = 0; i < ratio; i++)
        out[i] = member_at(op, request, first + i, 0);
}

/* z[c] = sum_i a_i[c] w_i, w = softmax_i(s_i[c]) with the largest score taken off. `w` has room for n. */
static float pool(const struct member *m, int64_t n, int64_t c, float *w)
{
    float largest = -INFINITY;
    double sum = 0, z = 0;
    for (int64_t i = 0; i < n; i++)
        largest = m[i].score ? fmaxf(largest, m[i].score[c]) : largest;
    if (largest == -INFINITY)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        w[i] = m[i].score ? expf(m[i].score[c] - largest) : 0.0f;
        sum += w[i];
    }
    for (int64_t i = 0; i < n; i++)
        z += m[i].value ? (double)m[i].value[c] * (double)(w[i] / (float)sum) : 0.0;
    return (float)z;
}

static void compress_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_compress *op = job->op;
    int64_t row = row_at(&op->rows, i), n = members_of(op);
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    struct member *members = take(&scratch, n * (int64_t)sizeof *members);
    float *w = take_floats(&scratch, n);

    if ((op->step->positions[row] + 1) % op->ratio)
        return;
    find_members(op, op->step->batch_id[row], op->step->positions[row], members);
    for (int64_t c = 0; c < op->width; c++) {
        float z = pool(members, n, c, w);
        act_store(&op->out, row, c, &z, 1);
    }
}

qr_status reference_compress(struct backend *b, const struct op_compress *op, qr_error *err)
{
    if (op->kind == COMPRESSOR_NONE || op->kind == COMPRESSOR_SINGLE || op->ratio < 1 || op->width < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "compress: kind %d, ratio %d, width %d", op->kind, op->ratio, op->width);
    if (!act_is_float(&op->out) || op->out.cols != op->width)
        return qr_fail(err, QR_BAD_ARGUMENT, "compress: output format %d with %d columns, wanted bf16 or f32 with %d",
                       op->out.format, op->out.cols, op->width);
    for (int64_t i = 0; !op->padded && i < op->rows.count; i++) {
        int32_t p = op->step->positions[row_at(&op->rows, i)];
        if ((p + 1) % op->ratio)
            return qr_fail(err, QR_BAD_ARGUMENT, "compress: position %d ends no group of %d", p, op->ratio);
    }
    int64_t n = members_of(op);
    qr_status st = cpu_need((struct cpu_backend *)b, "compress",
                            piece_bytes(n, sizeof(struct member)) + piece_bytes(n, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, compress_row);
}
