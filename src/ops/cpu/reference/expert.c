#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/product.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/scalar.h"

/* The experts and their sum: v41-model.md 7.2, 7.3; v4-model.md 6.2, 7.4. */

/* One row on its way through one expert: `row` of the step, `place` in idx, weight and out. */
struct visit {
    int64_t row, place;
};

/* The rows of one chunk between w1/w3 and w2. */
struct middle {
    struct lanes in, out;
    float *h;                    /* [LANES][inner] */
    struct activation quantized; /* [LANES][inner] */
};

static int64_t middle_bytes(int64_t hidden, int64_t inner)
{
    return lanes_bytes(hidden) + lanes_bytes(inner) + piece_bytes(LANES * inner, sizeof(float)) +
           piece_bytes(LANES * inner, 1) + piece_bytes(LANES * inner, sizeof(float));
}

static void place_middle(struct middle *m, const struct op_expert *op, int64_t inner, struct pieces *scratch)
{
    lanes_place(&m->in, op->x.cols, scratch);
    lanes_place(&m->out, inner, scratch);
    m->h = take_floats(scratch, LANES * inner);
    m->quantized = (struct activation){.format = op->x.format, .cols = (int32_t)inner};
    m->quantized.block = op->x.format == ACT_I8 ? (int32_t)inner : op->x.block;
    m->quantized.codes = take(scratch, LANES * inner);
    m->quantized.scales = take_floats(scratch, LANES * inner);
}

static void expert_chunk(const struct op_expert *op, int32_t e, const struct visit *visits, int32_t count,
                         struct pieces scratch)
{
    const struct weight *w1 = op->w1[e], *w2 = op->w2[e], *w3 = op->w3[e];
    int64_t inner = w1->spec.n, hidden = w2->spec.n, rows[LANES], lane_rows[LANES];
    struct middle m;

    place_middle(&m, op, inner, &scratch);
    for (int32_t lane = 0; lane < count; lane++) {
        rows[lane] = visits[lane].row;
        lane_rows[lane] = lane;
    }
    lanes_load(&m.in, &op->x, rows, count, 0, op->x.cols);
    for (int64_t n = 0; n < inner; n++) {
        float g[LANES], u[LANES];
        lanes_product(&m.in, w1, n, g);
        lanes_product(&m.in, w3, n, u);
        for (int32_t lane = 0; lane < count; lane++) {
            float omega = op->weight ? op->weight[visits[lane].place] : 1.0f, *h = &m.h[lane * inner + n];
            if (op->w8a8) {
                *h = swiglu(g[lane], u[lane], op->swiglu_limit);
                continue;
            }
            *h = swiglu(bf16_round(g[lane]), bf16_round(u[lane]), op->swiglu_limit);
            *h = bf16_round(op->weight ? *h * omega : *h); /* the routing weight comes before w2's quantizer */
        }
    }

    for (int32_t lane = 0; lane < count; lane++) {
        act_quantize(&m.quantized, lane, 0, m.h + lane * inner, inner);
        if (op->w8a8 && op->weight) /* f32(h8 w2) (sigma omega) scale */
            ((float *)m.quantized.scales)[lane] *= op->weight[visits[lane].place];
    }
    lanes_load(&m.out, &m.quantized, lane_rows, count, 0, inner);
    for (int64_t n = 0; n < hidden; n++) {
        float y[LANES];
        lanes_product(&m.out, w2, n, y);
        for (int32_t lane = 0; lane < count; lane++)
            ((uint16_t *)op->out)[visits[lane].place * hidden + n] = bf16_encode(y[lane]);
    }
}

/* All rows that chose expert e, LANES at a time. */
static void routed_item(void *user, int64_t e, int thread)
{
    const struct job *job = user;
    const struct op_expert *op = job->op;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    struct visit visits[LANES];
    int32_t count = 0;

    for (int64_t i = 0; i < op->rows.count; i++) {
        int64_t row = row_at(&op->rows, i);
        for (int64_t k = 0; k < op->active; k++) {
            int64_t place = row * op->active + k;
            if (op->idx[place] != e)
                continue;
            visits[count++] = (struct visit){row, place};
            if (count == LANES) {
                expert_chunk(op, (int32_t)e, visits, count, scratch);
                count = 0;
            }
        }
    }
    if (count > 0)
        expert_chunk(op, (int32_t)e, visits, count, scratch);
}

static void shared_item(void *user, int64_t item, int thread)
{
    const struct job *job = user;
    const struct op_expert *op = job->op;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    struct visit visits[LANES];
    int32_t count = 0;

    for (int64_t i = item * LANES; i < op->rows.count && count < LANES; i++)
        visits[count++] = (struct visit){row_at(&op->rows, i), row_at(&op->rows, i)};
    expert_chunk(op, 0, visits, count, scratch);
}

static qr_status check_expert(const struct op_expert *op, int32_t e, qr_error *err)
{
    const struct weight *w1 = op->w1[e], *w2 = op->w2[e], *w3 = op->w3[e];
    if (!w1 || !w2 || !w3)
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: expert %d is not prepared", e);
    if (w1->spec.k != op->x.cols || w3->spec.k != op->x.cols || w1->spec.n != w3->spec.n || w2->spec.k != w1->spec.n)
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: %s [%d][%d] and %s [%d][%d] do not fit %d columns", w1->spec.name,
                       w1->spec.n, w1->spec.k, w2->spec.name, w2->spec.n, w2->spec.k, op->x.cols);
    struct activation h = {.format = op->x.format, .cols = w1->spec.n};
    h.block = op->x.format == ACT_I8 ? h.cols : op->x.block;
    qr_status st = product_check("expert", &op->x, w1, err);
    return st == QR_OK ? product_check("expert", &h, w2, err) : st;
}

qr_status expert_check(const struct op_expert *op, qr_error *err)
{
    bool format = op->w8a8 ? op->x.format == ACT_I8 : op->x.format == ACT_Q8;
    int64_t routes = op->idx ? op->active : 1;
    if (!format || (op->w8a8 && op->x.block != op->x.cols))
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: input format %d in blocks of %d", op->x.format, op->x.block);

    for (int64_t i = 0; i < op->rows.count * routes; i++) {
        int32_t e = op->idx ? op->idx[row_at(&op->rows, i / routes) * routes + i % routes] : 0;
        if (e < 0 || e >= op->experts)
            return qr_fail(err, QR_BAD_ARGUMENT, "expert: number %d, wanted 0 to %d", e, op->experts - 1);
        qr_status st = check_expert(op, e, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}

/* The widest expert that the call visits. */
static int64_t widest(const struct op_expert *op)
{
    int64_t routes = op->idx ? op->active : 1, inner = 0;
    for (int64_t i = 0; i < op->rows.count * routes; i++) {
        int32_t e = op->idx ? op->idx[row_at(&op->rows, i / routes) * routes + i % routes] : 0;
        inner = op->w1[e]->spec.n > inner ? op->w1[e]->spec.n : inner;
    }
    return inner;
}

qr_status reference_expert(struct backend *b, const struct op_expert *op, qr_error *err)
{
    qr_status st = expert_check(op, err);
    if (st == QR_OK)
        st = cpu_need((struct cpu_backend *)b, "expert", middle_bytes(op->x.cols, widest(op)), err);
    if (st != QR_OK)
        return st;
    if (op->idx)
        return cpu_run(b, op, op->experts, routed_item);
    return cpu_run(b, op, (op->rows.count + LANES - 1) / LANES, shared_item);
}

/* The place of the next larger expert id after (last_id, last_place), by id and then by place. */
static int64_t next_by_id(const int32_t *idx, int32_t n, int64_t last)
{
    int64_t next = -1;
    for (int64_t k = 0; k < n; k++) {
        bool after = last < 0 || idx[k] > idx[last] || (idx[k] == idx[last] && k > last);
        if (after && (next < 0 || idx[k] < idx[next]))
            next = k;
    }
    return next;
}

static void combine_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_combine *op = job->op;
    int64_t row = row_at(&op->rows, i), d = op->hidden;
    const uint16_t *routed = (const uint16_t *)op->routed + row * op->active * d;
    const uint16_t *shared = (const uint16_t *)op->shared + row * d;
    const int32_t *idx = op->idx + row * op->active;
    float *y = cpu_scratch(job->cpu, thread);

    for (int64_t c = 0; c < d; c++)
        y[c] = op->w8a8 ? bf16_decode(shared[c]) : 0.0f;
    for (int64_t n = 0, k = -1; n < op->active; n++) {
        k = op->w8a8 ? n : next_by_id(idx, op->active, k);
        for (int64_t c = 0; c < d; c++)
            y[c] += bf16_decode(routed[k * d + c]);
    }
    for (int64_t c = 0; !op->w8a8 && c < d; c++)
        y[c] += bf16_decode(shared[c]);
    bf16_store(y, d, (uint16_t *)op->out + row * d);
}

qr_status reference_combine(struct backend *b, const struct op_combine *op, qr_error *err)
{
    qr_status st = cpu_need((struct cpu_backend *)b, "combine", piece_bytes(op->hidden, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, combine_row);
}
