/* verify_pack.h: greedy drafting with one draft a request, as a state machine (v4-model.md 6.4, speculation.md 8.2). A
 * slot remembers the newest committed token, the guess for the one after it, and where they stand; a step runs two rows
 * of the backbone, packs two rows for the MTP layer from what they said, and moves the slot. Pure functions on these
 * numbers; the streams they speak of are moved by whoever owns them. */
#ifndef QR_RUN_VERIFY_PACK_H
#define QR_RUN_VERIFY_PACK_H

#include "base/status.h"

struct pack_slot {
    bool valid;
    int32_t generation;    /* goes up when the slot is given to another request */
    int32_t tail, draft;   /* the newest committed token; the guess for the token after it */
    int32_t tail_position; /* newest position whose streams are known, and kept: the tail stands one further */
    int64_t committed;     /* tokens committed so far */
};

enum {
    PACK_NO_SLOT = -1 /* an id: the row pair belongs to no request */,
    PACK_KEPT = -1 /* a source: the slot's streams */
};

/* Gives the slot to a request whose prompt of `length` tokens has run: `tail` is the backbone's choice after its last
 * token, `draft` the MTP layer's after (last position, tail). `kept` of the slot are the streams of the last position.
 * Refuses an empty prompt (QR_BAD_ARGUMENT, "bad slot"). */
qr_status pack_start(struct pack_slot *slot, int32_t length, int32_t tail, int32_t draft, qr_error *err);
void pack_stop(struct pack_slot *slot);

/* The slot of a step: `*out` is NULL for PACK_NO_SLOT. QR_BAD_ARGUMENT naming both numbers: an id outside [-1, count)
 * or a slot that is not valid ("bad slot"), another generation ("stale slot"). */
qr_status pack_find(struct pack_slot *slots, int32_t count, int32_t id, int32_t generation, struct pack_slot **out,
                    qr_error *err);

/* The two rows of the backbone: tail and draft, at the two positions behind tail_position; `cached` positions are
 * cached once both are written. */
struct pack_rows {
    int32_t tokens[2], positions[2], cached;
};
struct pack_rows pack_main_rows(const struct pack_slot *slot);

/* What follows from their choices. `accepted` of chosen[0..1] are emitted: both when the draft was the first of them,
 * else the first. The MTP rows stand at `positions`, each with the token that follows and the streams of main row
 * `sources`, or the kept ones: after a rejected draft the row of the old tail is run again, so that there are always
 * two. */
struct pack_verdict {
    int32_t accepted;
    int32_t tokens[2], positions[2], sources[2];
    int32_t keep; /* main row whose streams are kept from now on */
};
struct pack_verdict pack_verify(const struct pack_slot *slot, const int32_t chosen[2]);

/* Moves the slot; `new_draft` is the choice of the second MTP row. */
void pack_advance(struct pack_slot *slot, const struct pack_verdict *verdict, int32_t new_draft);

#endif
