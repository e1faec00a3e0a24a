/* Operators 14 to 16, 23, 25 to 27 and 33 of v4-model.md section 10: the attention half of a layer, and a whole layer over
 * simulated ranks, by the model's own functions. */
#include <string.h>

#include "tools/op_compressor.h"
#include "tools/op_layer.h"

/* ---- which layer ---- */

enum { RATIO_BY_LAYER = -1 };

static bool is_prefill(const struct op_run *r) { return strncmp(r->harness->name, "prefill", 7) == 0; }

static bool is_whole(const struct op_run *r) { return strstr(r->harness->name, "_layer") != NULL; }

/* The published schedule (1.3), where a file says which layer it is and no ratio. */
static int32_t ratio_of_layer(int32_t layer) { return layer < 2 ? 0 : layer % 2 ? 128 : 4; }

/* The ratio that the name says, unless the file does. */
static void bind_ratio(struct op_run *r)
{
    const char *name = r->harness->name;
    int32_t ratio = strstr(name, "_swa") ? 0 : strstr(name, "_csa") ? 4 : strstr(name, "_hca") ? 128 : RATIO_BY_LAYER;
    if (ratio == 0 || ratio == 4)
        dims_set(&r->dims, "rho", ratio);
    dims_bind(&r->dims, "rho", ratio == RATIO_BY_LAYER ? ratio_of_layer((int32_t)op_param(r, "layer_id", 3)) : ratio);
}

static bool is_hash(const struct op_run *r)
{
    const char *table = r->w8a8 ? "tid2eid" : "ffn.gate.tid2eid";
    return is_whole(r) && op_view(r, table) && op_param(r, "layer_id", 3) < op_param(r, "num_hash_layers", 3);
}

static qr_status check_ratio(const struct op_run *r, qr_error *err)
{
    int32_t ratio = op_dim(r, "rho");
    if (ratio < 0 || (ratio > 0 && 128 % ratio) || (strstr(r->harness->name, "_hca") && (ratio == 0 || ratio == 4)))
        return op_refuse(err, BAD_SHAPE, "ratio is %d, wanted %s", ratio,
                         strstr(r->harness->name, "_hca") ? "a divisor of 128 that is not 4" : "0 or a divisor of 128");
    return QR_OK;
}

/* ---- its caches ---- */

/* An array of pages that the layer must have: data, and what every such array says. */
static qr_status open_pages(struct op_run *r, struct op_pages *p, const char *pages, int64_t row_bytes, int64_t page_rows,
                            int64_t wanted_rows, int64_t width, int64_t wanted_width, qr_error *err)
{
    TRY(copied_output(r, p->name, &p->data, err));
    if (!p->data)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.%s", op_file_path(r->file), p->name);
    if (page_rows < 1 || (wanted_rows && page_rows != wanted_rows) || width != wanted_width)
        return op_refuse(err, BAD_SHAPE, "in.%s has pages of %lld rows of %lld, wanted %lld of %lld", p->name, (long long)page_rows,
                         (long long)width, (long long)(wanted_rows ? wanted_rows : page_rows), (long long)wanted_width);
    p->pages = p->rank_pages = op_dim(r, pages);
    p->row_bytes = row_bytes;
    p->page_rows = (int32_t)page_rows;
    return QR_OK;
}

static qr_status need_table(const struct op_run *r, struct op_pages *p, const char *width, qr_error *err)
{
    p->table = op_ints(r, p->table_name);
    p->slot = op_ints(r, p->slot_name);
    p->width = op_dim(r, width);
    if (!p->table)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.%s", op_file_path(r->file), p->table_name);
    return QR_OK;
}

static qr_status open_window(struct op_run *r, struct op_layer_cache *c, bool prefill, qr_error *err)
{
    int64_t dim = op_dim(r, "d");
    c->window = (struct op_pages){.name = "kv_cache", .table_name = "block_table", .slot_name = "slots"};
    TRY(open_pages(r, &c->window, "P", 2 * dim, WORLD_PAGE, WORLD_PAGE, dim, dim, err));
    c->window.table = op_ints(r, "block_table");
    c->window.width = op_dim(r, "bn");
    c->window.slot = op_ints(r, "slots");
    c->window_rows = op_ints(r, "swa_indices");
    if (!c->window.table && (prefill || !c->window.slot || !c->window_rows))
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.block_table%s", op_file_path(r->file),
                       prefill ? "" : ", nor both in.slots and in.swa_indices");
    if (op_dim(r, "W") != 128 && op_has(r, "swa_indices"))
        return op_refuse(err, BAD_SHAPE, "a window of %d, wanted 128", op_dim(r, "W"));
    const int32_t *lengths = op_ints(r, "swa_lens"), *positions = op_ints(r, "position_ids");
    for (int32_t i = 0; lengths && i < op_dim(r, "T") * (op_dim(r, "ep") > 0 ? op_dim(r, "ep") : 1); i++)
        if (positions[i] >= 0 && lengths[i] != (positions[i] + 1 < op_dim(r, "W") ? positions[i] + 1 : op_dim(r, "W")))
            return op_refuse(err, BAD_SHAPE, "swa_lens of row %d is %d at position %d", i, lengths[i], positions[i]);
    return QR_OK;
}

static qr_status open_compressed(struct op_run *r, struct op_layer_cache *c, int32_t ratio, qr_error *err)
{
    int64_t dim = op_dim(r, "d"), wide = ratio == 4 ? 4 * dim : 2 * dim;
    c->main = (struct op_pages){.name = "cmp_kv", .table_name = "cmp_table", .slot_name = "cmp_slot"};
    c->state = (struct op_pages){.name = "state", .table_name = "state_table", .slot_name = "state_slot", .wraps = true};
    TRY(open_pages(r, &c->main, "CP", 2 * dim, op_dim(r, "cr"), 128 / ratio, dim, dim, err));
    TRY(need_table(r, &c->main, "cn", err));
    TRY(open_pages(r, &c->state, "SP", 4 * wide, op_dim(r, "pg"), 0, op_dim(r, "SW"), wide, err));
    return need_table(r, &c->state, "sn", err);
}

static qr_status open_index(struct op_run *r, struct op_layer_cache *c, qr_error *err)
{
    int64_t dim = op_dim(r, "di"), bytes = r->w8a8 ? dim : 2 * dim;
    c->index = (struct op_pages){.name = "idx_kv_cache", .table_name = "idx_table", .slot_name = "idx_slot"};
    c->index_state = (struct op_pages){.name = "inner_state", .table_name = "inner_state_table", .slot_name = "inner_state_slot",
                                       .wraps = true};
    TRY(open_pages(r, &c->index, "IP", bytes, 32, 32, dim, dim, err));
    TRY(need_table(r, &c->index, "in", err));
    TRY(copied_output(r, "idx_kv_scale", &c->index.scales, err));
    if (r->w8a8 && !c->index.scales)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.idx_kv_scale", op_file_path(r->file));
    TRY(open_pages(r, &c->index_state, "JP", 16 * dim, op_dim(r, "jg"), 0, op_dim(r, "JW"), 4 * dim, err));
    return need_table(r, &c->index_state, "jn", err);
}

/* Outputs of the paths that the layer does not take. */
static void drop_others(struct op_run *r, int32_t ratio)
{
    static const char *const index[] = {"idx_kv_cache", "idx_kv_scale", "inner_state"}, *const compressed[] = {"cmp_kv", "state"};
    for (size_t i = 0; i < 3; i++)
        if (ratio != 4 && op_out_slot(r, index[i]))
            op_drop(r, index[i]);
    for (size_t i = 0; i < 2; i++)
        if (ratio == 0 && op_out_slot(r, compressed[i]))
            op_drop(r, compressed[i]);
}

static qr_status open_caches(struct op_run *r, struct op_composition *c, qr_error *err)
{
    int32_t ratio = op_dim(r, "rho");
    struct op_layer_cache *cache = &c->caches[0];
    drop_others(r, ratio);
    TRY(open_window(r, cache, c->prefill, err));
    if (ratio > 0)
        TRY(open_compressed(r, cache, ratio, err));
    return ratio == 4 ? open_index(r, cache, err) : QR_OK;
}

/* ---- the run ---- */

static qr_status set_tables(struct op_run *r, struct op_world *w, qr_error *err)
{
    const struct tensor_view *view = op_view(r, "freqs_cos");
    if (!view || !op_has(r, "freqs_sin"))
        return QR_OK;
    return world_tables(w, w->plan.layer[0].rope, op_host(r, "freqs_cos"), op_host(r, "freqs_sin"), view->shape[0],
                        (int32_t)view->shape[1], err);
}

static qr_status check_hadamard(const struct op_run *r, qr_error *err)
{
    return op_view(r, "csa_hadamard_idx") ? compressor_check_hadamard(r, "csa_hadamard_idx", op_dim(r, "di"), err) : QR_OK;
}

static qr_status run_tile(struct op_run *r, struct op_composition *c, int32_t from, bool whole, bool *any, qr_error *err)
{
    struct op_world *w = c->world;
    int64_t bytes = (int64_t)op_dim(r, "M*D") * (r->w8a8 ? 4 : 2);
    TRY(world_step(w, from, WORLD_TILE, is_hash(r) ? op_ints(r, "input_ids") : NULL, any, err));
    if (!*any)
        return QR_OK;
    TRY(world_take(w, op_in(r, "x_hc"), w->ws.streams.data, bytes, err));
    TRY(world_enter(w, 0, err));
    TRY(whole ? v4_block(&w->pass, err) : v4_attention_block(&w->pass, err));
    TRY(cache_keep_rows(w, 0, &c->caches[0], err));
    return world_give(w, w->ws.streams.data, op_out(r, whole ? "x_next" : "x_out"), bytes, err);
}

static qr_status run_layer(struct op_run *r, qr_error *err)
{
    bool whole = is_whole(r), any = true;
    struct op_composition c;
    TRY(layer_requests(r, is_prefill(r), &c, err));
    if (is_hash(r))
        TRY(op_has(r, "input_ids") ? op_check_tokens(op_ints(r, "input_ids"), (int64_t)c.ranks * c.rank_rows, op_dim(r, "V"), err)
                                   : qr_fail(err, QR_BAD_REQUEST, "%s: no array in.input_ids", op_file_path(r->file)));
    TRY(check_hadamard(r, err));
    const struct qr_config config = layer_config(r, op_dim(r, "rho"), is_hash(r));
    TRY(composition_open(r, &c, &config, WEIGHTS_ATTENTION | (whole ? WEIGHTS_EXPERTS : 0), false, err));
    TRY(open_caches(r, &c, err));
    TRY(set_tables(r, c.world, err));
    TRY(composition_load(&c, err));
    for (int32_t from = 0; any; from += WORLD_TILE)
        TRY(run_tile(r, &c, from, whole, &any, err));
    return QR_OK;
}

static qr_status layer_sizes(struct op_run *r, qr_error *err)
{
    dims_bind(&r->dims, "ep", 1);
    return check_ratio(r, err);
}

/* ---- the tables ---- */

#define REF ARRAY_REFERENCE
#define W8 ARRAY_W8A8
#define OPT ARRAY_OPTIONAL
#define TENSOR(NAME, SHAPE, FLAGS) ARRAY(NAME, ARRAY_TENSOR, SHAPE, .flags = FLAGS)
#define NAMED(NAME, ALIAS, SHAPE, FLAGS) ARRAY(NAME, ARRAY_TENSOR, SHAPE, .flags = FLAGS, .alias = ALIAS)
#define INT8(NAME, SHAPE, SCALES, FLAGS) ARRAY(NAME, ARRAY_TENSOR, SHAPE, .flags = FLAGS), ARRAY(NAME "_scale", ARRAY_TENSOR, SCALES, .flags = FLAGS)
#define FP8(NAME, SHAPE, FLAGS) ARRAY(NAME ".weight", ARRAY_TENSOR, SHAPE, .flags = FLAGS), ARRAY(NAME ".scale", ARRAY_TENSOR, "* *", .flags = FLAGS)
#define INTS(NAME, SHAPE, FLAGS) ARRAY(NAME, ARRAY_INT, SHAPE, .flags = FLAGS)

/* The mHC weights of the only sub-block go by the names of operator 3 too. */
#define ATTENTION_WEIGHTS(FN, SCALE, BASE)                                                                             \
    NAMED("hc_attn_fn", FN, "MIX M*D", 0), NAMED("hc_attn_scale", SCALE, "3", 0), NAMED("hc_attn_base", BASE, "MIX", 0),              \
        TENSOR("attn_norm_w", "D", W8), TENSOR("wq_a", "D Qr", W8), INT8("wq_b", "Qr H*d", "H*d", W8), TENSOR("wkv", "D d", W8),        \
        TENSOR("gamma_cq", "Qr", W8), TENSOR("gamma_ckv", "d", W8), TENSOR("attn_sink", "H", W8), TENSOR("wo_a", "G R H*d/G", W8),       \
        INT8("wo_b", "D G*R", "D", W8), TENSOR("attn_norm.weight", "D", REF), FP8("attn.wq_a", "Qr D", REF),                            \
        FP8("attn.wq_b", "H*d Qr", REF), FP8("attn.wkv", "d D", REF), TENSOR("attn.q_norm.weight", "Qr", REF),                          \
        TENSOR("attn.kv_norm.weight", "d", REF), TENSOR("attn.attn_sink", "H", REF), FP8("attn.wo_a", "G*R H*d/G", REF),                \
        FP8("attn.wo_b", "D G*R", REF)
#define HCA_WEIGHTS(FLAG)                                                                                              \
    TENSOR("hca_cmp_wkv", "d D", W8 | FLAG), TENSOR("hca_cmp_wgate", "d D", W8 | FLAG), TENSOR("hca_cmp_ape", "rho d", W8 | FLAG),       \
        TENSOR("hca_cmp_norm_w", "d", W8 | FLAG)
#define CSA_WEIGHTS(FLAG)                                                                                              \
    TENSOR("csa_cmp_wkv", "2*d D", W8 | FLAG), TENSOR("csa_cmp_wgate", "2*d D", W8 | FLAG), TENSOR("csa_cmp_ape", "4 2*d", W8 | FLAG),   \
        TENSOR("csa_cmp_norm_w", "d", W8 | FLAG), INT8("csa_idx_wq_b", "Qr Hi*di", "Hi*di", W8 | FLAG),                                 \
        TENSOR("csa_weights_proj", "D Hi", W8 | FLAG), TENSOR("csa_hadamard_idx", "di di", W8 | FLAG),                                  \
        TENSOR("csa_inner_wkv", "2*di D", W8 | FLAG), TENSOR("csa_inner_wgate", "2*di D", W8 | FLAG),                                   \
        TENSOR("csa_inner_ape", "4 2*di", W8 | FLAG), TENSOR("csa_inner_norm_w", "di", W8 | FLAG),                                      \
        FP8("attn.indexer.wq_b", "Hi*di Qr", REF | FLAG), TENSOR("attn.indexer.weights_proj.weight", "Hi D", REF | FLAG),               \
        TENSOR("attn.indexer.compressor.wkv.weight", "2*di D", REF | FLAG),                                                        \
        TENSOR("attn.indexer.compressor.wgate.weight", "2*di D", REF | FLAG), TENSOR("attn.indexer.compressor.ape", "4 2*di", REF | FLAG), \
        TENSOR("attn.indexer.compressor.norm.weight", "di", REF | FLAG)
/* In the reference both compressors go by one name. */
#define REFERENCE_COMPRESSOR(COLS, FLAG)                                                                               \
    TENSOR("attn.compressor.wkv.weight", COLS " D", REF | FLAG), TENSOR("attn.compressor.wgate.weight", COLS " D", REF | FLAG),           \
        TENSOR("attn.compressor.ape", "rho " COLS, REF | FLAG), TENSOR("attn.compressor.norm.weight", "d", REF | FLAG)
#define FFN_WEIGHTS                                                                                                    \
    TENSOR("hc_ffn_fn", "MIX M*D", 0), TENSOR("hc_ffn_scale", "3", 0), TENSOR("hc_ffn_base", "MIX", 0), TENSOR("norm_w", "D", W8),         \
        TENSOR("gate_w", "E D", W8), TENSOR("gate_bias", "E", W8 | OPT), TENSOR("tid2eid", "V K", W8 | OPT),                             \
        INT8("routed_w1", "E I D", "E I", W8), INT8("routed_w3", "E I D", "E I", W8), INT8("routed_w2", "E D I", "E D", W8),             \
        INT8("shared_w1", "I D", "I", W8), INT8("shared_w3", "I D", "I", W8), INT8("shared_w2", "D I", "D", W8),                         \
        TENSOR("ffn_norm.weight", "D", REF), TENSOR("ffn.gate.weight", "E D", REF), TENSOR("ffn.gate.bias", "E", REF | OPT),             \
        TENSOR("ffn.gate.tid2eid", "V K", REF | OPT), FP8("ffn.experts.#.w1", "I *", REF), FP8("ffn.experts.#.w3", "I *", REF),          \
        FP8("ffn.experts.#.w2", "D *", REF), FP8("ffn.shared_experts.w1", "I D", REF), FP8("ffn.shared_experts.w3", "I D", REF),         \
        FP8("ffn.shared_experts.w2", "D I", REF)

/* ROWS: "B S" or "T"; TABLE: "B " or "". */
#define WINDOW(EP, ROWS, TABLE, SLOTS, TABLES)                                                                         \
    ARRAY("x_hc", ARRAY_STREAM, EP "T M D"), INTS("position_ids", EP ROWS, 0), ARRAY("num_tokens", ARRAY_INT, "ep", .flags = OPT),       \
        ARRAY("freqs_cos", ARRAY_F32, "* *", .flags = W8 | ARRAY_HOST | OPT),                                                      \
        ARRAY("freqs_sin", ARRAY_F32, "* *", .flags = W8 | ARRAY_HOST | OPT), ARRAY("kv_cache", ARRAY_BF16, EP "P 128 1 d", .flags = ARRAY_HOST), \
        ARRAY("slots", ARRAY_INT, EP ROWS, .flags = SLOTS, .alias = "ori_slot"),                                                   \
        ARRAY("block_table", ARRAY_INT, EP TABLE "bn", .flags = TABLES, .alias = "ori_table"), INTS("swa_indices", EP "T W", SLOTS),     \
        INTS("swa_lens", EP "T", OPT)
#define COMPRESSED(EP, ROWS, TABLE, FLAG)                                                                              \
    ARRAY("cmp_kv", ARRAY_BF16, EP "CP cr 1 d", .flags = ARRAY_HOST | FLAG, .alias = "cmp_kv_cache"),                                  \
        INTS("cmp_table", EP TABLE "cn", FLAG), INTS("cmp_slot", EP ROWS, OPT),                                                    \
        ARRAY("state", ARRAY_F32, EP "SP pg SW", .flags = ARRAY_HOST | FLAG, .alias = "compress_state"),                              \
        INTS("state_table", EP TABLE "sn", FLAG), INTS("state_slot", EP ROWS, OPT)
#define INDEXED(EP, ROWS, TABLE, FLAG)                                                                                 \
    ARRAY("idx_kv_cache", ARRAY_I8, EP "IP 32 1 di", .flags = W8 | ARRAY_HOST | FLAG),                                                 \
        ARRAY("idx_kv_cache", ARRAY_BF16, EP "IP 32 1 di", .flags = REF | ARRAY_HOST | FLAG),                                          \
        ARRAY("idx_kv_scale", ARRAY_F32, EP "IP 32 1 1", .flags = W8 | ARRAY_HOST | FLAG), INTS("idx_table", EP TABLE "in", FLAG),       \
        INTS("idx_slot", EP ROWS, OPT),                                                                                        \
        ARRAY("inner_state", ARRAY_F32, EP "JP jg JW", .flags = ARRAY_HOST | FLAG, .alias = "inner_compress_state"),                  \
        INTS("inner_state_table", EP TABLE "jn", FLAG), INTS("inner_state_slot", EP ROWS, OPT)

#define OUT(NAME, KIND, SHAPE, FLAGS, TOLERANCE) ARRAY(NAME, KIND, SHAPE, .flags = ARRAY_HOST | FLAGS, .tolerance = TOLERANCE)
#define KV_OUT(EP, TOLERANCE) OUT("kv_cache", ARRAY_BF16, EP "P 128 1 d", 0, TOLERANCE)
#define COMPRESSED_OUT(EP, ROWS, STATES) OUT("cmp_kv", ARRAY_BF16, EP "CP cr 1 d", 0, ROWS), OUT("state", ARRAY_F32, EP "SP pg SW", 0, STATES)
#define INDEXED_OUT(EP, CODES, SCALES, STATES)                                                                         \
    OUT("idx_kv_cache", ARRAY_I8, EP "IP 32 1 di", W8, CODES), OUT("idx_kv_cache", ARRAY_BF16, EP "IP 32 1 di", REF, SCALES),            \
        OUT("idx_kv_scale", ARRAY_F32, EP "IP 32 1 1", W8, SCALES), OUT("inner_state", ARRAY_F32, EP "JP jg JW", 0, STATES)

#define REST "AC(1e-2,1e-2)"
#define KEYS "RA(1e-4,1/128,0.005)"
#define HC_NAMES ATTENTION_WEIGHTS("hc_fn", "hc_scale", "hc_base")
#define HC_ATTN ATTENTION_WEIGHTS(NULL, NULL, NULL)

#define DECODE(EP) EP, "B S", "B "
#define PREFILL(EP) EP, "T", ""
#define EXPAND(MACRO, ...) MACRO(__VA_ARGS__)

static const struct op_array decode_swa_in[] = {EXPAND(WINDOW, DECODE(""), OPT, OPT), HC_NAMES, {0}};
static const struct op_array decode_swa_out[] = {OUT("x_out", ARRAY_STREAM, "T M D", 0, "RD(3e-3,.008,1)"), KV_OUT("", KEYS), {0}};
static const struct op_array decode_hca_in[] = {EXPAND(WINDOW, DECODE(""), OPT, OPT), EXPAND(COMPRESSED, DECODE(""), 0), INTS("kv_seq_lens", "B", OPT), HC_NAMES,
                                                HCA_WEIGHTS(0), REFERENCE_COMPRESSOR("d", 0), {0}};
static const struct op_array decode_hca_out[] = {OUT("x_out", ARRAY_STREAM, "T M D", 0, "RD(3e-3,.008,1)"), KV_OUT("", KEYS),
                                                 COMPRESSED_OUT("", REST, REST), {0}};
static const struct op_array decode_csa_in[] = {EXPAND(WINDOW, DECODE(""), OPT, OPT), EXPAND(COMPRESSED, DECODE(""), 0), INTS("kv_seq_lens", "B", OPT),
                                                EXPAND(INDEXED, DECODE(""), 0), HC_NAMES, CSA_WEIGHTS(0), REFERENCE_COMPRESSOR("2*d", 0), {0}};
static const struct op_array decode_csa_out[] = {OUT("x_out", ARRAY_STREAM, "T M D", 0, "RD(4e-3,.008,1)"), KV_OUT("", KEYS),
                                                 COMPRESSED_OUT("", REST, REST), INDEXED_OUT("", REST, REST, REST), {0}};

static const struct op_array prefill_swa_in[] = {EXPAND(WINDOW, PREFILL(""), OPT, 0), HC_NAMES, {0}};
static const struct op_array prefill_swa_out[] = {OUT("x_out", ARRAY_STREAM, "T M D", 0, "RD(3e-3,.005,1)"), KV_OUT("", "RA(1e-4,1e-2,0.005)"), {0}};
static const struct op_array prefill_hca_in[] = {EXPAND(WINDOW, PREFILL(""), OPT, 0), EXPAND(COMPRESSED, PREFILL(""), 0), INTS("kv_seq_lens", "ep", OPT), HC_NAMES,
                                                 HCA_WEIGHTS(0), REFERENCE_COMPRESSOR("d", 0), {0}};
static const struct op_array prefill_hca_out[] = {OUT("x_out", ARRAY_STREAM, "T M D", 0, "RD(5e-3,.005,1)"), KV_OUT("", KEYS),
                                                  COMPRESSED_OUT("", REST, REST), {0}};
static const struct op_array prefill_csa_in[] = {EXPAND(WINDOW, PREFILL(""), OPT, 0), EXPAND(COMPRESSED, PREFILL(""), 0), INTS("kv_seq_lens", "ep", OPT),
                                                 EXPAND(INDEXED, PREFILL(""), 0), HC_NAMES, CSA_WEIGHTS(0), REFERENCE_COMPRESSOR("2*d", 0), {0}};
static const struct op_array prefill_csa_out[] = {OUT("x_out", ARRAY_STREAM, "T M D", 0, "RD(8e-3,.005,2)"), KV_OUT("", KEYS),
                                                  COMPRESSED_OUT("", REST, REST), INDEXED_OUT("", REST, REST, REST), {0}};

static const struct op_array decode_layer_in[] = {EXPAND(WINDOW, DECODE("ep "), OPT, OPT), EXPAND(COMPRESSED, DECODE("ep "), OPT), INTS("kv_seq_lens", "ep B", OPT),
                                                  EXPAND(INDEXED, DECODE("ep "), OPT), INTS("input_ids", "ep T", OPT), HC_ATTN,
                                                  HCA_WEIGHTS(OPT), CSA_WEIGHTS(OPT), REFERENCE_COMPRESSOR("*", OPT), FFN_WEIGHTS, {0}};
static const struct op_array decode_layer_out[] = {OUT("x_next", ARRAY_STREAM, "ep T M D", 0, "RD(.01,.05)"), KV_OUT("ep ", KEYS),
                                                   COMPRESSED_OUT("ep ", "AC(1e-3,1e-3)", "AC(1e-3,1e-3)"),
                                                   INDEXED_OUT("ep ", "AC(1e-3,1e-3)", "AC(1e-3,1e-3)", "AC(1e-3,1e-3)"), {0}};
static const struct op_array prefill_layer_in[] = {EXPAND(WINDOW, PREFILL("ep "), OPT, 0), EXPAND(COMPRESSED, PREFILL("ep "), OPT), INTS("kv_seq_lens", "ep", OPT),
                                                   EXPAND(INDEXED, PREFILL("ep "), OPT), INTS("input_ids", "ep T", OPT), HC_ATTN,
                                                   HCA_WEIGHTS(OPT), CSA_WEIGHTS(OPT), REFERENCE_COMPRESSOR("*", OPT), FFN_WEIGHTS, {0}};
static const struct op_array prefill_layer_out[] = {OUT("x_next", ARRAY_STREAM, "ep T M D", 0, "RD(.01,.05)"), KV_OUT("ep ", KEYS),
                                                    COMPRESSED_OUT("ep ", KEYS, "RA(1e-3,1e-3,.005)"),
                                                    INDEXED_OUT("ep ", "RA(1,0,.01)", KEYS, "RA(1e-3,1e-3,.005)"), {0}};

#define NEEDS "num_attention_heads head_dim qk_rope_head_dim q_lora_rank o_groups o_lora_rank sliding_window rms_norm_eps hc_eps hc_sinkhorn_iters"
#define LAYER_NEEDS NEEDS " swiglu_limit num_experts_per_tok n_routed_experts moe_intermediate_size"

const struct op_harness op_layer_harnesses[] = {
    {"decode_swa", 14, "attention half of a window layer, two rows a request", NEEDS, decode_swa_in, decode_swa_out, "T", layer_sizes,
     run_layer, bind_ratio},
    {"decode_hca", 15, "attention half of a ratio-128 layer, two rows a request", NEEDS, decode_hca_in, decode_hca_out, "T", layer_sizes,
     run_layer, bind_ratio},
    {"decode_csa", 16, "attention half of a ratio-4 layer, two rows a request", NEEDS, decode_csa_in, decode_csa_out, "T", layer_sizes,
     run_layer, bind_ratio},
    {"decode_layer", 23, "a layer over ranks, two rows a request", LAYER_NEEDS, decode_layer_in, decode_layer_out, "ep*T", layer_sizes,
     run_layer, bind_ratio},
    {"prefill_swa", 25, "attention half of a window layer, in tiles of 128 rows", NEEDS, prefill_swa_in, prefill_swa_out, "128",
     layer_sizes, run_layer, bind_ratio},
    {"prefill_hca", 26, "attention half of a ratio-128 layer, in tiles of 128 rows", NEEDS, prefill_hca_in, prefill_hca_out, "128",
     layer_sizes, run_layer, bind_ratio},
    {"prefill_csa", 27, "attention half of a ratio-4 layer, in tiles of 128 rows", NEEDS, prefill_csa_in, prefill_csa_out, "128",
     layer_sizes, run_layer, bind_ratio},
    {"prefill_layer", 33, "a layer over ranks, in tiles of 128 rows", LAYER_NEEDS, prefill_layer_in, prefill_layer_out, "128*ep",
     layer_sizes, run_layer, bind_ratio},
    {0}};
