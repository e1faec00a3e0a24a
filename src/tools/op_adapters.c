#include "tools/op_adapters.h"

#include <string.h>

#include "model/rope.h"

/* ---- steps ---- */

qr_status op_step(struct op_run *r, const struct step_shape *s, struct step **out, qr_error *err)
{
    int32_t requests = s->first_row ? s->requests : s->per_request > 0 ? (s->rows + s->per_request - 1) / s->per_request : 0;
    int32_t *batch, *first_row, *first_position, *slot, *zeros;
    struct step *step;

    TRY(op_host_new(r, sizeof *step, &step, err));
    TRY(op_host_new(r, (s->rows + 1) * 4LL, &batch, err));
    TRY(op_host_new(r, (s->rows + 1) * 4LL, &zeros, err));
    TRY(op_host_new(r, (requests + 1) * 4LL, &first_row, err));
    TRY(op_host_new(r, (requests + 1) * 4LL, &first_position, err));
    TRY(op_host_new(r, (requests + 1) * 4LL, &slot, err));
    for (int32_t b = 0; b <= requests; b++) {
        first_row[b] = s->first_row ? s->first_row[b] : b * s->per_request < s->rows ? b * s->per_request : s->rows;
        slot[b] = b;
    }
    for (int32_t b = 0; b < requests; b++) {
        for (int32_t i = first_row[b]; i < first_row[b + 1]; i++)
            batch[i] = b;
        first_position[b] = s->positions && first_row[b] < s->rows ? s->positions[first_row[b]] : 0;
    }

    *step = (struct step){.rows = s->rows, .requests = requests, .block_stride = s->table ? s->width : 0};
    TRY(op_upload(r, s->tokens ? s->tokens : zeros, s->rows * 4LL, &step->token_ids, err));
    TRY(op_upload(r, s->positions ? s->positions : zeros, s->rows * 4LL, &step->positions, err));
    TRY(op_upload(r, batch, s->rows * 4LL, &step->batch_id, err));
    TRY(op_upload(r, first_row, (requests + 1) * 4LL, &step->first_row, err));
    TRY(op_upload(r, first_position, requests * 4LL, &step->first_position, err));
    TRY(op_upload(r, slot, requests * 4LL, &step->slot, err));
    if (s->table)
        TRY(op_upload(r, s->table, (int64_t)requests * s->width * 4, &step->block_table, err));
    *out = step;
    return QR_OK;
}

/* ---- checks ---- */

qr_status op_check_positions(const struct op_run *r, const int32_t *positions, int32_t rows, int32_t per_request, qr_error *err)
{
    int32_t most = r->config.max_position_embeddings - 1;
    for (int32_t i = 0; i < rows; i++) {
        int32_t request = i / per_request, p = positions[i];
        if (p < 0 || p > most)
            return op_refuse(err, BAD_POSITION, "row %d stands at %d, wanted 0 to %d", i, p, most);
        if (i % per_request && p != positions[i - 1] + 1)
            return op_refuse(err, BAD_POSITION, "rows %d and %d of request %d stand at %d and %d, wanted consecutive positions",
                             i - 1, i, request, positions[i - 1], p);
    }
    return QR_OK;
}

qr_status op_check_tokens(const int32_t *tokens, int64_t count, int32_t vocab, qr_error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return op_refuse(err, BAD_TOKEN, "row %lld holds token %d, wanted 0 to %d", (long long)i, tokens[i], vocab - 1);
    return QR_OK;
}

qr_status op_check_hash_table(const struct op_run *r, const char *name, qr_error *err)
{
    const int32_t *table = op_ints(r, name);
    int32_t active = op_dim(r, "K"), experts = op_dim(r, "E");
    for (int64_t t = 0; t < op_dim(r, "V"); t++)
        for (int32_t k = 0; k < active; k++) {
            int32_t e = table[t * active + k];
            if (e < 0 || e >= experts)
                return op_refuse(err, BAD_CHECKPOINT, "in.%s [%lld][%d] is %d, wanted 0 to %d", name, (long long)t, k, e, experts - 1);
            for (int32_t i = 0; i < k; i++)
                if (table[t * active + i] == e)
                    return op_refuse(err, BAD_CHECKPOINT, "in.%s [%lld] holds expert %d twice", name, (long long)t, e);
        }
    return QR_OK;
}

qr_status op_check_entries(const char *what, const int32_t *entries, int64_t count, int64_t limit, qr_error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (entries[i] < -1 || entries[i] >= limit)
            return op_refuse(err, BAD_TABLE, "%s entry %lld is %d, wanted -1 to %lld", what, (long long)i, entries[i],
                             (long long)limit - 1);
    return QR_OK;
}

qr_status op_live_rows(struct op_run *r, int32_t *out, qr_error *err)
{
    int32_t rows = op_dim(r, "T");
    double live = op_param(r, "num_tokens", rows);
    if (op_has(r, "num_tokens"))
        live = op_ints(r, "num_tokens")[0];
    if (live < 0 || live > rows)
        return op_refuse(err, BAD_SHAPE, "num_tokens is %.0f, wanted 0 to %d", live, rows);
    *out = (int32_t)live;
    return QR_OK;
}

/* ---- rotation ---- */

qr_status op_turns(struct op_run *r, const char *cosines, const char *sines, int32_t rows, const int32_t *row,
                   struct rope_spec *out, qr_error *err)
{
    const char *names[2] = {cosines, sines};
    int32_t dim = op_dim(r, "r"), pairs = dim / 2;
    float *turns;
    TRY(op_host_new(r, (int64_t)rows * dim * 4, &turns, err));
    for (int half = 0; half < 2; half++) {
        const float *from = op_host(r, names[half]);
        const struct op_slot *slot = NULL;
        for (int32_t i = 0; i < r->in_count; i++)
            if (strcmp(r->in[i].array->name, names[half]) == 0)
                slot = &r->in[i];
        int64_t width = slot->shape[slot->rank - 1];
        if (width != dim && width != pairs)
            return op_refuse(err, BAD_SHAPE, "in.%s has %lld columns, wanted %d or %d", names[half], (long long)width, pairs, dim);
        for (int32_t i = 0; i < rows; i++) {
            const float *at = from + (row ? row[i] : i) * width;
            for (int32_t c = pairs; c < width; c++)
                if (at[c] != at[c - pairs])
                    return op_refuse(err, BAD_SHAPE, "in.%s row %d: column %d does not repeat column %d", names[half], i, c, c - pairs);
            memcpy(turns + (int64_t)i * dim + half * pairs, at, (size_t)pairs * sizeof *turns);
        }
    }
    *out = (struct rope_spec){.dim = dim, .bf16_tables = r->w8a8};
    return op_upload(r, turns, (int64_t)rows * dim * 4, &out->turns, err);
}

qr_status op_frequencies(struct op_run *r, int32_t ratio, struct rope_spec *out, qr_error *err)
{
    float *frequencies;
    TRY(op_host_new(r, ROPE_MAX_PAIRS * 4LL, &frequencies, err));
    TRY(rope_frequencies(&r->config, ratio > 0 ? ROPE_COMPRESS : ROPE_MAIN, frequencies, err));
    *out = (struct rope_spec){.frequencies = frequencies, .dim = op_dim(r, "r"), .bf16_tables = r->w8a8};
    return QR_OK;
}

/* ---- memory ---- */

qr_status op_download(struct op_run *r, const void *from, int64_t bytes, void *pointer, qr_error *err)
{
    void *p;
    TRY(op_host_new(r, bytes, &p, err));
    TRY(r->backend->download(r->backend, p, from, bytes, err));
    TRY(r->backend->fence(r->backend, err));
    memcpy(pointer, &p, sizeof p);
    return QR_OK;
}

/* ---- pages ---- */

struct row_plane op_plane(enum row_format format, void *values, void *scales, int32_t rows_per_page, int32_t cols)
{
    int64_t row = format == ROW_BF16 ? 2LL * cols : cols;
    return (struct row_plane){.format = format, .rows_per_block = rows_per_page, .tile_rows = rows_per_page,
                              .values = values, .scales = scales, .value_row_stride = row,
                              .value_tile_stride = row * rows_per_page, .value_block_stride = row * rows_per_page,
                              .scale_row_stride = 4, .scale_tile_stride = 4LL * rows_per_page,
                              .scale_block_stride = 4LL * rows_per_page};
}
