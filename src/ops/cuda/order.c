#include "ops/cuda/order.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

/* ---- what an operator touches ---- */

enum { MOST_READS = 8, MOST_WRITES = 8 };

struct touched {
    const void *reads[MOST_READS], *writes[MOST_WRITES];
    int n_reads, n_writes;
    bool all; /* not told: it waits for everything before it, and everything behind waits for it */
};

static void reads(struct touched *t, const void *memory)
{
    if (memory)
        t->reads[t->n_reads++] = memory;
}

static void writes(struct touched *t, const void *memory)
{
    if (memory)
        t->writes[t->n_writes++] = memory;
}

/* Scratch is a buffer like others; so are the counters of blocks that arrive. */
static const char scratch, side_scratch;

static void touch_streams(const union any_op *op, enum op_number number, struct touched *t)
{
    if (number == OP_mhc_mix) {
        reads(t, op->mhc_mix.x.data);
        writes(t, op->mhc_mix.pre);
        if (!op->mhc_mix.head_only) {
            writes(t, op->mhc_mix.post);
            writes(t, op->mhc_mix.comb);
        }
        writes(t, &scratch);
    } else if (number == OP_collapse) {
        reads(t, op->collapse.x.data);
        reads(t, op->collapse.pre);
        writes(t, op->collapse.collapsed.codes);
        writes(t, op->collapse.normed.codes);
        writes(t, op->collapse.quantized.codes);
        writes(t, op->collapse.inverse);
    } else {
        reads(t, op->expand.y);
        reads(t, op->expand.post);
        reads(t, op->expand.comb);
        writes(t, op->expand.x.data);
    }
}

static void touch_rows(const union any_op *op, enum op_number number, struct touched *t)
{
    switch (number) {
    case OP_norm:
        reads(t, op->norm.in.codes);
        writes(t, op->norm.out.codes);
        writes(t, op->norm.quantized.codes);
        break;
    case OP_quantize:
        reads(t, op->quantize.in.codes);
        writes(t, op->quantize.out.codes);
        break;
    case OP_linear:
        reads(t, op->linear.in.codes);
        writes(t, op->linear.out.codes);
        if (cuda_linear_takes_scratch(&op->linear))
            writes(t, &scratch);
        break;
    case OP_query:
        reads(t, op->query.in.codes);
        writes(t, op->query.out.codes);
        break;
    default: /* OP_unrotate */
        reads(t, op->unrotate.in.codes);
        writes(t, op->unrotate.out.codes);
    }
}

static void touch_cache(const union any_op *op, enum op_number number, struct touched *t)
{
    switch (number) {
    case OP_window_key:
        reads(t, op->window_key.in.codes);
        writes(t, op->window_key.out);
        writes(t, op->window_key.packed.codes);
        break;
    case OP_window_write:
        reads(t, op->window_write.keys);
        reads(t, op->window_write.packed.codes);
        writes(t, op->window_write.ring.values);
        break;
    case OP_position_bias:
        writes(t, op->position_bias.scores);
        break;
    case OP_compress:
        reads(t, op->compress.values);
        reads(t, op->compress.scores);
        reads(t, op->compress.tail.values);
        writes(t, op->compress.out.codes);
        break;
    case OP_tail_write:
        reads(t, op->tail_write.values);
        reads(t, op->tail_write.scores);
        writes(t, op->tail_write.tail.values);
        break;
    default: /* OP_row_write */
        reads(t, op->row_write.in.codes);
        writes(t, op->row_write.plane.values);
        writes(t, op->row_write.values_out);
    }
}

static void touch_attention(const union any_op *op, enum op_number number, struct touched *t)
{
    if (number == OP_index_query) {
        reads(t, op->index_query.in.codes);
        reads(t, op->index_query.weights_in.codes);
        writes(t, op->index_query.out.codes);
        writes(t, op->index_query.weights);
    } else if (number == OP_index_select) {
        reads(t, op->index_select.query.codes);
        reads(t, op->index_select.weights);
        reads(t, op->index_select.plane.values);
        writes(t, op->index_select.candidates);
        writes(t, op->index_select.candidate_count);
        writes(t, op->index_select.selected);
        writes(t, op->index_select.selected_count);
        writes(t, op->index_select.scores);
        writes(t, &scratch);
    } else {
        reads(t, op->attend.q);
        reads(t, op->attend.fresh);
        reads(t, op->attend.ring.values);
        reads(t, op->attend.has_plane ? op->attend.plane.values : NULL);
        reads(t, op->attend.selected);
        reads(t, op->attend.selected_count);
        writes(t, op->attend.out.codes);
        writes(t, &scratch);
    }
}

static void touch_experts(const union any_op *op, enum op_number number, struct touched *t)
{
    if (number == OP_route) {
        reads(t, op->route.x.codes);
        reads(t, op->route.x_scale);
        writes(t, op->route.idx);
        writes(t, op->route.weight);
        writes(t, &scratch);
    } else if (number == OP_expert) {
        reads(t, op->expert.x.codes);
        reads(t, op->expert.idx);
        reads(t, op->expert.weight);
        writes(t, op->expert.out);
        writes(t, cuda_expert_is_aside(&op->expert) ? &side_scratch : &scratch);
    } else {
        reads(t, op->combine.idx);
        reads(t, op->combine.routed);
        reads(t, op->combine.shared);
        writes(t, op->combine.out);
    }
}

static struct touched touched_by(enum op_number number, const union any_op *op)
{
    struct touched t = {.n_reads = 0};
    switch (number) {
    case OP_mhc_mix:
    case OP_collapse:
    case OP_expand:
        touch_streams(op, number, &t);
        break;
    case OP_norm:
    case OP_quantize:
    case OP_linear:
    case OP_query:
    case OP_unrotate:
        touch_rows(op, number, &t);
        break;
    case OP_window_key:
    case OP_window_write:
    case OP_position_bias:
    case OP_compress:
    case OP_tail_write:
    case OP_row_write:
        touch_cache(op, number, &t);
        break;
    case OP_index_query:
    case OP_index_select:
    case OP_attend:
        touch_attention(op, number, &t);
        break;
    case OP_route:
    case OP_expert:
    case OP_combine:
        touch_experts(op, number, &t);
        break;
    default:
        t.all = true;
    }
    return t;
}

/* ---- the order ---- */

enum { MOST_READERS = 32, NOBODY = -1 };

/* Who touched a piece of memory last. */
struct memory {
    const void *at;
    int64_t writer; /* NOBODY: not in this list */
    bool attended;  /* a ring that an attention of this list has read */
    int32_t n_readers;
    uint32_t readers[MOST_READERS]; /* since it was written */
};

struct order {
    size_t count, most, words;
    uint64_t *before;  /* [most][words]: all that must be done before an operator */
    uint64_t *wanted;  /* [words]: what the newest operator waits for, not yet sorted out */
    uint32_t *earlier; /* [most][MOST_EARLIER] */
    uint32_t *n_earlier;
    bool settled; /* of the newest */
    int64_t fence;
    bool cut; /* buffers may come by several addresses */
    struct memory *memory;
    size_t n_memory, room;
};

qr_status order_open(size_t most, struct order **out, qr_error *err)
{
    struct order *o = qr_calloc(1, sizeof *o);
    if (!o)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the order of %zu operators", most);
    o->most = most;
    o->words = most / 64 + 1;
    o->settled = true;
    o->fence = NOBODY;
    o->room = most * (MOST_READS + MOST_WRITES);
    o->before = qr_calloc(most * o->words, sizeof *o->before);
    o->wanted = qr_calloc(o->words, sizeof *o->wanted);
    o->earlier = qr_calloc(most * MOST_EARLIER, sizeof *o->earlier);
    o->n_earlier = qr_calloc(most, sizeof *o->n_earlier);
    o->memory = qr_calloc(o->room, sizeof *o->memory);
    if (!o->before || !o->wanted || !o->earlier || !o->n_earlier || !o->memory) {
        order_close(o);
        return qr_fail(err, QR_NO_MEMORY, "no memory for the order of %zu operators", most);
    }
    *out = o;
    return QR_OK;
}

void order_close(struct order *o)
{
    if (!o)
        return;
    qr_free(o->before);
    qr_free(o->wanted);
    qr_free(o->earlier);
    qr_free(o->n_earlier);
    qr_free(o->memory);
    qr_free(o);
}

static bool has(const uint64_t *set, size_t i) { return set[i / 64] >> i % 64 & 1; }
static void put(uint64_t *set, size_t i) { set[i / 64] |= (uint64_t)1 << i % 64; }

/* Of what the newest operator waits for, keeps what nothing else of it waits for: latest first. */
static void settle(struct order *o)
{
    if (o->settled)
        return;
    const size_t own = o->count - 1;
    uint64_t *before = o->before + own * o->words;
    uint32_t *earlier = o->earlier + own * MOST_EARLIER, n = 0;
    for (size_t i = own; i-- > 0;) {
        if (!has(o->wanted, i) || has(before, i))
            continue;
        if (n < MOST_EARLIER)
            earlier[n] = (uint32_t)i;
        n++;
        put(before, i);
        for (size_t w = 0; w < o->words; w++)
            before[w] |= o->before[i * o->words + w];
    }
    for (uint32_t i = 0; n <= MOST_EARLIER && i < n / 2; i++) {
        uint32_t moved = earlier[i];
        earlier[i] = earlier[n - 1 - i];
        earlier[n - 1 - i] = moved;
    }
    o->n_earlier[own] = n;
    o->settled = true;
}

static struct memory *memory_at(struct order *o, const void *at)
{
    for (size_t i = 0; i < o->n_memory; i++)
        if (o->memory[i].at == at)
            return &o->memory[i];
    struct memory *m = &o->memory[o->n_memory++];
    *m = (struct memory){.at = at, .writer = NOBODY};
    return m;
}

static void wait_for(struct order *o, int64_t i)
{
    if (i != NOBODY && i != (int64_t)o->count - 1)
        put(o->wanted, (size_t)i);
}

static void wait_for_all(struct order *o)
{
    for (size_t i = 0; i + 1 < o->count; i++)
        put(o->wanted, i);
    o->fence = (int64_t)o->count - 1;
    o->n_memory = 0;
}

static void note_read(struct order *o, const void *at)
{
    struct memory *m = memory_at(o, at);
    wait_for(o, m->writer);
    if (m->n_readers < MOST_READERS)
        m->readers[m->n_readers++] = (uint32_t)(o->count - 1);
    else
        wait_for_all(o);
}

static void note_write(struct order *o, const void *at)
{
    struct memory *m = memory_at(o, at);
    wait_for(o, m->writer);
    for (int32_t i = 0; i < m->n_readers; i++)
        wait_for(o, m->readers[i]);
    m->n_readers = 0;
    m->writer = (int64_t)o->count - 1;
}

void order_add(struct order *o, enum op_number number, const union any_op *op, bool joined)
{
    const struct touched t = touched_by(number, op);
    if (!joined || o->count == 0) {
        settle(o);
        o->count++;
        o->settled = false;
        memset(o->wanted, 0, o->words * sizeof *o->wanted);
        wait_for(o, o->fence);
    }
    if (t.all) {
        wait_for_all(o);
        return;
    }
    if (number == OP_attend) { /* attention in cuts: each addresses its buffers by a first row of its own */
        struct memory *ring = memory_at(o, op->attend.ring.values);
        o->cut |= ring->attended;
        ring->attended = true;
    }
    for (int i = 0; i < t.n_reads; i++)
        note_read(o, t.reads[i]);
    for (int i = 0; i < t.n_writes; i++)
        note_write(o, t.writes[i]);
}

size_t order_earlier(struct order *o, size_t i, const uint32_t **earlier)
{
    settle(o);
    *earlier = o->earlier + i * MOST_EARLIER;
    return o->cut ? (size_t)MOST_EARLIER + 1 : o->n_earlier[i];
}
