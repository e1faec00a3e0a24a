#include "tools/op_moe.h"

#include <string.h>

enum { GROUP_ROWS = 16 };

/* What the exchange knows before a row moves. */
struct plan {
    int32_t *counts;    /* [ranks][experts] */
    int32_t *ordinal;   /* [ranks * rows][K] */
    int32_t *first;     /* [local][ranks] at the destination at hand */
    int32_t room;       /* rows there */
};

static int64_t first_of(const struct moe *m, int32_t rank) { return m->first ? m->first[rank] : (int64_t)rank * m->world.rows; }

static qr_status make_plan(struct op_run *r, const struct moe *m, struct plan *p, qr_error *err)
{
    const struct dispatch_world *w = &m->world;
    TRY(dispatch_check_world(w, err));
    TRY(op_host_new(r, 4LL * w->ranks * w->experts, &p->counts, err));
    TRY(op_host_new(r, 4LL * w->ranks * w->rows * w->active, &p->ordinal, err));
    TRY(op_host_new(r, 4LL * w->experts * w->ranks, &p->first, err));
    for (int32_t source = 0; source < w->ranks; source++) {
        int64_t at = (int64_t)source * w->rows * w->active, from = first_of(m, source) * w->active;
        TRY(dispatch_check_routes(w, m->idx + from, m->live[source], err));
        dispatch_count(w, m->idx + from, m->live[source], p->counts + source * w->experts, p->ordinal + at);
    }
    return QR_OK;
}

/* Places the rows that rank `to` receives. */
static qr_status place(struct op_run *r, const struct moe *m, struct plan *p, int32_t to, qr_error *err)
{
    const struct dispatch_world *w = &m->world;
    int32_t local = dispatch_local(w), *counts;
    if (m->form == MOE_LANES) {
        dispatch_lanes(w, p->first);
        p->room = local * dispatch_lane_rows(w);
        return QR_OK;
    }
    TRY(op_host_new(r, 4LL * w->ranks * local, &counts, err));
    for (int32_t source = 0; source < w->ranks; source++)
        memcpy(counts + source * local, p->counts + source * w->experts + to * local, 4 * (size_t)local);
    p->room = dispatch_pack(w, counts, GROUP_ROWS, p->first);
    return QR_OK;
}

/* A route that ends at this rank, walked source by source, row by row. */
struct route {
    int64_t row, k;     /* row of all ranks; which of its experts */
    int32_t expert, at; /* local expert; row at the destination */
};

static bool next_route(const struct moe *m, const struct plan *p, int32_t to, int64_t *cursor, struct route *out)
{
    const struct dispatch_world *w = &m->world;
    int64_t all = (int64_t)w->ranks * w->rows * w->active;
    for (int64_t i = *cursor; i < all; i++) {
        int32_t source = (int32_t)(i / w->active / w->rows), row = (int32_t)(i / w->active % w->rows);
        int64_t at = first_of(m, source) + row, k = i % w->active;
        if (row >= m->live[source] || dispatch_rank_of(w, m->idx[at * w->active + k]) != to)
            continue;
        int32_t expert = m->idx[at * w->active + k] % dispatch_local(w);
        *out = (struct route){at, k, expert, p->first[expert * w->ranks + source] + p->ordinal[i]};
        *cursor = i + 1;
        return true;
    }
    return false;
}

/* Bytes of a row's codes and scales. */
static int64_t code_bytes(const struct activation *x) { return x->cols; }
static int64_t scale_bytes(const struct activation *x) { return x->cols / x->block * (x->format == ACT_Q8 ? 1 : 4); }

static qr_status copy(struct op_run *r, void *to, int64_t to_row, const void *from, int64_t from_row, int64_t bytes, qr_error *err)
{
    CALL(r, copy, .to = (uint8_t *)to + to_row * bytes, .from = (const uint8_t *)from + from_row * bytes, .bytes = bytes);
    return QR_OK;
}

/* Room for the rows of a rank. */
static qr_status take_room(struct op_run *r, const struct moe *m, int64_t rows, qr_error *err)
{
    struct moe_scratch *s = m->scratch;
    if (rows <= s->room)
        return QR_OK;
    TRY(op_rows(r, m->x.format, rows, m->x.cols, m->x.block, &s->x, err));
    TRY(op_buffer(r, 4 * rows, &s->weight, err));
    TRY(op_buffer(r, rows * 2LL * m->x.cols, &s->y, err));
    s->room = rows;
    return QR_OK;
}

/* Dispatch to one rank, its experts, and the way back. */
static qr_status run_rank(struct op_run *r, const struct moe *m, struct plan *p, int32_t to, qr_error *err)
{
    const struct dispatch_world *w = &m->world;
    int32_t n = 0, local = dispatch_local(w), *list, *expert;
    int64_t cursor = 0, out_bytes = 2LL * m->x.cols;
    struct route route;

    TRY(place(r, m, p, to, err));
    TRY(take_room(r, m, p->room, err));
    struct activation x = m->scratch->x;
    float *weight = m->scratch->weight;
    void *y = m->scratch->y;
    TRY(op_host_new(r, 4LL * p->room, &list, err));
    TRY(op_host_new(r, 4LL * p->room, &expert, err));
    while (next_route(m, p, to, &cursor, &route)) {
        TRY(copy(r, x.codes, route.at, m->x.codes, route.row, code_bytes(&x), err));
        TRY(copy(r, x.scales, route.at, m->x.scales, route.row, scale_bytes(&x), err));
        TRY(copy(r, weight, route.at, m->weight, route.row * w->active + route.k, 4, err));
        expert[route.at] = route.expert + 1;
    }
    for (int32_t i = 0; i < p->room; i++)
        if (expert[i]) {
            expert[i]--;
            list[n++] = i;
        }
    if (!n)
        return QR_OK;
    TRY(op_upload(r, list, 4LL * n, &list, err));
    TRY(op_upload(r, expert, 4LL * p->room, &expert, err));
    CALL(r, expert, .rows = {list, n}, .x = x, .idx = expert, .weight = weight, .experts = local, .active = 1,
         .w1 = m->w1 + to * local, .w2 = m->w2 + to * local, .w3 = m->w3 + to * local, .swiglu_limit = m->swiglu_limit,
         .w8a8 = r->w8a8, .out = y);
    for (cursor = 0; next_route(m, p, to, &cursor, &route);)
        TRY(copy(r, m->routed, route.row * w->active + route.k, y, route.at, out_bytes, err));
    return QR_OK;
}

static qr_status run_shared(struct op_run *r, const struct moe *m, qr_error *err)
{
    const struct weight **w;
    TRY(op_host_new(r, sizeof m->shared, &w, err));
    memcpy(w, m->shared, sizeof m->shared);
    CALL(r, expert, .rows = first_rows_of(m->world.ranks * m->world.rows), .x = m->x, .experts = 1, .active = 1, .w1 = &w[0],
         .w2 = &w[1], .w3 = &w[2], .swiglu_limit = m->swiglu_limit, .w8a8 = r->w8a8, .out = m->shared_out);
    return QR_OK;
}

static qr_status combine(struct op_run *r, const struct moe *m, qr_error *err)
{
    const struct dispatch_world *w = &m->world;
    int32_t n = 0, *list, all = w->ranks * w->rows;
    TRY(op_host_new(r, 4LL * all, &list, err));
    for (int32_t i = 0; i < all; i++)
        if (i % w->rows < m->live[i / w->rows])
            list[n++] = i;
        else
            TRY(copy(r, m->out, i, m->shared_out, i, 2LL * m->x.cols, err));
    TRY(op_upload(r, list, 4LL * n, &list, err));
    if (n)
        CALL(r, combine, .rows = {list, n}, .idx = m->device_idx, .active = w->active, .hidden = m->x.cols, .routed = m->routed,
             .shared = m->shared_out, .w8a8 = r->w8a8, .out = m->out);
    return QR_OK;
}

qr_status moe_routed(struct op_run *r, const struct moe *m, qr_error *err)
{
    struct plan p = {0};
    TRY(make_plan(r, m, &p, err));
    for (int32_t rank = 0; rank < m->world.ranks; rank++)
        TRY(run_rank(r, m, &p, rank, err));
    return QR_OK;
}

qr_status moe_run(struct op_run *r, const struct moe *m, qr_error *err)
{
    TRY(moe_routed(r, m, err));
    TRY(run_shared(r, m, err));
    return combine(r, m, err);
}
