#include "cache/image_copy.h"

#include <stddef.h>

enum { UNIT_PLANES = 1 + 2 * QR_MAX_LAYERS };

/* A stretch of the region. */
struct stretch {
    int64_t offset, bytes;
};

/* The planes of one unit in the order of runtime.md 2.2. */
static int32_t unit_planes(const struct geometry *g, const struct pool_layout *pool, block_id unit,
                           struct stretch out[UNIT_PLANES])
{
    int32_t n = 0;
    out[n++] = (struct stretch){pool->main_offset + unit * g->main_page_bytes, g->main_page_bytes};
    for (int32_t i = 0; i < g->owners; i++) {
        const int64_t values = g->owner[i].index_block_bytes, scales = g->owner[i].index_scale_block_bytes;
        if (values > 0)
            out[n++] = (struct stretch){pool->index_offset[i] + unit * values, values};
        if (scales > 0)
            out[n++] = (struct stretch){pool->index_scale_offset[i] + unit * scales, scales};
    }
    return n;
}

int32_t image_units(const struct geometry *g)
{
    return (int32_t)((g->image_bytes + g->unit_bytes - 1) / g->unit_bytes);
}

static int32_t planes_per_unit(const struct geometry *g)
{
    int32_t n = 1;
    for (int32_t i = 0; i < g->owners; i++)
        n += (g->owner[i].index_block_bytes > 0) + (g->owner[i].index_scale_block_bytes > 0);
    return n;
}

int32_t image_copies_most(const struct geometry *g)
{
    struct state_piece pieces[GEOMETRY_MAX_PIECES];
    return image_units(g) * planes_per_unit(g) + geometry_image(g, pieces);
}

/* The next stretch of the units' planes, of `units` laid one after the other. */
struct unit_walk {
    const struct geometry *g;
    const struct pool_layout *pool;
    const block_id *units;
    int32_t next_unit, next_plane, planes;
    struct stretch plane[UNIT_PLANES];
    struct stretch left;
};

static void refill(struct unit_walk *w)
{
    if (w->left.bytes > 0)
        return;
    if (w->next_plane == w->planes) {
        w->planes = unit_planes(w->g, w->pool, w->units[w->next_unit++], w->plane);
        w->next_plane = 0;
    }
    w->left = w->plane[w->next_plane++];
}

int32_t image_copies(const struct geometry *g, const struct pool_layout *pool, int64_t slot, const block_id *units,
                     enum image_direction direction, struct cache_copy *out)
{
    struct state_piece pieces[GEOMETRY_MAX_PIECES];
    const int32_t count = geometry_image(g, pieces);
    const int64_t state = pool->state_offset + slot * g->state_bytes;
    struct unit_walk walk = {.g = g, .pool = pool, .units = units};
    int32_t n = 0;

    for (int32_t i = 0; i < count; i++)
        for (int64_t done = 0; done < pieces[i].bytes;) {
            refill(&walk);
            const int64_t left = pieces[i].bytes - done, bytes = left < walk.left.bytes ? left : walk.left.bytes;
            const int64_t in_slot = state + pieces[i].offset + done, in_unit = walk.left.offset;
            out[n++] = direction == IMAGE_STORE ? (struct cache_copy){in_unit, in_slot, bytes}
                                                : (struct cache_copy){in_slot, in_unit, bytes};
            walk.left.offset += bytes;
            walk.left.bytes -= bytes;
            done += bytes;
        }
    return n;
}

struct cache_copy slot_copy(const struct geometry *g, const struct pool_layout *pool, int64_t from, int64_t to)
{
    return (struct cache_copy){pool->state_offset + to * g->state_bytes, pool->state_offset + from * g->state_bytes,
                               g->state_bytes};
}
