#include "cache/budget.h"

#include <stdio.h>

int64_t budget_default_bytes(int64_t available, int64_t resident_weights)
{
    return available > resident_weights ? (available - resident_weights) / 2 : 0;
}

static int64_t blocks_for(const struct geometry *g, int64_t tokens)
{
    return (tokens + g->options.block_tokens - 1) / g->options.block_tokens;
}

static int64_t pool_bytes(const struct geometry *g, int64_t blocks, int64_t slots)
{
    struct pool_layout pool;
    return geometry_pool(g, blocks, slots, &pool, NULL) == QR_OK ? pool.bytes : INT64_MAX;
}

/* For the message of E31: what would do, and what the bytes given would hold. */
static void name_what_fits(const struct geometry *g, const struct budget_request *r, int64_t wanted_blocks, int64_t least,
                           char *out, size_t room)
{
    const int64_t length = (geometry_blocks_in(g, r->bytes, r->slots) - 1) * g->options.block_tokens;
    int64_t slots = 0, more = r->slots - 1;
    int used = snprintf(out, room, "--kv-ram-bytes %lld would do", (long long)least);
    if (length > 0) {
        snprintf(out + used, room - (size_t)used, ", or --max-model-len %lld", (long long)length);
        return;
    }
    while (slots < more) { /* the size grows with the slots */
        const int64_t middle = slots + (more - slots + 1) / 2;
        if (pool_bytes(g, wanted_blocks + 1, middle) <= r->bytes)
            slots = middle;
        else
            more = middle - 1;
    }
    if (slots > 0)
        snprintf(out + used, room - (size_t)used, ", or --max-num-seqs %lld", (long long)slots);
}

int64_t budget_least(const struct geometry *g, const struct budget_request *r)
{
    return pool_bytes(g, (r->max_model_len > 0 ? blocks_for(g, r->max_model_len) : 1) + 1, r->slots);
}

qr_status budget_fit(const struct geometry *g, const struct budget_request *r, struct budget *out, qr_error *err)
{
    if (r->slots < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "max_num_seqs is %lld, wanted at least 1", (long long)r->slots);
    if (r->max_model_len > r->ceiling)
        return qr_fail(err, QR_REFUSED, "max-model-len is %lld, wanted at most max_position_embeddings %lld",
                       (long long)r->max_model_len, (long long)r->ceiling);
    int64_t wanted_blocks = r->max_model_len > 0 ? blocks_for(g, r->max_model_len) : 1;
    int64_t least = budget_least(g, r); /* block 0 holds nothing */
    if (least > r->bytes) {
        char fits[120];
        name_what_fits(g, r, wanted_blocks, least, fits, sizeof fits);
        return qr_fail(err, QR_REFUSED,
                       "E31 %lld STATE entries of %lld bytes and %lld blocks of %lld take %lld bytes, %lld more than the "
                       "%lld given to the cache; %s",
                       (long long)r->slots, (long long)g->state_bytes, (long long)wanted_blocks + 1,
                       (long long)g->unit_bytes, (long long)least, (long long)(least - r->bytes), (long long)r->bytes, fits);
    }
    int64_t blocks = geometry_blocks_in(g, r->bytes, r->slots);
    int64_t fits = (blocks - 1) * g->options.block_tokens;
    out->max_model_len = r->max_model_len > 0 ? r->max_model_len : fits < r->ceiling ? fits : r->ceiling;
    int64_t most = r->slots * blocks_for(g, out->max_model_len) + 1;
    out->blocks = blocks < most ? blocks : most;
    out->slots = r->slots;
    return geometry_pool(g, out->blocks, out->slots, &out->pool, err);
}

int64_t budget_requests(const struct geometry *g, const struct budget *budget, int64_t length, bool *by_blocks)
{
    int64_t fit = (budget->blocks - 1) / blocks_for(g, length > 0 ? length : 1);
    *by_blocks = fit < budget->slots;
    return *by_blocks ? fit : budget->slots;
}

static void add_tails(const struct geometry *g, int64_t slots, struct byte_plan *out)
{
    int64_t main = 0, index = 0;
    for (int32_t i = 0; i < g->owners; i++) {
        if (g->tail_offset[i] >= 0)
            main += (int64_t)g->tail_rows[i] * g->tail_width[i] * 8; /* f32 values and scores */
        if (g->index_tail_offset[i] >= 0)
            index += (int64_t)g->tail_rows[i] * g->index_tail_width[i] * 8;
    }
    if (main > 0)
        byte_plan_add(out, BYTES_STATES, "compressor tails", slots, main);
    if (index > 0)
        byte_plan_add(out, BYTES_STATES, "index compressor tails", slots, index);
}

void budget_items(const struct geometry *g, const struct budget *b, struct byte_plan *out)
{
    char name[64];
    int64_t pages = 0, states = 0, index = 0;
    snprintf(name, sizeof name, "compressed rows, %s", row_format_name(g->options.main_format));
    byte_plan_add(out, BYTES_PAGES, name, b->blocks, g->main_page_bytes);
    for (int32_t i = 0; i < g->owners; i++)
        index += g->owner[i].index_block_bytes + g->owner[i].index_scale_block_bytes;
    snprintf(name, sizeof name, "index keys, %s", row_format_name(g->options.index_format));
    if (index > 0)
        byte_plan_add(out, BYTES_PAGES, name, b->blocks, index);
    pages = byte_plan_total(out, BYTES_PAGES);
    if (b->pool.state_offset > pages)
        byte_plan_add(out, BYTES_PAGES, "alignment of regions", 1, b->pool.state_offset - pages);

    snprintf(name, sizeof name, "window rings, %s", row_format_name(g->window_format));
    byte_plan_add(out, BYTES_STATES, name, b->slots, g->ring_layers * g->ring_bytes);
    add_tails(g, b->slots, out);
    byte_plan_add(out, BYTES_STATES, "cursor and Engram history", b->slots, g->cursor_bytes);
    if (g->draft_stream_bytes > 0)
        byte_plan_add(out, BYTES_STATES, "stream of the MTP layer", b->slots, g->draft_stream_bytes);
    states = byte_plan_total(out, BYTES_STATES);
    int64_t padding = b->slots * g->state_bytes - states;
    if (padding > 0)
        byte_plan_add(out, BYTES_STATES, "alignment of entries", 1, padding);
}
