/* dispatch.h: which routed row goes to which rank, and where it lies there (v4-model.md 8.1 to 8.4). Pure integers; moves
 * no byte. Rank k holds experts [k E/ranks, (k+1) E/ranks). */
#ifndef QR_COMM_DISPATCH_H
#define QR_COMM_DISPATCH_H

#include "base/status.h"

struct dispatch_world {
    int32_t ranks;   /* 1, 2, 4 or 8 */
    int32_t experts; /* of all ranks */
    int32_t active;  /* K: experts of a row */
    int32_t rows;    /* T: the most rows of a rank */
};

/* Refuses a world that is not one ("bad world"). */
qr_status dispatch_check_world(const struct dispatch_world *w, qr_error *err);
/* Refuses an expert outside the world, or one that a row names twice: a lane has room for a row once ("bad table").
 * idx: [rows][active]. */
qr_status dispatch_check_routes(const struct dispatch_world *w, const int32_t *idx, int32_t rows, qr_error *err);

static inline int32_t dispatch_local(const struct dispatch_world *w) { return w->experts / w->ranks; }
static inline int32_t dispatch_rank_of(const struct dispatch_world *w, int32_t expert) { return expert / dispatch_local(w); }
/* Rows of one expert's lane: RECV_MAX. */
static inline int32_t dispatch_lane_rows(const struct dispatch_world *w) { return w->ranks * w->rows; }

/* What a source sends: counts[experts], and of each route its ordinal among those of its expert, walking rows, then k
 * (ordinal [rows][active]). */
void dispatch_count(const struct dispatch_world *w, const int32_t *idx, int32_t rows, int32_t *counts, int32_t *ordinal);

/* Where the rows of each local expert and source begin at a destination: first[local][ranks]. A route lies at
 * first[local expert][source] + its ordinal.
 * Lanes (decode): every expert has RECV_MAX rows, every source `rows` of them.
 * Packed (prefill, counts first): expert after expert, source after source, each expert beginning at a multiple of `align`;
 * counts: [ranks][local], what each source sends here. Returns the rows used, padding included. */
void dispatch_lanes(const struct dispatch_world *w, int32_t *first);
int32_t dispatch_pack(const struct dispatch_world *w, const int32_t *counts, int32_t align, int32_t *first);

#endif
