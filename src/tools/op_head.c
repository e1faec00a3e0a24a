/* Operator 21 of v4-model.md section 10: logits over vocabulary shards (8.5), and the greedy token. */
#include "tools/op_head.h"

#include <math.h>
#include <string.h>

static qr_status check_world(int32_t shards, int32_t owners, int32_t vocab, qr_error *err)
{
    if (shards != 1 && shards != 2 && shards != 4 && shards != 8 && shards != 16)
        return op_refuse(err, BAD_WORLD, "%d vocabulary shards, wanted 1, 2, 4, 8 or 16", shards);
    if (vocab % shards)
        return op_refuse(err, BAD_WORLD, "a vocabulary of %d over %d shards, wanted a multiple", vocab, shards);
    if (owners % shards)
        return op_refuse(err, BAD_WORLD, "%d ranks in groups of %d shards, wanted a multiple", owners, shards);
    return QR_OK;
}

qr_status head_open(struct op_run *r, const uint16_t *weight, int32_t vocab, int32_t hidden, int32_t owners, int32_t shards,
                    struct sharded_head *out, qr_error *err)
{
    TRY(check_world(shards, owners, vocab, err));
    *out = (struct sharded_head){owners, shards, vocab, hidden, NULL};
    TRY(op_host_new(r, shards * (int64_t)sizeof *out->shard, &out->shard, err));
    for (int32_t s = 0; s < shards; s++) {
        const struct weight_spec spec = {.name = "lm_head_weight", .format = WEIGHT_BF16, .n = vocab / shards, .k = hidden,
                                         .values = weight + (int64_t)s * (vocab / shards) * hidden};
        TRY(op_prepare(r, &spec, &out->shard[s], err));
    }
    return QR_OK;
}

/* The rows whose logits are wanted, one behind another; -1 is a row of zeros. */
static qr_status select_rows(struct op_run *r, const struct sharded_head *h, const void *hidden, int32_t rows, const int32_t *index,
                             struct activation *out, qr_error *err)
{
    TRY(op_rows(r, ACT_BF16, h->owners * LOGIT_ROWS, h->hidden, 0, out, err));
    for (int32_t i = 0; i < h->owners * LOGIT_ROWS; i++) {
        if (index[i] < -1 || index[i] >= rows)
            return op_refuse(err, BAD_SHAPE, "logit_row_indices of rank %d entry %d is %d, wanted -1 to %d", i / LOGIT_ROWS,
                             i % LOGIT_ROWS, index[i], rows - 1);
        if (index[i] >= 0)
            CALL(r, copy, .to = (uint16_t *)out->codes + (int64_t)i * h->hidden,
                 .from = (const uint16_t *)hidden + ((int64_t)(i / LOGIT_ROWS) * rows + index[i]) * h->hidden, .bytes = 2LL * h->hidden);
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
qr_status head_run(struct op_run *r, const struct sharded_head *h, const void *hidden, int32_t rows, const int32_t *index,
                   float *logits, int32_t *ids, qr_error *err)
{
    int32_t shard = h->vocab / h->shards, all = h->owners * LOGIT_ROWS;
    struct activation in, out;
    float *parts;
    TRY(select_rows(r, h, hidden, rows, index, &in, err));
    for (int32_t s = 0; s < h->shards; s++) {
        TRY(op_rows(r, ACT_F32, all, shard, 0, &out, err));
        for (int32_t group = 0; group < h->owners; group += h->shards) {
            int64_t at = (int64_t)group * LOGIT_ROWS;
            CALL(r, linear, .rows = first_rows_of(h->shards * LOGIT_ROWS),
                 .in = act_rows(ACT_BF16, (uint16_t *)in.codes + at * h->hidden, h->hidden), .weight = h->shard[s],
                 .out = act_rows(ACT_F32, (float *)out.codes + at * shard, shard));
        }
        TRY(op_download(r, out.codes, 4LL * all * shard, &parts, err));
        for (int32_t i = 0; i < all; i++)
            memcpy(logits + (int64_t)i * h->vocab + s * shard, parts + (int64_t)i * shard, 4 * (size_t)shard);
    }
    for (int32_t i = 0; i < all; i++)
        TRY(greedy(logits + (int64_t)i * h->vocab, h->vocab, i, &ids[i * LOGIT_ROWS], err));
    return QR_OK;
}

static qr_status run_head(struct op_run *r, qr_error *err)
{
    struct sharded_head head;
    TRY(head_open(r, op_host(r, "weight"), op_dim(r, "V"), op_dim(r, "D"), op_dim(r, "ranks"),
                  r->ranks ? r->ranks : (int32_t)op_param(r, "tp", 1), &head, err));
    TRY(head_run(r, &head, op_in(r, "hidden"), op_dim(r, "T"), op_ints(r, "logit_row_indices"), op_out(r, "logits"),
                 op_out(r, "sampled_ids"), err));
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
