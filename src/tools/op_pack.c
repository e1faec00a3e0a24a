/* Operator 39 of v4-model.md section 10: the greedy verification of one draft a request (6.4), with or without its slots. */
#include <string.h>

#include "run/verify_pack.h"
#include "tools/op_adapters.h"

/* ---- without slots: one step of requests whose state is given ---- */

static qr_status run_requests(struct op_run *r, qr_error *err)
{
    int32_t *accepted = op_out(r, "accepted"), *length = op_out(r, "kv_len"), *main_tokens = op_out(r, "main_tokens");
    int32_t *main_positions = op_out(r, "main_positions"), *tokens = op_out(r, "mtp_tokens"), *positions = op_out(r, "mtp_positions");
    int32_t *sources = op_out(r, "mtp_state_source"), *new_tail = op_out(r, "new_tail"), *new_position = op_out(r, "new_tail_pos");
    for (int32_t b = 0; b < op_dim(r, "B"); b++) {
        struct pack_slot slot = {.valid = true, .tail = op_ints(r, "tail")[b], .draft = op_ints(r, "draft")[b],
                                 .tail_position = op_ints(r, "tail_pos")[b]};
        const int32_t chosen[2] = {op_ints(r, "main0")[b], op_ints(r, "main1")[b]};
        if (slot.tail_position < 0 || slot.tail_position > r->config.max_position_embeddings - 3)
            return op_refuse(err, BAD_POSITION, "tail_pos of request %d is %d, wanted 0 to %d", b, slot.tail_position,
                             r->config.max_position_embeddings - 3);
        struct pack_rows rows = pack_main_rows(&slot);
        struct pack_verdict verdict = pack_verify(&slot, chosen);
        accepted[b] = verdict.accepted;
        length[b] = rows.cached;
        memcpy(main_tokens + 2 * b, rows.tokens, sizeof rows.tokens);
        memcpy(main_positions + 2 * b, rows.positions, sizeof rows.positions);
        memcpy(tokens + 2 * b, verdict.tokens, sizeof verdict.tokens);
        memcpy(positions + 2 * b, verdict.positions, sizeof verdict.positions);
        memcpy(sources + 2 * b, verdict.sources, sizeof verdict.sources);
        pack_advance(&slot, &verdict, slot.draft);
        new_tail[b] = slot.tail;
        new_position[b] = slot.tail_position;
    }
    return QR_OK;
}

/* ---- with slots ---- */

static qr_status read_slots(struct op_run *r, struct pack_slot **out, qr_error *err)
{
    const uint8_t *valid = op_host(r, "slot_valid");
    int32_t slots = op_dim(r, "slots");
    TRY(op_host_new(r, slots * (int64_t)sizeof **out, out, err));
    for (int32_t i = 0; i < slots; i++)
        (*out)[i] = (struct pack_slot){.valid = valid[i], .generation = op_ints(r, "slot_generation")[i],
                                       .tail = op_ints(r, "slot_tail")[i], .draft = op_ints(r, "slot_draft")[i],
                                       .tail_position = op_ints(r, "slot_tail_pos")[i],
                                       .committed = op_ints(r, "slot_committed")[i]};
    return QR_OK;
}

static void write_slots(struct op_run *r, const struct pack_slot *slots)
{
    int32_t *tail = op_out(r, "slot_tail"), *draft = op_out(r, "slot_draft"), *position = op_out(r, "slot_tail_pos");
    int32_t *committed = op_out(r, "slot_committed");
    for (int32_t i = 0; i < op_dim(r, "slots"); i++) {
        tail[i] = slots[i].tail;
        draft[i] = slots[i].draft;
        position[i] = slots[i].tail_position;
        committed[i] = (int32_t)slots[i].committed;
    }
}

/* A row pair without a live slot (none, not valid, of another generation) passes through and touches nothing. */
static void pass_through(struct op_run *r, int32_t b)
{
    int32_t *accepted = op_out(r, "accepted"), *tokens = op_out(r, "main_tokens"), *positions = op_out(r, "main_positions");
    accepted[b] = 1;
    memcpy(tokens + 2 * b, op_ints(r, "input_ids") + 2 * b, 8);
    memcpy(positions + 2 * b, op_ints(r, "position_ids") + 2 * b, 8);
}

static void step_slot(struct op_run *r, int32_t b, struct pack_slot *slot)
{
    int32_t *accepted = op_out(r, "accepted"), *main_tokens = op_out(r, "main_tokens"), *main_positions = op_out(r, "main_positions");
    int32_t *tokens = op_out(r, "mtp_tokens"), *positions = op_out(r, "mtp_positions"), id = op_ints(r, "slot_ids")[b];
    const int32_t chosen[2] = {op_ints(r, "main0")[b], op_ints(r, "main1")[b]};
    struct pack_rows rows = pack_main_rows(slot);
    struct pack_verdict verdict = pack_verify(slot, chosen);
    int64_t width = (int64_t)op_dim(r, "M") * op_dim(r, "w");
    const float *state = op_host(r, "main_state");
    float *pool = op_out(r, "slot_pool");

    accepted[b] = verdict.accepted;
    memcpy(main_tokens + 2 * b, rows.tokens, sizeof rows.tokens);
    memcpy(main_positions + 2 * b, rows.positions, sizeof rows.positions);
    memcpy(tokens + 2 * b, verdict.tokens, sizeof verdict.tokens);
    memcpy(positions + 2 * b, verdict.positions, sizeof verdict.positions);
    memcpy(pool + id * width, state + (2 * b + verdict.keep) * width, (size_t)width * sizeof *pool);
    pack_advance(slot, &verdict, op_ints(r, "new_draft")[b]);
}

static qr_status run_slots(struct op_run *r, qr_error *err)
{
    uint8_t *live = op_out(r, "live");
    struct pack_slot *slots;
    TRY(read_slots(r, &slots, err));
    for (int32_t b = 0; b < op_dim(r, "B"); b++) {
        int32_t id = op_ints(r, "slot_ids")[b];
        if (id < PACK_NO_SLOT || id >= op_dim(r, "slots"))
            return op_refuse(err, BAD_SLOT, "slot_ids of request %d is %d, wanted -1 to %d", b, id, op_dim(r, "slots") - 1);
    }
    memcpy(op_out(r, "slot_pool"), op_host(r, "slot_pool"), (size_t)op_out_slot(r, "slot_pool")->bytes);
    for (int32_t b = 0; b < op_dim(r, "B"); b++) {
        struct pack_slot *slot;
        qr_status st = pack_find(slots, op_dim(r, "slots"), op_ints(r, "slot_ids")[b], op_ints(r, "request_generation")[b], &slot, NULL);
        live[b] = st == QR_OK && slot;
        if (live[b])
            step_slot(r, b, slot);
        else
            pass_through(r, b);
    }
    write_slots(r, slots);
    return QR_OK;
}

/* ---- both ---- */

static bool has_slots(const struct op_run *r) { return op_file_find(r->file, "in.slot_ids") != NULL; }

/* Outputs of the other form are left out. */
static qr_status run_pack(struct op_run *r, qr_error *err)
{
    static const char *const plain[] = {"kv_len", "mtp_state_source", "new_tail", "new_tail_pos"};
    static const char *const slotted[] = {"slot_tail", "slot_draft", "slot_tail_pos", "slot_committed", "slot_pool", "live"};
    const char *const needed_plain[] = {"tail", "draft", "tail_pos"};
    const char *const needed_slotted[] = {"slot_valid", "slot_generation", "slot_tail", "slot_draft", "slot_tail_pos", "slot_committed",
                                          "slot_pool", "request_generation", "input_ids", "position_ids", "main_state", "new_draft"};
    bool slots = has_slots(r);
    const char *const *needed = slots ? needed_slotted : needed_plain;
    for (size_t i = 0; i < (slots ? 12 : 3); i++)
        if (!op_has(r, needed[i]))
            return op_refuse(err, BAD_SHAPE, "no array in.%s", needed[i]);
    if (slots)
        TRY(run_slots(r, err));
    else
        TRY(run_requests(r, err));
    for (size_t i = 0; i < 4; i++)
        if (slots)
            op_drop(r, plain[i]);
    for (size_t i = 0; i < 6; i++)
        if (!slots)
            op_drop(r, slotted[i]);
    return QR_OK;
}

/* Sizes that only the form with slots has. */
static qr_status pack_sizes(struct op_run *r, qr_error *err)
{
    (void)err;
    dims_bind(&r->dims, "slots", 0);
    dims_bind(&r->dims, "w", 0);
    return QR_OK;
}

#define SLOT(NAME) ARRAY(NAME, ARRAY_INT, "slots", .flags = ARRAY_OPTIONAL)
#define EXACT(NAME, SHAPE) ARRAY(NAME, ARRAY_INT, SHAPE, .tolerance = "exact")

static const struct op_array pack_in[] = {ARRAY("main0", ARRAY_INT, "B"),
                                          ARRAY("main1", ARRAY_INT, "B"),
                                          ARRAY("tail", ARRAY_INT, "B", .flags = ARRAY_OPTIONAL),
                                          ARRAY("draft", ARRAY_INT, "B", .flags = ARRAY_OPTIONAL),
                                          ARRAY("tail_pos", ARRAY_INT, "B", .flags = ARRAY_OPTIONAL),
                                          ARRAY("slot_ids", ARRAY_INT, "B", .flags = ARRAY_OPTIONAL),
                                          ARRAY("request_generation", ARRAY_INT, "B", .flags = ARRAY_OPTIONAL),
                                          ARRAY("new_draft", ARRAY_INT, "B", .flags = ARRAY_OPTIONAL),
                                          ARRAY("input_ids", ARRAY_INT, "B S", .flags = ARRAY_OPTIONAL),
                                          ARRAY("position_ids", ARRAY_INT, "B S", .flags = ARRAY_OPTIONAL),
                                          ARRAY("main_state", ARRAY_F32, "B S M w", .flags = ARRAY_OPTIONAL | ARRAY_HOST),
                                          ARRAY("slot_valid", ARRAY_U8, "slots", .flags = ARRAY_OPTIONAL),
                                          SLOT("slot_generation"),
                                          SLOT("slot_tail"),
                                          SLOT("slot_draft"),
                                          SLOT("slot_tail_pos"),
                                          SLOT("slot_committed"),
                                          ARRAY("slot_pool", ARRAY_F32, "slots M w", .flags = ARRAY_OPTIONAL | ARRAY_HOST),
                                          {0}};
static const struct op_array pack_out[] = {EXACT("accepted", "B"),
                                           EXACT("main_tokens", "B S"),
                                           EXACT("main_positions", "B S"),
                                           EXACT("mtp_tokens", "B S"),
                                           EXACT("mtp_positions", "B S"),
                                           EXACT("mtp_state_source", "B S"),
                                           EXACT("kv_len", "B"),
                                           EXACT("new_tail", "B"),
                                           EXACT("new_tail_pos", "B"),
                                           EXACT("slot_tail", "slots"),
                                           EXACT("slot_draft", "slots"),
                                           EXACT("slot_tail_pos", "slots"),
                                           EXACT("slot_committed", "slots"),
                                           ARRAY("slot_pool", ARRAY_F32, "slots M w", .flags = ARRAY_HOST, .tolerance = "exact"),
                                           ARRAY("live", ARRAY_U8, "B", .tolerance = "exact"),
                                           {0}};

const struct op_harness op_pack_harnesses[] = {
    {"verify_pack", 39, "greedy verification of one draft a request", "", pack_in, pack_out, "B", pack_sizes, run_pack, NULL},
    {0}};
