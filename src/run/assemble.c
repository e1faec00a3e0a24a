#include "run/assemble.h"

#include <string.h>

#include "base/alloc.h"
#include "run/batch_check.h"

/* Kinds of row lists of one layer, and of arrays of starts, that a step may hold. */
enum { LISTS_PER_LAYER = 8, STARTS_PER_LAYER = 2 };

/* Lists of the whole step beside those of its layers: the logits' rows; the rows that are run again, which are the same
 * in every layer; and where windows begin, of the layers below and from the last KV source on. */
enum { LISTS_OF_STEP = 4 };

/* A list already made in this step: the rows of each request from position from[b] on, one in `modulus`; or one of the
 * other kinds, made of from[b] too. */
enum { MADE_STARTS = 0, MADE_AGAIN = -1, MADE_LOWS = -2, MADE_LOWS_AGAIN = -3 };
struct made_list {
    const int32_t *from; /* host, [requests] */
    int32_t modulus;
    struct row_list list;
};

struct assembly {
    struct backend *backend;
    struct assembly_limits limits;
    struct batch_check *check;

    /* One block of words, mirrored on the backend; handed out from the front in every step. */
    int32_t *host, *device;
    int64_t capacity, used;

    struct made_list *made;
    int32_t made_count, made_capacity;
    int32_t *from; /* [max_requests] starts of the list being made */

    const struct batch *batch;
    const int32_t *host_first_row;
    struct step step;
    int32_t *cuts;            /* [layers + draft layers][CUT_LISTS][most_cuts + 1]; NULL: no step is cut */
    struct layer_rows *layer; /* [layers + draft layers] */
    struct step_rows rows;
};

/* ---- memory ---- */

static int64_t blocks_of(const struct geometry *g, int64_t positions)
{
    int64_t block = g->options.block_tokens;
    return (positions + block - 1) / block;
}

/* Cuts of the largest step for attention; 0: it is not cut. */
static int32_t most_cuts(const struct assembly_limits *l)
{
    const int32_t rows = l->attention_rows;
    return rows > 0 && rows < l->max_rows ? (l->max_rows + rows - 1) / rows : 0;
}

/* Words of the largest step. */
static int64_t words_needed(const struct assembly_limits *l)
{
    int64_t layers = l->plan->layers + l->plan->draft_layers, rows = l->max_rows, requests = l->max_requests;
    int64_t flat = 4 * rows + 1; /* ids, positions, requests, image mask */
    int64_t request = 4 * requests + 1 + requests * blocks_of(l->geometry, l->max_positions);
    int64_t lists = (layers * LISTS_PER_LAYER + LISTS_OF_STEP) * (rows + requests) + layers * STARTS_PER_LAYER * requests;
    return flat + request + lists + (most_cuts(l) ? rows : 0) + 64;
}

/* `words` words of the block; `device` gets their address on the backend. Sizes were reserved, so there is room. */
static int32_t *put(struct assembly *a, int64_t words, const int32_t **device)
{
    int32_t *at = a->host + a->used;
    *device = a->device + a->used;
    a->used += words;
    return at;
}

static int32_t made_needed(int32_t layers) { return layers * (LISTS_PER_LAYER + STARTS_PER_LAYER) + LISTS_OF_STEP; }

enum { CUT_LISTS = 3 }; /* of a layer */

static int64_t cut_bytes(const struct assembly_limits *l)
{
    const int64_t layers = l->plan->layers + l->plan->draft_layers, cuts = most_cuts(l);
    return cuts ? layers * CUT_LISTS * (cuts + 1) * (int64_t)sizeof(int32_t) : 0;
}

int64_t assembly_bytes_for(const struct assembly_limits *l)
{
    const int32_t layers = l->plan->layers + l->plan->draft_layers;
    const int64_t lists = 2 * words_needed(l) * (int64_t)sizeof(int32_t);
    const int64_t books = made_needed(layers) * (int64_t)sizeof(struct made_list) +
                          l->max_requests * (int64_t)sizeof(int32_t) + layers * (int64_t)sizeof(struct layer_rows) +
                          cut_bytes(l);
    return (int64_t)sizeof(struct assembly) + lists + books + batch_check_bytes_for(l);
}

static qr_status allocate(struct assembly *a, qr_error *err)
{
    const struct assembly_limits *l = &a->limits;
    int32_t layers = l->plan->layers + l->plan->draft_layers;
    void *device;

    a->capacity = words_needed(l);
    a->made_capacity = made_needed(layers);
    a->host = qr_calloc((size_t)a->capacity, sizeof *a->host);
    a->made = qr_calloc((size_t)a->made_capacity, sizeof *a->made);
    a->from = qr_calloc((size_t)l->max_requests, sizeof *a->from);
    a->layer = qr_calloc((size_t)layers, sizeof *a->layer);
    if (most_cuts(l))
        a->cuts = qr_calloc(1, (size_t)cut_bytes(l));
    if (!a->host || !a->made || !a->from || !a->layer || (most_cuts(l) && !a->cuts))
        return qr_fail(err, QR_NO_MEMORY, "step buffers: no memory for %d rows of %d requests", l->max_rows,
                       l->max_requests);
    qr_status st = a->backend->allocate(a->backend, assembly_bytes(a), &device, err);
    if (st == QR_OK)
        a->device = device;
    return st;
}

qr_status assembly_open(struct backend *backend, const struct assembly_limits *limits, struct assembly **out,
                        qr_error *err)
{
    struct assembly *a = qr_calloc(1, sizeof *a);
    if (!a)
        return qr_fail(err, QR_NO_MEMORY, "step buffers: no memory for their record");
    a->backend = backend;
    a->limits = *limits;

    qr_status st = allocate(a, err);
    if (st == QR_OK)
        st = batch_check_open(limits, &a->check, err);
    if (st != QR_OK) {
        assembly_close(a);
        return st;
    }
    *out = a;
    return QR_OK;
}

void assembly_close(struct assembly *a)
{
    if (!a)
        return;
    batch_check_close(a->check);
    if (a->device)
        a->backend->release(a->backend, a->device);
    qr_free(a->host);
    qr_free(a->made);
    qr_free(a->from);
    qr_free(a->layer);
    qr_free(a->cuts);
    qr_free(a);
}

int64_t assembly_bytes(const struct assembly *a) { return a->capacity * (int64_t)sizeof *a->host; }

qr_status assembly_check(struct assembly *a, const struct batch *batch, qr_error *err)
{
    return batch_check(a->check, batch, err);
}

/* ---- the flat batch ---- */

static int32_t end_of(const struct batch_span *span) { return span->first_position + span->count; }

static void fill_rows(struct assembly *a)
{
    const struct batch *batch = a->batch;
    struct step *s = &a->step;
    int32_t *tokens = put(a, s->rows, &s->token_ids);
    int32_t *positions = put(a, s->rows, &s->positions);
    int32_t *request = put(a, s->rows, &s->batch_id);
    const int32_t *mask_words;
    uint8_t *mask = (uint8_t *)put(a, s->rows / 4 + 1, &mask_words);
    bool images = false;
    int32_t row = 0;

    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *span = &batch->spans[b];
        memcpy(tokens + row, span->tokens, (size_t)span->count * sizeof *tokens);
        for (int32_t i = 0; i < span->count; i++, row++) {
            positions[row] = span->first_position + i;
            request[row] = b;
            mask[row] = span->image_mask && span->image_mask[i];
            images |= mask[row];
        }
    }
    s->image_mask = images ? (const uint8_t *)mask_words : NULL;
}

/* Blocks of a request's row of the table, of which the longest request has so many. */
static int32_t table_width(const struct assembly *a, int32_t blocks)
{
    enum { LEAST = 32 };
    const int64_t most = blocks_of(a->limits.geometry, a->limits.max_positions);
    int64_t width = LEAST;
    if (!a->limits.pads)
        return blocks;
    while (width < blocks)
        width *= 2;
    return (int32_t)(width < most ? width : most);
}

static void fill_requests(struct assembly *a)
{
    const struct batch *batch = a->batch;
    struct step *s = &a->step;
    int32_t *first_row = put(a, s->requests + 1, &s->first_row);
    int32_t *first_position = put(a, s->requests, &s->first_position);
    int32_t *slot = put(a, s->requests, &s->slot);

    s->block_stride = 1;
    for (int32_t b = 0; b < s->requests; b++)
        if (blocks_of(a->limits.geometry, end_of(&batch->spans[b])) > s->block_stride)
            s->block_stride = (int32_t)blocks_of(a->limits.geometry, end_of(&batch->spans[b]));
    s->block_stride = table_width(a, s->block_stride);
    int32_t *table = put(a, (int64_t)s->requests * s->block_stride, &s->block_table);

    first_row[0] = 0;
    for (int32_t b = 0; b < s->requests; b++) {
        const struct batch_span *span = &batch->spans[b];
        int32_t blocks = (int32_t)blocks_of(a->limits.geometry, end_of(span));
        first_row[b + 1] = first_row[b] + span->count;
        first_position[b] = span->first_position;
        slot[b] = span->slot;
        for (int32_t i = 0; i < s->block_stride; i++)
            table[(int64_t)b * s->block_stride + i] = i < blocks && i < span->block_count ? span->blocks[i] : -1;
    }
    a->host_first_row = first_row;
}

/* ---- row lists ---- */

static const struct made_list *find_made(const struct assembly *a, int32_t modulus)
{
    for (int32_t i = 0; i < a->made_count; i++)
        if (a->made[i].modulus == modulus &&
            memcmp(a->made[i].from, a->from, (size_t)a->step.requests * sizeof *a->from) == 0)
            return &a->made[i];
    return NULL;
}

/* Puts a->from itself into the step, once for equal arrays: the first positions that a forward computes. */
static const int32_t *starts(struct assembly *a)
{
    const struct made_list *found = find_made(a, MADE_STARTS);
    if (found)
        return found->list.index;
    struct made_list *made = &a->made[a->made_count++];
    int32_t *from = put(a, a->step.requests, &made->list.index);
    memcpy(from, a->from, (size_t)a->step.requests * sizeof *from);
    made->from = from;
    made->modulus = MADE_STARTS;
    return made->list.index;
}

static bool takes_every_row(const struct assembly *a, int32_t modulus)
{
    for (int32_t b = 0; b < a->step.requests; b++)
        if (a->from[b] > a->batch->spans[b].first_position)
            return false;
    return modulus == 1;
}

/* A list that is made of a->from; its words come next. */
static struct made_list *begin_made(struct assembly *a, int32_t modulus)
{
    struct made_list *made = &a->made[a->made_count++];
    const int32_t *unused;
    int32_t *from = put(a, a->step.requests, &unused);
    memcpy(from, a->from, (size_t)a->step.requests * sizeof *from);
    made->from = from;
    made->modulus = modulus;
    return made;
}

/* Rows at positions p >= from[b] with (p + 1) mod modulus = 0. */
static struct row_list rows_from(struct assembly *a, int32_t modulus)
{
    if (takes_every_row(a, modulus))
        return (struct row_list){.index = NULL, .count = a->step.rows};
    const struct made_list *found = find_made(a, modulus);
    if (found)
        return found->list;

    struct made_list *made = begin_made(a, modulus);
    int32_t *rows = put(a, 0, &made->list.index), count = 0;
    for (int32_t b = 0; b < a->step.requests; b++) {
        const struct batch_span *span = &a->batch->spans[b];
        int32_t p = a->from[b] > span->first_position ? a->from[b] : span->first_position;
        for (; p < end_of(span); p++)
            if ((p + 1) % modulus == 0)
                rows[count++] = a->host_first_row[b] + p - span->first_position;
    }
    a->used += count;
    made->list.count = count;
    return made->list;
}

/* Where layer `index` starts with one of its parts. */
enum part {
    PART_QUERY,
    PART_ONCE,
    PART_KEY,
    PART_KEPT, /* keys that go to the ring, and are read from this forward's rows by those run once */
    PART_COMPRESS,
    PART_EMIT,
    PART_INPUT,
    PART_AGAIN, /* where the rows that are run again end */
    PART_LOW
};

/* Where a layer starts on a span without ranges: on every row, but for a drafter that rests. */
static struct layer_start unranged(const struct assembly *a, const struct batch_span *span, int32_t index)
{
    const int32_t end = span->first_position + span->count;
    if (span->draftless && index >= a->limits.plan->layers)
        return (struct layer_start){.query = end, .key = end, .compress = end};
    return (struct layer_start){.query = 0};
}

static int32_t part_start(const struct assembly *a, const struct batch_span *span, int32_t index, enum part part)
{
    const struct layer_start every = unranged(a, span, index), *s = span->rows ? &span->rows->layer[index] : &every;
    switch (part) {
    case PART_QUERY:
        return s->query;
    case PART_ONCE:
        return s->query > s->again ? s->query : s->again;
    case PART_KEY:
        return s->key;
    case PART_KEPT:
        return s->key > s->again ? s->key : s->again;
    case PART_AGAIN:
        return s->again;
    case PART_LOW:
        return s->low;
    case PART_COMPRESS:
        return s->compress;
    case PART_EMIT:
        return s->compress > span->write_from ? s->compress : span->write_from;
    case PART_INPUT:
        break;
    }
    return s->key < s->compress ? s->key : s->compress;
}

/* a->from <- that start in each request, the span's first position at least. */
static void start_at(struct assembly *a, int32_t index, enum part part)
{
    for (int32_t b = 0; b < a->step.requests; b++) {
        int32_t start = part_start(a, &a->batch->spans[b], index, part), first = a->batch->spans[b].first_position;
        a->from[b] = start > first ? start : first;
    }
}

/* The same, but the last `keep` tokens of a span at most. */
static void start_at_last(struct assembly *a, int32_t index, enum part part, int32_t keep)
{
    start_at(a, index, part);
    for (int32_t b = 0; b < a->step.requests; b++) {
        int32_t last = end_of(&a->batch->spans[b]) - keep;
        a->from[b] = last > a->from[b] ? last : a->from[b];
    }
}

/* Whether a request of the step has rows that the layer runs again. */
static bool runs_again(const struct assembly *a, int32_t index)
{
    for (int32_t b = 0; b < a->step.requests; b++)
        if (part_start(a, &a->batch->spans[b], index, PART_AGAIN) > a->batch->spans[b].first_position)
            return true;
    return false;
}

/* Rows of each request below the position up to which it runs them again. */
static struct row_list rows_again(struct assembly *a, int32_t index)
{
    start_at(a, index, PART_AGAIN);
    const struct made_list *found = find_made(a, MADE_AGAIN);
    if (found)
        return found->list;
    struct made_list *made = begin_made(a, MADE_AGAIN);
    int32_t *rows = put(a, 0, &made->list.index), count = 0;
    for (int32_t b = 0; b < a->step.requests; b++)
        for (int32_t p = a->batch->spans[b].first_position; p < a->from[b]; p++)
            rows[count++] = a->host_first_row[b] + p - a->batch->spans[b].first_position;
    a->used += count;
    made->list.count = count;
    return made->list;
}

/* Lowest position of each row's window, where that is not 0 for all: the layer's, or for rows that are run again the
 * span's first. */
static const int32_t *window_lows(struct assembly *a, int32_t index, bool again)
{
    const int32_t kind = again ? MADE_LOWS_AGAIN : MADE_LOWS;
    bool any = again;
    for (int32_t b = 0; b < a->step.requests; b++) {
        a->from[b] = part_start(a, &a->batch->spans[b], index, PART_LOW);
        any |= a->from[b] > 0;
    }
    const struct made_list *found = any ? find_made(a, kind) : NULL;
    if (!any || found)
        return found ? found->list.index : NULL;
    struct made_list *made = begin_made(a, kind);
    int32_t *lows = put(a, a->step.rows, &made->list.index);
    for (int32_t b = 0; b < a->step.requests; b++) {
        const struct batch_span *span = &a->batch->spans[b];
        const int32_t end = again ? part_start(a, span, index, PART_AGAIN) : 0;
        for (int32_t p = span->first_position; p < end_of(span); p++)
            *lows++ = p < end ? span->first_position : a->from[b];
    }
    return made->list.index;
}

/* The window of each query row: most read the ring below what this forward computes. */
static void fill_windows(struct assembly *a, int32_t index, struct layer_rows *r)
{
    const bool again = runs_again(a, index);
    start_at(a, index, PART_KEPT);
    r->key_from = r->compress_from = starts(a); /* an owner has a start of its own */
    r->once = r->query;
    if (again) {
        start_at(a, index, PART_ONCE);
        r->once = rows_from(a, 1);
        r->again = rows_again(a, index);
    }
    r->window_low = window_lows(a, index, again);
}

/* Whether the rows that emit are told by their positions alone. */
static bool pads_emits(const struct assembly *a)
{
    const int32_t most = a->limits.geometry->options.draft_width + 1;
    bool few = a->limits.pads && a->step.requests > 1;
    for (int32_t b = 0; few && b < a->step.requests; b++)
        few = a->batch->spans[b].count <= most;
    return few;
}

/* What the owner of compressed rows does besides. */
static void fill_owner(struct assembly *a, int32_t index, struct layer_rows *r)
{
    const struct layer_plan *layer = &a->limits.plan->layer[index];
    int32_t tail_rows = a->limits.geometry->tail_rows[a->limits.plan->owner_of_layer[index]];

    start_at(a, index, PART_COMPRESS);
    r->compress = rows_from(a, 1);
    r->compress_from = starts(a);
    start_at(a, index, PART_EMIT);
    r->emit_padded = layer->ratio > 1 && pads_emits(a);
    r->emit = rows_from(a, r->emit_padded ? 1 : layer->ratio);
    if (tail_rows > 0) {
        start_at_last(a, index, PART_COMPRESS, tail_rows);
        r->tail = rows_from(a, 1);
    }
}

static void fill_layer(struct assembly *a, int32_t index)
{
    bool owner = a->limits.plan->layer[index].owns_rows;
    struct layer_rows *r = &a->layer[index];

    memset(r, 0, sizeof *r);
    start_at(a, index, PART_QUERY);
    r->query = rows_from(a, 1);
    start_at(a, index, PART_KEY);
    r->key = rows_from(a, 1);
    start_at(a, index, owner ? PART_INPUT : PART_KEY);
    r->input = rows_from(a, 1);
    fill_windows(a, index, r);
    start_at_last(a, index, PART_KEPT, a->limits.geometry->ring_rows);
    r->ring = rows_from(a, 1);
    if (owner)
        fill_owner(a, index, r);
}

static struct row_list rows_with_logits(struct assembly *a)
{
    for (int32_t b = 0; b < a->step.requests; b++)
        a->from[b] = a->batch->spans[b].first_position + a->batch->spans[b].logits_from;
    return rows_from(a, 1);
}

/* A draft layer has a window and no more; a row without logits leaves its window key and is done. */
static void fill_draft_layer(struct assembly *a, int32_t index)
{
    fill_layer(a, index);
    a->layer[index].query = a->layer[index].once = rows_with_logits(a);
}

/* ---- cuts for attention ---- */

/* Entries of an ascending list before each cut, at `out`. */
static const int32_t *cut_list(const struct assembly *a, struct row_list list, const int32_t *numbers, int32_t *out)
{
    const int32_t *rows = list.index ? a->host + (list.index - a->device) : numbers;
    int32_t n = 0;
    for (int32_t cut = 0; cut < a->rows.cuts; cut++) {
        out[cut] = n;
        while (n < list.count && rows[n] < (cut + 1) * a->rows.attention_rows)
            n++;
    }
    out[a->rows.cuts] = n;
    return out;
}

static void cut_queries(struct assembly *a)
{
    const int32_t most = a->limits.attention_rows, stride = most_cuts(&a->limits) + 1;
    a->rows.cuts = 0;
    if (!a->cuts || a->step.rows <= most)
        return;
    a->rows.cuts = (a->step.rows + most - 1) / most;
    a->rows.attention_rows = most;
    int32_t *numbers = put(a, a->step.rows, &a->rows.numbers), *out = a->cuts;
    for (int32_t row = 0; row < a->step.rows; row++)
        numbers[row] = row;
    for (int32_t i = 0; i < a->limits.plan->layers + a->limits.plan->draft_layers; i++, out += CUT_LISTS * stride) {
        struct layer_rows *r = &a->layer[i];
        r->query_cut = cut_list(a, r->query, numbers, out);
        r->once_cut = cut_list(a, r->once, numbers, out + stride);
        r->again_cut = cut_list(a, r->again, numbers, out + 2 * stride);
    }
}

qr_status assembly_fill(struct assembly *a, const struct batch *batch, qr_error *err)
{
    const struct model_plan *plan = a->limits.plan;
    a->used = 0;
    a->made_count = 0;
    a->batch = batch;
    memset(&a->step, 0, sizeof a->step);
    a->step.requests = batch->count;
    a->step.tentative = batch->tentative;
    for (int32_t b = 0; b < batch->count; b++)
        a->step.rows += batch->spans[b].count;

    fill_rows(a);
    fill_requests(a);
    for (int32_t i = 0; i < plan->layers; i++)
        fill_layer(a, i);
    for (int32_t i = 0; i < plan->draft_layers; i++)
        fill_draft_layer(a, plan->layers + i);
    a->rows.logits = rows_with_logits(a);
    a->rows.layer = a->layer;
    cut_queries(a);
    a->batch = NULL;
    return a->backend->upload(a->backend, a->device, a->host, a->used * (int64_t)sizeof *a->host, err);
}

const struct step *assembly_step(const struct assembly *a) { return &a->step; }

const struct step_rows *assembly_rows(const struct assembly *a) { return &a->rows; }
