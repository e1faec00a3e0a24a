#include "cache/geometry.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { REGION_ALIGNMENT = 256, MAX_BLOCK_TOKENS = 1 << 16, MAX_DRAFT_WIDTH = 64 };

const char *row_format_name(enum row_format format)
{
    switch (format) {
    case ROW_BF16: return "bf16";
    case ROW_FP4_E4M3:
    case ROW_INDEX_FP4: return "fp4";
    case ROW_FP8_E8M0:
    case ROW_INDEX_FP8: return "fp8";
    case ROW_INDEX_INT8: return "int8";
    }
    return "?";
}

bool row_format_parse(const char *name, bool index, enum row_format *out)
{
    static const enum row_format main[] = {ROW_BF16, ROW_FP4_E4M3, ROW_FP8_E8M0};
    static const enum row_format keys[] = {ROW_INDEX_FP4, ROW_INDEX_FP8, ROW_INDEX_INT8};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, row_format_name(index ? keys[i] : main[i]))) {
            *out = index ? keys[i] : main[i];
            return true;
        }
    return false;
}

struct geometry_options geometry_defaults(const struct model_plan *plan)
{
    return (struct geometry_options){
        .block_tokens = 128,
        .main_format = plan->rows_pack ? ROW_FP4_E4M3 : ROW_BF16,
        .index_format = plan->index_keys == INDEX_KEYS_INT8 ? ROW_INDEX_INT8 : ROW_INDEX_FP4,
        .draft_width = plan->draft_width,
    };
}

/* ---- sizes that remember an overflow ---- */

static int64_t times(int64_t a, int64_t b, bool *over)
{
    int64_t product = 0;
    *over |= __builtin_mul_overflow(a, b, &product);
    return product;
}

static int64_t plus(int64_t a, int64_t b, bool *over)
{
    int64_t sum = 0;
    *over |= __builtin_add_overflow(a, b, &sum);
    return sum;
}

/* `alignment` need not be a power of two. */
static int64_t align(int64_t value, int64_t alignment, bool *over)
{
    return times(plus(value, alignment - 1, over) / alignment, alignment, over);
}

/* ---- rows ---- */

/* Bytes of one row of a format for rows of n values; scales that stand in a plane of their own are left out. */
static int32_t row_bytes(enum row_format format, int32_t n)
{
    switch (format) {
    case ROW_BF16: return 2 * n;
    case ROW_FP4_E4M3: return n / 2 + n / 16;
    case ROW_FP8_E8M0: return n + n / 32;
    case ROW_INDEX_FP8:
    case ROW_INDEX_INT8: return n + 4;
    case ROW_INDEX_FP4: return n / 2;
    }
    return 0;
}

static bool is_tiled(enum row_format format)
{
    return format == ROW_INDEX_FP8 || format == ROW_INDEX_INT8;
}

/* ---- admission (runtime.md 11) ---- */

struct refusal {
    char text[800];
    size_t used;
};

static void refuse(struct refusal *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void refuse(struct refusal *r, const char *format, ...)
{
    va_list ap;
    if (r->used)
        r->used += (size_t)snprintf(r->text + r->used, sizeof r->text - r->used, "; ");
    va_start(ap, format);
    r->used += (size_t)vsnprintf(r->text + r->used, sizeof r->text - r->used, format, ap);
    va_end(ap);
    if (r->used >= sizeof r->text)
        r->used = sizeof r->text - 1;
}

static void check_block(const struct model_plan *plan, const struct geometry_options *o, struct refusal *r)
{
    int32_t b = o->block_tokens;
    if (b % 2)
        refuse(r, "E02 block size is %d, wanted an even number: groups of two tokens would cross blocks", (int)b);
    if (b < 32 || b % 32 || b > MAX_BLOCK_TOKENS)
        refuse(r, "E03 block size is %d, wanted a multiple of 32 from 32 to %d", (int)b, MAX_BLOCK_TOKENS);
    for (int32_t i = 0; i < plan->owners; i++)
        if (b % plan->owner[i].ratio) {
            refuse(r, "E40 block size is %d, wanted a multiple of ratio %d of layer %d: a hit boundary must be a "
                      "compression boundary",
                   (int)b, (int)plan->owner[i].ratio, (int)plan->owner[i].layer);
            return;
        }
    for (int32_t i = 0; i < plan->owners; i++)
        if (is_tiled(o->index_format) && plan->owner[i].has_index && b / plan->owner[i].ratio % INDEX_TILE_ROWS) {
            refuse(r, "E03 block size %d holds %d index rows of layer %d, wanted a multiple of %d", (int)b,
                   (int)(b / plan->owner[i].ratio), (int)plan->owner[i].layer, INDEX_TILE_ROWS);
            return;
        }
}

static void check_formats(const struct model_plan *plan, const struct geometry_options *o, struct refusal *r)
{
    static const char *const wanted[] = {
        [INDEX_KEYS_FP8_OR_FP4] = "fp8 or fp4", [INDEX_KEYS_FP4] = "fp4", [INDEX_KEYS_INT8] = "int8"};
    const enum index_keys keys = plan->index_keys;
    bool index = (o->index_format == ROW_INDEX_FP8 && keys == INDEX_KEYS_FP8_OR_FP4) ||
                 (o->index_format == ROW_INDEX_FP4 && keys != INDEX_KEYS_INT8) ||
                 (o->index_format == ROW_INDEX_INT8 && keys == INDEX_KEYS_INT8);
    if (!index)
        refuse(r, "E05 index cache format is %s, wanted %s", row_format_name(o->index_format), wanted[keys]);
    if (o->main_format != ROW_BF16 && !(plan->rows_pack && o->main_format == ROW_FP4_E4M3))
        refuse(r, "E06 cache format is %s, wanted %s", row_format_name(o->main_format),
               plan->rows_pack ? "bf16 or fp4" : "bf16");
}

/* ---- what a model asks for ---- */

static void fill_owners(const struct model_plan *plan, struct geometry *g)
{
    g->owners = plan->owners;
    for (int32_t i = 0; i < plan->owners; i++) {
        const struct owner_plan *o = &plan->owner[i];
        g->owner[i] = (struct geometry_owner){.layer = o->layer,
                                              .ratio = o->ratio,
                                              .rows = g->options.block_tokens / o->ratio,
                                              .has_index = o->has_index};
        g->tail_rows[i] = o->tail_rows > 0 ? o->tail_rows + g->options.draft_width : 0;
        g->tail_width[i] = o->tail_width;
        g->index_tail_width[i] = o->index_tail_width;
        g->tail_in_image[i] = o->compressor == COMPRESSOR_OVERLAP;
    }
}

static void fill_rows(const struct model_plan *plan, struct geometry *g)
{
    const struct qr_config *c = &plan->config;
    bool packed = g->options.main_format == ROW_FP4_E4M3;
    g->head_dim = c->head_dim;
    g->index_head_dim = c->index_head_dim;
    g->window_format = packed ? ROW_FP8_E8M0 : ROW_BF16;
    g->alignment = packed ? 256 : 1024;
    g->main_row_bytes = row_bytes(g->options.main_format, c->head_dim);
    g->window_row_bytes = row_bytes(g->window_format, c->head_dim);
    g->index_row_bytes = row_bytes(g->options.index_format, c->index_head_dim);
    g->index_scale_row_bytes = g->options.index_format == ROW_INDEX_FP4 ? c->index_head_dim / 32 : 0;
    g->window = c->sliding_window;
    g->ring_rows = c->sliding_window + g->options.draft_width;
    g->ring_layers = plan->layers + (g->options.draft_width > 0 ? plan->draft_layers : 0);
}

static void fill_request_state(const struct model_plan *plan, struct geometry *g)
{
    const struct qr_config *c = &plan->config;
    int32_t history = c->n_engram > 0 ? c->engram_max_ngram - 1 : 0;
    g->cursor_bytes = 8 * (1 + (int64_t)history);
    if (c->drafter == QR_DRAFTER_MTP && g->options.draft_width > 0)
        g->draft_stream_bytes =
            (int64_t)c->hc_mult * c->hidden_size * (plan->profile == QR_PROFILE_W8A8 ? 4 : 2);
}

/* ---- identity (runtime.md 2.11) ---- */

static void append(char *text, size_t room, size_t *used, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void append(char *text, size_t room, size_t *used, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(text + *used, room - *used, format, ap);
    va_end(ap);
    *used += n > 0 ? (size_t)n : 0;
    if (*used >= room)
        *used = room - 1;
}

enum { LAYOUT_VERSION = 1 };

static void write_layouts(const struct model_plan *plan, struct geometry *g)
{
    char *page = g->page_layout, *state = g->state_layout;
    size_t room = sizeof g->page_layout, used = 0;
    uint16_t one = 1;
    append(page, room, &used, "quire-page %d main=%s index=%s/%s owners=", LAYOUT_VERSION,
           row_format_name(g->options.main_format), row_format_name(g->options.index_format),
           is_tiled(g->options.index_format) ? "tile16" : "row");
    for (int32_t i = 0; i < g->owners; i++)
        append(page, room, &used, "%s%d:%d", i ? "," : "", (int)g->owner[i].layer, (int)g->owner[i].ratio);
    append(page, room, &used, " B=%d W=%d D=%d I=%d history=%d order=%s profile=%s", (int)g->options.block_tokens,
           (int)g->window, (int)g->head_dim, (int)g->index_head_dim, (int)(g->cursor_bytes / 8 - 1),
           *(const uint8_t *)&one ? "little" : "big", config_profile_name(plan->profile));
    used = 0;
    append(state, room, &used, "quire-state %d window=%s tail=ring L=%d d=%d %s", LAYOUT_VERSION,
           row_format_name(g->window_format), (int)g->ring_layers, (int)g->options.draft_width, page);
}

/* ---- offsets ---- */

/* Where no layer has compressed rows a page holds none: it names tokens all the same, and images of states lie in pages. */
enum { EMPTY_PAGE = 4096 };

static void place_page(struct geometry *g, bool *over)
{
    int64_t used = 0;
    for (int32_t i = 0; i < g->owners; i++) {
        struct geometry_owner *o = &g->owner[i];
        o->main_offset = used;
        used = plus(used, align(times(o->rows, g->main_row_bytes, over), g->alignment, over), over);
        o->index_block_bytes = o->has_index ? times(o->rows, g->index_row_bytes, over) : 0;
        o->index_scale_block_bytes = o->has_index ? times(o->rows, g->index_scale_row_bytes, over) : 0;
    }
    if (g->owners == 0)
        used = EMPTY_PAGE;
    g->main_page_bytes = align(used, g->alignment, over);
    g->unit_bytes = g->main_page_bytes;
    for (int32_t i = 0; i < g->owners; i++)
        g->unit_bytes =
            plus(g->unit_bytes, plus(g->owner[i].index_block_bytes, g->owner[i].index_scale_block_bytes, over), over);
}

/* One plane of tails: rows of `width` f32 for every owner that has a tail. */
static int64_t place_tails(const struct geometry *g, const int32_t *width, int64_t *offsets, int64_t used, bool *over)
{
    for (int32_t i = 0; i < g->owners; i++) {
        bool some = g->tail_rows[i] > 0 && width[i] > 0;
        offsets[i] = some ? used : -1;
        if (some)
            used = plus(used, times(g->tail_rows[i], 4 * (int64_t)width[i], over), over);
    }
    return used;
}

static void place_state(struct geometry *g, bool *over)
{
    g->window_offset = 0;
    g->ring_bytes = times(g->ring_rows, g->window_row_bytes, over);
    int64_t used = align(times(g->ring_layers, g->ring_bytes, over), 16, over);
    used = place_tails(g, g->tail_width, g->tail_offset, used, over);
    used = place_tails(g, g->tail_width, g->tail_score_offset, used, over);
    used = place_tails(g, g->index_tail_width, g->index_tail_offset, used, over);
    used = place_tails(g, g->index_tail_width, g->index_tail_score_offset, used, over);
    used = align(used, 8, over);
    g->cursor_offset = used;
    used = plus(used, g->cursor_bytes, over);
    g->draft_stream_offset = -1;
    if (g->draft_stream_bytes > 0) {
        used = align(used, 16, over);
        g->draft_stream_offset = used;
        used = plus(used, g->draft_stream_bytes, over);
    }
    g->state_bytes = align(used, g->alignment, over);
}

qr_status geometry_place(struct geometry *g, qr_error *err)
{
    struct state_piece pieces[GEOMETRY_MAX_PIECES];
    bool over = false;
    place_page(g, &over);
    place_state(g, &over);
    if (over)
        return qr_fail(err, QR_BAD_ARGUMENT, "the cache planes of one block or request do not fit 63 bits");
    int32_t n = geometry_image(g, pieces);
    g->image_bytes = 0;
    for (int32_t i = 0; i < n; i++)
        g->image_bytes += pieces[i].bytes;
    return QR_OK;
}

qr_status geometry_make(const struct model_plan *plan, const struct geometry_options *options, struct geometry *out,
                        qr_error *err)
{
    struct refusal refused = {.used = 0};
    check_block(plan, options, &refused);
    check_formats(plan, options, &refused);
    if (refused.used)
        return qr_fail(err, QR_REFUSED, "%s", refused.text);
    if (options->draft_width < 0 || options->draft_width > MAX_DRAFT_WIDTH ||
        (options->draft_width > 0 && plan->draft_layers == 0))
        return qr_fail(err, QR_BAD_ARGUMENT, "draft width is %d, wanted 0 to %d, and 0 without a drafter",
                       (int)options->draft_width, MAX_DRAFT_WIDTH);
    memset(out, 0, sizeof *out);
    out->options = *options;
    fill_rows(plan, out);
    fill_owners(plan, out);
    fill_request_state(plan, out);
    write_layouts(plan, out);
    return geometry_place(out, err);
}

/* ---- images ---- */

static int32_t add_piece(struct state_piece *out, int32_t n, int64_t offset, int64_t bytes)
{
    if (bytes == 0)
        return n;
    if (n > 0 && out[n - 1].offset + out[n - 1].bytes == offset) {
        out[n - 1].bytes += bytes;
        return n;
    }
    out[n] = (struct state_piece){offset, bytes};
    return n + 1;
}

static int32_t add_tails(const struct geometry *g, const int32_t *width, const int64_t *offsets,
                         struct state_piece *out, int32_t n)
{
    for (int32_t i = 0; i < g->owners; i++)
        if (offsets[i] >= 0 && g->tail_in_image[i])
            n = add_piece(out, n, offsets[i], g->tail_rows[i] * 4 * (int64_t)width[i]);
    return n;
}

int32_t geometry_image(const struct geometry *g, struct state_piece out[GEOMETRY_MAX_PIECES])
{
    int32_t n = add_piece(out, 0, g->window_offset, g->ring_layers * g->ring_bytes);
    n = add_tails(g, g->tail_width, g->tail_offset, out, n);
    n = add_tails(g, g->tail_width, g->tail_score_offset, out, n);
    n = add_tails(g, g->index_tail_width, g->index_tail_offset, out, n);
    n = add_tails(g, g->index_tail_width, g->index_tail_score_offset, out, n);
    n = add_piece(out, n, g->cursor_offset, g->cursor_bytes);
    if (g->draft_stream_offset >= 0)
        n = add_piece(out, n, g->draft_stream_offset, g->draft_stream_bytes);
    return n;
}

/* ---- pools ---- */

qr_status geometry_pool(const struct geometry *g, int64_t blocks, int64_t slots, struct pool_layout *out, qr_error *err)
{
    bool over = blocks < 0 || slots < 0;
    int64_t used = times(blocks, g->main_page_bytes, &over);
    int64_t state_alignment = g->alignment > REGION_ALIGNMENT ? g->alignment : REGION_ALIGNMENT;
    memset(out, 0, sizeof *out);
    out->blocks = blocks;
    out->slots = slots;
    for (int32_t i = 0; i < g->owners; i++) {
        const struct geometry_owner *o = &g->owner[i];
        out->index_offset[i] = out->index_scale_offset[i] = -1;
        if (o->index_block_bytes > 0) {
            out->index_offset[i] = align(used, REGION_ALIGNMENT, &over);
            used = plus(out->index_offset[i], times(blocks, o->index_block_bytes, &over), &over);
        }
        if (o->index_scale_block_bytes > 0) {
            out->index_scale_offset[i] = align(used, REGION_ALIGNMENT, &over);
            used = plus(out->index_scale_offset[i], times(blocks, o->index_scale_block_bytes, &over), &over);
        }
    }
    out->state_offset = align(used, state_alignment, &over);
    out->bytes = plus(out->state_offset, times(slots, g->state_bytes, &over), &over);
    if (over)
        return qr_fail(err, QR_BAD_ARGUMENT, "a pool of %lld blocks and %lld slots does not fit 63 bits",
                       (long long)blocks, (long long)slots);
    return QR_OK;
}

int64_t geometry_blocks_in(const struct geometry *g, int64_t bytes, int64_t slots)
{
    struct pool_layout pool;
    int64_t low = 0, high = g->unit_bytes > 0 ? bytes / g->unit_bytes : 0;
    if (high > INT32_MAX)
        high = INT32_MAX;
    while (low < high) { /* the size grows with the blocks */
        int64_t middle = low + (high - low + 1) / 2;
        if (geometry_pool(g, middle, slots, &pool, NULL) == QR_OK && pool.bytes <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void geometry_main_plane(const struct geometry *g, const struct pool_layout *pool, uint8_t *base, int32_t owner,
                         struct row_plane *out)
{
    const struct geometry_owner *o = &g->owner[owner];
    bool packed = g->options.main_format == ROW_FP4_E4M3;
    *out = (struct row_plane){
        .format = g->options.main_format,
        .rows_per_block = o->rows,
        .tile_rows = o->rows,
        .values = base + pool->main_offset + o->main_offset,
        .value_block_stride = g->main_page_bytes,
        .value_row_stride = g->main_row_bytes,
    };
    if (packed) { /* values then scales, one byte row */
        out->scales = out->values + g->head_dim / 2;
        out->scale_block_stride = out->value_block_stride;
        out->scale_row_stride = out->value_row_stride;
    }
}

void geometry_index_plane(const struct geometry *g, const struct pool_layout *pool, uint8_t *base, int32_t owner,
                          struct row_plane *out)
{
    const struct geometry_owner *o = &g->owner[owner];
    *out = (struct row_plane){
        .format = g->options.index_format,
        .rows_per_block = o->rows,
        .values = base + pool->index_offset[owner],
        .value_block_stride = o->index_block_bytes,
    };
    if (is_tiled(g->options.index_format)) {
        out->tile_rows = INDEX_TILE_ROWS;
        out->value_tile_stride = INDEX_TILE_ROWS * (int64_t)g->index_row_bytes;
        out->value_row_stride = g->index_head_dim;
        out->scales = out->values + INDEX_TILE_ROWS * (int64_t)g->index_head_dim;
        out->scale_block_stride = out->value_block_stride;
        out->scale_tile_stride = out->value_tile_stride;
        out->scale_row_stride = 4;
        return;
    }
    out->tile_rows = o->rows;
    out->value_row_stride = g->index_row_bytes;
    out->scales = base + pool->index_scale_offset[owner];
    out->scale_block_stride = o->index_scale_block_bytes;
    out->scale_row_stride = g->index_scale_row_bytes;
}

void geometry_window(const struct geometry *g, const struct pool_layout *pool, uint8_t *base, int32_t layer,
                     struct ring_plane *out)
{
    *out = (struct ring_plane){
        .format = g->window_format,
        .rows = g->ring_rows,
        .values = base + pool->state_offset + g->window_offset + layer * g->ring_bytes,
        .slot_stride = g->state_bytes,
        .value_row_stride = g->window_row_bytes,
    };
    if (g->window_format == ROW_FP8_E8M0) {
        out->scales = out->values + g->head_dim;
        out->scale_row_stride = out->value_row_stride;
    }
}

void geometry_tail(const struct geometry *g, const struct pool_layout *pool, uint8_t *base, int32_t owner, bool index,
                   struct ring_plane *out)
{
    int64_t values = index ? g->index_tail_offset[owner] : g->tail_offset[owner];
    int64_t scores = index ? g->index_tail_score_offset[owner] : g->tail_score_offset[owner];
    int64_t row = 4 * (int64_t)(index ? g->index_tail_width[owner] : g->tail_width[owner]);
    *out = (struct ring_plane){.slot_stride = g->state_bytes};
    if (values < 0) /* no tail: a group of one is never pending */
        return;
    out->rows = g->tail_rows[owner];
    out->values = base + pool->state_offset + values;
    out->scales = base + pool->state_offset + scores;
    out->value_row_stride = out->scale_row_stride = row;
}

int64_t geometry_cursor(const struct geometry *g, const struct pool_layout *pool, int64_t slot)
{
    return pool->state_offset + slot * g->state_bytes + g->cursor_offset;
}

int64_t geometry_draft_stream(const struct geometry *g, const struct pool_layout *pool, int64_t slot)
{
    return pool->state_offset + slot * g->state_bytes + g->draft_stream_offset;
}
