/* Operators 37 to 39 of v4-model.md section 10, the compositions of section 9: whole forwards over simulated ranks, and a
 * step with its verification and its drafts, by the model's own functions. */
#include <string.h>

#include "run/verify_pack.h"
#include "tools/op_forward.h"
#include "tools/op_layer_arrays.h"

/* ---- 37, 38 ---- */

/* Rows that logits are wanted of: those of the file, or every live row of a decode step, the last of a prompt. */
static qr_status wanted_rows(struct op_run *r, const struct op_composition *c, const int32_t **out, qr_error *err)
{
    *out = op_ints(r, "logit_row_indices");
    return *out ? QR_OK : composition_logit_rows(r, c, out, err);
}

static qr_status check_inputs(struct op_run *r, const struct op_composition *c, qr_error *err)
{
    const int32_t *tokens = op_ints(r, "input_ids");
    for (int32_t i = 0; i < c->count; i++)
        TRY(op_check_tokens(tokens + c->requests[i].row, c->requests[i].count, op_dim(r, "V"), err));
    return QR_OK;
}

/* Streams of the last rows of each request, oldest first. */
static qr_status keep_tail(struct op_run *r, const struct op_composition *c, qr_error *err)
{
    const struct op_world *w = c->world;
    int64_t bytes = (int64_t)op_dim(r, "M*D") * (r->w8a8 ? 4 : 2);
    uint8_t *out = op_out(r, "tail_states");
    for (int32_t i = 0; i < w->tile.rows; i++) {
        const struct world_request *q = &c->requests[w->tile.request[i]];
        int32_t first = q->count > WORLD_TILE ? q->count - WORLD_TILE : 0, at = w->tile.row[i] - q->row - first;
        if (at >= 0)
            TRY(r->backend->download(r->backend, out + ((int64_t)q->rank * WORLD_TILE + at) * bytes,
                                     (const uint8_t *)w->ws.streams.data + i * bytes, bytes, err));
    }
    return r->backend->fence(r->backend, err);
}

static qr_status run_forward(struct op_run *r, qr_error *err)
{
    struct op_composition c;
    const int32_t *index;
    bool any = true, prefill = strncmp(r->harness->name, "prefill", 7) == 0;
    TRY(layer_requests(r, prefill, &c, err));
    TRY(check_inputs(r, &c, err));
    TRY(wanted_rows(r, &c, &index, err));
    TRY(forward_open(r, &c, false, err));
    for (int32_t from = 0; any; from += WORLD_TILE) {
        TRY(forward_tile(r, &c, from, op_ints(r, "input_ids"), &any, err));
        if (any && prefill)
            TRY(keep_tail(r, &c, err));
        if (any && !prefill)
            TRY(forward_streams(r, &c, op_out(r, "pre_hc_hidden"), err));
    }
    return forward_head(r, &c, "hidden", index, "logits", "sampled_ids", err);
}

/* ---- 39 ---- */

/* The slots of a step, and what each request makes of its own. */
struct drafting {
    struct pack_slot *slots;      /* [ranks][slots] */
    struct pack_slot **mine;      /* [requests] NULL: none */
    struct pack_verdict *verdicts;
    int32_t *tokens, *mtp_tokens, *sources; /* [rows of the arrays] */
    struct world_request *mtp;
};

static qr_status read_slots(struct op_run *r, int32_t ranks, struct drafting *d, qr_error *err)
{
    const uint8_t *valid = op_host(r, "slot_valid");
    int32_t count = ranks * op_dim(r, "slots"), most = r->config.max_position_embeddings - 3;
    TRY(op_host_new(r, count * (int64_t)sizeof *d->slots, &d->slots, err));
    for (int32_t i = 0; i < count; i++) {
        d->slots[i] = (struct pack_slot){.valid = valid[i], .generation = op_ints(r, "slot_generation")[i],
                                         .tail = op_ints(r, "slot_tail")[i], .draft = op_ints(r, "slot_draft")[i],
                                         .tail_position = op_ints(r, "slot_tail_pos")[i], .committed = op_ints(r, "slot_committed")[i]};
        if (valid[i] && (d->slots[i].tail_position < 0 || d->slots[i].tail_position > most))
            return op_refuse(err, BAD_POSITION, "slot_tail_pos of slot %d is %d, wanted 0 to %d", i, d->slots[i].tail_position, most);
    }
    return QR_OK;
}

/* Two rows for each request with a slot, none for one without. */
static qr_status slot_requests(struct op_run *r, struct op_composition *c, struct drafting *d, qr_error *err)
{
    int32_t each = op_dim(r, "B"), ranks = op_dim(r, "ep"), slots = op_dim(r, "slots");
    if (each < 1 || each > WORLD_REQUESTS)
        return op_refuse(err, BAD_SHAPE, "a decode step of %d requests, wanted 1 to %d", each, WORLD_REQUESTS);
    if (r->ranks && r->ranks != ranks)
        return op_refuse(err, BAD_WORLD, "--ranks %d, the file holds the rows of %d", r->ranks, ranks);
    *c = (struct op_composition){.count = each * ranks, .ranks = ranks, .rank_rows = 2 * each};
    TRY(read_slots(r, ranks, d, err));
    TRY(op_host_new(r, c->count * (int64_t)sizeof *c->requests, &c->requests, err));
    TRY(op_host_new(r, c->count * (int64_t)sizeof *d->mtp, &d->mtp, err));
    TRY(op_host_new(r, c->count * (int64_t)sizeof(void *), &d->mine, err));
    TRY(op_host_new(r, c->count * (int64_t)sizeof *d->verdicts, &d->verdicts, err));
    TRY(op_host_new(r, 8LL * c->count, &d->tokens, err));
    TRY(op_host_new(r, 8LL * c->count, &d->mtp_tokens, err));
    TRY(op_host_new(r, 8LL * c->count, &d->sources, err));
    for (int32_t i = 0; i < c->count; i++) {
        int32_t rank = i / each, *positions = (int32_t *)op_out(r, "main_positions") + 2 * i;
        TRY(pack_find(d->slots + (int64_t)rank * slots, slots, op_ints(r, "slot_ids")[i], op_ints(r, "request_generation")[i], &d->mine[i], err));
        c->requests[i] = (struct world_request){.rank = rank, .row = 2 * i};
        if (!d->mine[i])
            continue;
        struct pack_rows rows = pack_main_rows(d->mine[i]);
        memcpy(d->tokens + 2 * i, rows.tokens, sizeof rows.tokens);
        memcpy(positions, rows.positions, sizeof rows.positions);
        c->requests[i].first = rows.positions[0];
        c->requests[i].count = 2;
        TRY(op_check_tokens(rows.tokens, 2, op_dim(r, "V"), err));
    }
    memcpy(op_out(r, "main_tokens"), d->tokens, 8 * (size_t)c->count);
    return QR_OK;
}

/* What the choices of the main rows make of each request. */
static void verify(struct op_run *r, const struct op_composition *c, struct drafting *d)
{
    const int32_t *ids = op_out(r, "sampled_ids");
    int32_t *accepted = op_out(r, "accepted"), *positions = op_out(r, "mtp_positions"), row = 0;
    for (int32_t i = 0; i < c->count; i++) {
        const struct world_request *q = &c->requests[i];
        int64_t at = (int64_t)q->rank * LOGIT_ROWS + q->row - q->rank * c->rank_rows;
        accepted[i] = 1;
        d->mtp[i] = *q;
        if (!d->mine[i])
            continue;
        const int32_t chosen[2] = {ids[at * LOGIT_ROWS], ids[(at + 1) * LOGIT_ROWS]};
        struct pack_verdict *v = &d->verdicts[i];
        *v = pack_verify(d->mine[i], chosen);
        accepted[i] = v->accepted;
        d->mtp[i].first = v->positions[0];
        for (int k = 0; k < 2; k++) {
            d->mtp_tokens[2 * i + k] = v->tokens[k];
            d->sources[2 * i + k] = v->sources[k] == PACK_KEPT ? -1 : row + v->sources[k];
            positions[2 * i + k] = v->positions[k];
        }
        row += 2;
    }
    memcpy(op_out(r, "mtp_tokens"), d->mtp_tokens, 8 * (size_t)c->count);
}

static uint8_t *pool_of(const struct op_run *r, const struct op_composition *c, int32_t request)
{
    int64_t bytes = (int64_t)op_dim(r, "M*D") * (r->w8a8 ? 4 : 2);
    return (uint8_t *)op_out(r, "slot_pool") + ((int64_t)c->requests[request].rank * op_dim(r, "slots") + op_ints(r, "slot_ids")[request]) * bytes;
}

static qr_status run_draft(struct op_run *r, struct op_composition *c, struct drafting *d, int32_t main_rows, qr_error *err)
{
    struct op_world *w = c->world;
    struct model_draft draft;
    int32_t layer = w->plan.layers;
    int64_t streams = (int64_t)op_dim(r, "M*D") * (r->w8a8 ? 4 : 2);
    for (int32_t i = 0; i < c->count; i++)
        if (d->mine[i])
            TRY(world_keep_streams(w, i, pool_of(r, c, i), err));
    w->options.requests = d->mtp;
    TRY(cache_check(w, layer, &c->caches[layer], err));
    TRY(cache_load(w, layer, &c->caches[layer], err));
    TRY(world_draft_step(w, d->mtp_tokens, d->sources, main_rows, &draft, err));
    TRY(world_enter(w, layer, err));
    TRY(mtp_streams(&w->pass, &draft, &w->draft_ws, err));
    TRY(world_give(w, w->draft_ws.streams.data, op_out(r, "next_pre_hc_hidden"), streams, err));
    TRY(v4_hidden(&w->pass, &w->weights.mtp.head, first_rows_of(w->tile.rows), err));
    TRY(world_give(w, w->draft_ws.x.codes, op_out(r, "mtp_hidden"), 2LL * op_dim(r, "D"), err));
    w->options.requests = c->requests;
    return QR_OK;
}

/* Step 5 of 6.4: state, tail, position, draft, count of every slot that took part. */
static void advance(struct op_run *r, const struct op_composition *c, struct drafting *d)
{
    const int32_t *ids = op_out(r, "mtp_sampled_ids");
    int64_t bytes = (int64_t)op_dim(r, "M*D") * (r->w8a8 ? 4 : 2);
    int32_t *tail = op_out(r, "slot_tail"), *draft = op_out(r, "slot_draft"), *position = op_out(r, "slot_tail_pos"), *committed = op_out(r, "slot_committed");
    for (int32_t i = 0; i < c->count; i++) {
        const struct world_request *q = &c->requests[i];
        int64_t second = (int64_t)q->rank * LOGIT_ROWS + q->row - q->rank * c->rank_rows + 1;
        if (!d->mine[i])
            continue;
        memcpy(pool_of(r, c, i), (const uint8_t *)op_out(r, "pre_hc_hidden") + (q->row + d->verdicts[i].keep) * bytes, (size_t)bytes);
        pack_advance(d->mine[i], &d->verdicts[i], ids[second * LOGIT_ROWS]);
    }
    for (int32_t i = 0; i < c->ranks * op_dim(r, "slots"); i++) {
        tail[i] = d->slots[i].tail;
        draft[i] = d->slots[i].draft;
        position[i] = d->slots[i].tail_position;
        committed[i] = (int32_t)d->slots[i].committed;
    }
}

static qr_status run_forward_mtp(struct op_run *r, qr_error *err)
{
    struct op_composition c;
    struct drafting d = {0};
    const int32_t *index;
    bool any;
    TRY(slot_requests(r, &c, &d, err));
    memcpy(op_out(r, "slot_pool"), op_host(r, "slot_pool"), (size_t)op_out_slot(r, "slot_pool")->bytes);
    TRY(composition_logit_rows(r, &c, &index, err));
    TRY(forward_open(r, &c, true, err));
    TRY(forward_tile(r, &c, 0, d.tokens, &any, err));
    int32_t main_rows = c.world->tile.rows;
    if (any)
        TRY(forward_streams(r, &c, op_out(r, "pre_hc_hidden"), err));
    TRY(forward_head(r, &c, "hidden", index, "logits", "sampled_ids", err));
    verify(r, &c, &d);
    if (any)
        TRY(run_draft(r, &c, &d, main_rows, err));
    TRY(forward_head(r, &c, "mtp_hidden", index, "mtp_logits", "mtp_sampled_ids", err));
    advance(r, &c, &d);
    return QR_OK;
}

/* ---- the tables ---- */

static qr_status forward_sizes(struct op_run *r, qr_error *err)
{
    (void)err;
    dims_bind(&r->dims, "ep", 1);
    dims_bind(&r->dims, "T", 2LL * op_dim(r, "B"));
    return QR_OK;
}

#define POOLS                                                                                                          \
    ARRAY("kv_cache", ARRAY_BF16, "ep KP 128 1 d", .flags = ARRAY_HOST),                                                             \
        ARRAY("hca_cmp_kv", ARRAY_BF16, "ep HP hr 1 d", .flags = ARRAY_HOST | OPT), ARRAY("csa_cmp_kv", ARRAY_BF16, "ep CP cr 1 d", .flags = ARRAY_HOST | OPT), \
        ARRAY("idx_kv_cache", ARRAY_I8, "ep IP 32 1 di", .flags = W8 | ARRAY_HOST | OPT),                                            \
        ARRAY("idx_kv_cache", ARRAY_BF16, "ep IP 32 1 di", .flags = REF | ARRAY_HOST | OPT),                                         \
        ARRAY("idx_kv_scale", ARRAY_F32, "ep IP 32 1 1", .flags = W8 | ARRAY_HOST | OPT),                                            \
        ARRAY("hca_compress_state", ARRAY_F32, "ep HS hp HW", .flags = ARRAY_HOST | OPT),                                            \
        ARRAY("csa_compress_state", ARRAY_F32, "ep CS cp CW", .flags = ARRAY_HOST | OPT),                                            \
        ARRAY("csa_inner_compress_state", ARRAY_F32, "ep JS jp JW", .flags = ARRAY_HOST | OPT)
#define TABLES(TABLE)                                                                                                  \
    ARRAY("block_table", ARRAY_INT, TABLE " bn", .flags = OPT), ARRAY("ori_table", ARRAY_INT, TABLE " on", .flags = OPT),               \
        ARRAY("hca_cmp_table", ARRAY_INT, TABLE " hcn", .flags = OPT), ARRAY("csa_cmp_table", ARRAY_INT, TABLE " ccn", .flags = OPT),    \
        ARRAY("idx_table", ARRAY_INT, TABLE " in", .flags = OPT), ARRAY("hca_state_table", ARRAY_INT, TABLE " hsn", .flags = OPT),       \
        ARRAY("csa_state_table", ARRAY_INT, TABLE " csn", .flags = OPT), ARRAY("csa_inner_state_table", ARRAY_INT, TABLE " jsn", .flags = OPT)
#define TURNS                                                                                                          \
    ARRAY("freqs_cos", ARRAY_F32, "2 * *", .flags = W8 | ARRAY_HOST | OPT), ARRAY("freqs_sin", ARRAY_F32, "2 * *", .flags = W8 | ARRAY_HOST | OPT)
#define POOLS_OUT                                                                                                      \
    OUT("kv_cache", ARRAY_BF16, "ep KP 128 1 d", 0, CACHES), OUT("hca_cmp_kv", ARRAY_BF16, "ep HP hr 1 d", 0, CACHES),                  \
        OUT("csa_cmp_kv", ARRAY_BF16, "ep CP cr 1 d", 0, CACHES), OUT("idx_kv_cache", ARRAY_I8, "ep IP 32 1 di", W8, "RA(1,0,.02)"),     \
        OUT("idx_kv_cache", ARRAY_BF16, "ep IP 32 1 di", REF, CACHES), OUT("idx_kv_scale", ARRAY_F32, "ep IP 32 1 1", W8, "RA(1e-3,1e-2,.01)"), \
        OUT("hca_compress_state", ARRAY_F32, "ep HS hp HW", 0, STATES), OUT("csa_compress_state", ARRAY_F32, "ep CS cp CW", 0, STATES),  \
        OUT("csa_inner_compress_state", ARRAY_F32, "ep JS jp JW", 0, STATES)
#define CACHES "RA(1e-3,3e-2,.01)"
#define STATES "RA(5e-3,2e-2,.01)"
#define HIDDEN "RA(1e-2,5e-2,.02)"
#define LOGITS "COS(0.99,0.10)"
#define ID_OUT(NAME) ARRAY(NAME, ARRAY_INT, "ep 8 8", .tolerance = "exactly the lowest arg max")
#define EXACT(NAME, SHAPE) ARRAY(NAME, ARRAY_INT, SHAPE, .tolerance = "exact")
#define SLOT(NAME) INTS(NAME, "ep slots", 0)

static const struct op_array decode_in[] = {INTS("input_ids", "ep T", 0), INTS("position_ids", "ep B S", 0), INTS("num_tokens", "ep", OPT),
                                            INTS("kv_seq_lens", "ep B", OPT), INTS("logit_row_indices", "ep 8", OPT), TABLES("ep B"), TURNS, POOLS, {0}};
static const struct op_array decode_out[] = {OUT("pre_hc_hidden", ARRAY_STREAM, "ep T M D", 0, HIDDEN), OUT("hidden", ARRAY_BF16, "ep T D", 0, HIDDEN),
                                             OUT("logits", ARRAY_F32, "ep 8 V", 0, LOGITS), ID_OUT("sampled_ids"), POOLS_OUT, {0}};
static const struct op_array prefill_in[] = {INTS("input_ids", "ep T", 0), INTS("position_ids", "ep T", 0), INTS("num_tokens", "ep", OPT),
                                             INTS("logit_row_indices", "ep 8", OPT), TABLES("ep"), TURNS, POOLS, {0}};
static const struct op_array prefill_out[] = {OUT("hidden", ARRAY_BF16, "ep T D", 0, HIDDEN), OUT("logits", ARRAY_F32, "ep 8 V", 0, LOGITS),
                                              ID_OUT("sampled_ids"), OUT("tail_states", ARRAY_STREAM, "ep 128 M D", 0, HIDDEN), POOLS_OUT, {0}};
static const struct op_array mtp_in[] = {INTS("slot_ids", "ep B", 0), INTS("request_generation", "ep B", 0), ARRAY("slot_valid", ARRAY_U8, "ep slots"),
                                         SLOT("slot_generation"), SLOT("slot_tail"), SLOT("slot_draft"), SLOT("slot_tail_pos"), SLOT("slot_committed"),
                                         ARRAY("slot_pool", ARRAY_STREAM, "ep slots M D", .flags = ARRAY_HOST), TABLES("ep B"), TURNS, POOLS,
                                         ARRAY("mtp_kv_cache", ARRAY_BF16, "ep MP 128 1 d", .flags = ARRAY_HOST), {0}};
static const struct op_array mtp_out[] = {OUT("pre_hc_hidden", ARRAY_STREAM, "ep T M D", 0, HIDDEN), OUT("hidden", ARRAY_BF16, "ep T D", 0, HIDDEN),
                                          OUT("logits", ARRAY_F32, "ep 8 V", 0, LOGITS), ID_OUT("sampled_ids"), POOLS_OUT,
                                          OUT("next_pre_hc_hidden", ARRAY_STREAM, "ep T M D", 0, HIDDEN), OUT("mtp_hidden", ARRAY_BF16, "ep T D", 0, HIDDEN),
                                          OUT("mtp_logits", ARRAY_F32, "ep 8 V", 0, LOGITS), ID_OUT("mtp_sampled_ids"),
                                          OUT("mtp_kv_cache", ARRAY_BF16, "ep MP 128 1 d", 0, CACHES), EXACT("accepted", "ep B"),
                                          EXACT("main_tokens", "ep B 2"), EXACT("main_positions", "ep B 2"), EXACT("mtp_tokens", "ep B 2"),
                                          EXACT("mtp_positions", "ep B 2"), EXACT("slot_tail", "ep slots"), EXACT("slot_draft", "ep slots"),
                                          EXACT("slot_tail_pos", "ep slots"), EXACT("slot_committed", "ep slots"),
                                          OUT("slot_pool", ARRAY_STREAM, "ep slots M D", 0, HIDDEN), {0}};

const struct op_harness op_forward_harnesses[] = {
    {"decode_fwd", 37, "a decode step through every layer; params: config.json; weights: every tensor of 7.1 (w8a8) or 2.1", FORWARD_NEEDS,
     decode_in, decode_out, "ep*T", forward_sizes, run_forward, NULL},
    {"prefill_fwd", 38, "a prompt through every layer, in tiles of 128 rows; params and weights as decode_fwd", FORWARD_NEEDS, prefill_in,
     prefill_out, "128*ep", forward_sizes, run_forward, NULL},
    {"decode_fwd_mtp", 39, "a decode step, its verification and its drafts; params and weights as decode_fwd, the MTP layer's too", FORWARD_NEEDS,
     mtp_in, mtp_out, "2*ep*B", forward_sizes, run_forward_mtp, NULL},
    {0}};
