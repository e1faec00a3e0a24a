/* Operators 7 to 9 (decode over a paged state) and 29 to 31 (prefill from position 0) of v4-model.md section 10. */
#include <string.h>

#include "number/bf16.h"
#include "tools/op_compressor.h"

/* Requests of a decode step (v4-model.md 9.1). */
enum { DECODE_REQUESTS = 4 };

/* Minus infinity in storage (7.4). */
static const float lowest_score = -3.4028234663852886e38f;

static struct op_compressor compressor_of(const struct op_run *r, bool index)
{
    bool reference = !r->w8a8;
    return (struct op_compressor){.ratio = op_dim(r, "rho"), .width = op_dim(r, index ? "di" : "d"), .index = index,
                                  .wkv = op_weight(r, reference ? "wkv.weight" : "wkv"),
                                  .wgate = op_weight(r, reference ? "wgate.weight" : "wgate"), .ape = op_in(r, "ape"),
                                  .norm = op_in(r, reference ? "norm.weight" : "norm_w"), .eps = r->config.rms_norm_eps};
}

/* The form of the files: 9 and 31 are the indexer's. */
static bool is_index(const struct op_run *r) { return r->harness->number == 9 || r->harness->number == 31; }

/* ---- 7 to 9 ---- */

/* The pages of a decode call, on the host. */
struct pages {
    int32_t first;                        /* request of the arrays: those before it are in another group */
    int32_t requests, page_rows, width;   /* of the state table */
    const int32_t *positions, *table, *state_slot, *cmp_slot;
    int32_t rows_per_page;                /* of the compressed cache */
    int64_t state_pages, cache_pages;
};

static struct pages pages_of(const struct op_run *r)
{
    return (struct pages){.requests = op_dim(r, "B"), .page_rows = op_dim(r, "pg"), .width = op_dim(r, "n"),
                          .positions = op_ints(r, "position_ids"), .table = op_ints(r, "state_table"),
                          .state_slot = op_ints(r, "state_slot"), .cmp_slot = op_ints(r, "cmp_slot"),
                          .rows_per_page = 128 / op_dim(r, "rho"), .state_pages = op_dim(r, "P"), .cache_pages = op_dim(r, "CP")};
}

/* Requests [first, first + count) of them. */
static struct pages group_of(const struct pages *all, int32_t first, int32_t count)
{
    struct pages p = *all;
    p.first = first;
    p.requests = count;
    p.positions += 2 * first;
    p.table += (int64_t)first * p.width;
    p.state_slot += 2 * first;
    p.cmp_slot += 2 * first;
    return p;
}

/* The pool row of a position, or -1: bt[p / pg mod n] * pg + p mod pg (9.2). */
static int64_t state_row(const struct pages *p, int32_t request, int64_t position)
{
    int32_t page = p->table[(int64_t)request * p->width + position / p->page_rows % p->width];
    return page < 0 ? -1 : (int64_t)page * p->page_rows + position % p->page_rows;
}

/* Ratio 4 overlaps and so has twice the columns; any other that divides a page is plain. */
static qr_status check_ratio(const struct op_run *r, qr_error *err)
{
    int32_t ratio = op_dim(r, "rho"), cols = op_dim(r, is_index(r) ? "di" : "d") * (ratio == 4 ? 2 : 1);
    bool plain = r->harness->number == 8 || r->harness->number == 30;
    if (ratio < 1 || 128 % ratio || plain == (ratio == 4))
        return op_refuse(err, BAD_SHAPE, "ratio is %d, wanted %s", ratio, plain ? "another divisor of 128 than 4" : "4");
    if (op_dim(r, "cols") != cols)
        return op_refuse(err, BAD_SHAPE, "in.wkv has %d rows, wanted %d for ratio %d", op_dim(r, "cols"), cols, ratio);
    return QR_OK;
}

/* Pages of the cache that the slots name: those of the file, else as many as the largest slot needs. */
static qr_status cache_pages(struct op_run *r, qr_error *err)
{
    const struct tensor_view *out = op_file_find(r->file, is_index(r) ? "out.idx_kv_cache" : "out.cmp_kv_cache");
    const struct tensor_view *slots = op_file_find(r->file, "in.cmp_slot");
    int64_t most = 0, count = tensor_elements(slots->rank, slots->shape), ratio = op_dim(r, "rho");
    TRY(check_ratio(r, err));
    for (int64_t i = 0; i < count; i++)
        most = tensor_number(slots, i) > (double)most ? (int64_t)tensor_number(slots, i) : most;
    dims_bind(&r->dims, "CP", out && out->rank == 4 ? out->shape[0] : most / (128 / ratio) + 1);
    return QR_OK;
}

static qr_status check_slot(const struct pages *p, int32_t i, int32_t ratio, qr_error *err)
{
    int32_t request = i / 2, position = p->positions[i], state = p->state_slot[i], slot = p->cmp_slot[i];
    bool boundary = (position + 1) % ratio == 0;
    int64_t wanted = state_row(p, request, position);

    if (state != -1 && state != wanted) /* -1: the row is not kept */
        return op_refuse(err, BAD_TABLE, "state_slot of request %d row %d is %d, its table gives %lld", request, i % 2, state,
                         (long long)wanted);
    if (slot < -1 || slot >= p->cache_pages * p->rows_per_page || (slot >= 0 && !boundary))
        return op_refuse(err, BAD_TABLE, "cmp_slot of request %d row %d is %d at position %d, wanted %s", request, i % 2, slot,
                         position, boundary ? "-1 or a row of the cache" : "-1: no group ends there");
    if (slot >= 0 && slot % p->rows_per_page != position % 128 / ratio)
        return op_refuse(err, BAD_TABLE, "cmp_slot of request %d row %d is row %d of its page, position %d wants row %d",
                         request, i % 2, slot % p->rows_per_page, position, position % 128 / ratio);
    return QR_OK;
}

/* A page that one request writes must not be written by another. */
static qr_status check_shared(const char *what, const int32_t *slots, int32_t rows, int32_t page_rows, qr_error *err)
{
    for (int32_t i = 0; i < rows; i++)
        for (int32_t j = 0; j < i - i % 2; j++)
            if (slots[i] >= 0 && slots[j] >= 0 && slots[i] / page_rows == slots[j] / page_rows)
                return op_refuse(err, BAD_TABLE, "requests %d and %d both write page %d of the %s", j / 2, i / 2,
                                 slots[i] / page_rows, what);
    return QR_OK;
}

static qr_status check_pages(const struct op_run *r, const struct pages *p, int32_t members, qr_error *err)
{
    int32_t ratio = op_dim(r, "rho"), rows = 2 * p->requests;
    TRY(op_check_entries("state_table", p->table, (int64_t)p->requests * p->width, p->state_pages, err));
    for (int32_t b = 0; b < p->requests; b++) {
        int64_t last = p->positions[2 * b + 1] + 1LL, needed = last < members + 1 ? last : members + 1;
        if (needed > (int64_t)p->width * p->page_rows)
            return op_refuse(err, BAD_TABLE, "state_table of request %d has room for %lld rows, wanted %lld", b,
                             (long long)p->width * p->page_rows, (long long)needed);
    }
    for (int32_t i = 0; i < rows; i++)
        TRY(check_slot(p, i, ratio, err));
    TRY(check_shared("state", p->state_slot, rows, p->page_rows, err));
    return check_shared("compressed cache", p->cmp_slot, rows, p->rows_per_page, err);
}

/* The state as rings of absolute positions: what the pool holds, missing pages as value 0 and score -inf. */
static qr_status fill_rings(struct op_run *r, const struct pages *p, const struct op_compressor *c, struct ring_plane *out,
                            qr_error *err)
{
    int64_t cols = compressor_cols(c), members = compressor_members(c), rows = 2 * members;
    int64_t bytes = p->requests * rows * cols * 4;
    const float *pool = op_host(r, "state");
    float *values, *scores;
    TRY(op_host_new(r, bytes, &values, err));
    TRY(op_host_new(r, bytes, &scores, err));
    for (int32_t b = 0; b < p->requests; b++) {
        int64_t last = p->positions[2 * b + 1];
        for (int64_t q = last - members > 0 ? last - members : 0; q <= last; q++) {
            int64_t row = state_row(p, b, q), at = (b * rows + q % rows) * cols;
            for (int64_t k = 0; k < cols; k++) {
                values[at + k] = row < 0 ? 0 : pool[row * 2 * cols + k];
                scores[at + k] = row < 0 ? lowest_score : pool[row * 2 * cols + cols + k];
            }
        }
    }
    *out = (struct ring_plane){.rows = (int32_t)rows, .slot_stride = rows * cols * 4, .value_row_stride = cols * 4,
                               .scale_row_stride = cols * 4};
    TRY(op_upload(r, values, bytes, &out->values, err));
    return op_upload(r, scores, bytes, &out->scales, err);
}

/* Rows of the call that satisfy `wanted`, in the backend's memory. */
static qr_status list_rows(struct op_run *r, const struct pages *p, bool (*wanted)(const struct pages *p, int32_t row, int32_t ratio),
                           struct row_list *out, qr_error *err)
{
    int32_t *list, n = 0;
    TRY(op_host_new(r, 8LL * p->requests, &list, err));
    for (int32_t i = 0; i < 2 * p->requests; i++)
        if (wanted(p, i, op_dim(r, "rho")))
            list[n++] = i;
    out->count = n;
    return op_upload(r, list, 4LL * n, &out->index, err);
}

static bool ends_a_group(const struct pages *p, int32_t row, int32_t ratio) { return (p->positions[row] + 1) % ratio == 0; }

static bool keeps_its_state(const struct pages *p, int32_t row, int32_t ratio)
{
    (void)ratio;
    return p->state_slot[row] >= 0;
}

/* The block table in which the page of each stored row stands where its position has it. */
static qr_status cache_table(struct op_run *r, const struct pages *p, int32_t **out, int32_t *width, qr_error *err)
{
    *width = 1;
    for (int32_t i = 0; i < 2 * p->requests; i++)
        *width = p->positions[i] / 128 + 1 > *width ? p->positions[i] / 128 + 1 : *width;
    TRY(op_host_new(r, 4LL * p->requests * *width, out, err));
    for (int64_t i = 0; i < (int64_t)p->requests * *width; i++)
        (*out)[i] = -1;
    for (int32_t i = 0; i < 2 * p->requests; i++)
        if (p->cmp_slot[i] >= 0)
            (*out)[(int64_t)(i / 2) * *width + p->positions[i] / 128] = p->cmp_slot[i] / p->rows_per_page;
    return QR_OK;
}

/* The cache as it was, to be written into. */
static qr_status copy_cache(struct op_run *r, const char *name, qr_error *err)
{
    if (op_has(r, name))
        CALL(r, copy, .to = op_out(r, name), .from = op_in(r, name), .bytes = op_out_slot(r, name)->bytes);
    return QR_OK;
}

static struct row_plane cache_plane(struct op_run *r, bool index, const struct pages *p)
{
    if (!index)
        return op_plane(ROW_BF16, op_out(r, "cmp_kv_cache"), NULL, p->rows_per_page, op_dim(r, "d"));
    return op_plane(ROW_INDEX_INT8, op_out(r, "idx_kv_cache"), op_out(r, "idx_kv_scale"), p->rows_per_page, op_dim(r, "di"));
}

/* state: the pool afterwards; state_rows: its rows that this call wrote, [kv | sc]. */
static qr_status put_state(struct op_run *r, const struct pages *p, struct activation kv, struct activation sc, qr_error *err)
{
    int64_t cols = kv.cols;
    const float *values, *scores;
    float *pool = op_out(r, "state"), *rows = (float *)op_out(r, "state_rows") + 4LL * p->first * cols;
    TRY(op_download(r, kv.codes, 2LL * p->requests * cols * 4, &values, err));
    TRY(op_download(r, sc.codes, 2LL * p->requests * cols * 4, &scores, err));
    for (int32_t i = 0; i < 2 * p->requests; i++) {
        if (p->state_slot[i] < 0)
            continue;
        memcpy(rows + i * 2 * cols, values + i * cols, (size_t)cols * 4);
        memcpy(rows + i * 2 * cols + cols, scores + i * cols, (size_t)cols * 4);
        memcpy(pool + p->state_slot[i] * 2LL * cols, rows + i * 2 * cols, (size_t)cols * 8);
    }
    return QR_OK;
}

/* kv: row 0 of a request holds the row that it emitted, if any. */
static qr_status put_rows(struct op_run *r, const struct pages *p, const struct op_compressor *c, const float *turned,
                          const uint16_t *transformed, qr_error *err)
{
    int64_t rows = 2LL * p->requests, width = c->width;
    const float *values;
    const uint16_t *codes = NULL;
    float *kv = (float *)op_out(r, "kv") + 2LL * p->first * width;
    float *hadamard = c->index ? (float *)op_out(r, "kv_hadamard") + p->first * width : NULL;
    TRY(op_download(r, turned, rows * width * 4, &values, err));
    if (c->index)
        TRY(op_download(r, transformed, rows * width * 2, &codes, err));
    for (int64_t i = 0; i < rows; i++) {
        if (!ends_a_group(p, (int32_t)i, c->ratio))
            continue;
        memcpy(kv + i / 2 * 2 * width, values + i * width, (size_t)width * 4);
        for (int64_t k = 0; c->index && k < width; k++)
            hadamard[i / 2 * width + k] = bf16_decode(codes[i * width + k]);
    }
    return QR_OK;
}

static qr_status run_group(struct op_run *r, const struct pages *group, qr_error *err)
{
    struct op_compressor c = compressor_of(r, is_index(r));
    struct pages p = *group;
    int32_t rows = 2 * p.requests, width, *table, *row, *from;
    struct compressor_rows e = {0};
    struct row_list keep;
    struct step *step;
    uint16_t *transformed = NULL;

    TRY(cache_table(r, &p, &table, &width, err));
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = 2, .positions = p.positions, .table = table, .width = width},
                &step, err));
    TRY(op_host_new(r, rows * 4LL, &row, err));
    TRY(op_host_new(r, p.requests * 4LL, &from, err));
    for (int32_t i = 0; i < rows; i++)
        row[i] = p.first + i / 2;
    for (int32_t b = 0; b < p.requests; b++)
        from[b] = p.positions[2 * b + 1] + 1; /* every member is read from the state, as the rows just written are */
    TRY(op_turns(r, "cos", "sin", rows, row, &c.rope, err));
    TRY(fill_rings(r, &p, &c, &e.tail, err));
    e.plane = cache_plane(r, c.index, &p);
    TRY(list_rows(r, &p, keeps_its_state, &keep, err));
    TRY(list_rows(r, &p, ends_a_group, &e.emit, err));
    TRY(op_upload(r, from, p.requests * 4LL, &e.from, err));
    TRY(op_buffer(r, (int64_t)rows * c.width * 4, &e.turned, err));
    TRY(op_buffer(r, (int64_t)rows * c.width * 2, &e.turned_bf16, err));
    TRY(op_buffer(r, (int64_t)rows * c.width * 2, &transformed, err));

    e.step = e.starts = step;
    TRY(compressor_inputs(r, &c, step, first_rows_of(rows),
                          act_rows(ACT_BF16, (uint16_t *)op_in(r, "x") + 2LL * p.first * op_dim(r, "D"), op_dim(r, "D")), &e.kv, &e.sc, err));
    CALL(r, tail_write, .rows = keep, .step = step, .values = e.kv.codes, .scores = e.sc.codes, .cols = e.kv.cols, .tail = e.tail);
    TRY(compressor_emit(r, &c, &e, err));
    if (c.index && e.emit.count)
        CALL(r, linear, .rows = e.emit, .in = act_rows(ACT_BF16, e.turned_bf16, c.width), .weight = op_weight(r, "hadamard"),
             .out = act_rows(ACT_BF16, transformed, c.width));
    TRY(put_state(r, &p, e.kv, e.sc, err));
    return put_rows(r, &p, &c, e.turned, transformed, err);
}

/* Groups of a deployment's batch, one after another. Nothing is run before all is checked. */
static qr_status run_decode(struct op_run *r, qr_error *err)
{
    struct op_compressor c = compressor_of(r, is_index(r));
    struct pages all = pages_of(r);
    TRY(op_check_positions(r, all.positions, 2 * all.requests, 2, err));
    TRY(check_pages(r, &all, compressor_members(&c), err));
    if (c.index)
        TRY(compressor_check_hadamard(r, "hadamard", c.width, err));
    TRY(copy_cache(r, c.index ? "idx_kv_cache" : "cmp_kv_cache", err));
    if (c.index)
        TRY(copy_cache(r, "idx_kv_scale", err));
    memcpy(op_out(r, "state"), op_host(r, "state"), (size_t)op_out_slot(r, "state")->bytes);
    for (int32_t first = 0; first < all.requests; first += DECODE_REQUESTS) {
        int32_t left = all.requests - first;
        const struct pages group = group_of(&all, first, left < DECODE_REQUESTS ? left : DECODE_REQUESTS);
        TRY(run_group(r, &group, err));
    }
    return QR_OK;
}

/* ---- 29 to 31 ---- */

static qr_status prefill_sizes(struct op_run *r, qr_error *err)
{
    int32_t ratio = op_dim(r, "rho"), rows = op_dim(r, "T"), kept = ratio == 4 ? 8 : 4;
    TRY(check_ratio(r, err));
    if (rows < 1 || rows > 8192)
        return op_refuse(err, BAD_SHAPE, "a prefill of %d tokens, wanted 1 to 8192", rows);
    dims_bind(&r->dims, "rows", rows / ratio);
    dims_bind(&r->dims, "kept", rows < kept ? rows : kept);
    return QR_OK;
}

static qr_status put_tail(struct op_run *r, struct activation kv, struct activation sc, qr_error *err)
{
    int64_t cols = kv.cols, rows = op_dim(r, "T"), kept = op_dim(r, "kept");
    uint8_t *out = op_out(r, "state_tail");
    for (int64_t i = 0; i < kept; i++) {
        int64_t from = (rows - kept + i) * cols * 4;
        CALL(r, copy, .to = out + i * cols * 8, .from = (uint8_t *)kv.codes + from, .bytes = cols * 4);
        CALL(r, copy, .to = out + i * cols * 8 + cols * 4, .from = (uint8_t *)sc.codes + from, .bytes = cols * 4);
    }
    return QR_OK;
}

static qr_status run_prefill(struct op_run *r, qr_error *err)
{
    struct op_compressor c = compressor_of(r, is_index(r));
    int32_t rows = op_dim(r, "T"), emitted = op_dim(r, "rows"), *positions, *starts, *list;
    const int32_t first_page = 0;
    bool int8 = r->w8a8 && c.index;
    struct compressor_rows e = {.emit.count = emitted};
    struct step *step, *start_step;

    TRY(op_host_new(r, rows * 4LL, &positions, err));
    TRY(op_host_new(r, rows * 4LL, &starts, err));
    TRY(op_host_new(r, emitted * 4LL, &list, err));
    for (int32_t i = 0; i < rows; i++) {
        positions[i] = i;
        starts[i] = i - i % c.ratio;
    }
    for (int32_t i = 0; i < emitted; i++)
        list[i] = (i + 1) * c.ratio - 1;
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = rows, .positions = positions, .table = &first_page, .width = 1},
                &step, err));
    TRY(op_frequencies(r, c.ratio, &c.rope, err));
    if (int8)
        TRY(compressor_check_hadamard(r, "hadamard", c.width, err));

    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = rows, .positions = starts}, &start_step, err));
    e.step = step;
    e.starts = start_step;
    e.from = step->first_position;
    e.plane = op_plane(int8 ? ROW_INDEX_INT8 : ROW_BF16, op_out(r, int8 ? "kv" : "cmp_kv"), int8 ? op_out(r, "scale") : NULL,
                       emitted > 0 ? emitted : 1, c.width);
    TRY(op_upload(r, list, emitted * 4LL, &e.emit.index, err));
    if (int8)
        TRY(op_buffer(r, (int64_t)rows * c.width * 4, &e.turned, err));
    TRY(compressor_inputs(r, &c, step, first_rows_of(rows), act_rows(ACT_BF16, op_in(r, "x"), op_dim(r, "D")), &e.kv, &e.sc, err));
    TRY(compressor_emit(r, &c, &e, err));
    if (int8 && emitted)
        CALL(r, gather, .rows = e.emit, .in = act_rows(ACT_F32, e.turned, c.width),
             .out = act_rows(ACT_F32, op_out(r, "kv_rope"), c.width));
    return put_tail(r, e.kv, e.sc, err);
}

/* ---- the tables ---- */

#define DECODE_IN(WIDTH)                                                                                               \
    ARRAY("x", ARRAY_BF16, "B S D"), ARRAY("wkv", WEIGHT_OF_BF16, "cols D"), ARRAY("wgate", WEIGHT_OF_BF16, "cols D"),                \
        ARRAY("ape", ARRAY_F32, "rho cols"), ARRAY("norm_w", ARRAY_BF16, WIDTH), ARRAY("cos", ARRAY_F32, "B *", .flags = ARRAY_HOST),          \
        ARRAY("sin", ARRAY_F32, "B *", .flags = ARRAY_HOST), ARRAY("position_ids", ARRAY_INT, "B S"), ARRAY("cmp_slot", ARRAY_INT, "B S"),     \
        ARRAY("state_slot", ARRAY_INT, "B S"), ARRAY("state_table", ARRAY_INT, "B n"),                                           \
    ARRAY("state", ARRAY_F32, "P pg 2*cols", .flags = ARRAY_HOST)
#define DECODE_STATE                                                                                                   \
    ARRAY("state_rows", ARRAY_F32, "B S 2*cols", .flags = ARRAY_HOST, .tolerance = "RA(1e-3,1e-3,0)", .also = "state"),              \
    ARRAY("state", ARRAY_F32, "P pg 2*cols", .flags = ARRAY_HOST, .tolerance = "RA(1e-3,1e-3,0)")

static const struct op_array decode_in[] = {DECODE_IN("d"), ARRAY("cmp_kv_cache", ARRAY_BF16, "CP 128/rho 1 d", .flags = ARRAY_OPTIONAL), {0}};
static const struct op_array decode_out[] = {
    ARRAY("kv", ARRAY_F32, "B S d", .flags = ARRAY_HOST, .tolerance = "RA(1e-4,1/128,0)"),
    ARRAY("cmp_kv_cache", ARRAY_BF16, "CP 128/rho 1 d", .also = "cache", .tolerance = "RA(1e-4,1/128,0)"),
    DECODE_STATE,
    {0}};

static const struct op_array decode_index_in[] = {DECODE_IN("di"),
                                                  ARRAY("hadamard", WEIGHT_OF_BF16, "di di"),
                                                  ARRAY("idx_kv_cache", ARRAY_I8, "CP 128/rho 1 di", .flags = ARRAY_OPTIONAL),
                                                  ARRAY("idx_kv_scale", ARRAY_F32, "CP 128/rho 1 1", .flags = ARRAY_OPTIONAL),
                                                  {0}};
static const struct op_array decode_index_out[] = {
    ARRAY("kv", ARRAY_F32, "B S di", .flags = ARRAY_HOST, .tolerance = "RA(1e-4,1/128,0)"),
    ARRAY("kv_hadamard", ARRAY_F32, "B di", .flags = ARRAY_HOST, .also = "kv", .tolerance = "RA(1e-4,1/128,0)"),
    ARRAY("idx_kv_cache", ARRAY_I8, "CP 128/rho 1 di", .also = "cache", .tolerance = "RA(1,0,0.01)"),
    ARRAY("idx_kv_scale", ARRAY_F32, "CP 128/rho 1 1", .also = "scale", .tolerance = "RA(1e-4,1/128,0.01)"),
    DECODE_STATE,
    {0}};

#define PREFILL_IN(WIDTH)                                                                                              \
    ARRAY("x", ARRAY_BF16, "T D"), ARRAY("ape", ARRAY_F32, "rho cols"),                                                          \
        ARRAY("wkv.weight", WEIGHT_OF_BF16, "cols D", .flags = ARRAY_REFERENCE),                                                     \
        ARRAY("wgate.weight", WEIGHT_OF_BF16, "cols D", .flags = ARRAY_REFERENCE), ARRAY("norm.weight", ARRAY_BF16, WIDTH, .flags = ARRAY_REFERENCE), \
        ARRAY("wkv", WEIGHT_OF_BF16, "cols D", .flags = ARRAY_W8A8), ARRAY("wgate", WEIGHT_OF_BF16, "cols D", .flags = ARRAY_W8A8),                \
    ARRAY("norm_w", ARRAY_BF16, WIDTH, .flags = ARRAY_W8A8)
#define PREFILL_STATE                                                                                                  \
    ARRAY("state_tail", ARRAY_F32, "kept 2*cols", .also = "state", .tolerance = "RA(1e-3,1e-3,0)")

static const struct op_array prefill_in[] = {PREFILL_IN("d"), {0}};
static const struct op_array prefill_out[] = {ARRAY("cmp_kv", ARRAY_BF16, "rows d", .tolerance = "RA(1e-4,1/128,0)"), PREFILL_STATE, {0}};
static const struct op_array prefill_index_in[] = {PREFILL_IN("di"), ARRAY("hadamard", WEIGHT_OF_BF16, "di di", .flags = ARRAY_W8A8), {0}};
static const struct op_array prefill_index_out[] = {
    ARRAY("cmp_kv", ARRAY_BF16, "rows di", .flags = ARRAY_REFERENCE, .tolerance = "RA(1e-4,1/128,0.005)"),
    ARRAY("kv", ARRAY_I8, "rows di", .flags = ARRAY_W8A8, .tolerance = "RA(1,0,.01)"),
    ARRAY("scale", ARRAY_F32, "rows 1", .flags = ARRAY_W8A8, .tolerance = "RA(1e-4,1/128,.01)"),
    ARRAY("kv_rope", ARRAY_F32, "rows di", .flags = ARRAY_W8A8, .tolerance = "RA(1e-4,1/128,0)"),
    PREFILL_STATE,
    {0}};

#define NEEDS "ratio qk_rope_head_dim rms_norm_eps"

const struct op_harness op_compressor_harnesses[] = {
    {"decode_compressor_ratio4", 7, "overlapping compressor over a paged state", NEEDS, decode_in, decode_out, "2*B", cache_pages, run_decode, NULL},
    {"decode_compressor_ratio128", 8, "plain compressor over a paged state", NEEDS, decode_in, decode_out, "2*B", cache_pages, run_decode, NULL},
    {"decode_indexer_compressor", 9, "the indexer's compressor over a paged state", NEEDS, decode_index_in, decode_index_out, "2*B",
     cache_pages, run_decode, NULL},
    {"prefill_compressor_ratio4", 29, "overlapping compressor from position 0", NEEDS, prefill_in, prefill_out, "T", prefill_sizes, run_prefill, NULL},
    {"prefill_compressor_ratio128", 30, "plain compressor from position 0", NEEDS, prefill_in, prefill_out, "T", prefill_sizes, run_prefill, NULL},
    {"prefill_indexer_compressor", 31, "the indexer's compressor from position 0", NEEDS, prefill_index_in, prefill_index_out, "T",
     prefill_sizes, run_prefill, NULL},
    {0}};
