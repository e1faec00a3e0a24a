/* accept_static.c: what is decided before anything runs: addresses (A21) and refusals (A22). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "engine/rules.h"
#include "tools/accept.h"

/* ---- A21 ---- */

enum { MAP_BLOCKS = 3, MAP_SLOTS = 2 };

/* A pool whose bytes are painted, once each. */
struct map {
    const struct geometry *g;
    struct pool_layout pool;
    uint8_t *bytes;
    int64_t painted;
    bool twice;
};

static void paint(struct map *m, const uint8_t *at, int64_t bytes)
{
    const int64_t from = at - m->bytes;
    if (from < 0 || from + bytes > m->pool.bytes) {
        m->twice = true;
        return;
    }
    for (int64_t i = from; i < from + bytes; i++) {
        m->twice |= m->bytes[i] != 0;
        m->bytes[i] = 1;
    }
    m->painted += bytes;
}

static void paint_plane(struct map *m, const struct row_plane *p, int64_t values, int64_t scales)
{
    for (int32_t b = 0; b < MAP_BLOCKS; b++)
        for (int32_t r = 0; r < p->rows_per_block; r++) {
            paint(m, p->values + plane_value_offset(p, b, r), values);
            if (p->scales)
                paint(m, p->scales + plane_scale_offset(p, b, r), scales);
        }
}

static void paint_ring(struct map *m, const struct ring_plane *p, int64_t values, int64_t scales)
{
    for (int64_t s = 0; s < MAP_SLOTS; s++)
        for (int32_t r = 0; r < p->rows; r++) {
            paint(m, p->values + s * p->slot_stride + r * p->value_row_stride, values);
            if (p->scales)
                paint(m, p->scales + s * p->slot_stride + r * p->scale_row_stride, scales);
        }
}

static void paint_owner(struct map *m, int32_t owner)
{
    const struct geometry *g = m->g;
    const int64_t d = g->head_dim, n = g->index_head_dim;
    const bool packed = g->options.index_format == ROW_INDEX_FP4;
    struct row_plane plane;
    struct ring_plane tail;
    geometry_main_plane(g, &m->pool, m->bytes, owner, &plane);
    paint_plane(m, &plane, plane.format == ROW_BF16 ? 2 * d : d / 2, d / 16);
    if (g->owner[owner].has_index) {
        geometry_index_plane(g, &m->pool, m->bytes, owner, &plane);
        paint_plane(m, &plane, packed ? n / 2 : n, packed ? n / 32 : 4);
    }
    geometry_tail(g, &m->pool, m->bytes, owner, false, &tail);
    paint_ring(m, &tail, g->tail_width[owner] * (int64_t)4, g->tail_width[owner] * (int64_t)4);
    if (g->index_tail_width[owner] == 0)
        return;
    geometry_tail(g, &m->pool, m->bytes, owner, true, &tail);
    paint_ring(m, &tail, g->index_tail_width[owner] * (int64_t)4, g->index_tail_width[owner] * (int64_t)4);
}

/* Every row of every plane, ring, tail and cursor has bytes of its own. */
static qr_status planes_apart(const struct geometry *g, struct accept_figures *f, qr_error *err)
{
    struct map m = {.g = g};
    TRY(geometry_pool(g, MAP_BLOCKS, MAP_SLOTS, &m.pool, err));
    m.bytes = qr_calloc((size_t)m.pool.bytes, 1);
    if (!m.bytes)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a pool of %lld bytes", (long long)m.pool.bytes);
    for (int32_t owner = 0; owner < g->owners; owner++)
        paint_owner(&m, owner);
    for (int32_t layer = 0; layer < g->ring_layers; layer++) {
        struct ring_plane ring;
        geometry_window(g, &m.pool, m.bytes, layer, &ring);
        paint_ring(&m, &ring, ring.format == ROW_BF16 ? 2 * (int64_t)g->head_dim : g->head_dim, g->head_dim / 32);
    }
    for (int64_t slot = 0; slot < MAP_SLOTS; slot++)
        paint(&m, m.bytes + geometry_cursor(g, &m.pool, slot), g->cursor_bytes);
    accept_count(f, "bytes_painted", (double)m.painted);
    qr_free(m.bytes);
    return m.twice ? qr_fail(err, QR_INTERNAL, "two rows of the pools share a byte, or one lies outside") : QR_OK;
}

/* Blocks and slots far beyond 4 GiB. */
static qr_status far_addresses(const struct geometry *g, struct accept_figures *f, qr_error *err)
{
    const int64_t far = (int64_t)5 << 30, blocks = far / g->main_page_bytes + 2, slots = far / g->state_bytes + 2;
    uint8_t *base = (uint8_t *)((intptr_t)1 << 40); /* nothing is read there */
    struct pool_layout pool;
    struct row_plane plane;
    TRY(geometry_pool(g, blocks, slots, &pool, err));
    for (int32_t owner = 0; owner < g->owners; owner++) {
        geometry_main_plane(g, &pool, base, owner, &plane);
        const int64_t at = plane_value_offset(&plane, (int32_t)blocks - 1, 0);
        if (at != (blocks - 1) * g->main_page_bytes || at < far)
            return qr_fail(err, QR_INTERNAL, "the last of %lld pages lies at byte %lld", (long long)blocks,
                           (long long)at);
    }
    const int64_t cursor = geometry_cursor(g, &pool, slots - 1),
                  wanted = pool.state_offset + (slots - 1) * g->state_bytes;
    if (cursor != wanted + g->cursor_offset || pool.bytes != pool.state_offset + slots * g->state_bytes)
        return qr_fail(err, QR_INTERNAL, "the last of %lld slots has its cursor at byte %lld", (long long)slots,
                       (long long)cursor);
    accept_count(f, "pool_bytes", (double)pool.bytes);
    return QR_OK;
}

qr_status accept_geometry(struct accept *a, struct accept_figures *f, qr_error *err)
{
    const int32_t blocks[] = {a->block, 128, 256};
    for (int i = 0; i < 3; i++) {
        struct geometry_options o = geometry_defaults(&a->plan);
        struct geometry g;
        o.block_tokens = blocks[i];
        TRY(geometry_make(&a->plan, &o, &g, err));
        TRY(planes_apart(&g, f, err));
        TRY(far_addresses(&g, f, err));
    }
    return QR_OK;
}

/* ---- A22 ---- */

/* A folder that holds the config alone: whatever looks for weights fails otherwise than by a rule. */
static qr_status make_bare(const char *model, char **out, qr_error *err)
{
    const char *place = getenv("TMPDIR");
    char *config = NULL, *real = NULL, *link = NULL;
    qr_status st = QR_OK;
    *out = path_join(place ? place : P_tmpdir, "quire-XXXXXX");
    config = path_join(model, "config.json");
    if (config)
        real = realpath(config, NULL);
    if (!*out || !config)
        st = qr_fail(err, QR_NO_MEMORY, "no memory for a path");
    else if (!real || !mkdtemp(*out))
        st = qr_fail(err, QR_IO, "%s: a folder with the config alone cannot be made there", *out);
    else if (!(link = path_join(*out, "config.json")))
        st = qr_fail(err, QR_NO_MEMORY, "no memory for a path");
    else if (symlink(real, link) != 0)
        st = qr_fail(err, QR_IO, "%s: no link to %s can be made", link, real);
    qr_free(config);
    free(real);
    qr_free(link);
    return st;
}

static void remove_bare(char *folder)
{
    char *link = folder ? path_join(folder, "config.json") : NULL;
    if (link)
        unlink(link);
    if (folder)
        rmdir(folder);
    qr_free(link);
    qr_free(folder);
}

static qr_status refused(const char *folder, const qr_engine_options *o, const char *rule, qr_error *err)
{
    qr_plan_bytes plan;
    qr_error found = {0};
    const qr_status st = qr_plan(folder, NULL, o, &plan, &found);
    if (st == QR_REFUSED && strstr(found.message, rule))
        return QR_OK;
    return qr_fail(err, QR_INTERNAL, "%s alone: %s, \"%.300s\"", rule, qr_status_name(st), found.message);
}

static qr_engine_options sound(const struct accept *a)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.max_model_len = a->longest;
    o.kv_ram_bytes = (uint64_t)1 << 30;
    return o;
}

static qr_status check_pools(const struct accept *a, const char *folder, struct accept_figures *f, qr_error *err)
{
    const struct {
        const char *rule;
        int32_t block, cap;
        uint64_t bytes;
        const char *kv, *index, *graphs, *level;
    } cases[] = {{"E02", .block = 129},   {"E03", .block = 16}, {"E05", .index = "int3"},
                 {"E06", .kv = "int3"},   {"E30", .cap = 5},    {"E31", .bytes = 4096},
                 {"E23", .level = "two"}, {"E23", .graphs = "TR_HYBRID", .level = "3"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qr_engine_options o = sound(a);
        o.block_size = cases[i].block;
        o.long_prefill_cap = cases[i].cap;
        o.kv_ram_bytes = cases[i].bytes ? cases[i].bytes : o.kv_ram_bytes;
        o.kv_cache_dtype = cases[i].kv;
        o.index_cache_dtype = cases[i].index;
        o.cudagraph_mode = cases[i].graphs;
        o.level = cases[i].level;
        TRY(refused(folder, &o, cases[i].rule, err));
        accept_count(f, "rules", 1);
    }
    qr_engine_options o = sound(a);
    o.encoder_replay = "off";
    o.state_checkpoint_interval_tokens = a->longest;
    accept_count(f, "rules", 1);
    return refused(folder, &o, "E36", err);
}

static qr_status check_features(const struct accept *a, const char *folder, struct accept_figures *f, qr_error *err)
{
    const char *name, *feature, *rule;
    for (int i = 0; rules_feature_flag(i, &name, &feature, &rule); i++) {
        const char *const pair[2] = {name, "something"};
        qr_engine_options o = sound(a);
        o.flags = pair;
        o.flag_count = 1;
        TRY(refused(folder, &o, rule, err));
        accept_count(f, "rules", 1);
    }
    return QR_OK;
}

/* Nothing is refused: the next thing are the weights, which are not there. */
static qr_status check_sound(const struct accept *a, const char *folder, qr_error *err)
{
    const qr_engine_options o = sound(a);
    qr_plan_bytes plan;
    qr_error found = {0};
    const qr_status st = qr_plan(folder, NULL, &o, &plan, &found);
    return st == QR_BAD_FILE
               ? QR_OK
               : qr_fail(err, QR_INTERNAL, "no rule is broken: %s, \"%.300s\"", qr_status_name(st), found.message);
}

qr_status accept_rules(struct accept *a, struct accept_figures *f, qr_error *err)
{
    char *folder;
    qr_status st = make_bare(a->options->model, &folder, err);
    if (st == QR_OK)
        st = check_sound(a, folder, err);
    if (st == QR_OK)
        st = check_pools(a, folder, f, err);
    if (st == QR_OK)
        st = check_features(a, folder, f, err);
    remove_bare(folder);
    return st;
}
