#include "cache/row_places.h"

struct row_bytes place_window(const struct row_pool *pool, int32_t slot, int32_t layer, int32_t position)
{
    struct ring_plane ring;
    geometry_window(pool->geometry, pool->layout, pool->base, layer, &ring);
    return (struct row_bytes){ring.values + slot * ring.slot_stride + position % ring.rows * ring.value_row_stride,
                              pool->geometry->window_row_bytes};
}

int32_t place_tail(const struct row_pool *pool, int32_t slot, int32_t owner, int32_t position,
                   struct row_bytes out[ROW_PLACES_MOST])
{
    int32_t count = 0;
    for (int index = 0; index < 2; index++) {
        struct ring_plane tail;
        geometry_tail(pool->geometry, pool->layout, pool->base, owner, index, &tail);
        if (tail.rows == 0)
            continue;
        const int64_t row = slot * tail.slot_stride + position % tail.rows * tail.value_row_stride;
        out[count++] = (struct row_bytes){tail.values + row, tail.value_row_stride};
        out[count++] = (struct row_bytes){tail.scales + row, tail.scale_row_stride};
    }
    return count;
}

static int32_t place_row(const struct row_plane *plane, int32_t block, int32_t row, int64_t values, int64_t scales,
                         struct row_bytes *out)
{
    out[0] = (struct row_bytes){plane->values + plane_value_offset(plane, block, row), values};
    if (!plane->scales || scales == 0)
        return 1;
    out[1] = (struct row_bytes){plane->scales + plane_scale_offset(plane, block, row), scales};
    return 2;
}

int32_t place_group(const struct row_pool *pool, int32_t owner, int32_t block, int32_t row,
                    struct row_bytes out[ROW_PLACES_MOST])
{
    const struct geometry *g = pool->geometry;
    struct row_plane plane;
    geometry_main_plane(g, pool->layout, pool->base, owner, &plane);
    const int32_t count = place_row(&plane, block, row, g->main_row_bytes, 0, out); /* its scales stand in the row */
    if (!g->owner[owner].has_index)
        return count;
    geometry_index_plane(g, pool->layout, pool->base, owner, &plane);
    const int64_t values = plane.value_row_stride, scales = plane.scale_row_stride;
    return count + place_row(&plane, block, row, values, scales, out + count);
}
