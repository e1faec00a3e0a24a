/* accept_hits.c: prompts that start from the prefix cache, and how they are cut (A09, A11, A12, A25). */
#include <stdio.h>

#include "base/alloc.h"
#include "base/status.h"
#include "engine/engine.h"
#include "tools/accept_engine.h"

/* ---- pages that nobody may write ---- */

/* One plane of page `id`, from the device's pool to the only page of a pool on the host. */
static qr_status fetch_plane(const qr_engine *engine, int64_t from, int64_t bytes, block_id id, uint8_t *to, qr_error *err)
{
    struct backend *b = engine->backend;
    return bytes > 0 ? b->download(b, to, runner_cache(engine->runner).base + from + id * bytes, bytes, err) : QR_OK;
}

static qr_status fetch_page(const qr_engine *engine, block_id id, const struct pool_layout *one, uint8_t *page, qr_error *err)
{
    const struct geometry *g = &engine->geometry;
    const struct pool_layout *pool = &engine->pool;
    TRY(fetch_plane(engine, pool->main_offset, g->main_page_bytes, id, page + one->main_offset, err));
    for (int32_t o = 0; o < g->owners; o++) {
        if (pool->index_offset[o] >= 0)
            TRY(fetch_plane(engine, pool->index_offset[o], g->owner[o].index_block_bytes, id, page + one->index_offset[o], err));
        if (pool->index_scale_offset[o] >= 0)
            TRY(fetch_plane(engine, pool->index_scale_offset[o], g->owner[o].index_scale_block_bytes, id,
                            page + one->index_scale_offset[o], err));
    }
    return engine->backend->fence(engine->backend, err);
}

/* Sums of the pages in the index, 0 for others, of an engine that nobody uses at the moment. [blocks], the caller's; NULL where it
 * fails. */
static qr_status indexed_sums(const qr_engine *engine, uint64_t **out, qr_error *err)
{
    const struct blocks *blocks = sched_blocks(engine->sched);
    struct pool_layout one;
    uint64_t *sums = qr_calloc((size_t)engine->pool.blocks, sizeof *sums);
    qr_status st = geometry_pool(&engine->geometry, 1, 0, &one, err);
    uint8_t *page = st == QR_OK ? qr_calloc((size_t)one.bytes, 1) : NULL;
    if (st == QR_OK && (!page || !sums))
        st = qr_fail(err, QR_NO_MEMORY, "no memory for sums of pages");
    for (block_id id = 1; st == QR_OK && id <= blocks_usable(blocks); id++)
        if (blocks_indexed(blocks, id)) {
            st = fetch_page(engine, id, &one, page, err);
            if (st == QR_OK)
                sums[id] = page_sum(&engine->geometry, &one, page, 0);
        }
    qr_free(page);
    *out = st == QR_OK ? sums : NULL;
    if (st != QR_OK)
        qr_free(sums);
    return st;
}

static qr_status same_pages(const qr_engine *engine, const uint64_t *before, qr_error *err)
{
    uint64_t *now;
    int64_t compared = 0;
    qr_status st = indexed_sums(engine, &now, err);
    for (int64_t id = 1; st == QR_OK && id < engine->pool.blocks; id++) {
        compared += before[id] && now[id];
        if (before[id] && now[id] && before[id] != now[id])
            st = qr_fail(err, QR_INTERNAL, "cached page %lld was changed by a request that starts from it",
                         (long long)id);
    }
    if (st == QR_OK && compared == 0)
        st = qr_fail(err, QR_INTERNAL, "no page is cached from before a hit to behind it");
    qr_free(now);
    return st;
}

/* ---- rows of a resume ---- */

/* The first row that a resume at `hit` without an image runs (runtime.md 7.5, 7.3). */
static int32_t first_row(const struct accept *a, int32_t hit, int32_t end)
{
    if (a->bounded)
        return hit > a->block ? hit - a->block : 0;
    struct row_plan rows;
    const struct rows_request q = {.cached = hit, .end = end, .boundary = -1, .first_logits = end - 1};
    rows_exact(&a->plan, &q, &rows);
    return rows.first;
}

/* Publishes the pages below `hit` of the prompts of one family, and nothing else. */
static qr_status warm(const struct accept *a, qr_engine *engine, int32_t hit, qr_error *err)
{
    struct accept_prompt p;
    struct accept_answer r;
    TRY(accept_inject(engine, QR_INJECT_DROP_CACHE, 0, 1, err));
    accept_prompt(a, 1, hit, 100, hit + 1, &p);
    return accept_ask(engine, &p, 1, &r, err);
}

/* ---- A09 ---- */

struct hit {
    int32_t boundary, suffix;
    bool images; /* those that the warm-up left may be used */
};

static qr_status check_hit(const struct accept *a, const struct hit *h, const struct accept_answer *r,
                           const qr_metrics *before, const qr_metrics *m, qr_error *err)
{
    const uint64_t rerun = m->rows_rerun - before->rows_rerun;
    const int32_t first = first_row(a, h->boundary, h->boundary + h->suffix);
    if (r->usage.cached_tokens != h->boundary)
        return qr_fail(err, QR_INTERNAL, "a suffix of %d behind a hit of %d: %d cached tokens are told", h->suffix,
                       h->boundary, r->usage.cached_tokens);
    /* prompts may take an image of their own on the way: its rings start at most a block earlier */
    if (!h->images && (rerun < (uint64_t)(h->boundary - first) || rerun > (uint64_t)(h->boundary - first + a->block)))
        return qr_fail(err, QR_INTERNAL, "a suffix of %d behind a hit of %d reruns %llu rows, wanted %d", h->suffix,
                       h->boundary, (unsigned long long)rerun, h->boundary - first);
    return m->hits > before->hits ? QR_OK : qr_fail(err, QR_INTERNAL, "no hit was counted");
}

static qr_status one_hit(struct accept *a, qr_engine *engine, const struct hit *h, struct accept_figures *f,
                         qr_error *err)
{
    struct accept_prompt p;
    struct accept_answer alone, r;
    char what[100];
    accept_prompt(a, 1, h->boundary, 200 + h->suffix, h->boundary + h->suffix, &p);
    snprintf(what, sizeof what, "a suffix of %d behind a hit of %d%s", h->suffix, h->boundary,
             h->images ? "" : " without images");
    TRY(accept_alone(a, &p, ACCEPT_ANSWER, &alone, err));
    TRY(warm(a, engine, h->boundary, err));
    if (!h->images)
        TRY(accept_inject(engine, QR_INJECT_DROP_IMAGES, 0, 1, err));
    uint64_t *before;
    TRY(indexed_sums(engine, &before, err));
    const qr_metrics counted = accept_metrics(engine);
    qr_status st = accept_ask(engine, &p, ACCEPT_ANSWER, &r, err);
    const qr_metrics m = accept_metrics(engine);
    if (st == QR_OK)
        st = accept_same(&alone, &r, what, err);
    if (st == QR_OK)
        st = check_hit(a, h, &r, &counted, &m, err);
    if (st == QR_OK)
        st = same_pages(engine, before, err);
    qr_free(before);
    accept_count(f, "hits", 1);
    return st;
}

/* Lengths of what follows: around pages, windows, ratios, and where the rerun stops growing (runtime.md's 2,541). */
static int32_t suffixes(const struct accept *a, int32_t out[24])
{
    const int32_t block = a->block, window = a->config.sliding_window, deep = 16 * block;
    int32_t still = 1, n = 0;
    while (still < deep && first_row(a, deep, deep + still) != first_row(a, deep, 2 * deep))
        still++;
    const int32_t all[] = {1,   2,   3,          4,   block - 1, block, block + 1, window - 1, window,    127,
                           128, 129, 2 * window, 255, 256,       257,   still - 1, still,      still + 1, 300};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] > 0 && all[i] + 2 * block + ACCEPT_ANSWER < a->longest)
            out[n++] = all[i];
    return n;
}

/* Two prompts that share the cached pages and nothing more, in the same steps. Both start a page below (runtime.md 7.3). */
static qr_status bounded_pair(struct accept *a, qr_engine *engine, int32_t hit, const int32_t suffix[2],
                              struct accept_figures *f, qr_error *err)
{
    struct accept_prompt p[2];
    struct accept_answer r[2], alone;
    qr_handle handle[2];
    char what[100];
    TRY(warm(a, engine, hit, err));
    const qr_metrics counted = accept_metrics(engine);
    uint64_t *before;
    qr_status st = indexed_sums(engine, &before, err);
    for (int i = 0; i < 2; i++)
        accept_prompt(a, 1, hit, 200 + 30 * i + suffix[i], hit + suffix[i], &p[i]);
    for (int i = 0; st == QR_OK && i < 2; i++)
        st = accept_submit(engine, &p[i], ACCEPT_ANSWER, 0, &handle[i], err);
    for (int i = 0; st == QR_OK && i < 2; i++)
        st = accept_finish(engine, handle[i], &r[i], err);
    for (int i = 0; st == QR_OK && i < 2; i++) {
        snprintf(what, sizeof what, "a suffix of %d behind a hit of %d", suffix[i], hit);
        st = accept_alone_from(a, &p[i], hit, ACCEPT_ANSWER, &alone, err);
        if (st == QR_OK && r[i].usage.cached_tokens != hit)
            st = qr_fail(err, QR_INTERNAL, "%s: %d cached tokens are told", what, r[i].usage.cached_tokens);
        if (st == QR_OK)
            st = accept_same(&alone, &r[i], what, err);
        accept_count(f, "hits", 1);
    }
    const uint64_t rerun = accept_metrics(engine).rows_rerun - counted.rows_rerun;
    if (st == QR_OK && rerun != 2 * (uint64_t)a->block)
        st = qr_fail(err, QR_INTERNAL, "two hits of %d rerun %llu rows, wanted a page of %d each", hit,
                     (unsigned long long)rerun, a->block);
    if (st == QR_OK)
        st = same_pages(engine, before, err);
    qr_free(before);
    return st;
}

static qr_status bounded_hits(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    int32_t suffix[24];
    const int32_t count = suffixes(a, suffix);
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){.replay = replay}, &engine, err);
    if (st != QR_OK)
        return st;
    for (int32_t i = 0; st == QR_OK && i + 1 < count; i += 2) /* each suffix once */
        st = bounded_pair(a, engine, (1 + i / 2 % 2) * a->block, suffix + i, f, err);
    qr_engine_destroy(engine);
    return st;
}

static qr_status exact_hits(struct accept *a, struct accept_figures *f, qr_error *err)
{
    int32_t suffix[24];
    const int32_t count = suffixes(a, suffix);
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){.cap = a->rows}, &engine, err);
    if (st != QR_OK)
        return st;
    for (int32_t i = 0; st == QR_OK && i < 2 * count; i++) {
        struct hit h = {.boundary = (1 + i % 2) * a->block, .suffix = suffix[i / 2]};
        st = one_hit(a, engine, &h, f, err);
        h.images = true;
        if (st == QR_OK && i % 5 == 0)
            st = one_hit(a, engine, &h, f, err);
    }
    if (st == QR_OK) {
        const qr_metrics m = accept_metrics(engine);
        accept_count(f, "rows_rerun", (double)m.rows_rerun);
        accept_count(f, "restored", (double)(m.hits_restored + m.hits_restored_lower));
    }
    qr_engine_destroy(engine);
    return st;
}

qr_status accept_hits(struct accept *a, struct accept_figures *f, qr_error *err)
{
    accept_mode(f, "exact");
    TRY(exact_hits(a, f, err));
    return accept_bounded(a, true, f, bounded_hits, err);
}

/* ---- A11 ---- */

/* A prompt whose last chunk has `last` rows, cut every `cap` rows; without back-off every row runs once. */
static qr_status last_chunk(struct accept *a, qr_engine *engine, int32_t cap, int32_t last, struct accept_figures *f,
                            qr_error *err)
{
    struct accept_prompt p;
    struct accept_answer r;
    char what[100];
    const int32_t count = 2 * cap + last;
    const qr_metrics before = accept_metrics(engine);
    TRY(accept_inject(engine, QR_INJECT_DROP_CACHE, 0, 1, err));
    accept_prompt(a, 0, 0, 300 + last, count, &p);
    snprintf(what, sizeof what, "chunks of %d rows and one of %d", cap, last);
    TRY(accept_agree(a, engine, &p, what, &r, err));
    const uint64_t rows = accept_metrics(engine).prefill_rows - before.prefill_rows;
    accept_count(f, "prompts", 1);
    if (rows != (uint64_t)count)
        return qr_fail(err, QR_INTERNAL, "%s: %llu rows were run for %d", what, (unsigned long long)rows, count);
    return QR_OK;
}

/* Bounded: a last chunk shorter than the window goes back one page (runtime.md 4.6), beside a prompt of whole chunks. */
static qr_status backed_off(struct accept *a, qr_engine *engine, int32_t last, struct accept_figures *f, qr_error *err)
{
    const int32_t window = a->config.sliding_window, lasts[2] = {last, a->block};
    const uint64_t before = accept_metrics(engine).rows_backed_off,
                   wanted = (uint64_t)a->block * (uint64_t)((last < window) + (a->block < window));
    struct accept_prompt p[2];
    struct accept_answer r, alone;
    qr_handle handle[2];
    char what[100];
    for (int i = 0; i < 2; i++) {
        accept_prompt(a, 0, 0, 300 + 200 * i + last, 2 * a->block + lasts[i], &p[i]);
        TRY(accept_submit(engine, &p[i], ACCEPT_ANSWER, 0, &handle[i], err));
    }
    for (int i = 0; i < 2; i++) {
        snprintf(what, sizeof what, "chunks of %d rows and one of %d", a->block, lasts[i]);
        TRY(accept_finish(engine, handle[i], &r, err));
        TRY(accept_alone_from(a, &p[i], 0, ACCEPT_ANSWER, &alone, err));
        TRY(accept_same(&alone, &r, what, err));
        accept_count(f, "prompts", 1);
    }
    const uint64_t rows = accept_metrics(engine).rows_backed_off - before;
    accept_count(f, "rows_backed_off", (double)rows);
    return rows == wanted ? QR_OK
                          : qr_fail(err, QR_INTERNAL, "last chunks of %d and %d rows and a window of %d run %llu rows again, wanted "
                                    "%llu", last, a->block, window, (unsigned long long)rows, (unsigned long long)wanted);
}

static qr_status bounded_last_chunks(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    const int32_t window = a->config.sliding_window, lasts[] = {1, 2, window / 2, window - 1, window, a->block};
    qr_engine *engine;
    TRY(accept_open(a, &(struct accept_setup){.replay = replay}, &engine, err));
    qr_status st = QR_OK;
    for (size_t i = 0; st == QR_OK && i < sizeof lasts / sizeof *lasts; i++)
        if (lasts[i] > 0 && lasts[i] <= a->block)
            st = backed_off(a, engine, lasts[i], f, err);
    qr_engine_destroy(engine);
    return st;
}

static qr_status exact_last_chunks(struct accept *a, struct accept_figures *f, qr_error *err)
{
    const int32_t caps[] = {128, 128 + 5}, lasts[] = {1, 2, 31, 32, 33, 64, 100, 126, 127};
    qr_status st = QR_OK;
    for (int i = 0; st == QR_OK && i < 2; i++) {
        qr_engine *engine;
        st = accept_open(a, &(struct accept_setup){.requests = 1, .rows = 2 * a->rows, .cap = caps[i]}, &engine, err);
        if (st != QR_OK)
            break;
        for (size_t l = 0; st == QR_OK && l < sizeof lasts / sizeof *lasts; l++)
            if (2 * caps[i] + lasts[l] + ACCEPT_ANSWER <= a->longest)
                st = last_chunk(a, engine, caps[i], lasts[l], f, err);
        qr_engine_destroy(engine);
    }
    return st;
}

qr_status accept_last_chunk(struct accept *a, struct accept_figures *f, qr_error *err)
{
    accept_mode(f, "exact");
    TRY(exact_last_chunks(a, f, err));
    return accept_bounded(a, false, f, bounded_last_chunks, err);
}

/* ---- A12 ---- */

/* Steps of fewer rows than the rerun has. */
static qr_status exact_budget(struct accept *a, struct accept_figures *f, qr_error *err)
{
    const int32_t hit = 2 * a->block, end = hit + 5, run = end - first_row(a, hit, end),
                  rows = run / 3 > 2 ? run / 3 : 2;
    struct accept_prompt p;
    struct accept_answer alone, r;
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){.requests = 1, .rows = rows, .cap = a->rows}, &engine, err);
    if (st != QR_OK)
        return st;
    accept_prompt(a, 1, hit, 400, end, &p);
    st = accept_alone(a, &p, ACCEPT_ANSWER, &alone, err);
    if (st == QR_OK)
        st = warm(a, engine, hit, err);
    if (st == QR_OK)
        st = accept_inject(engine, QR_INJECT_DROP_IMAGES, 0, 1, err);
    const uint64_t steps = accept_metrics(engine).steps;
    if (st == QR_OK)
        st = accept_ask(engine, &p, ACCEPT_ANSWER, &r, err);
    if (st == QR_OK)
        st = accept_same(&alone, &r, "a rerun in chunks", err);
    const uint64_t taken = accept_metrics(engine).steps - steps,
                   least = (uint64_t)((run + rows - 1) / rows + ACCEPT_ANSWER - 1);
    if (st == QR_OK && (r.usage.cached_tokens != hit || taken < least))
        st = qr_fail(err, QR_INTERNAL, "%d cached tokens, and %llu steps of %d rows for %d rows and %d tokens",
                     r.usage.cached_tokens, (unsigned long long)taken, rows, run, ACCEPT_ANSWER);
    accept_count(f, "rows", run);
    accept_count(f, "steps", (double)taken);
    qr_engine_destroy(engine);
    return st;
}

/* Beside the chunks of a long prompt a step holds the page that a bounded hit runs again, and too few rows beyond it: the
 * hit waits until that prompt is done, and no step runs its page for nothing (runtime.md 4.4). */
static qr_status wait_for_room(struct accept *a, qr_engine *engine, struct accept_figures *f, qr_error *err)
{
    const int32_t hit = 2 * a->block;
    struct accept_prompt p[2];
    struct accept_answer alone[2], r;
    qr_handle handle[2];
    accept_prompt(a, 0, 0, 401, a->prompts[2] / a->block * a->block, &p[0]); /* its last chunk is as long as the others */
    accept_prompt(a, 1, hit, 400, hit + 5, &p[1]);
    const uint64_t before = accept_metrics(a->control).steps;
    TRY(accept_alone_from(a, &p[0], 0, ACCEPT_ANSWER, &alone[0], err));
    const uint64_t prefill = accept_metrics(a->control).steps - before - (ACCEPT_ANSWER - 1);
    TRY(accept_alone_from(a, &p[1], hit, ACCEPT_ANSWER, &alone[1], err));
    TRY(warm(a, engine, hit, err));
    const qr_metrics counted = accept_metrics(engine);
    for (int i = 0; i < 2; i++)
        TRY(accept_submit(engine, &p[i], ACCEPT_ANSWER, 0, &handle[i], err));
    for (int i = 0; i < 2; i++) {
        TRY(accept_finish(engine, handle[i], &r, err));
        TRY(accept_same(&alone[i], &r, i ? "a hit that waited" : "a long prompt", err));
    }
    const qr_metrics m = accept_metrics(engine);
    const uint64_t steps = m.steps - counted.steps, rerun = m.rows_rerun - counted.rows_rerun;
    accept_count(f, "steps", (double)steps);
    if (r.usage.cached_tokens != hit || rerun != (uint64_t)a->block || steps < prefill + ACCEPT_ANSWER)
        return qr_fail(err, QR_INTERNAL,
                       "%d cached tokens, %llu rows run again and %llu steps, wanted %d, %d and at least %llu",
                       r.usage.cached_tokens, (unsigned long long)rerun, (unsigned long long)steps, hit, a->block,
                       (unsigned long long)prefill + ACCEPT_ANSWER);
    return QR_OK;
}

static qr_status bounded_budget(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    const struct accept_setup setup = {.replay = replay, .requests = 2, .rows = 2 * a->block + 2}; /* E29's least */
    qr_engine *engine;
    TRY(accept_open(a, &setup, &engine, err));
    const qr_status st = wait_for_room(a, engine, f, err);
    qr_engine_destroy(engine);
    return st;
}

qr_status accept_budget(struct accept *a, struct accept_figures *f, qr_error *err)
{
    accept_mode(f, "exact");
    TRY(exact_budget(a, f, err));
    return accept_bounded(a, true, f, bounded_budget, err);
}

/* ---- A25 ---- */

/* A prompt of whole pages and one token, all of it cached: from the image one row is run, without it those of 7.5. */
static qr_status whole_hit(struct accept *a, const char *replay, bool images, struct accept_figures *f, qr_error *err)
{
    const int32_t hit = 3 * a->block, count = hit + 1, rerun = count - first_row(a, hit, count);
    struct accept_prompt p;
    struct accept_answer r;
    qr_engine *engine;
    const struct accept_setup setup = {.replay = replay, .cap = a->bounded ? a->cap : a->rows}; /* the control's cuts */
    qr_status st = accept_open(a, &setup, &engine, err);
    if (st != QR_OK)
        return st;
    accept_prompt(a, 0, 0, 500, count, &p);
    st = accept_agree(a, engine, &p, "cold", &r, err);
    if (st == QR_OK && !images)
        st = accept_inject(engine, QR_INJECT_DROP_IMAGES, 0, 1, err);
    const qr_metrics before = accept_metrics(engine);
    if (st == QR_OK)
        st = accept_agree(a, engine, &p, "a whole prompt from the cache", &r, err);
    const qr_metrics m = accept_metrics(engine);
    const uint64_t rows = m.prefill_rows - before.prefill_rows;
    const bool restored = m.hits_restored > before.hits_restored;
    if (st == QR_OK && (r.usage.cached_tokens != hit || rows != (uint64_t)(restored ? 1 : rerun)))
        st = qr_fail(err, QR_INTERNAL, "%d cached tokens and %llu rows, wanted %d and %d", r.usage.cached_tokens,
                     (unsigned long long)rows, hit, restored ? 1 : rerun);
    accept_count(f, restored ? "rows_with_image" : "rows_without", (double)rows);
    qr_engine_destroy(engine);
    return st;
}

static qr_status bounded_whole_hit(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    return whole_hit(a, replay, false, f, err);
}

qr_status accept_whole_hit(struct accept *a, struct accept_figures *f, qr_error *err)
{
    accept_mode(f, "off");
    TRY(whole_hit(a, "off", true, f, err));
    accept_mode(f, "exact");
    TRY(whole_hit(a, "exact", true, f, err));
    TRY(whole_hit(a, "exact", false, f, err));
    return accept_bounded(a, true, f, bounded_whole_hit, err);
}
