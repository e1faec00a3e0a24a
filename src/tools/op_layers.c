/* Operators 14 to 16, 23, 25 to 27 and 33 of v4-model.md section 10: the attention half of a layer, and a whole layer over
 * simulated ranks, by the model's own functions. */
#include <string.h>

#include "tools/op_compressor.h"
#include "tools/op_layer.h"
#include "tools/op_layer_arrays.h"

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

static qr_status need_table(const struct op_run *r, struct op_pages *p, const char *width, qr_error *err)
{
    p->table = op_ints(r, p->table_name);
    p->slot = op_ints(r, p->slot_name);
    p->width = op_dim(r, width);
    if (!p->table)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.%s", op_file_path(r->file), p->table_name);
    return QR_OK;
}

static qr_status open_compressed(struct op_run *r, struct op_layer_cache *c, int32_t ratio, qr_error *err)
{
    int64_t dim = op_dim(r, "d"), wide = ratio == 4 ? 4 * dim : 2 * dim;
    c->main = (struct op_pages){.name = "cmp_kv", .table_name = "cmp_table", .slot_name = "cmp_slot"};
    c->state = (struct op_pages){.name = "state", .table_name = "state_table", .slot_name = "state_slot", .wraps = true};
    TRY(open_pages(r, &c->main, op_dim(r, "CP"), 1, 0, 2 * dim, op_dim(r, "cr"), 128 / ratio, dim, dim, err));
    TRY(need_table(r, &c->main, "cn", err));
    TRY(open_pages(r, &c->state, op_dim(r, "SP"), 1, 0, 4 * wide, op_dim(r, "pg"), 0, op_dim(r, "SW"), wide, err));
    return need_table(r, &c->state, "sn", err);
}

static qr_status open_index(struct op_run *r, struct op_layer_cache *c, qr_error *err)
{
    int64_t dim = op_dim(r, "di"), bytes = r->w8a8 ? dim : 2 * dim;
    c->index = (struct op_pages){.name = "idx_kv_cache", .table_name = "idx_table", .slot_name = "idx_slot"};
    c->index_state = (struct op_pages){.name = "inner_state", .table_name = "inner_state_table", .slot_name = "inner_state_slot",
                                       .wraps = true};
    TRY(open_pages(r, &c->index, op_dim(r, "IP"), 1, 0, bytes, 32, 32, dim, dim, err));
    TRY(need_table(r, &c->index, "in", err));
    TRY(copied_output(r, "idx_kv_scale", &c->index.scales, err));
    if (r->w8a8 && !c->index.scales)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.idx_kv_scale", op_file_path(r->file));
    TRY(open_pages(r, &c->index_state, op_dim(r, "JP"), 1, 0, 16 * dim, op_dim(r, "jg"), 0, op_dim(r, "JW"), 4 * dim, err));
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
    TRY(open_window(r, c->prefill, cache, err));
    if (ratio > 0)
        TRY(open_compressed(r, cache, ratio, err));
    return ratio == 4 ? open_index(r, cache, err) : QR_OK;
}

/* ---- the run ---- */

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
    TRY(composition_open(r, &c, &config, WEIGHTS_ATTENTION | (whole ? WEIGHTS_EXPERTS : 0), false, false,
                         err));
    TRY(open_caches(r, &c, err));
    TRY(layer_tables(r, c.world, c.world->plan.layer[0].rope, err));
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

const struct op_harness op_layer_harnesses[] = {
    {"decode_swa", 14, "attention half of a window layer, two rows a request", COMPOSITION_NEEDS, decode_swa_in, decode_swa_out, "T", layer_sizes,
     run_layer, bind_ratio},
    {"decode_hca", 15, "attention half of a ratio-128 layer, two rows a request", COMPOSITION_NEEDS, decode_hca_in, decode_hca_out, "T", layer_sizes,
     run_layer, bind_ratio},
    {"decode_csa", 16, "attention half of a ratio-4 layer, two rows a request", COMPOSITION_NEEDS, decode_csa_in, decode_csa_out, "T", layer_sizes,
     run_layer, bind_ratio},
    {"decode_layer", 23, "a layer over ranks, two rows a request", COMPOSITION_EXPERT_NEEDS, decode_layer_in, decode_layer_out, "ep*T", layer_sizes,
     run_layer, bind_ratio},
    {"prefill_swa", 25, "attention half of a window layer, in tiles of 128 rows", COMPOSITION_NEEDS, prefill_swa_in, prefill_swa_out, "128",
     layer_sizes, run_layer, bind_ratio},
    {"prefill_hca", 26, "attention half of a ratio-128 layer, in tiles of 128 rows", COMPOSITION_NEEDS, prefill_hca_in, prefill_hca_out, "128",
     layer_sizes, run_layer, bind_ratio},
    {"prefill_csa", 27, "attention half of a ratio-4 layer, in tiles of 128 rows", COMPOSITION_NEEDS, prefill_csa_in, prefill_csa_out, "128",
     layer_sizes, run_layer, bind_ratio},
    {"prefill_layer", 33, "a layer over ranks, in tiles of 128 rows", COMPOSITION_EXPERT_NEEDS, prefill_layer_in, prefill_layer_out, "128*ep",
     layer_sizes, run_layer, bind_ratio},
    {0}};
