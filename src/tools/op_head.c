/* Operator 21 of v4-model.md section 10: logits over vocabulary shards (8.5), and the greedy token. */
#include <math.h>
#include <string.h>

#include "tools/op_adapters.h"

enum { LOGIT_ROWS = 8 };

static int32_t shards_of(const struct op_run *r)
{
    return r->ranks ? r->ranks : (int32_t)op_param(r, "tp", 1);
}

static qr_status check_world(const struct op_run *r, qr_error *err)
{
    int32_t tp = shards_of(r), owners = op_dim(r, "ranks"), vocab = op_dim(r, "V");
    if (tp != 1 && tp != 2 && tp != 4 && tp != 8 && tp != 16)
        return op_refuse(err, BAD_WORLD, "%d vocabulary shards, wanted 1, 2, 4, 8 or 16", tp);
    if (vocab % tp)
        return op_refuse(err, BAD_WORLD, "a vocabulary of %d over %d shards, wanted a multiple", vocab, tp);
    if (owners % tp)
        return op_refuse(err, BAD_WORLD, "%d ranks in groups of %d shards, wanted a multiple", owners, tp);
    return QR_OK;
}

/* The rows whose logits are wanted, one behind another; -1 is a row of zeros. */
static qr_status select_rows(struct op_run *r, struct activation *out, qr_error *err)
{
    int32_t owners = op_dim(r, "ranks"), rows = op_dim(r, "T"), d = op_dim(r, "D");
    const int32_t *index = op_ints(r, "logit_row_indices");
    TRY(op_rows(r, ACT_BF16, owners * LOGIT_ROWS, d, 0, out, err));
    for (int32_t i = 0; i < owners * LOGIT_ROWS; i++) {
        if (index[i] < -1 || index[i] >= rows)
            return op_refuse(err, BAD_SHAPE, "logit_row_indices of rank %d entry %d is %d, wanted -1 to %d", i / LOGIT_ROWS,
                             i % LOGIT_ROWS, index[i], rows - 1);
        if (index[i] >= 0)
            CALL(r, copy, .to = (uint16_t *)out->codes + (int64_t)i * d,
                 .from = (uint16_t *)op_in(r, "hidden") + ((int64_t)(i / LOGIT_ROWS) * rows + index[i]) * d, .bytes = 2LL * d);
    }
    return QR_OK;
}

/* The lowest id of the largest logit; a NaN or infinity is a failure of that row. */
static qr_status greedy(const float *logits, int32_t vocab, int32_t row, int32_t *out, qr_error *err)
{
    *out = 0;
    for (int32_t v = 0; v < vocab; v++) {
        if (!isfinite(logits[v]))
            return op_refuse(err, NUMERIC_FAILURE, "logit %d of rank %d row %d is %g", v, row / LOGIT_ROWS, row % LOGIT_ROWS, (double)logits[v]);
        if (logits[v] > logits[*out])
            *out = v;
    }
    return QR_OK;
}

/* Each group gathers the rows of its ranks, every shard multiplies all of them, each owner takes its rows of every shard. */
static qr_status run_head(struct op_run *r, qr_error *err)
{
    int32_t tp = shards_of(r), owners = op_dim(r, "ranks"), vocab = op_dim(r, "V"), shard = vocab / tp, d = op_dim(r, "D");
    int32_t *ids = op_out(r, "sampled_ids"), all = owners * LOGIT_ROWS;
    const uint16_t *weight = op_host(r, "weight");
    float *logits = op_out(r, "logits"), *parts;
    struct activation hidden;
    TRY(check_world(r, err));
    TRY(select_rows(r, &hidden, err));
    TRY(op_host_new(r, 4LL * all * shard, &parts, err));
    for (int32_t s = 0; s < tp; s++) {
        const struct weight_spec spec = {.name = "lm_head_weight", .format = WEIGHT_BF16, .n = shard, .k = d,
                                         .values = weight + (int64_t)s * shard * d};
        const struct weight *w;
        struct activation out;
        TRY(op_prepare(r, &spec, &w, err));
        TRY(op_rows(r, ACT_F32, all, shard, 0, &out, err));
        for (int32_t group = 0; group < owners; group += tp) {
            int64_t at = (int64_t)group * LOGIT_ROWS;
            CALL(r, linear, .rows = first_rows_of(tp * LOGIT_ROWS), .in = act_rows(ACT_BF16, (uint16_t *)hidden.codes + at * d, d),
                 .weight = w, .out = act_rows(ACT_F32, (float *)out.codes + at * shard, shard));
        }
        TRY(op_download(r, out.codes, 4LL * all * shard, &parts, err));
        for (int32_t i = 0; i < all; i++)
            memcpy(logits + (int64_t)i * vocab + s * shard, parts + (int64_t)i * shard, 4 * (size_t)shard);
    }
    for (int32_t i = 0; i < all; i++)
        TRY(greedy(logits + (int64_t)i * vocab, vocab, i, &ids[i * LOGIT_ROWS], err));
    op_out_slot(r, "sampled_ids")->values = "logits";
    op_out_slot(r, "sampled_ids")->values_by_id = true;
    return QR_OK;
}

static const struct op_array head_in[] = {ARRAY("hidden", ARRAY_BF16, "ranks T D"),
                                          ARRAY("weight", ARRAY_BF16, "V D", .flags = ARRAY_HOST),
                                          ARRAY("logit_row_indices", ARRAY_INT, "ranks 8"),
                                          {0}};
static const struct op_array head_out[] = {ARRAY("logits", ARRAY_F32, "ranks 8 V", .flags = ARRAY_HOST, .tolerance = "AC(1e-3,1e-3)"),
                                           ARRAY("sampled_ids", ARRAY_INT, "ranks 8 8", .tolerance = "exactly the lowest arg max"),
                                           {0}};

const struct op_harness op_head_harnesses[] = {
    {"lm_head", 21, "logits over vocabulary shards (--ranks N) and the greedy token", "", head_in, head_out, "8*ranks", NULL, run_head, NULL},
    {0}};
