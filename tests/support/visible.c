#define _GNU_SOURCE
#include "support/visible.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cache/row_places.h"
#include "run/rejected.h"
#include "support/scratch.h"
#include "support/support.h"

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static struct row_pool pool_of(const struct rig *r)
{
    const struct model_cache cache = runner_cache(r->runner);
    return (struct row_pool){.geometry = cache.geometry, .layout = cache.pool, .base = cache.base};
}

static void take(const struct rig *r, const struct row_bytes *rows, int32_t count, struct buffer *out)
{
    uint8_t bytes[8192];
    for (int32_t i = 0; i < count; i++) {
        assert_true(rows[i].bytes <= (int64_t)sizeof bytes);
        rig_read(r, bytes, rows[i].at, rows[i].bytes);
        assert_true(buffer_append(out, bytes, (size_t)rows[i].bytes));
    }
}

/* A block drafter reads the W rows below the cursor (2.6), everything else W - 1 and the row's own. */
int32_t visible_from(const struct rig *r, int32_t layer, int32_t position)
{
    const bool block = layer >= r->plan.layers && r->config.drafter == QR_DRAFTER_DSPARK;
    return larger(0, position - r->geometry.window + (block ? 0 : 1));
}

/* Rows of the open group, and of the one before where groups overlap. */
static int32_t tail_from(const struct rig *r, int32_t owner, int32_t position)
{
    const int32_t ratio = r->geometry.owner[owner].ratio;
    return larger(0, position / ratio * ratio - (r->geometry.tail_in_image[owner] ? ratio : 0));
}

void visible_state(const struct rig *r, const struct rig_request *q, int32_t position, struct buffer *out)
{
    const struct row_pool pool = pool_of(r);
    const struct geometry *g = pool.geometry;
    struct row_bytes rows[ROW_PLACES_MOST];
    for (int32_t layer = 0; layer < g->ring_layers; layer++)
        for (int32_t p = visible_from(r, layer, position); p < position; p++) {
            rows[0] = place_window(&pool, q->slot, layer, p);
            take(r, rows, 1, out);
        }
    for (int32_t owner = 0; owner < g->owners; owner++) {
        const int32_t ratio = g->owner[owner].ratio, in_block = g->owner[owner].rows;
        for (int32_t p = tail_from(r, owner, position); p < position; p++)
            take(r, rows, place_tail(&pool, q->slot, owner, p, rows), out);
        for (int32_t group = 0; group < position / ratio; group++)
            take(r, rows, place_group(&pool, owner, q->blocks[group / in_block], group % in_block, rows), out);
    }
    rows[0] = (struct row_bytes){pool.base + geometry_cursor(g, pool.layout, q->slot), g->cursor_bytes};
    take(r, rows, 1, out);
}

static void spoil(const struct rig *r, const struct row_bytes *rows, int32_t count)
{
    uint8_t nan[8192];
    qr_error err = {0};
    memset(nan, 0xFF, sizeof nan);
    for (int32_t i = 0; i < count; i++)
        must(r->backend->upload(r->backend, rows[i].at, nan, rows[i].bytes, &err), &err);
}

void visible_spoil_rest(const struct rig *r, const struct rig_request *q, int32_t position)
{
    const struct row_pool pool = pool_of(r);
    const struct geometry *g = pool.geometry;
    struct row_bytes rows[ROW_PLACES_MOST];
    qr_error err = {0};
    /* a ring row behind the last visible one is that of a position from there on, a whole ring at most */
    for (int32_t layer = 0; layer < g->ring_layers; layer++)
        for (int32_t p = position; p < visible_from(r, layer, position) + g->ring_rows; p++) {
            rows[0] = place_window(&pool, q->slot, layer, p);
            spoil(r, rows, 1);
        }
    for (int32_t owner = 0; owner < g->owners; owner++) {
        const int32_t ratio = g->owner[owner].ratio, in_block = g->owner[owner].rows;
        for (int32_t p = position; p < tail_from(r, owner, position) + g->tail_rows[owner]; p++)
            spoil(r, rows, place_tail(&pool, q->slot, owner, p, rows));
        for (int32_t group = position / ratio; (group + 1) * ratio <= q->count; group++)
            spoil(r, rows, place_group(&pool, owner, q->blocks[group / in_block], group % in_block, rows));
    }
    must(r->backend->fence(r->backend, &err), &err);
}

/* ---- folders ---- */

static void write_config(const char *from, const char *to, int32_t block)
{
    static const char key[] = "\"dspark_block_size\": ";
    char *text;
    size_t length;
    qr_error err = {0};
    must(file_read(from, 1 << 20, &text, &length, &err), &err);
    char *at = strstr(text, key), *rest;
    assert_non_null(at);
    at += sizeof key - 1;
    for (rest = at; *rest >= '0' && *rest <= '9'; rest++)
        continue;
    char number[16];
    snprintf(number, sizeof number, "%d", block);
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, (size_t)(at - text), f), (size_t)(at - text));
    assert_true(fputs(number, f) >= 0 && fputs(rest, f) >= 0);
    assert_int_equal(fclose(f), 0);
    qr_free(text);
}

const char *folder_with_block(const char *scratch, const char *dir, int32_t block)
{
    static char folder[600];
    char *base = realpath(dir[0] == '/' ? dir : source_path(dir), NULL);
    char from[1000], to[1000];
    static int made;
    snprintf(folder, sizeof folder, "%s/block-%d-%d", scratch, block, made++);
    assert_int_equal(mkdir(folder, 0755), 0);
    DIR *d = base ? opendir(base) : NULL;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(from, sizeof from, "%s/%s", base, e->d_name);
        snprintf(to, sizeof to, "%s/%s", folder, e->d_name);
        if (strcmp(e->d_name, "config.json") == 0)
            write_config(from, to, block);
        else
            assert_int_equal(symlink(from, to), 0);
    }
    closedir(d);
    free(base);
    return folder;
}
