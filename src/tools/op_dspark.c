/* Operators of the DSpark point (v4-model.md appendix D), each alone: the drafter's projection and context keys, its Markov
 * chain, the output projection over ranks and the exchange of a prompt's keys. Arithmetic: speculation.md 2.3 and 2.7. */
#include <math.h>
#include <string.h>

#include "tools/op_dspark.h"

static void copy_rows(void *to, const void *from, int64_t rows, int64_t row_bytes, int64_t stride)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy((uint8_t *)to + i * stride, (const uint8_t *)from + i * row_bytes, (size_t)row_bytes);
}

/* ---- 2.3 ---- */

static qr_status run_proj(struct op_run *r, qr_error *err)
{
    const int32_t d = op_dim(r, "D"), taps = op_dim(r, "TD"), rows = op_dim(r, "T");
    struct activation in = act_rows(ACT_BF16, op_in(r, "taps"), taps), coded, projected;
    TRY(op_rows(r, ACT_BF16, rows, d, 0, &projected, err));
    if (!r->w8a8) {
        TRY(op_rows(r, ACT_Q8, rows, taps, 128, &coded, err));
        CALL(r, quantize, .rows = first_rows_of(rows), .in = in, .out = coded);
        in = coded;
    }
    CALL(r, linear, .rows = first_rows_of(rows), .in = in, .weight = op_weight(r, r->w8a8 ? "main_proj_w" : "main_proj.weight"),
         .out = projected);
    CALL(r, norm, .rows = first_rows_of(rows), .in = projected, .weight = op_in(r, r->w8a8 ? "main_norm_w" : "main_norm.weight"),
         .eps = r->config.rms_norm_eps, .out = act_rows(ACT_BF16, op_out(r, "main_x"), d));
    return QR_OK;
}

/* The keys of every stage. */
static qr_status run_context(struct op_run *r, qr_error *err)
{
    const int32_t d = op_dim(r, "D"), dim = op_dim(r, "d"), rows = op_dim(r, "T"), stages = op_dim(r, "st");
    const struct weight *const *wkv = op_stack(r, r->w8a8 ? "wkv" : "wkv.weight");
    const uint16_t *norm = op_in(r, r->w8a8 ? "gamma_ckv" : "kv_norm.weight");
    struct activation x = act_rows(ACT_BF16, op_in(r, "main_x"), d), coded, kv;
    struct rope_spec rope;
    struct step *step;
    TRY(op_check_positions(r, op_ints(r, "position_ids"), rows, 1, err));
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = 1, .positions = op_ints(r, "position_ids")}, &step, err));
    TRY(op_frequencies(r, 0, &rope, err));
    TRY(op_rows(r, r->w8a8 ? ACT_F32 : ACT_BF16, rows, dim, 0, &kv, err));
    if (!r->w8a8) {
        TRY(op_rows(r, ACT_Q8, rows, d, 128, &coded, err));
        CALL(r, quantize, .rows = first_rows_of(rows), .in = x, .out = coded);
        x = coded;
    }
    for (int32_t s = 0; s < stages; s++) {
        CALL(r, linear, .rows = first_rows_of(rows), .in = x, .weight = wkv[s], .out = kv);
        CALL(r, window_key, .rows = first_rows_of(rows), .step = step, .in = kv, .norm = norm + (int64_t)s * dim,
             .eps = r->config.rms_norm_eps, .rope = rope, .grid = r->w8a8 ? GRID_NONE : GRID_FP8_NOPE,
             .out = (uint16_t *)op_out(r, "kv") + (int64_t)s * rows * dim);
    }
    return QR_OK;
}

/* ---- 2.7 ---- */

qr_status op_markov(struct op_run *r, const struct weight *w1, const struct weight *w2, const int32_t *tokens, int32_t count,
                    struct markov_rows *out, qr_error *err)
{
    const int32_t rank = op_dim(r, "rank") > 0 ? op_dim(r, "rank") : (int32_t)op_param(r, "dspark_markov_rank", 0), vocab = op_dim(r, "V");
    struct step *step;
    TRY(op_check_tokens(tokens, count, vocab, err));
    TRY(op_step(r, &(struct step_shape){.rows = count, .per_request = 1, .tokens = tokens}, &step, err));
    TRY(op_rows(r, ACT_BF16, count, rank, 0, &out->rows, err));
    TRY(op_rows(r, ACT_F32, count, vocab, 0, &out->bias, err));
    CALL(r, embed, .rows = first_rows_of(count), .step = step, .weight = w1,
         .out = {.format = ACT_BF16, .count = 1, .hidden = rank, .data = out->rows.codes});
    CALL(r, linear, .rows = first_rows_of(count), .in = out->rows, .weight = w2, .out = out->bias);
    return QR_OK;
}

void markov_choose(const float *added, const float *base, int64_t vocab, float *logits, int32_t *id)
{
    *id = 0;
    for (int64_t v = 0; v < vocab; v++) {
        logits[v] = added[v] + base[v];
        *id = logits[v] > logits[*id] ? (int32_t)v : *id;
    }
}

static qr_status markov(struct op_run *r, const int32_t *tokens, int32_t count, struct markov_rows *out, qr_error *err)
{
    return op_markov(r, op_weight(r, "markov_w1"), op_weight(r, "markov_w2"), tokens, count, out, err);
}

static qr_status run_markov_head(struct op_run *r, qr_error *err)
{
    const int64_t count = op_dim(r, "B"), vocab = op_dim(r, "V");
    const float *base = op_host(r, "base"), *added;
    float *out = op_out(r, "logits");
    struct markov_rows m;
    TRY(markov(r, op_ints(r, "tokens"), (int32_t)count, &m, err));
    TRY(op_download(r, m.bias.codes, 4 * count * vocab, &added, err));
    for (int64_t i = 0; i < count * vocab; i++)
        out[i] = base ? added[i] + base[i] : added[i];
    return QR_OK;
}

/* Confidences before their sigmoid, where the file has what they are made of. */
static qr_status confidence(struct op_run *r, struct activation rows, int32_t slot, qr_error *err)
{
    const int64_t count = op_dim(r, "B"), width = op_dim(r, "g"), d = op_dim(r, "D"), rank = op_dim(r, "rank");
    const uint16_t *hidden = op_host(r, "hidden"), *w = op_host(r, "confidence_w");
    const struct weight_spec parts[2] = {{.name = "confidence_w", .format = WEIGHT_BF16, .n = 1, .k = (int32_t)d, .values = w},
                                         {.name = "confidence_w", .format = WEIGHT_BF16, .n = 1, .k = (int32_t)rank, .values = w + d}};
    const struct weight *of_hidden, *of_token;
    struct activation in, scores[2];
    const float *a, *b;
    uint16_t *block;
    TRY(op_prepare(r, &parts[0], &of_hidden, err));
    TRY(op_prepare(r, &parts[1], &of_token, err));
    TRY(op_host_new(r, 2 * count * d, &block, err));
    for (int64_t i = 0; i < count; i++)
        memcpy(block + i * d, hidden + (i * width + slot) * d, 2 * (size_t)d);
    in = act_rows(ACT_BF16, NULL, (int32_t)d);
    TRY(op_upload(r, block, 2 * count * d, &in.codes, err));
    for (int i = 0; i < 2; i++)
        TRY(op_rows(r, ACT_F32, count, 1, 0, &scores[i], err));
    CALL(r, linear, .rows = first_rows_of(count), .in = in, .weight = of_hidden, .out = scores[0]);
    CALL(r, linear, .rows = first_rows_of(count), .in = rows, .weight = of_token, .out = scores[1]);
    TRY(op_download(r, scores[0].codes, 4 * count, &a, err));
    TRY(op_download(r, scores[1].codes, 4 * count, &b, err));
    for (int64_t i = 0; i < count; i++)
        ((float *)op_out(r, "confidence"))[i * width + slot] = 1 / (1 + expf(-(a[i] + b[i])));
    return QR_OK;
}

/* Slot by slot, each behind the token that was chosen before it: the lowest id of the largest logit. */
static qr_status run_markov_chain(struct op_run *r, qr_error *err)
{
    const int64_t count = op_dim(r, "B"), width = op_dim(r, "g"), vocab = op_dim(r, "V");
    const float *base = op_host(r, "base"), *added;
    float *logits = op_out(r, "logits");
    int32_t *ids = op_out(r, "draft_ids"), *before;
    struct markov_rows m;
    if (op_has(r, "hidden") != op_has(r, "confidence_w"))
        return qr_fail(err, QR_BAD_REQUEST, "%s: in.hidden and in.confidence_w, found one without the other", op_file_path(r->file));
    if (!op_has(r, "hidden"))
        op_drop(r, "confidence");
    TRY(op_host_new(r, 4 * count, &before, err));
    memcpy(before, op_ints(r, "anchors"), 4 * (size_t)count);
    for (int64_t k = 0; k < width; k++) {
        TRY(markov(r, before, (int32_t)count, &m, err));
        if (op_has(r, "hidden"))
            TRY(confidence(r, m.rows, (int32_t)k, err));
        TRY(op_download(r, m.bias.codes, 4 * count * vocab, &added, err));
        TRY(op_host_new(r, 4 * count, &before, err));
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = i * width + k;
            markov_choose(added + i * vocab, base + at * vocab, vocab, logits + at * vocab, &before[i]);
            ids[at] = before[i];
        }
    }
    return QR_OK;
}

/* ---- the output projection over ranks ---- */

static qr_status o_proj_sizes(struct op_run *r, qr_error *err)
{
    const int32_t groups = op_dim(r, "G"), ranks = r->ranks ? r->ranks : (int32_t)op_param(r, "tp", 1);
    if (ranks < 1 || groups % ranks)
        return op_refuse(err, BAD_WORLD, "%d groups of the output projection over %d ranks, wanted a multiple", groups, ranks);
    dims_bind(&r->dims, "tp", ranks);
    return QR_OK;
}

/* The rows of wo_a of some groups. */
static qr_status groups_of(struct op_run *r, int32_t first, int32_t count, const struct weight **out, qr_error *err)
{
    const int64_t n = (int64_t)count * op_dim(r, "R"), k = op_dim(r, "H*d/G"), tiles = (k + 127) / 128;
    const bool fp8 = !r->w8a8;
    const uint8_t *values = op_host(r, fp8 ? "wo_a.weight" : "wo_a"), *scales = fp8 ? op_host(r, "wo_a.scale") : NULL;
    const int64_t from = (int64_t)first * op_dim(r, "R");
    if (fp8 && from % 128)
        return op_refuse(err, BAD_WORLD, "a rank's first row of wo_a is %lld, wanted one that begins a tile of 128", (long long)from);
    const struct weight_spec spec = {.name = "wo_a", .format = fp8 ? WEIGHT_FP8 : WEIGHT_BF16, .n = (int32_t)n, .k = (int32_t)k,
                                     .tile = fp8 ? 128 : 0, .values = values + from * k * (fp8 ? 1 : 2),
                                     .scales = fp8 ? scales + from / 128 * tiles : NULL};
    return op_prepare(r, &spec, out, err);
}

/* Appendix D: each rank multiplies its groups and rounds to bf16; every rank gets all of them and quantizes whole rows. */
static qr_status run_o_proj(struct op_run *r, qr_error *err)
{
    const int32_t ranks = op_dim(r, "tp"), rows = op_dim(r, "T"), each = op_dim(r, "G") / ranks;
    const int64_t in_cols = op_dim(r, "H*d"), part_in = in_cols / ranks, cols = op_dim(r, "G*R"), part = cols / ranks;
    uint16_t *partial = op_out(r, "partial"), *gathered = op_out(r, "gathered");
    const uint16_t *o = op_host(r, "o"), *made;
    struct activation in = act_rows(ACT_BF16, NULL, (int32_t)part_in), out, whole = act_rows(ACT_BF16, NULL, (int32_t)cols), coded;
    uint16_t *mine;
    for (int32_t rank = 0; rank < ranks; rank++) {
        const struct weight *weight;
        TRY(groups_of(r, rank * each, each, &weight, err));
        TRY(op_host_new(r, 2 * rows * part_in, &mine, err));
        for (int64_t i = 0; i < rows; i++)
            memcpy(mine + i * part_in, o + i * in_cols + rank * part_in, 2 * (size_t)part_in);
        TRY(op_upload(r, mine, 2 * rows * part_in, &in.codes, err));
        TRY(op_rows(r, ACT_BF16, rows, (int32_t)part, 0, &out, err));
        CALL(r, linear, .rows = first_rows_of(rows), .in = in, .weight = weight, .groups = each, .out = out);
        TRY(op_download(r, out.codes, 2 * rows * part, &made, err));
        memcpy(partial + rank * rows * part, made, 2 * (size_t)(rows * part));
    }
    for (int32_t to = 0; to < ranks; to++)
        for (int32_t from = 0; from < ranks; from++)
            copy_rows(gathered + to * rows * cols + from * part, partial + from * rows * part, rows, 2 * part, 2 * cols);
    TRY(op_upload(r, gathered, 2 * rows * cols, &whole.codes, err));
    TRY(op_rows(r, r->w8a8 ? ACT_I8 : ACT_Q8, rows, (int32_t)cols, r->w8a8 ? (int32_t)cols : 128, &coded, err));
    CALL(r, quantize, .rows = first_rows_of(rows), .in = whole, .out = coded);
    CALL(r, linear, .rows = first_rows_of(rows), .in = coded, .weight = op_weight(r, r->w8a8 ? "wo_b" : "wo_b.weight"),
         .out = act_rows(ACT_BF16, op_out(r, "attn_out"), op_dim(r, "D")));
    return QR_OK;
}

/* ---- a prompt's keys over ranks ---- */

/* Every rank gets the live rows of all, rank after rank. */
static qr_status run_allgather(struct op_run *r, qr_error *err)
{
    const int32_t ranks = op_dim(r, "ranks"), rows = op_dim(r, "T"), *live = op_ints(r, "num_tokens");
    const int64_t row = 2LL * op_dim(r, "d");
    const uint8_t *kv = op_host(r, "kv");
    uint8_t *out = op_out(r, "kv_all");
    for (int32_t i = 0; live && i < ranks; i++)
        if (live[i] < 0 || live[i] > rows)
            return op_refuse(err, BAD_SHAPE, "num_tokens of rank %d is %d, wanted 0 to %d", i, live[i], rows);
    for (int32_t to = 0; to < ranks; to++) {
        uint8_t *at = out + (int64_t)to * ranks * rows * row;
        for (int32_t from = 0; from < ranks; from++) {
            const int64_t bytes = (live ? live[from] : rows) * row;
            memcpy(at, kv + (int64_t)from * rows * row, (size_t)bytes);
            at += bytes;
        }
    }
    return QR_OK;
}

/* ---- the tables ---- */

#define REF ARRAY_REFERENCE
#define W8 ARRAY_W8A8
#define KEYS "RA(1e-4,1/128,0.005)"

static const struct op_array proj_in[] = {ARRAY("taps", ARRAY_BF16, "T TD"),
                                          ARRAY("main_proj.weight", WEIGHT_OF_FP8, "D TD", .flags = REF, .scales = "main_proj.scale"),
                                          ARRAY("main_norm.weight", ARRAY_BF16, "D", .flags = REF),
                                          ARRAY("main_proj_w", WEIGHT_OF_BF16, "D TD", .flags = W8),
                                          ARRAY("main_norm_w", ARRAY_BF16, "D", .flags = W8),
                                          {0}};
static const struct op_array proj_out[] = {ARRAY("main_x", ARRAY_BF16, "T D", .tolerance = "RA(5e-3,5e-3,.01)"), {0}};

static const struct op_array context_in[] = {
    ARRAY("main_x", ARRAY_BF16, "T D"), ARRAY("position_ids", ARRAY_INT, "T"),
    ARRAY("wkv.weight", WEIGHT_OF_FP8, "st d D", .flags = REF | ARRAY_STACKED, .scales = "wkv.scale"),
    ARRAY("kv_norm.weight", ARRAY_BF16, "st d", .flags = REF),
    ARRAY("wkv", WEIGHT_OF_BF16_IN_OUT, "st D d", .flags = W8 | ARRAY_STACKED), ARRAY("gamma_ckv", ARRAY_BF16, "st d", .flags = W8),
    {0}};
static const struct op_array context_out[] = {ARRAY("kv", ARRAY_BF16, "st T d", .tolerance = KEYS), {0}};

static const struct op_array head_in[] = {ARRAY("tokens", ARRAY_INT, "B"), ARRAY("markov_w1", WEIGHT_OF_BF16, "V rank"),
                                          ARRAY("markov_w2", WEIGHT_OF_BF16, "V rank"),
                                          ARRAY("base", ARRAY_F32, "B V", .flags = ARRAY_HOST | ARRAY_OPTIONAL), {0}};
static const struct op_array head_out[] = {
    ARRAY("logits", ARRAY_F32, "B V", .flags = ARRAY_HOST, .tolerance = "RA(2e-3,2e-3,.01)"), {0}};

static const struct op_array chain_in[] = {ARRAY("base", ARRAY_F32, "B g V", .flags = ARRAY_HOST), ARRAY("anchors", ARRAY_INT, "B"),
                                           ARRAY("markov_w1", WEIGHT_OF_BF16, "V rank"), ARRAY("markov_w2", WEIGHT_OF_BF16, "V rank"),
                                           ARRAY("hidden", ARRAY_BF16, "B g D", .flags = ARRAY_HOST | ARRAY_OPTIONAL),
                                           ARRAY("confidence_w", ARRAY_BF16, "1 *", .flags = ARRAY_HOST | ARRAY_OPTIONAL), {0}};
static const struct op_array chain_out[] = {
    ARRAY("draft_ids", ARRAY_INT, "B g", .tolerance = "exact"),
    ARRAY("logits", ARRAY_F32, "B g V", .flags = ARRAY_HOST, .tolerance = "RA(2e-3,2e-3,.01)"),
    ARRAY("confidence", ARRAY_F32, "B g", .flags = ARRAY_HOST, .tolerance = "AC(1e-3,1e-3)"), {0}};

static const struct op_array o_proj_in[] = {
    ARRAY("o", ARRAY_BF16, "T H*d", .flags = ARRAY_HOST), ARRAY("wo_a.weight", ARRAY_U8, "G*R H*d/G", .flags = REF),
    ARRAY("wo_a.scale", ARRAY_U8, "* *", .flags = REF), ARRAY("wo_b.weight", WEIGHT_OF_FP8, "D G*R", .flags = REF, .scales = "wo_b.scale"),
    ARRAY("wo_a", ARRAY_BF16, "G R H*d/G", .flags = W8 | ARRAY_HOST), ARRAY("wo_b", WEIGHT_OF_I8, "D G*R", .flags = W8, .scales = "wo_b_scale"),
    {0}};
static const struct op_array o_proj_out[] = {ARRAY("partial", ARRAY_BF16, "tp T G*R/tp", .flags = ARRAY_HOST, .tolerance = KEYS),
                                             ARRAY("gathered", ARRAY_BF16, "tp T G*R", .flags = ARRAY_HOST, .tolerance = KEYS),
                                             ARRAY("attn_out", ARRAY_BF16, "T D", .tolerance = KEYS), {0}};

static const struct op_array allgather_in[] = {ARRAY("kv", ARRAY_BF16, "ranks T d", .flags = ARRAY_HOST),
                                               ARRAY("num_tokens", ARRAY_INT, "ranks", .flags = ARRAY_OPTIONAL), {0}};
static const struct op_array allgather_out[] = {
    ARRAY("kv_all", ARRAY_BF16, "ranks ranks*T d", .flags = ARRAY_HOST, .tolerance = "exact"), {0}};

const struct op_harness op_dspark_harnesses[] = {
    {"dspark_proj", 42, "taps to what every stage of the drafter makes its key of", "rms_norm_eps", proj_in, proj_out, "T", NULL, run_proj, NULL},
    {"dspark_context_kv", 43, "the drafter's keys of committed rows, a stage after the other", "qk_rope_head_dim rms_norm_eps", context_in,
     context_out, "T", NULL, run_context, NULL},
    {"markov_head", 45, "what the token before adds to logits", "", head_in, head_out, "B", NULL, run_markov_head, NULL},
    {"dspark_markov", 46, "a block's tokens one after another, and their confidences", "", chain_in, chain_out, "B", NULL, run_markov_chain,
     NULL},
    {"decode_o_proj", 47, "the output projection, its groups over ranks (--ranks N)", "num_attention_heads head_dim o_groups o_lora_rank",
     o_proj_in, o_proj_out, "T", o_proj_sizes, run_o_proj, NULL},
    {"prefill_kv_allgather", 48, "keys of a prompt whose rows lie on several ranks", "", allgather_in, allgather_out, "1", NULL,
     run_allgather, NULL},
    {0}};
