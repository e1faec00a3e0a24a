#include "run/forward.h"

#include <string.h>

#include "base/alloc.h"
#include "run/assemble.h"
#include "run/ngrams.h"
#include "run/rejected.h"

/* A tentative step that waits for its verdict. */
struct pending {
    int32_t requests; /* 0: none */
    int32_t *slot, *first_row, *count;
    struct rejected_rows *rows; /* of its spans, all of them: debug builds spoil what is not accepted */
};

struct runner {
    const struct model_plan *plan;
    const struct geometry *geometry;
    struct backend *backend;
    struct runner_options options;
    struct model *model;
    struct assembly *assembly;
    struct ngrams *ngrams;
    struct drafts *drafts;       /* of the MTP layer; NULL: no draft passes */
    struct block_drafts *blocks; /* of DSpark; NULL: none */
    uint8_t *base;         /* the pools, on the backend */
    bool resting;          /* they keep their address, and no bytes */
    struct cache_pool pool;
    struct cursor *cursors; /* [slots] */
    struct cursor *placed;  /* [max_requests] cursors that the step starts from */
    int32_t last_rows;      /* of the last step that went well; 0: none */
    struct pending pending;
};

/* ---- opening ---- */

static qr_status make_host_arrays(struct runner *r, qr_error *err)
{
    size_t slots = (size_t)r->options.slots, requests = (size_t)r->options.model.max_requests;
    r->cursors = qr_calloc(slots, sizeof *r->cursors);
    r->placed = qr_calloc(requests, sizeof *r->placed);
    r->pending.slot = qr_calloc(requests, sizeof(int32_t));
    r->pending.first_row = qr_calloc(requests, sizeof(int32_t));
    r->pending.count = qr_calloc(requests, sizeof(int32_t));
    r->pending.rows = qr_calloc(requests, sizeof *r->pending.rows);
    if (!r->cursors || !r->placed || !r->pending.slot || !r->pending.first_row || !r->pending.count || !r->pending.rows)
        return qr_fail(err, QR_NO_MEMORY, "runner: no memory for %zu slots and %zu requests", slots, requests);
    for (size_t i = 0; i < slots; i++)
        r->cursors[i] = cursor_start(r->geometry);
    return QR_OK;
}

static qr_status open_blocks(struct runner *r, const struct assembly_limits *limits, qr_error *err)
{
    const int32_t width = r->geometry->options.draft_width, rows = limits->max_requests * width;
    if (r->options.model.max_draft_rows != rows || limits->max_logits < rows)
        return qr_fail(err, QR_INTERNAL,
                       "runner: %d draft rows and %d rows of logits for %d requests with blocks of %d; wanted %d draft rows "
                       "and as many rows of logits at least",
                       r->options.model.max_draft_rows, limits->max_logits, limits->max_requests, width, rows);
    return block_drafts_open(r->backend, limits, &r->blocks, err);
}

static qr_status open_drafts(struct runner *r, const struct assembly_limits *limits, qr_error *err)
{
    struct assembly_limits drafts = *limits;
    drafts.max_rows = r->options.model.max_draft_rows;
    if (r->geometry->options.draft_width < 1 || drafts.max_rows > limits->max_rows)
        return qr_fail(err, QR_INTERNAL,
                       "runner: %d draft rows with a draft width of %d and steps of %d rows; wanted a "
                       "width above 0 and no more rows than a step has",
                       drafts.max_rows, r->geometry->options.draft_width, limits->max_rows);
    if (r->plan->config.drafter == QR_DRAFTER_DSPARK)
        return open_blocks(r, limits, err);
    return drafts_open(r->backend, &drafts, &r->drafts, err);
}

qr_status runner_renew_pools(struct runner *r, qr_error *err)
{
    struct pool_layout layout;
    void *base = r->base;
    TRY(geometry_pool(r->geometry, r->options.blocks, r->options.slots, &layout, err));
    if (r->resting)
        TRY(r->backend->rise_pool(r->backend, base, err));
    else if (r->backend->allocate_pool)
        TRY(r->backend->allocate_pool(r->backend, layout.bytes, &base, err));
    else
        TRY(r->backend->allocate(r->backend, layout.bytes, &base, err));
    r->base = base;
    r->resting = false;
    for (int64_t i = 0; i < r->options.slots; i++)
        r->cursors[i] = cursor_start(r->geometry);
    return cache_pool_over(r->geometry, layout.blocks, layout.slots, r->base, &r->pool, err);
}

static void drop_pools(struct runner *r)
{
    if (r->base)
        r->backend->release(r->backend, r->base);
    r->base = NULL;
}

void runner_release_pools(struct runner *r)
{
    r->resting = r->backend->rest_pool != NULL;
    if (r->resting)
        r->backend->rest_pool(r->backend, r->base);
    else
        drop_pools(r);
}

void runner_release_weights(struct runner *r) { model_rest(r->model); }

qr_status runner_renew_weights(struct runner *r, const struct checkpoint *ck, struct loading *loading, qr_error *err)
{
    return model_rise(r->model, ck, loading, err);
}

qr_status runner_expert_uses(const struct runner *r, uint64_t *out, qr_error *err)
{
    return model_expert_uses(r->model, out, err);
}

static qr_status open_parts(struct runner *r, const struct checkpoint *ck, const struct token_map *map, qr_error *err)
{
    const struct model_limits *m = &r->options.model;
    const struct assembly_limits limits = {.plan = r->plan,
                                           .geometry = r->geometry,
                                           .blocks = r->options.blocks,
                                           .slots = r->options.slots,
                                           .max_rows = m->max_rows,
                                           .max_requests = m->max_requests,
                                           .max_logits = m->max_logits,
                                           .max_positions = m->max_positions,
                                           .attention_rows = m->attention_rows,
                                           .pads = r->options.pads};

    TRY(make_host_arrays(r, err));
    TRY(assembly_open(r->backend, &limits, &r->assembly, err));
    if (m->max_draft_rows > 0)
        TRY(open_drafts(r, &limits, err));
    TRY(ngrams_open(ck, r->plan, map, m->max_rows, &r->ngrams, err));
    TRY(runner_renew_pools(r, err));
    return model_open(ck, r->plan, r->backend, m, r->options.loading, &r->model, err);
}

qr_status runner_open(const struct checkpoint *ck, const struct model_plan *plan, const struct geometry *geometry,
                      struct backend *backend, const struct token_map *map, const struct runner_options *options,
                      struct runner **out, qr_error *err)
{
    struct runner *r = qr_calloc(1, sizeof *r);
    if (!r)
        return qr_fail(err, QR_NO_MEMORY, "runner: no memory for its record");
    r->plan = plan;
    r->geometry = geometry;
    r->backend = backend;
    r->options = *options;

    qr_status st = open_parts(r, ck, map, err);
    if (st != QR_OK) {
        runner_close(r);
        return st;
    }
    *out = r;
    return QR_OK;
}

void runner_close(struct runner *r)
{
    if (!r)
        return;
    model_close(r->model);
    ngrams_close(r->ngrams);
    drafts_close(r->drafts);
    block_drafts_close(r->blocks);
    assembly_close(r->assembly);
    drop_pools(r);
    qr_free(r->cursors);
    qr_free(r->placed);
    qr_free(r->pending.slot);
    qr_free(r->pending.first_row);
    qr_free(r->pending.count);
    qr_free(r->pending.rows);
    qr_free(r);
}

/* ---- a step ---- */

/* An image is that of the boundary at which it is used, taken there or up to a block of drafts behind it. */
static qr_status check_restored(const struct runner *r, const struct batch_span *s, int32_t b, qr_error *err)
{
    const struct cursor *found = &r->cursors[s->slot], *placed = &r->placed[b];
    const int32_t again = s->rows ? s->rows->layer[0].again : 0, from = again > 0 ? again : s->first_position;
    const int64_t behind = found->position - from;
    if (behind < 0 || behind > r->geometry->options.draft_width)
        return qr_fail(err, QR_INTERNAL,
                       "request %d of the step starts at position %d, the restored cursor of its slot %d is at %lld", b,
                       from, s->slot, (long long)found->position);
    if (found->position == placed->position &&
        memcmp(found->history, placed->history, (size_t)placed->history_count * sizeof *placed->history) != 0)
        return qr_fail(err, QR_INTERNAL, "request %d of the step: the restored slot %d has the history of other tokens", b,
                       s->slot);
    return QR_OK;
}

/* The history that a cursor has carried along is that of the tokens before it (runtime.md 3.7): debug builds make it again. */
static qr_status check_history(const struct runner *r, const struct batch_span *s, int32_t b, qr_error *err)
{
#ifdef QR_DEBUG
    int32_t ids[CURSOR_HISTORY];
    if (s->before_count < 1 || s->before_count > CURSOR_HISTORY)
        return QR_OK;
    ngrams_compress(r->ngrams, s->before, s->before_mask, s->before_count, ids);
    const struct cursor made = cursor_at(r->geometry, s->first_position, ids, s->before_count), *carried = &r->placed[b];
    if (memcmp(carried->history, made.history, (size_t)made.history_count * sizeof *made.history) != 0)
        return qr_fail(err, QR_INTERNAL, "request %d of the step: slot %d carries the history of other tokens than stand before "
                       "position %d", b, s->slot, s->first_position);
#else
    (void)r, (void)s, (void)b, (void)err;
#endif
    return QR_OK;
}

/* Where each request of the step starts: its slot's cursor, or a fresh one. Changes no cursor. */
static qr_status starting_cursors(struct runner *r, const struct batch *batch, qr_error *err)
{
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        if (s->first_position == 0 || s->place) {
            int32_t ids[CURSOR_HISTORY], count = s->first_position == 0 ? 0 : s->before_count;
            if (count < 0 || count > CURSOR_HISTORY)
                return qr_fail(err, QR_INTERNAL,
                               "request %d of the step comes with %d tokens of history, wanted at most %d", b, count,
                               CURSOR_HISTORY);
            ngrams_compress(r->ngrams, s->before, s->before_mask, count, ids);
            r->placed[b] = cursor_at(r->geometry, s->first_position, ids, count);
            if (s->restored && s->first_position > 0)
                TRY(check_restored(r, s, b, err));
            continue;
        }
        r->placed[b] = r->cursors[s->slot];
        if (r->placed[b].position != s->first_position)
            return qr_fail(err, QR_INTERNAL,
                           "request %d of the step starts at position %d, the cursor of its slot %d is at %lld", b,
                           s->first_position, s->slot, (long long)r->placed[b].position);
        TRY(check_history(r, s, b, err));
    }
    return QR_OK;
}

static qr_status check(struct runner *r, const struct batch *batch, qr_error *err)
{
    if (r->pending.requests > 0)
        return qr_fail(err, QR_INTERNAL, "step while the verdict on a verify step of %d requests is outstanding",
                       r->pending.requests);
    TRY(assembly_check(r->assembly, batch, err));
    return starting_cursors(r, batch, err);
}

static qr_status set_cursor(struct runner *r, int32_t slot, const struct cursor *c, qr_error *err)
{
    r->cursors[slot] = *c;
    return cursor_store(r->backend, &r->pool, slot, c, err);
}

static qr_status advance(struct runner *r, const struct batch *batch, qr_error *err)
{
    int32_t row = 0;
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        struct cursor c = r->placed[b];
        cursor_advance(&c, ngrams_ids(r->ngrams) + row, s->count);
        TRY(set_cursor(r, s->slot, &c, err));
        row += s->count;
    }
    return QR_OK;
}

/* The cursors stay before the step; those of requests that start with it are where it starts. */
static qr_status hold(struct runner *r, const struct batch *batch, qr_error *err)
{
    int32_t row = 0;
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        TRY(set_cursor(r, s->slot, &r->placed[b], err));
        r->pending.slot[b] = s->slot;
        r->pending.first_row[b] = row;
        r->pending.count[b] = s->count;
        r->pending.rows[b] = (struct rejected_rows){.slot = s->slot,
                                                    .blocks = s->blocks,
                                                    .from = s->first_position,
                                                    .to = s->first_position + s->count,
                                                    .write_from = s->write_from};
        row += s->count;
    }
    r->pending.requests = batch->count;
    return QR_OK;
}

static void lose(struct runner *r, const struct batch *batch)
{
    for (int32_t b = 0; b < batch->count; b++)
        r->cursors[batch->spans[b].slot].position = CURSOR_LOST;
    r->pending.requests = 0;
}

static qr_status forward(struct runner *r, const struct batch *batch, const struct model_observer *observer,
                         qr_error *err)
{
    const struct model_pass pass = {.step = assembly_step(r->assembly),
                                    .rows = assembly_rows(r->assembly),
                                    .cache = runner_cache(r),
                                    .observer = observer};
    TRY(assembly_fill(r->assembly, batch, err));
    TRY(ngrams_upload(r->ngrams, r->backend, model_workspace(r->model), err));
    TRY(model_forward(r->model, &pass, err));
    TRY(r->backend->fence(r->backend, err));
    return batch->tentative ? hold(r, batch, err) : advance(r, batch, err);
}

qr_status runner_step(struct runner *r, const struct batch *batch, const struct model_observer *observer, qr_error *err)
{
    TRY(check(r, batch, err));
    TRY(ngrams_stage(r->ngrams, batch, r->placed, err));

    r->last_rows = 0;
    qr_status st = forward(r, batch, observer, err);
    if (st != QR_OK)
        lose(r, batch);
    else
        r->last_rows = assembly_step(r->assembly)->rows;
    return st;
}

/* No reader may find what is not true (speculation.md 5.4): debug builds leave nothing there that could pass for it. */
static qr_status spoil_rejected(struct runner *r, int32_t b, int32_t accepted, qr_error *err)
{
#ifdef QR_DEBUG
    struct rejected_rows rows = r->pending.rows[b];
    rows.from += accepted;
    return rejected_fill(r->backend, &r->pool, &rows, err);
#else
    (void)r, (void)b, (void)accepted, (void)err;
    return QR_OK;
#endif
}

qr_status runner_commit(struct runner *r, const int32_t *accepted, qr_error *err)
{
    struct pending *p = &r->pending;
    if (p->requests == 0)
        return qr_fail(err, QR_INTERNAL, "verdict without a verify step");
    for (int32_t b = 0; b < p->requests; b++)
        if (accepted[b] < 0 || accepted[b] > p->count[b])
            return qr_fail(err, QR_INTERNAL, "verdict on request %d of the step: %d tokens accepted of %d", b,
                           accepted[b], p->count[b]);

    for (int32_t b = 0; b < p->requests; b++) {
        struct cursor c = r->cursors[p->slot[b]];
        cursor_advance(&c, ngrams_ids(r->ngrams) + p->first_row[b], accepted[b]);
        TRY(set_cursor(r, p->slot[b], &c, err));
        TRY(spoil_rejected(r, b, accepted[b], err));
    }
    p->requests = 0;
    return QR_OK;
}

/* ---- drafts ---- */

/* The rows stand at committed positions. */
static qr_status check_committed(const struct runner *r, const struct draft_span *spans, int32_t count, qr_error *err)
{
    for (int32_t b = 0; b < count; b++) {
        int64_t end = (int64_t)spans[b].first_position + spans[b].count, committed = r->cursors[spans[b].slot].position;
        if (end > committed)
            return qr_fail(err, QR_INTERNAL, "draft span %d ends before position %lld, slot %d has %lld committed", b,
                           (long long)end, spans[b].slot, (long long)committed);
    }
    return QR_OK;
}

qr_status runner_draft(struct runner *r, const struct draft_span *spans, int32_t count,
                       const struct model_observer *observer, qr_error *err)
{
    struct model_draft draft;
    if (!r->drafts || r->pending.requests > 0)
        return qr_fail(err, QR_INTERNAL,
                       r->drafts ? "draft pass while the verdict on a verify step is outstanding"
                                 : "draft pass of a runner that was opened without");
    TRY(drafts_check(r->drafts, spans, count, r->last_rows, err));
    TRY(check_committed(r, spans, count, err));
    TRY(drafts_fill(r->drafts, spans, count, &draft, err));
    draft.cache = runner_cache(r);
    draft.observer = observer;
    TRY(model_draft(r->model, &draft, err));
    return r->backend->fence(r->backend, err);
}

static qr_status check_blocks(const struct runner *r, const struct block_draft *requests, int32_t count, qr_error *err)
{
    if (!r->blocks || r->pending.requests > 0)
        return qr_fail(err, QR_INTERNAL,
                       r->blocks ? "draft pass while the verdict on a verify step is outstanding"
                                 : "draft blocks of a runner that was opened without");
    TRY(block_drafts_check(r->blocks, requests, count, err));
    for (int32_t b = 0; b < count; b++)
        if (r->cursors[requests[b].slot].position != requests[b].position)
            return qr_fail(err, QR_INTERNAL,
                           "draft block %d stands behind %d tokens, the cursor of its slot %d is at %lld", b,
                           requests[b].position, requests[b].slot, (long long)r->cursors[requests[b].slot].position);
    return QR_OK;
}

qr_status runner_block_draft(struct runner *r, const struct block_draft *requests, int32_t count,
                             const struct model_observer *observer, qr_error *err)
{
    struct model_draft draft;
    TRY(check_blocks(r, requests, count, err));
    TRY(block_drafts_fill(r->blocks, requests, count, &draft, err));
    draft.cache = runner_cache(r);
    draft.observer = observer;
    TRY(model_draft(r->model, &draft, err));
    return r->backend->fence(r->backend, err);
}

qr_status runner_block_next(struct runner *r, int32_t k, const int32_t *tokens, qr_error *err)
{
    if (!r->blocks)
        return qr_fail(err, QR_INTERNAL, "draft blocks of a runner that was opened without");
    return block_drafts_next(r->blocks, r->model, k, tokens, err);
}

const struct block_drafts *runner_blocks(const struct runner *r) { return r->blocks; }

qr_status runner_keep_streams(struct runner *r, int32_t slot, int32_t row, qr_error *err)
{
    const struct model_cache cache = runner_cache(r);
    if (!r->drafts || slot < 0 || slot >= r->options.slots || row < 0 || row >= r->last_rows)
        return qr_fail(err, QR_INTERNAL,
                       "streams of row %d for slot %d: the last step had %d rows, there are %lld slots", row, slot,
                       r->last_rows, (long long)r->options.slots);
    return model_keep_streams(r->model, &cache, row, slot, err);
}

/* ---- what others look at ---- */

const struct workspace *runner_workspace(const struct runner *r) { return model_workspace(r->model); }

const int64_t *runner_engram_rows(const struct runner *r) { return ngrams_rows(r->ngrams); }

struct cursor runner_cursor(const struct runner *r, int32_t slot) { return r->cursors[slot]; }

qr_status runner_restored(struct runner *r, int32_t slot, qr_error *err)
{
    return cursor_load(r->backend, &r->pool, slot, &r->cursors[slot], err);
}

struct model_cache runner_cache(const struct runner *r)
{
    return (struct model_cache){.geometry = r->geometry, .pool = &r->pool.layout, .base = r->base};
}

int64_t runner_draft_bytes_for(const struct assembly_limits *limits, int32_t max_draft_rows)
{
    struct assembly_limits drafts = *limits;
    drafts.max_rows = max_draft_rows;
    if (max_draft_rows < 1)
        return 0;
    return limits->plan->config.drafter == QR_DRAFTER_DSPARK ? block_drafts_bytes_for(limits) : drafts_bytes_for(&drafts);
}

int64_t runner_buffer_bytes(const struct runner *r)
{
    return assembly_bytes(r->assembly) + (r->drafts ? drafts_bytes(r->drafts) : 0) +
           (r->blocks ? block_drafts_bytes(r->blocks) : 0) +
           model_workspace_bytes(r->plan, &r->options.model);
}
