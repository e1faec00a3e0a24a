/* Operators 11 to 13 (decode) and 28 (prefill) of v4-model.md section 10: the attention core over a list of keys, with the
 * output projection. */
#include <math.h>
#include <string.h>

#include "tools/op_adapters.h"

/* Rows of a decode step (4 requests of 2), of a tile, and of a whole prefill dispatch (v4-model.md 9.1, 9.3). */
enum { DECODE_ROWS = 8, TILE_ROWS = 128, PREFILL_ROWS = 8192 };

/* One query row as its arrays list it. */
struct listed {
    int32_t position, window;          /* window: how many keys */
    const int32_t *window_rows;        /* [window] rows of the key pool, oldest first */
    int32_t table;                     /* which row of the block tables */
};

/* What a call attends over: rows of keys, compressed rows behind block tables. */
struct scene {
    int32_t first, rows;               /* of the arrays: those of this part */
    int32_t ratio, slots;              /* slots: of compressed rows in each list; 0: none */
    struct listed *listed;
    const uint16_t *keys;              /* host: the pool of window keys */
    const int32_t *selected;           /* host [rows][slots], -1: masked */
    const int32_t *tables;             /* host [.][table_width] */
    int32_t table_width;
    struct row_plane plane;
};

/* A request of the step that `attend` sees: the positions from the oldest key listed to the last query. Queries share one
 * while they stand in a row and agree on where the keys lie. */
struct span {
    int32_t first, rows;               /* of the step */
    int32_t position, table;
};

struct spans {
    struct span *items;
    int32_t count, rows;
    int32_t *key;                      /* [rows] row of the key pool */
    int32_t *step_row;                 /* [queries] */
};

/* Whether the query goes on in the span: the next position, the same table, the same keys where both list them. */
static bool continues(const struct spans *s, const struct listed *l)
{
    const struct span *span = s->count ? &s->items[s->count - 1] : NULL;
    if (!span || l->table != span->table || l->position != span->position + span->rows || !l->window ||
        l->position - l->window + 1 < span->position)
        return false;
    int32_t low = l->position - l->window + 1;
    for (int32_t i = 0; i + 1 < l->window; i++)
        if (s->key[span->first + low + i - span->position] != l->window_rows[i])
            return false;
    return true;
}

static qr_status make_spans(struct op_run *r, const struct scene *scene, struct spans *s, qr_error *err)
{
    int64_t most = 0;
    for (int32_t i = 0; i < scene->rows; i++)
        most += scene->listed[i].window > 0 ? scene->listed[i].window : 1;
    TRY(op_host_new(r, (scene->rows + 1) * (int64_t)sizeof *s->items, &s->items, err));
    TRY(op_host_new(r, 4 * most, &s->key, err));
    TRY(op_host_new(r, 4LL * scene->rows, &s->step_row, err));
    for (int32_t i = 0; i < scene->rows; i++) {
        const struct listed *l = &scene->listed[i];
        if (continues(s, l)) {
            s->key[s->rows++] = l->window_rows[l->window - 1];
            s->items[s->count - 1].rows++;
        } else {
            int32_t n = l->window > 0 ? l->window : 1;
            s->items[s->count++] = (struct span){s->rows, n, l->position - n + 1, l->table};
            for (int32_t k = 0; k < n; k++)
                s->key[s->rows++] = l->window ? l->window_rows[k] : -1;
        }
        s->step_row[i] = s->rows - 1;
    }
    return QR_OK;
}

/* The step of the spans, with the block table that each uses. */
static qr_status spans_step(struct op_run *r, const struct scene *scene, const struct spans *s, struct step **out, qr_error *err)
{
    int32_t *first_row, *positions, *tables = NULL;
    TRY(op_host_new(r, 4LL * (s->count + 1), &first_row, err));
    TRY(op_host_new(r, 4LL * (s->rows + 1), &positions, err));
    if (scene->slots)
        TRY(op_host_new(r, 4LL * s->count * scene->table_width + 4, &tables, err));
    for (int32_t b = 0; b < s->count; b++) {
        const struct span *span = &s->items[b];
        first_row[b] = span->first;
        for (int32_t i = 0; i < span->rows; i++)
            positions[span->first + i] = span->position + i;
        if (tables)
            memcpy(tables + (int64_t)b * scene->table_width, scene->tables + (int64_t)span->table * scene->table_width,
                   4 * (size_t)scene->table_width);
    }
    first_row[s->count] = s->rows;
    return op_step(r, &(struct step_shape){.rows = s->rows, .requests = s->count, .first_row = first_row, .positions = positions,
                                           .table = tables, .width = scene->table_width}, out, err);
}

/* Rows of one kind from the queries' order to the step's. */
static qr_status scatter(struct op_run *r, const struct spans *s, const void *from, int64_t rows, int64_t bytes, void *pointer,
                         qr_error *err)
{
    uint8_t *to;
    TRY(op_host_new(r, s->rows * bytes, &to, err));
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + s->step_row[i] * bytes, (const uint8_t *)from + i * bytes, (size_t)bytes);
    return op_upload(r, to, s->rows * bytes, pointer, err);
}

/* o of every query: bf16 (reference) or f32. */
static qr_status attend(struct op_run *r, const struct scene *scene, struct activation out, qr_error *err)
{
    int32_t heads = op_dim(r, "H"), dim = op_dim(r, "d"), *low, *counts, *from, *index;
    int64_t key_bytes = 2LL * dim;
    struct activation o;
    struct spans s = {0};
    struct step *step;
    uint8_t *keys;
    void *q, *fresh, *selected = NULL;

    TRY(make_spans(r, scene, &s, err));
    TRY(spans_step(r, scene, &s, &step, err));
    TRY(op_host_new(r, 4LL * s.rows, &low, err));
    TRY(op_host_new(r, 4LL * s.rows, &counts, err));
    TRY(op_host_new(r, 4LL * s.count, &from, err));
    TRY(op_host_new(r, s.rows * key_bytes, &keys, err));
    for (int32_t i = 0; i < s.rows; i++)
        if (s.key[i] >= 0)
            memcpy(keys + i * key_bytes, (const uint8_t *)scene->keys + s.key[i] * key_bytes, (size_t)key_bytes);
    for (int32_t b = 0; b < s.count; b++)
        from[b] = s.items[b].position;
    for (int32_t i = 0; i < scene->rows; i++) {
        low[s.step_row[i]] = scene->listed[i].position - scene->listed[i].window + 1;
        counts[s.step_row[i]] = scene->slots;
    }
    TRY(op_upload(r, keys, s.rows * key_bytes, &fresh, err));
    TRY(op_upload(r, low, 4LL * s.rows, &low, err));
    TRY(op_upload(r, counts, 4LL * s.rows, &counts, err));
    TRY(op_upload(r, from, 4LL * s.count, &from, err));
    TRY(op_upload(r, s.step_row, 4LL * scene->rows, &index, err));
    TRY(scatter(r, &s, (const uint16_t *)op_host(r, "q") + (int64_t)scene->first * heads * dim, scene->rows, 2LL * heads * dim, &q, err));
    if (scene->slots)
        TRY(scatter(r, &s, scene->selected, scene->rows, 4LL * scene->slots, &selected, err));
    TRY(op_rows(r, out.format, s.rows, heads * dim, 0, &o, err));

    struct row_list rows = {index, scene->rows};
    CALL(r, attend, .rows = rows, .step = step, .heads = heads, .head_dim = dim, .window_size = op_dim(r, "W"),
         .block = r->w8a8 ? 128 : 64, .ratio = scene->ratio, .scale = (float)(1 / sqrt(dim)), .w8a8 = r->w8a8, .q = q,
         .fresh = fresh, .key_from = from, .window_low = low, .has_plane = scene->slots > 0, .plane = scene->plane,
         .selected = selected, .selected_stride = scene->slots, .selected_count = scene->slots ? counts : NULL,
         .sinks = op_in(r, "attn_sink"), .out = o);
    CALL(r, gather, .rows = rows, .in = o, .out = out);
    return QR_OK;
}

/* o -> inverse rotation -> wo_a by group -> quantized -> wo_b (5.5; w8a8: 7.4). `u`: room for wo_a's output. */
static qr_status project(struct op_run *r, int32_t first, int32_t rows, const struct step *step, struct rope_spec rope,
                         struct activation o, struct activation u, qr_error *err)
{
    int32_t heads = op_dim(r, "H"), dim = op_dim(r, "d"), groups = op_dim(r, "G"), rank = op_dim(r, "R");
    struct activation turned, u8;
    struct row_list list = first_rows_of(rows);
    TRY(op_rows(r, ACT_BF16, rows, heads * dim, 0, &turned, err));
    TRY(op_rows(r, r->w8a8 ? ACT_I8 : ACT_Q8, rows, groups * rank, r->w8a8 ? rank : 128, &u8, err));
    CALL(r, unrotate, .rows = list, .step = step, .heads = heads, .head_dim = dim, .rope = rope, .in = o, .out = turned);
    CALL(r, linear, .rows = list, .in = turned, .weight = op_weight(r, r->w8a8 ? "wo_a" : "wo_a.weight"), .groups = groups, .out = u);
    CALL(r, quantize, .rows = list, .in = u, .out = u8);
    CALL(r, linear, .rows = list, .in = u8, .weight = op_weight(r, r->w8a8 ? "wo_b" : "wo_b.weight"),
         .out = act_rows(ACT_BF16, (uint16_t *)op_out(r, "attn_out") + (int64_t)first * op_dim(r, "D"), op_dim(r, "D")));
    return QR_OK;
}

/* A window part is rows of the pool and then -1 alone; as many as there are positions at most. */
static qr_status list_window(struct listed *l, int32_t row, const int32_t *entries, int32_t width, int64_t pool, qr_error *err)
{
    while (l->window < width && entries[l->window] >= 0)
        l->window++;
    l->window_rows = entries;
    for (int32_t i = 0; i < width; i++)
        if (entries[i] < -1 || entries[i] >= pool || (i >= l->window && entries[i] != -1))
            return op_refuse(err, BAD_TABLE, "window slot %d of row %d is %d, wanted %s", i, row, entries[i],
                             i >= l->window ? "-1 behind the last key" : "a row of the pool");
    if (l->window > l->position + 1)
        return op_refuse(err, BAD_POSITION, "row %d lists %d window keys at position %d", row, l->window, l->position);
    return QR_OK;
}

/* ---- the reference form: rows of keys, and lists of them ---- */

/* Compressed slots are rows of keys too: the keys that a list holds, -1 left out, become a block table of one row a block. */
static qr_status reference_slots(const struct scene *s, int32_t row, const int32_t *list, int64_t pool, int32_t *table,
                                 int32_t *selected, qr_error *err)
{
    int32_t position = s->listed[row].position, visible = plan_visible(s->ratio, position), held = 0;
    for (int32_t k = 0; k < s->slots; k++) {
        table[k] = -1;
        if (list[k] < -1 || list[k] >= pool || (list[k] >= 0 && held >= visible))
            return op_refuse(err, BAD_TABLE, "compressed slot %d of row %d is %d, wanted -1 or a key of the %d visible at %d",
                             k, row, list[k], visible, position);
        selected[k] = list[k] < 0 ? -1 : held;
        if (list[k] >= 0)
            table[held++] = list[k];
    }
    return QR_OK;
}

static qr_status reference_scene(struct op_run *r, struct scene *s, qr_error *err)
{
    int32_t window = op_dim(r, "W"), width = op_dim(r, "L"), pool = op_dim(r, "P"), *selected, *tables;
    const int32_t *list = op_ints(r, "list"), *positions = op_ints(r, "position_ids");
    if (width < window)
        return op_refuse(err, BAD_SHAPE, "in.list has %d slots, wanted at least the %d of the window", width, window);
    *s = (struct scene){.rows = op_dim(r, "T"), .ratio = op_dim(r, "rho"), .slots = width - window, .keys = op_host(r, "keys"),
                        .table_width = width - window};
    TRY(op_host_new(r, s->rows * (int64_t)sizeof *s->listed, &s->listed, err));
    TRY(op_host_new(r, 4LL * s->rows * s->slots, &selected, err));
    TRY(op_host_new(r, 4LL * s->rows * s->slots, &tables, err));
    for (int32_t i = 0; i < s->rows; i++) {
        const int32_t *more = list + (int64_t)i * width + window;
        s->listed[i] = (struct listed){.position = positions[i], .table = i};
        TRY(list_window(&s->listed[i], i, list + (int64_t)i * width, window, pool, err));
        TRY(reference_slots(s, i, more, pool, tables + (int64_t)i * s->slots, selected + (int64_t)i * s->slots, err));
    }
    void *keys;
    TRY(op_upload(r, s->keys, 2LL * pool * op_dim(r, "d"), &keys, err));
    s->plane = op_plane(ROW_BF16, keys, NULL, 1, op_dim(r, "d"));
    s->selected = selected;
    s->tables = tables;
    return QR_OK;
}

static qr_status run_reference(struct op_run *r, qr_error *err)
{
    int32_t rows = op_dim(r, "T"), cols = op_dim(r, "H*d");
    struct activation o = act_rows(ACT_BF16, op_out(r, "o"), cols), u = act_rows(ACT_BF16, op_out(r, "u"), op_dim(r, "G*R"));
    struct rope_spec rope;
    struct scene s;
    struct step *step;
    TRY(op_check_positions(r, op_ints(r, "position_ids"), rows, 1, err));
    TRY(reference_scene(r, &s, err));
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = 1, .positions = op_ints(r, "position_ids")}, &step, err));
    TRY(op_frequencies(r, s.ratio, &rope, err));
    TRY(attend(r, &s, o, err));
    return project(r, 0, rows, step, rope, o, u, err);
}

/* ---- the w8a8 forms: physical rows of pages, logical compressed rows ---- */

/* Compressed rows of a list: -1, or a row; one that is visible must be mapped. */
static qr_status check_selected(const struct scene *s, int32_t rows_per_page, int64_t pages, qr_error *err)
{
    for (int32_t i = 0; i < s->rows; i++)
        for (int32_t k = 0; k < s->slots; k++) {
            int32_t j = s->selected[(int64_t)i * s->slots + k], page = j / rows_per_page;
            const int32_t *table = s->tables + (int64_t)s->listed[i].table * s->table_width;
            if (j < -1)
                return op_refuse(err, BAD_TABLE, "cmp_indices slot %d of row %d is %d, wanted -1 or a row", k, s->first + i, j);
            if (j < 0 || j >= plan_visible(s->ratio, s->listed[i].position))
                continue;
            if (page >= s->table_width || table[page] < 0 || table[page] >= pages)
                return op_refuse(err, BAD_TABLE, "cmp_table row %d has no page %d, in which compressed row %d of row %d lies",
                                 s->listed[i].table, page, j, s->first + i);
        }
    return QR_OK;
}

static qr_status w8a8_scene(struct op_run *r, int32_t first, int32_t rows, int32_t rows_per_table, struct scene *s, qr_error *err)
{
    const int32_t *window = op_ints(r, "swa_indices"), *lengths = op_ints(r, "swa_lens"), *positions = op_ints(r, "position_ids");
    int32_t width = op_dim(r, "W"), ratio = op_dim(r, "rho");
    *s = (struct scene){.first = first, .rows = rows, .ratio = ratio, .keys = op_host(r, "ori_kv")};
    TRY(op_host_new(r, s->rows * (int64_t)sizeof *s->listed, &s->listed, err));
    for (int32_t i = 0; i < s->rows; i++) {
        int32_t row = first + i;
        s->listed[i] = (struct listed){.position = positions[row], .table = row / rows_per_table};
        TRY(list_window(&s->listed[i], row, window + (int64_t)row * width, width, 128LL * op_dim(r, "P"), err));
        if (lengths && lengths[row] != s->listed[i].window)
            return op_refuse(err, BAD_SHAPE, "swa_lens of row %d is %d, its list holds %d keys", row, lengths[row], s->listed[i].window);
    }
    if (ratio == 0)
        return QR_OK;
    if (!op_has(r, "cmp_indices") || !op_has(r, "cmp_kv") || !op_has(r, "cmp_table") || ratio < 0 || 128 % ratio)
        return op_refuse(err, BAD_SHAPE, "ratio %d wants a divisor of 128 and in.cmp_kv, in.cmp_table and in.cmp_indices", ratio);
    int32_t rows_per_page = 128 / ratio;
    if (op_has(r, "cmp_storage_block_size") && op_ints(r, "cmp_storage_block_size")[0] != rows_per_page)
        return op_refuse(err, BAD_SHAPE, "cmp_storage_block_size is %d, wanted %d for ratio %d",
                         op_ints(r, "cmp_storage_block_size")[0], rows_per_page, ratio);
    s->slots = op_dim(r, "C");
    s->selected = op_ints(r, "cmp_indices") + (int64_t)first * s->slots;
    s->tables = op_ints(r, "cmp_table");
    s->table_width = op_dim(r, "n");
    s->plane = op_plane(ROW_BF16, op_in(r, "cmp_kv"), NULL, rows_per_page, op_dim(r, "d"));
    return QR_OK;
}

/* A tile of slots whose mask is 0 is not attended. */
static qr_status apply_mask(struct op_run *r, struct scene *s, qr_error *err)
{
    const uint8_t *mask = op_host(r, "valid_block_mask");
    int32_t tiles = op_dim(r, "tiles"), *selected;
    if (!mask || !s->slots)
        return QR_OK;
    if (tiles != (s->slots + 127) / 128)
        return op_refuse(err, BAD_SHAPE, "valid_block_mask has %d tiles, wanted %d for %d slots", tiles, (s->slots + 127) / 128, s->slots);
    TRY(op_host_new(r, 4LL * s->rows * s->slots, &selected, err));
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t k = 0; k < s->slots; k++)
            selected[i * s->slots + k] = mask[(s->first + i) * tiles + k / 128] ? s->selected[i * s->slots + k] : -1;
    s->selected = selected;
    return QR_OK;
}

/* The scene of the rows [first, first + rows), every slot of it checked. */
static qr_status checked_scene(struct op_run *r, int32_t first, int32_t rows, int32_t per_request, struct scene *s, qr_error *err)
{
    TRY(w8a8_scene(r, first, rows, per_request, s, err));
    if (!s->slots)
        return QR_OK;
    TRY(op_check_entries("cmp_table", s->tables, (op_dim(r, "T") + per_request - 1LL) / per_request * s->table_width, op_dim(r, "CP"), err));
    TRY(apply_mask(r, s, err));
    return check_selected(s, 128 / s->ratio, op_dim(r, "CP"), err);
}

static qr_status run_part(struct op_run *r, const struct scene *s, int32_t per_request, qr_error *err)
{
    int32_t cols = op_dim(r, "H*d"), *row;
    struct activation o, u;
    struct rope_spec rope;
    struct step *step;
    TRY(op_step(r, &(struct step_shape){.rows = s->rows, .per_request = per_request, .positions = op_ints(r, "position_ids") + s->first},
                &step, err));
    TRY(op_host_new(r, 4LL * s->rows, &row, err));
    for (int32_t i = 0; i < s->rows; i++)
        row[i] = s->first + i;
    TRY(op_turns(r, "freqs_cos", "freqs_sin", s->rows, row, &rope, err));
    if (op_out(r, "o"))
        o = act_rows(ACT_F32, (float *)op_out(r, "o") + (int64_t)s->first * cols, cols);
    else
        TRY(op_rows(r, ACT_F32, s->rows, cols, 0, &o, err));
    TRY(op_rows(r, ACT_F32, s->rows, op_dim(r, "G*R"), 0, &u, err));
    TRY(attend(r, s, o, err));
    return project(r, s->first, s->rows, step, rope, o, u, err);
}

/* Parts of `most` rows, one after another: what a step of the deployment runs at once. Nothing is run before all is checked. */
static qr_status run_w8a8(struct op_run *r, int32_t live, int32_t per_request, int32_t most, qr_error *err)
{
    struct scene *scenes;
    int32_t parts = (live + most - 1) / most;
    TRY(op_check_positions(r, op_ints(r, "position_ids"), live, per_request, err));
    TRY(op_host_new(r, parts * (int64_t)sizeof *scenes, &scenes, err));
    for (int32_t i = 0; i < parts; i++)
        TRY(checked_scene(r, i * most, live - i * most < most ? live - i * most : most, per_request, &scenes[i], err));
    for (int32_t i = 0; i < parts; i++)
        TRY(run_part(r, &scenes[i], per_request, err));
    return QR_OK;
}

static qr_status run_decode(struct op_run *r, qr_error *err)
{
    if (!r->w8a8)
        return run_reference(r, err);
    if (op_dim(r, "T") % 2 || (op_has(r, "cmp_table") && op_dim(r, "T") != 2 * op_dim(r, "B")))
        return op_refuse(err, BAD_SHAPE, "in.q has %d rows, wanted two for each request", op_dim(r, "T"));
    return run_w8a8(r, op_dim(r, "T"), 2, DECODE_ROWS, err);
}

static qr_status prefill_sizes(struct op_run *r, qr_error *err)
{
    int32_t rows = op_dim(r, "T");
    return rows >= 1 && rows <= PREFILL_ROWS ? QR_OK
                                             : op_refuse(err, BAD_SHAPE, "a prefill of %d tokens, wanted 1 to %d", rows, PREFILL_ROWS);
}

static qr_status run_prefill(struct op_run *r, qr_error *err)
{
    int32_t live;
    TRY(op_live_rows(r, &live, err));
    op_out_slot(r, "attn_out")->live = live;
    return live > 0 ? run_w8a8(r, live, op_dim(r, "T"), TILE_ROWS, err) : QR_OK;
}

/* ---- the tables ---- */

#define WEIGHTS                                                                                                        \
    ARRAY("attn_sink", ARRAY_F32, "H"), ARRAY("wo_a", WEIGHT_OF_BF16, "G R H*d/G", .flags = ARRAY_W8A8),                                  \
    ARRAY("wo_b", WEIGHT_OF_I8, "D G*R", .flags = ARRAY_W8A8, .scales = "wo_b_scale")
#define W8A8_IN                                                                                                        \
    ARRAY("ori_kv", ARRAY_BF16, "P 128 1 d", .flags = ARRAY_W8A8 | ARRAY_HOST), ARRAY("swa_indices", ARRAY_INT, "T W", .flags = ARRAY_W8A8),       \
        ARRAY("freqs_cos", ARRAY_F32, "T *", .flags = ARRAY_W8A8 | ARRAY_HOST),                                                      \
        ARRAY("freqs_sin", ARRAY_F32, "T *", .flags = ARRAY_W8A8 | ARRAY_HOST),                                                      \
        ARRAY("cmp_kv", ARRAY_BF16, "CP 128/rho 1 d", .flags = ARRAY_W8A8 | ARRAY_OPTIONAL),                                         \
    ARRAY("cmp_indices", ARRAY_INT, "T C", .flags = ARRAY_W8A8 | ARRAY_OPTIONAL)

static const struct op_array decode_in[] = {ARRAY("q", ARRAY_BF16, "T H d", .flags = ARRAY_HOST),
                                            ARRAY("position_ids", ARRAY_INT, "T"),
                                            WEIGHTS,
                                            W8A8_IN,
                                            ARRAY("swa_lens", ARRAY_INT, "T", .flags = ARRAY_W8A8),
                                            ARRAY("cmp_table", ARRAY_INT, "B n", .flags = ARRAY_W8A8 | ARRAY_OPTIONAL),
                                            ARRAY("keys", ARRAY_BF16, "P d", .flags = ARRAY_REFERENCE | ARRAY_HOST),
                                            ARRAY("list", ARRAY_INT, "T L", .flags = ARRAY_REFERENCE),
                                            ARRAY("wo_a.weight", WEIGHT_OF_FP8, "G*R H*d/G", .flags = ARRAY_REFERENCE, .scales = "wo_a.scale"),
                                            ARRAY("wo_b.weight", WEIGHT_OF_FP8, "D G*R", .flags = ARRAY_REFERENCE | ARRAY_CUT, .scales = "wo_b.scale"),
                                            {0}};
static const struct op_array decode_out[] = {ARRAY("attn_out", ARRAY_BF16, "T D", .tolerance = "RA(1e-4,1/128,0.005)"),
                                             ARRAY("o", ARRAY_STREAM, "T H d", .tolerance = "RA(1e-3,1/128,0.005)"),
                                             ARRAY("u", ARRAY_BF16, "T G*R", .flags = ARRAY_REFERENCE, .tolerance = "RA(1e-4,1/128,0.005)"),
                                             {0}};

static const struct op_array prefill_in[] = {ARRAY("q", ARRAY_BF16, "T H d", .flags = ARRAY_HOST),
                                             ARRAY("position_ids", ARRAY_INT, "T"),
                                             WEIGHTS,
                                             W8A8_IN,
                                             ARRAY("cmp_table", ARRAY_INT, "n", .flags = ARRAY_W8A8 | ARRAY_OPTIONAL),
                                             ARRAY("cmp_storage_block_size", ARRAY_INT, "1", .flags = ARRAY_OPTIONAL),
                                             ARRAY("num_tokens", ARRAY_INT, "1", .flags = ARRAY_OPTIONAL),
                                             ARRAY("valid_block_mask", ARRAY_U8, "T tiles", .flags = ARRAY_OPTIONAL),
                                             {0}};
static const struct op_array prefill_out[] = {ARRAY("attn_out", ARRAY_BF16, "T D", .tolerance = "RA(1e-4,1/128,0.005)"), {0}};

#define NEEDS "num_attention_heads sliding_window qk_rope_head_dim o_groups o_lora_rank ratio"
/* A part is laid out as the keys of each query and the query, at most. */
#define ROWS "129*T"
#define TILE "129*128"

const struct op_harness op_attention_harnesses[] = {
    {"decode_sparse_attn_swa", 11, "attention over the window, output projection", NEEDS, decode_in, decode_out, ROWS, NULL, run_decode, NULL},
    {"decode_sparse_attn_hca", 12, "attention over window and all compressed rows", NEEDS, decode_in, decode_out, ROWS, NULL, run_decode, NULL},
    {"decode_sparse_attn_csa", 13, "attention over window and selected rows", NEEDS, decode_in, decode_out, ROWS, NULL, run_decode, NULL},
    {"prefill_sparse_attn", 28, "attention of a prefill tile", NEEDS, prefill_in, prefill_out, TILE, prefill_sizes, run_prefill, NULL},
    {0}};
