#include "run/verify_pack.h"

qr_status pack_start(struct pack_slot *slot, int32_t length, int32_t tail, int32_t draft, qr_error *err)
{
    if (length < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "bad slot: a prompt of %d tokens, wanted at least 1", length);
    slot->valid = true;
    slot->tail = tail;
    slot->draft = draft;
    slot->tail_position = length - 1;
    slot->committed = 0;
    return QR_OK;
}

void pack_stop(struct pack_slot *slot)
{
    slot->valid = false;
    slot->generation++;
}

qr_status pack_find(struct pack_slot *slots, int32_t count, int32_t id, int32_t generation, struct pack_slot **out,
                    qr_error *err)
{
    *out = NULL;
    if (id == PACK_NO_SLOT)
        return QR_OK;
    if (id < 0 || id >= count)
        return qr_fail(err, QR_BAD_ARGUMENT, "bad slot: %d, wanted -1 to %d", id, count - 1);
    if (!slots[id].valid)
        return qr_fail(err, QR_BAD_ARGUMENT, "bad slot: %d holds no request", id);
    if (slots[id].generation != generation)
        return qr_fail(err, QR_BAD_ARGUMENT, "stale slot: %d is of generation %d, the request of %d", id,
                       slots[id].generation, generation);
    *out = &slots[id];
    return QR_OK;
}

struct pack_rows pack_main_rows(const struct pack_slot *slot)
{
    return (struct pack_rows){.tokens = {slot->tail, slot->draft},
                              .positions = {slot->tail_position + 1, slot->tail_position + 2},
                              .cached = slot->tail_position + 3};
}

struct pack_verdict pack_verify(const struct pack_slot *slot, const int32_t chosen[2])
{
    int32_t tail = slot->tail_position;
    if (slot->draft == chosen[0])
        return (struct pack_verdict){.accepted = 2,
                                     .tokens = {chosen[0], chosen[1]},
                                     .positions = {tail + 1, tail + 2},
                                     .sources = {0, 1},
                                     .keep = 1};
    return (struct pack_verdict){.accepted = 1,
                                 .tokens = {slot->tail, chosen[0]},
                                 .positions = {tail, tail + 1},
                                 .sources = {PACK_KEPT, 0},
                                 .keep = 0};
}

void pack_advance(struct pack_slot *slot, const struct pack_verdict *verdict, int32_t new_draft)
{
    slot->tail = verdict->tokens[1];
    slot->tail_position = verdict->positions[1];
    slot->draft = new_draft;
    slot->committed += verdict->accepted;
}
