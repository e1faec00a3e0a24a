#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/product.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/scalar.h"

/* The router: v41-model.md 7.1, v4-model.md 6.1, 7.4 gate. */

/* The index of the largest choice not yet taken; equal ones: the smaller index. */
static int32_t next_best(const float *choice, const bool *taken, int32_t n)
{
    int32_t best = -1;
    for (int32_t e = 0; e < n; e++)
        if (!taken[e] && (best < 0 || choice[e] > choice[best]))
            best = e;
    return best;
}

/* The k experts with the largest score + bias, in falling order. */
static void choose(const struct op_route *op, int64_t row, const float *score, float *choice, bool *taken, int32_t *idx)
{
    bool image = op->bias_image && op->step->image_mask && op->step->image_mask[row];
    const float *bias = image ? op->bias_image : op->bias;
    for (int32_t e = 0; e < op->experts; e++) {
        choice[e] = bias ? score[e] + bias[e] : score[e];
        taken[e] = false;
    }
    for (int32_t k = 0; k < op->active; k++) {
        idx[k] = next_best(choice, taken, op->experts);
        taken[idx[k]] = true;
    }
}

/* w_k = score_k / (sum + eps) * scaling: the bias takes part in the choice only. */
static void weigh(const struct op_route *op, const float *score, const int32_t *idx, float *weight)
{
    double sum = 0;
    for (int32_t k = 0; k < op->active; k++)
        sum += (double)score[idx[k]];
    float denominator = (float)sum + op->denominator_eps;
    for (int32_t k = 0; k < op->active; k++) {
        float w = score[idx[k]];
        if (op->normalise)
            w /= denominator;
        weight[k] = w * op->scaling;
    }
}

static void route_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_route *op = job->op;
    int64_t row = row_at(&op->rows, i), n = op->x.cols;
    int32_t *idx = op->idx + row * op->active;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *x = take_floats(&scratch, n), *w = take_floats(&scratch, n);
    float *score = take_floats(&scratch, op->experts), *choice = take_floats(&scratch, op->experts);
    bool *taken = take(&scratch, op->experts * (int64_t)sizeof(bool));

    act_load(&op->x, row, 0, n, x);
    for (int32_t e = 0; e < op->experts; e++) {
        weight_row_f32(op->gate, e, w);
        float logit = job->cpu->dot(x, w, (int32_t)n);
        if (op->x_scale)
            logit *= op->x_scale[row];
        score[e] = sqrtf(softplus(logit));
    }
    if (op->table)
        for (int32_t k = 0; k < op->active; k++)
            idx[k] = op->table[(int64_t)op->step->token_ids[row] * op->active + k];
    else
        choose(op, row, score, choice, taken, idx);
    weigh(op, score, idx, op->weight + row * op->active);
}

qr_status reference_route(struct backend *b, const struct op_route *op, qr_error *err)
{
    const struct weight_spec *gate = &op->gate->spec;
    if (!act_is_float(&op->x) || (gate->format != WEIGHT_BF16 && gate->format != WEIGHT_F32) ||
        gate->n != op->experts || gate->k != op->x.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "route: weight %s of format %d [%d][%d], wanted bf16 or f32 [%d][%d]",
                       gate->name, gate->format, gate->n, gate->k, op->experts, op->x.cols);
    if (op->active < 1 || op->active > op->experts)
        return qr_fail(err, QR_BAD_ARGUMENT, "route: %d of %d experts", op->active, op->experts);
    for (int64_t i = 0; op->table && i < op->rows.count; i++) {
        int64_t token = op->step->token_ids[row_at(&op->rows, i)];
        for (int32_t k = 0; k < op->active; k++) {
            int32_t e = op->table[token * op->active + k];
            if (e < 0 || e >= op->experts)
                return qr_fail(err, QR_BAD_ARGUMENT, "route: token %lld goes to expert %d, wanted 0 to %d",
                               (long long)token, e, op->experts - 1);
        }
    }
    int64_t bytes = 2 * piece_bytes(gate->k, sizeof(float)) + 3 * piece_bytes(op->experts, sizeof(float));
    qr_status st = cpu_need((struct cpu_backend *)b, "route", bytes, err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, route_row);
}
