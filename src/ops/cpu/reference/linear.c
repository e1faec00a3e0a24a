#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/product.h"
#include "ops/cpu/reference/reference.h"

#include <string.h>

/* Output columns of one item of work. */
enum { COLUMNS = 64 };

/* How the work of a linear is cut: rows by LANES, pieces (groups or parts), output columns by COLUMNS. */
struct cut {
    int64_t row_chunks, pieces, column_chunks;
    int64_t piece_columns; /* output columns of one piece */
};

static struct cut cut_of(const struct op_linear *op)
{
    int64_t groups = at_least_one(op->groups), parts = at_least_one(op->parts);
    struct cut c = {.row_chunks = (op->rows.count + LANES - 1) / LANES, .pieces = groups * parts};
    c.piece_columns = op->weight->spec.n / groups;
    c.column_chunks = (c.piece_columns + COLUMNS - 1) / COLUMNS;
    return c;
}

/* out[row][piece * columns + c] = sum_k in[row][piece * K + k] W[w][k], w = piece * columns + c for groups, c for
 * parts. */
static void linear_item(void *user, int64_t item, int thread)
{
    const struct job *job = user;
    const struct op_linear *op = job->op;
    struct cut cut = cut_of(op);
    int64_t chunk = item % cut.column_chunks, piece = item / cut.column_chunks % cut.pieces;
    int64_t first = item / cut.column_chunks / cut.pieces * LANES, k = op->weight->spec.k;
    int64_t rows[LANES];
    int32_t count = 0;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    struct lanes lanes;

    while (count < LANES && first + count < op->rows.count) {
        rows[count] = row_at(&op->rows, first + count);
        count++;
    }
    lanes_place(&lanes, k, &scratch);
    lanes_load(&lanes, &op->in, rows, count, piece * k, k);

    int64_t end = (chunk + 1) * COLUMNS < cut.piece_columns ? (chunk + 1) * COLUMNS : cut.piece_columns;
    for (int64_t c = chunk * COLUMNS; c < end; c++) {
        int64_t column = piece * cut.piece_columns + c;
        float y[LANES];
        lanes_product(&lanes, op->weight, op->groups > 1 ? column : c, y);
        for (int32_t lane = 0; lane < count; lane++)
            act_store(&op->out, rows[lane], column, &y[lane], 1);
    }
}

static qr_status linear_check(const struct op_linear *op, qr_error *err)
{
    const struct weight_spec *w = &op->weight->spec;
    int32_t groups = at_least_one(op->groups), parts = at_least_one(op->parts);
    if (groups > 1 && parts > 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s: both %d groups and %d parts", w->name, groups, parts);
    if (w->n % groups || op->in.cols != groups * parts * w->k || op->out.cols != parts * w->n)
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s [%d][%d]: %d columns in, %d out, %d groups, %d parts",
                       w->name, w->n, w->k, op->in.cols, op->out.cols, groups, parts);
    if (!act_is_float(&op->out))
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s: the output is neither bf16 nor f32", w->name);
    return product_check("linear", &op->in, op->weight, err);
}

qr_status reference_linear(struct backend *b, const struct op_linear *op, qr_error *err)
{
    qr_status st = linear_check(op, err);
    if (st == QR_OK)
        st = cpu_need((struct cpu_backend *)b, "linear", lanes_bytes(op->weight->spec.k), err);
    if (st != QR_OK)
        return st;
    struct cut cut = cut_of(op);
    return cpu_run(b, op, cut.row_chunks * cut.pieces * cut.column_chunks, linear_item);
}

static void gather_row(void *user, int64_t i, int thread)
{
    const struct op_gather *op = ((const struct job *)user)->op;
    int64_t bytes = (int64_t)op->in.cols * (op->in.format == ACT_BF16 ? 2 : 4);
    (void)thread;
    memcpy((char *)op->out.codes + i * bytes, (const char *)op->in.codes + row_at(&op->rows, i) * bytes, (size_t)bytes);
}

qr_status reference_gather(struct backend *b, const struct op_gather *op, qr_error *err)
{
    if (!act_is_float(&op->in) || op->in.format != op->out.format || op->in.cols != op->out.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "gather: formats %d and %d, columns %d and %d, wanted equal plain rows",
                       op->in.format, op->out.format, op->in.cols, op->out.cols);
    return cpu_run(b, op, op->rows.count, gather_row);
}
