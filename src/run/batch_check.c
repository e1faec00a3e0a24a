#include "run/batch_check.h"

#include "base/alloc.h"

struct batch_check {
    struct assembly_limits limits;
    /* Stamps instead of sets to clear: who named this block or slot last, counted over all spans ever checked. */
    int64_t *block_named, *block_written, *slot_named;
    int64_t stamp;
};

qr_status batch_check_open(const struct assembly_limits *limits, struct batch_check **out, qr_error *err)
{
    struct batch_check *c = qr_calloc(1, sizeof *c);
    if (!c)
        return qr_fail(err, QR_NO_MEMORY, "step checks: no memory for their record");
    c->limits = *limits;
    c->block_named = qr_calloc((size_t)limits->blocks, sizeof *c->block_named);
    c->block_written = qr_calloc((size_t)limits->blocks, sizeof *c->block_written);
    c->slot_named = qr_calloc((size_t)limits->slots, sizeof *c->slot_named);
    if (!c->block_named || !c->block_written || !c->slot_named) {
        batch_check_close(c);
        return qr_fail(err, QR_NO_MEMORY, "step checks: no memory for %lld blocks and %lld slots",
                       (long long)limits->blocks, (long long)limits->slots);
    }
    *out = c;
    return QR_OK;
}

int64_t batch_check_bytes_for(const struct assembly_limits *limits)
{
    return (int64_t)sizeof(struct batch_check) + (2 * limits->blocks + limits->slots) * (int64_t)sizeof(int64_t);
}

void batch_check_close(struct batch_check *c)
{
    if (!c)
        return;
    qr_free(c->block_named);
    qr_free(c->block_written);
    qr_free(c->slot_named);
    qr_free(c);
}

static int64_t blocks_up_to(const struct batch_check *c, int64_t position)
{
    int64_t block = c->limits.geometry->options.block_tokens;
    return (position + block - 1) / block;
}

/* The spans fit into the step's buffers. */
static qr_status check_sizes(const struct batch_check *c, const struct batch *batch, qr_error *err)
{
    const struct assembly_limits *l = &c->limits;
    int64_t rows = 0, logits = 0;

    if (batch->count < 1 || batch->count > l->max_requests)
        return qr_fail(err, QR_INTERNAL, "step of %d requests: wanted 1 to %d", batch->count, l->max_requests);
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        if (s->count < 1)
            return qr_fail(err, QR_INTERNAL, "request %d of the step has %d tokens, wanted at least 1", b, s->count);
        if (s->first_position < 0 || (int64_t)s->first_position + s->count > l->max_positions)
            return qr_fail(err, QR_INTERNAL, "request %d of the step: positions %d to %lld, wanted 0 to %d", b,
                           s->first_position, (long long)s->first_position + s->count - 1, l->max_positions - 1);
        if (s->logits_from < 0 || s->logits_from > s->count)
            return qr_fail(err, QR_INTERNAL, "request %d of the step wants logits from token %d of %d", b,
                           s->logits_from, s->count);
        rows += s->count;
        logits += s->count - s->logits_from;
    }
    if (rows > l->max_rows)
        return qr_fail(err, QR_INTERNAL, "step of %lld rows: its buffers hold %d", (long long)rows, l->max_rows);
    if (logits > l->max_logits)
        return qr_fail(err, QR_INTERNAL, "step wants %lld rows of logits: its buffers hold %d", (long long)logits,
                       l->max_logits);
    return QR_OK;
}

static qr_status check_tokens(const struct batch_check *c, const struct batch_span *s, int32_t b, qr_error *err)
{
    int32_t vocab = c->limits.plan->config.vocab_size;
    for (int32_t i = 0; i < s->count; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= vocab)
            return qr_fail(err, QR_INTERNAL, "request %d of the step: token %d at position %d, the vocabulary has %d",
                           b, s->tokens[i], s->first_position + i, vocab);
    for (int32_t i = 0; i < s->before_count; i++)
        if (s->before[i] < 0 || s->before[i] >= vocab)
            return qr_fail(err, QR_INTERNAL,
                           "request %d of the step: token %d before position %d, the vocabulary has %d", b,
                           s->before[i], s->first_position, vocab);
    return QR_OK;
}

/* Rows whose logits are wanted pass through every layer. */
static qr_status check_rows(const struct batch_check *c, const struct batch_span *s, int32_t b, qr_error *err)
{
    const struct model_plan *plan = c->limits.plan;
    if (s->rows && s->logits_from < s->count &&
        s->first_position + s->logits_from < s->rows->layer[plan->layers - 1].query)
        return qr_fail(err, QR_INTERNAL,
                       "request %d of the step wants logits of position %d, the last layer runs from %d", b,
                       s->first_position + s->logits_from, s->rows->layer[plan->layers - 1].query);
    return QR_OK;
}

static qr_status check_tentative(const struct batch_check *c, const struct batch_span *s, int32_t b, qr_error *err)
{
    int32_t width = c->limits.geometry->options.draft_width;
    if (width < 1 || s->first_position < 1 || s->count > width + 1)
        return qr_fail(
            err, QR_INTERNAL,
            "request %d of a verify step: %d tokens at position %d with a draft width of %d; wanted a position "
            "above 0 and at most %d tokens",
            b, s->count, s->first_position, width, width + 1);
    return QR_OK;
}

static qr_status check_slot(struct batch_check *c, const struct batch_span *s, int32_t b, int64_t first_stamp,
                            qr_error *err)
{
    if (s->slot < 0 || s->slot >= c->limits.slots)
        return qr_fail(err, QR_INTERNAL, "request %d of the step has slot %d, wanted 0 to %lld", b, s->slot,
                       (long long)c->limits.slots - 1);
    if (c->slot_named[s->slot] >= first_stamp)
        return qr_fail(err, QR_INTERNAL, "requests %lld and %d of the step have the same slot %d",
                       (long long)(c->slot_named[s->slot] - first_stamp), b, s->slot);
    c->slot_named[s->slot] = first_stamp + b;
    return QR_OK;
}

/* Blocks enough, each in range and named once; those that the span writes are stamped. */
static qr_status check_blocks(struct batch_check *c, const struct batch_span *s, int32_t b, int64_t first_stamp,
                              qr_error *err)
{
    int64_t wanted = blocks_up_to(c, (int64_t)s->first_position + s->count);
    int32_t first = s->write_from > s->first_position ? s->write_from : s->first_position;
    int64_t first_written = first / c->limits.geometry->options.block_tokens;

    if (s->block_count < wanted)
        return qr_fail(err, QR_INTERNAL, "request %d of the step has %d blocks, positions to %d want %lld", b,
                       s->block_count, s->first_position + s->count - 1, (long long)wanted);
    for (int64_t i = 0; i < wanted; i++) {
        int32_t id = s->blocks[i];
        if (id < 1 || id >= c->limits.blocks)
            return qr_fail(err, QR_INTERNAL, "request %d of the step: block %lld has id %d, wanted 1 to %lld", b,
                           (long long)i, id, (long long)c->limits.blocks - 1);
        if (c->block_named[id] == first_stamp + b)
            return qr_fail(err, QR_INTERNAL, "request %d of the step names block id %d twice", b, id);
        c->block_named[id] = first_stamp + b;
        if (i >= first_written)
            c->block_written[id] = first_stamp + b;
    }
    return QR_OK;
}

/* A block that two requests name is written by none of them (runtime.md 4.11, I2). */
static qr_status check_sharing(const struct batch_check *c, const struct batch *batch, int64_t first_stamp,
                               qr_error *err)
{
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        int64_t wanted = blocks_up_to(c, (int64_t)s->first_position + s->count);
        for (int64_t i = 0; i < wanted; i++) {
            int64_t writer = c->block_written[s->blocks[i]];
            if (writer >= first_stamp && writer != first_stamp + b)
                return qr_fail(err, QR_INTERNAL,
                               "block id %d is written by request %lld of the step and named by request %d",
                               s->blocks[i], (long long)(writer - first_stamp), b);
        }
    }
    return QR_OK;
}

qr_status batch_check(struct batch_check *c, const struct batch *batch, qr_error *err)
{
    qr_status st = check_sizes(c, batch, err);
    if (st != QR_OK)
        return st;

    int64_t first_stamp = c->stamp + 1;
    c->stamp += batch->count;
    for (int32_t b = 0; st == QR_OK && b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        st = check_tokens(c, s, b, err);
        if (st == QR_OK)
            st = check_rows(c, s, b, err);
        if (st == QR_OK && batch->tentative && (s->drafts > 0 || !s->rows)) /* prompts' chunks may stand beside */
            st = check_tentative(c, s, b, err);
        if (st == QR_OK)
            st = check_slot(c, s, b, first_stamp, err);
        if (st == QR_OK)
            st = check_blocks(c, s, b, first_stamp, err);
    }
    return st == QR_OK ? check_sharing(c, batch, first_stamp, err) : st;
}
