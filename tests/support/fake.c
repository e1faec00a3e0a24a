#include "support/fake.h"

#include <stdlib.h>
#include <string.h>

#include "support/models.h"
#include "support/support.h"

enum { VOCABULARY = 1000, KIND_RING = 1, KIND_PAGE, KIND_INDEX, KIND_TAIL };

/* What a row says it is. */
struct stamp {
    uint64_t chain;
    int32_t position;
    int32_t kind; /* KIND_x, and the layer */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

uint32_t fake_random(struct fake *f, uint32_t below)
{
    f->random = mix(f->random, 1);
    return (uint32_t)(f->random >> 16) % below;
}

static int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }

/* ---- opening ---- */

static void default_costs(struct sched_options *o)
{
    if (o->costs.row_layer == 0)
        o->costs = (struct sched_costs){.row_layer = 1e-4, .step = 1e-3, .byte = 1e-10};
}

void fake_open(struct fake *f, const struct fake_options *options)
{
    memset(f, 0, sizeof *f);
    f->options = *options;
    f->random = options->seed;
    f->plan = plan_of(options->config);
    struct geometry_options g = geometry_defaults(&f->plan);
    g.block_tokens = options->block ? options->block : 32;
    g.draft_width = options->draft_width;
    qr_error err = {0};
    if (geometry_make(&f->plan, &g, &f->geometry, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_int_equal(cache_pool_open(&f->geometry, options->blocks, options->slots, &f->pool, NULL), QR_OK);
    memset(f->pool.base, 0xA5, (size_t)f->pool.layout.bytes);
    assert_int_equal(page_watch_open(&f->geometry, &f->pool.layout, &f->pages, NULL), QR_OK);
    struct sched_options o = options->sched;
    o.plan = &f->plan;
    o.geometry = &f->geometry;
    o.pool = &f->pool.layout;
    o.draft_width = options->draft_width;
    o.check = true;
    if (o.max_requests == 0)
        o.max_requests = (int32_t)options->slots;
    if (o.max_rows == 0)
        o.max_rows = 256;
    if (o.max_logits == 0)
        o.max_logits = o.max_requests * (o.draft_width + 1);
    if (o.max_length == 0)
        o.max_length = 1024;
    default_costs(&o);
    if (sched_open(&o, &f->sched, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void free_request(struct fake_request *q)
{
    free(q->oracle);
    free(q->chain);
    free(q->delivered);
    free(q->marks);
    free(q);
}

void fake_close(struct fake *f)
{
    fake_run(f);
    assert_int_equal(f->live, 0);
    assert_true(sched_idle(f->sched));
    assert_int_equal(images_copying(sched_images(f->sched)), 0);
    images_forget_all(sched_images(f->sched));
    assert_int_equal(images_held(sched_images(f->sched)), 0);
    assert_int_equal(blocks_free(sched_blocks(f->sched)), blocks_usable(sched_blocks(f->sched)));
    for (int32_t i = 0; i < f->request_count; i++)
        free_request(f->requests[i]);
    free(f->requests);
    sched_close(f->sched);
    page_watch_close(f->pages);
    cache_pool_close(&f->pool);
}

/* ---- requests ---- */

static uint64_t chain_next(uint64_t chain, int32_t token) { return mix(chain, (uint64_t)token + 17); }

/* What a model would say after `chain`. */
static int32_t next_token(uint64_t chain) { return (int32_t)(mix(chain, 99) % VOCABULARY); }

static struct fake_request *make_request(struct fake *f, const struct fake_given *g)
{
    struct fake_request *q = calloc(1, sizeof *q);
    q->id = (uint64_t)f->request_count + 1;
    q->prompt = g->count;
    q->stop_at = g->count + g->answer;
    q->limit = q->stop_at + g->room;
    q->first_logits = g->first_logits < 0 ? g->count - 1 : g->first_logits;
    q->oracle = calloc((size_t)q->limit, sizeof *q->oracle);
    q->chain = calloc((size_t)q->limit, sizeof *q->chain);
    q->delivered = calloc((size_t)q->prompt, 1);
    if (f->options.sched.image_token > 0)
        q->marks = calloc((size_t)q->prompt, 1);
    for (int32_t p = 0; q->marks && p < q->prompt; p++)
        q->marks[p] = g->tokens[p] == f->options.sched.image_token;
    uint64_t chain = 0;
    for (int32_t p = 0; p < q->limit; p++) {
        q->oracle[p] = p < g->count ? g->tokens[p] : next_token(chain);
        q->chain[p] = chain = chain_next(chain, q->oracle[p]);
    }
    return q;
}

static int32_t keep_request(struct fake *f, struct fake_request *q)
{
    if (f->request_count == f->request_room) {
        f->request_room = f->request_room ? 2 * f->request_room : 64;
        f->requests = realloc(f->requests, (size_t)f->request_room * sizeof(struct fake_request *));
    }
    f->requests[f->request_count] = q;
    f->live++;
    return f->request_count++;
}

static struct request_given given_of(const struct fake_request *q, int32_t priority)
{
    return (struct request_given){.id = q->id,
                                  .priority = priority,
                                  .tokens = q->oracle,
                                  .count = q->prompt,
                                  .limit = q->limit,
                                  .first_logits = q->first_logits,
                                  .image_mask = q->marks,
                                  .owner = (void *)(uintptr_t)q->id};
}

int32_t fake_submit(struct fake *f, const struct fake_given *g)
{
    struct fake_request *q = make_request(f, g);
    const struct request_given given = given_of(q, g->priority);
    const bool draftless = f->options.rest_percent > 0 && fake_random(f, 2) == 0;
    struct sched_request *parent = g->parent < 0 ? NULL : f->requests[g->parent]->r;
    qr_error err = {0};
    qr_status st = sched_request_make(&given, f->geometry.options.block_tokens, &q->r, &err);
    if (st == QR_OK)
        q->r->draftless = draftless;
    if (st == QR_OK)
        st = parent ? sched_add_after(f->sched, q->r, parent, &err) : sched_add(f->sched, q->r, &err);
    if (st != QR_OK)
        fail_msg("request %d: %s", f->request_count, err.message);
    return keep_request(f, q);
}

int32_t fake_prompt(struct fake *f, int32_t family, int32_t shared, int32_t count, int32_t answer)
{
    int32_t *tokens = calloc((size_t)count, sizeof *tokens);
    for (int32_t p = 0; p < count; p++)
        tokens[p] = p < shared ? (int32_t)(mix((uint64_t)family, (uint64_t)p) % VOCABULARY)
                               : (int32_t)fake_random(f, VOCABULARY);
    const struct fake_given g = {
        .tokens = tokens, .count = count, .answer = answer, .room = 8, .first_logits = -1, .parent = -1};
    const int32_t number = fake_submit(f, &g);
    free(tokens);
    return number;
}

int32_t fake_fork(struct fake *f, int32_t number, int32_t answer)
{
    const struct fake_request *parent = f->requests[number];
    const struct fake_given g = {.tokens = parent->oracle,
                                 .count = parent->r->count,
                                 .answer = answer,
                                 .room = 8,
                                 .first_logits = -1,
                                 .parent = -1};
    struct fake_request *q = make_request(f, &g);
    const struct request_given given = given_of(q, 0);
    qr_error err = {0};
    if (sched_fork(f->sched, parent->r, &given, &q->r, &err) != QR_OK)
        fail_msg("fork of %d: %s", number, err.message);
    return keep_request(f, q);
}

void fake_cancel(struct fake *f, int32_t number)
{
    struct fake_request *q = f->requests[number];
    if (!q->r || q->r->state == SCHED_FINISHED)
        return;
    q->cancelled = true;
    q->count_at_cancel = q->r->count;
    sched_cancel(f->sched, q->r);
}

struct fake_request *fake_of(const struct fake *f, int32_t number) { return f->requests[number]; }

/* ---- stamps ---- */

static void put(uint8_t *at, uint64_t chain, int32_t position, int32_t kind)
{
    const struct stamp s = {chain, position, kind};
    memcpy(at, &s, sizeof s);
}

static void expect(struct fake *f, const uint8_t *at, uint64_t chain, int32_t position, int32_t kind,
                   const struct batch_span *span)
{
    struct stamp s;
    memcpy(&s, at, sizeof s);
    f->reads++;
    if (s.chain != chain || s.position != position || s.kind != kind)
        fail_msg("request %llu, rows %d to %d: layer %d reads kind %d at position %d and finds kind %d of layer %d at "
                 "position %d%s",
                 (unsigned long long)span->request, span->first_position, span->first_position + span->count - 1,
                 kind >> 8, kind & 255, position, s.kind & 255, s.kind >> 8, s.position,
                 s.chain == chain ? "" : ", of other tokens");
}

/* ---- one span ---- */

struct work {
    struct fake *f;
    const struct batch_span *span;
    const struct fake_request *q;
    uint64_t *local; /* chains of the span's rows, drafts as they are */
    int32_t first, end;
};

static uint64_t chain_at(const struct work *w, int32_t p)
{
    return p < w->first ? w->q->chain[p] : w->local[p - w->first];
}

static uint8_t *ring_row(const struct work *w, int32_t layer, int32_t p)
{
    struct ring_plane plane;
    geometry_window(&w->f->geometry, &w->f->pool.layout, w->f->pool.base, layer, &plane);
    return plane.values + w->span->slot * plane.slot_stride + p % plane.rows * plane.value_row_stride;
}

static uint8_t *tail_row(const struct work *w, int32_t owner, int32_t p)
{
    struct ring_plane plane;
    geometry_tail(&w->f->geometry, &w->f->pool.layout, w->f->pool.base, owner, false, &plane);
    return plane.values + w->span->slot * plane.slot_stride + p % plane.rows * plane.value_row_stride;
}

static uint8_t *page_row(const struct work *w, int32_t owner, int32_t group, bool index)
{
    struct row_plane plane;
    (index ? geometry_index_plane : geometry_main_plane)(&w->f->geometry, &w->f->pool.layout, w->f->pool.base, owner,
                                                         &plane);
    const int32_t rows = w->f->geometry.owner[owner].rows;
    return plane.values + plane_value_offset(&plane, w->span->blocks[group / rows], group % rows);
}

static int32_t start_of_part(const struct work *w, int32_t value) { return max(value, w->first); }

/* Window keys below this forward's own come from the ring. */
static void read_window(const struct work *w, int32_t layer, int32_t query, int32_t key, int32_t low)
{
    const int32_t from = max(low, query - w->f->plan.config.sliding_window + 1);
    for (int32_t p = from; p < min(key, w->end); p++)
        expect(w->f, ring_row(w, layer, p), w->q->chain[p], p, KIND_RING | layer << 8, w->span);
}

static void read_group(const struct work *w, int32_t owner, int32_t group)
{
    const struct geometry_owner *o = &w->f->geometry.owner[owner];
    const int32_t last = (group + 1) * o->ratio - 1;
    expect(w->f, page_row(w, owner, group, false), chain_at(w, last), group, KIND_PAGE | o->layer << 8, w->span);
    if (o->has_index)
        expect(w->f, page_row(w, owner, group, true), chain_at(w, last), group, KIND_INDEX | o->layer << 8, w->span);
}

/* Compressed rows that the last query sees: all of them for a chunk, some for a single row. */
static void read_groups(const struct work *w, int32_t layer)
{
    const int32_t owner = w->f->plan.owner_of_layer[layer];
    if (owner < 0)
        return;
    const int32_t visible = w->end / w->f->geometry.owner[owner].ratio;
    if (w->end - w->first > 8 || visible < 8) {
        for (int32_t g = 0; g < visible; g++)
            read_group(w, owner, g);
        return;
    }
    for (int32_t i = 0; i < 4; i++) {
        read_group(w, owner, visible - 1 - i);
        read_group(w, owner, (int32_t)fake_random(w->f, (uint32_t)visible));
    }
}

static void check_writable(const struct work *w, block_id id)
{
    if (blocks_references(sched_blocks(w->f->sched), id) != 1 || blocks_indexed(sched_blocks(w->f->sched), id))
        fail_msg("request %llu writes page %d, which has %d references, indexed %d",
                 (unsigned long long)w->span->request, id, blocks_references(sched_blocks(w->f->sched), id),
                 blocks_indexed(sched_blocks(w->f->sched), id));
}

static void compress(const struct work *w, int32_t layer, int32_t from)
{
    const struct fake *f = w->f;
    const int32_t owner = f->plan.owner_of_layer[layer], ratio = f->geometry.owner[owner].ratio;
    const int32_t pool = f->plan.layer[layer].compressor == COMPRESSOR_OVERLAP ? 2 * ratio : ratio;
    const bool sole = f->out_count <= 1; /* with more batches out, freed pages may still be written to, in order */
    for (int32_t p = max(from, w->span->write_from); p < w->end; p++) {
        if ((p + 1) % ratio)
            continue;
        for (int32_t q = max(0, p + 1 - pool); q < from; q++)
            expect(w->f, tail_row(w, owner, q), w->q->chain[q], q, KIND_TAIL | layer << 8, w->span);
        const int32_t group = p / ratio;
        if (sole)
            check_writable(w, w->span->blocks[group / f->geometry.owner[owner].rows]);
        put(page_row(w, owner, group, false), chain_at(w, p), group, KIND_PAGE | layer << 8);
        if (f->geometry.owner[owner].has_index)
            put(page_row(w, owner, group, true), chain_at(w, p), group, KIND_INDEX | layer << 8);
    }
    for (int32_t p = max(from, w->end - f->geometry.tail_rows[owner]); p < w->end; p++)
        put(tail_row(w, owner, p), chain_at(w, p), p, KIND_TAIL | layer << 8);
}

/* One layer; returns the first row that it completes. */
static int32_t run_layer(const struct work *w, int32_t layer, int32_t have)
{
    struct fake *f = w->f;
    const struct layer_start every = {.query = 0}, *s = w->span->rows ? &w->span->rows->layer[layer] : &every;
    const bool owner = f->plan.layer[layer].owns_rows;
    const int32_t query = start_of_part(w, s->query), key = start_of_part(w, s->key);
    const int32_t from = owner ? start_of_part(w, s->compress) : w->end;
    const int32_t once = start_of_part(w, s->again); /* rows below it are run again, and leave nothing */
    const int32_t input = min(query, min(key, from));
    if (input < w->end && input < have)
        fail_msg("request %llu: layer %d runs from row %d, the layer below gives them from %d",
                 (unsigned long long)w->span->request, layer, input, have);
    f->layer_rows[layer] += max(0, w->end - query);
    f->layer_keys[layer] += max(0, w->end - key);
    if (once > w->first && (key > w->first || from < once))
        fail_msg("request %llu: layer %d runs rows %d to %d again, with keys from %d and compressor inputs from %d",
                 (unsigned long long)w->span->request, layer, w->first, once - 1, key, from);
    if (max(query, once) < w->end)
        read_window(w, layer, max(query, once), max(key, once), s->low);
    if (owner && from < w->end)
        compress(w, layer, from);
    if (query < w->end)
        read_groups(w, layer);
    for (int32_t p = max(max(key, once), w->end - f->geometry.ring_rows); p < w->end; p++)
        put(ring_row(w, layer, p), chain_at(w, p), p, KIND_RING | layer << 8);
    return query;
}

static void check_span(const struct work *w)
{
    const struct batch_span *s = w->span;
    assert_in_range(s->count, 1, w->q->limit);
    assert_in_range(s->logits_from, 0, s->count);
    for (int32_t i = 0; i < s->count - s->drafts; i++)
        if (s->tokens[i] != w->q->oracle[w->first + i] && s->tokens[i] != BATCH_TOKEN_DRAWN)
            fail_msg("request %llu: token %d at position %d, wanted %d", (unsigned long long)s->request, s->tokens[i],
                     w->first + i, w->q->oracle[w->first + i]);
    for (int32_t i = 0; i < s->drafts; i++) /* of this request, whatever the order of requests */
        assert_int_equal(s->tokens[s->count - s->drafts + i], w->q->draft[i]);
    for (int32_t i = 0; w->q->marks && i < s->count; i++)
        if (s->tokens[i] != BATCH_TOKEN_DRAWN)
            assert_int_equal(s->image_mask[i], s->tokens[i] == w->f->options.sched.image_token);
    for (int32_t i = 0; i < s->before_count; i++) {
        assert_int_equal(s->before[i], w->q->oracle[w->first - s->before_count + i]);
        if (w->q->marks)
            assert_int_equal(s->before_mask[i], s->before[i] == w->f->options.sched.image_token);
    }
}

static void run_span(struct fake *f, const struct batch_span *span)
{
    struct work w = {
        f, span, f->requests[span->request - 1], NULL, span->first_position, span->first_position + span->count};
    check_span(&w);
    w.local = calloc((size_t)span->count, sizeof *w.local);
    uint64_t chain = w.first ? w.q->chain[w.first - 1] : 0;
    for (int32_t i = 0; i < span->count; i++) {
        const int32_t token = span->tokens[i] == BATCH_TOKEN_DRAWN ? w.q->oracle[w.first + i] : span->tokens[i];
        w.local[i] = chain = chain_next(chain, token);
    }
    int32_t have = w.first;
    for (int32_t layer = 0; layer < f->plan.layers; layer++)
        have = run_layer(&w, layer, have);
    for (int32_t layer = f->plan.layers; layer < f->geometry.ring_layers && !span->draftless; layer++) { /* the drafter's, if any */
        const int32_t key = start_of_part(&w, span->rows ? span->rows->layer[layer].key : 0);
        for (int32_t p = max(key, w.end - f->geometry.ring_rows); p < w.end; p++)
            put(ring_row(&w, layer, p), chain_at(&w, p), p, KIND_RING | layer << 8);
    }
    if (span->logits_from < span->count && w.first + span->logits_from < have)
        fail_msg("request %llu wants logits of row %d, the last layer runs from %d", (unsigned long long)span->request,
                 w.first + span->logits_from, have);
    f->rows += span->count;
    free(w.local);
}

/* ---- cursors ---- */

static void check_cursor(const struct fake *f, const struct batch_span *span, const struct cursor *c)
{
    const struct fake_request *q = f->requests[span->request - 1];
    if (c->position != span->first_position)
        fail_msg("request %llu starts at row %d, the cursor of slot %d stands at %lld",
                 (unsigned long long)span->request, span->first_position, span->slot, (long long)c->position);
    for (int32_t i = 0; i < c->history_count; i++) {
        const int64_t p = c->position - c->history_count + i;
        if (c->history[i] != (p < 0 ? -1 : q->oracle[p]))
            fail_msg("request %llu at row %d: history %d is %lld", (unsigned long long)span->request,
                     span->first_position, i, (long long)c->history[i]);
    }
}

/* The rules of runtime.md 3.8: reset at 0, placed, or where the last step left it. */
static void start_cursor(struct fake *f, const struct batch_span *span)
{
    struct cursor c = cursor_start(&f->geometry);
    if (span->first_position == 0) {
        cache_pool_write_cursor(&f->pool, span->slot, &c);
    } else if (span->place) {
        assert_int_equal(span->before_count, min(c.history_count, span->first_position));
        for (int32_t i = 0; i < span->before_count; i++)
            c.history[c.history_count - span->before_count + i] = span->before[i];
        c.position = span->first_position;
        cache_pool_write_cursor(&f->pool, span->slot, &c);
    }
    cache_pool_read_cursor(&f->pool, span->slot, &c);
    check_cursor(f, span, &c);
}

static void move_cursor(struct fake *f, const struct batch_span *span, int32_t end)
{
    struct cursor c = cursor_start(&f->geometry);
    const struct fake_request *q = f->requests[span->request - 1];
    c.position = end;
    for (int32_t i = 0; i < c.history_count; i++) {
        const int32_t p = end - c.history_count + i;
        c.history[i] = p < 0 ? -1 : q->oracle[p];
    }
    cache_pool_write_cursor(&f->pool, span->slot, &c);
}

/* Rows of a span that become true. */
static int32_t accepted_of(const struct fake *f, const struct batch_span *span)
{
    const struct fake_request *q = f->requests[span->request - 1];
    int32_t n = span->count - span->drafts;
    while (n < span->count && span->tokens[n] == q->oracle[span->first_position + n])
        n++;
    return n;
}

/* ---- batches ---- */

static void run_copies(struct fake *f, const struct batch *batch)
{
    for (int32_t i = 0; i < batch->copy_count; i++) {
        const struct cache_copy *c = &batch->copies[i];
        assert_true(c->bytes > 0 && c->from >= 0 && c->to >= 0);
        assert_true(c->from + c->bytes <= f->pool.layout.bytes && c->to + c->bytes <= f->pool.layout.bytes);
        memmove(f->pool.base + c->to, f->pool.base + c->from, (size_t)c->bytes);
    }
}

static void check_batch(const struct fake *f, const struct batch *batch)
{
    int64_t rows = 0, logits = 0;
    assert_true(batch->count > 0 || batch->copy_count > 0);
    for (int32_t b = 0; b < batch->count; b++) {
        rows += batch->spans[b].count;
        logits += batch->spans[b].count - batch->spans[b].logits_from;
        for (int32_t c = 0; c < b; c++) {
            assert_int_not_equal(batch->spans[b].slot, batch->spans[c].slot);
            assert_int_not_equal(batch->spans[b].request, batch->spans[c].request);
        }
    }
    assert_true(rows <= (f->options.sched.max_rows ? f->options.sched.max_rows : 256));
    if (f->options.sched.max_logits)
        assert_true(logits <= f->options.sched.max_logits);
}

/* A step that fails midway leaves garbage in its slots and in the pages it may write. */
static void scribble(struct fake *f, const struct batch *batch)
{
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        memset(f->pool.base + f->pool.layout.state_offset + s->slot * f->geometry.state_bytes, 0x5A,
               (size_t)f->geometry.state_bytes);
        const int32_t block = f->geometry.options.block_tokens;
        for (int32_t i = max(s->first_position, s->write_from) / block; i < s->block_count; i++)
            if (max(s->first_position, s->write_from) < s->first_position + s->count)
                memset(f->pool.base + f->pool.layout.main_offset + s->blocks[i] * f->geometry.main_page_bytes, 0x5A,
                       (size_t)f->geometry.main_page_bytes);
    }
}

/* Four other pages a step: none stays unseen for long. */
static void check_other_pages(struct fake *f, const struct batch *batch)
{
    qr_error err = {0};
    if (page_watch_step(f->pages, batch, f->pool.base, 4, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void run_batch(struct fake *f, const struct batch *batch, bool fails)
{
    check_batch(f, batch);
    if (f->watch)
        f->watch(f, batch);
    run_copies(f, batch);
    f->steps++;
    if (fails) {
        scribble(f, batch);
        f->failures++;
        check_other_pages(f, batch);
        return;
    }
    for (int32_t b = 0; b < batch->count; b++)
        start_cursor(f, &batch->spans[b]);
    for (int32_t b = 0; b < batch->count; b++) {
        run_span(f, &batch->spans[b]);
        move_cursor(f, &batch->spans[b], batch->spans[b].first_position + accepted_of(f, &batch->spans[b]));
    }
    check_other_pages(f, batch);
}

/* ---- results ---- */

static void note_logits(struct fake_request *q, const struct batch_span *s)
{
    for (int32_t i = s->logits_from; i < s->count; i++)
        if (s->first_position + i < q->prompt)
            q->delivered[s->first_position + i] = 1;
}

static struct sched_result result_of(struct fake *f, const struct batch_span *s, const struct sched_request *r)
{
    struct fake_request *q = f->requests[s->request - 1];
    struct sched_result result = {.accepted = accepted_of(f, s)};
    if (!r)
        return result;
    note_logits(q, s);
    if (!s->final)
        return result;
    const int32_t drawn = s->first_position + result.accepted + 1;
    result.tokens = q->oracle + r->count;
    result.token_count = min(min(drawn, q->stop_at), q->limit) - r->count;
    assert_int_equal(r->count, s->first_position + s->count - s->drafts);
    if (drawn >= q->limit)
        result.finish = FINISH_LENGTH;
    if (drawn >= q->stop_at)
        result.finish = FINISH_STOP;
    return result;
}

/* The drafter behind a step reads its whole window, and no row of it stands below what it is told to read. */
static void read_drafter(struct fake *f, const struct fake_request *q)
{
    const struct sched_request *r = q->r;
    const bool block = f->plan.config.drafter == QR_DRAFTER_DSPARK;
    const struct batch_span span = {.request = q->id, .slot = r->slot, .first_position = r->done, .count = 1};
    const struct work w = {f, &span, q, NULL, r->done, r->done + 1};
    const int32_t from = max(0, r->done - f->geometry.window + !block);
    if (r->draft_from > from)
        fail_msg("request %llu: the drafter may read rows from %d on, at position %d it wants %d", (unsigned long long)q->id,
                 r->draft_from, r->done, from);
    for (int32_t layer = f->plan.layers; layer < f->geometry.ring_layers; layer++)
        for (int32_t p = from; p < r->done; p++)
            expect(f, ring_row(&w, layer, p), q->chain[p], p, KIND_RING | layer << 8, &span);
}

/* What the request proposes to verify next. */
static void propose(struct fake *f, struct fake_request *q)
{
    int32_t drafts[SCHED_MAX_WIDTH];
    const int32_t width = f->options.draft_width;
    if (width == 0 || !q->r || q->r->state != SCHED_DECODE)
        return;
    if (f->options.rest_percent > 0 && (int32_t)fake_random(f, 100) < f->options.rest_percent)
        q->r->draftless = !q->r->draftless;
    if (q->r->draftless || (q->r->draft_gap > 0 && q->r->done < q->r->draft_gap + f->geometry.window))
        return;
    read_drafter(f, q);
    const int32_t n = f->options.drafts ? f->options.drafts : (int32_t)fake_random(f, (uint32_t)width + 1);
    for (int32_t i = 0; i < n; i++) {
        const int32_t p = q->r->count + i;
        const bool right = p < q->limit && (int32_t)fake_random(f, 100) < f->options.accept_percent;
        drafts[i] = right ? q->oracle[p] : (int32_t)fake_random(f, VOCABULARY);
    }
    memcpy(q->draft, drafts, (size_t)n * sizeof *drafts);
    q->drafts = n;
    sched_draft(f->sched, q->r, drafts, n);
}

static void count_tokens(struct fake *f, const struct batch_span *s, const struct sched_result *result)
{
    if (!s->final || result->failed)
        return;
    const int32_t right = result->accepted - (s->count - s->drafts);
    f->verified += s->drafts;
    f->accepted += right;
    f->due += right + 1;
    f->cut += right + 1 - result->token_count;
    f->emitted += result->token_count;
}

static void take_finished(struct fake *f)
{
    for (struct sched_request *r; (r = sched_finished(f->sched));) {
        struct fake_request *q = f->requests[(uintptr_t)r->owner - 1];
        if (memcmp(r->tokens, q->oracle, (size_t)r->count * sizeof *r->tokens) != 0)
            fail_msg("request %llu: its tokens are not those it gives alone", (unsigned long long)r->id);
        if (r->finish == FINISH_STOP || r->finish == FINISH_LENGTH) {
            assert_int_equal(r->count, min(q->stop_at, q->limit));
            for (int32_t p = q->first_logits; p < q->prompt; p++)
                if (!q->delivered[p])
                    fail_msg("request %llu: no logits of row %d", (unsigned long long)r->id, p);
        }
        if (q->cancelled) {
            assert_int_equal(r->finish, FINISH_CANCELLED);
            assert_int_equal(r->count, q->count_at_cancel);
        }
        q->finish = r->finish;
        q->count = r->count;
        q->cached = r->cached_tokens;
        q->preemptions = r->preemptions;
        q->rows_run = r->rows_run;
        q->rows_rerun = r->rows_rerun;
        q->r = NULL;
        sched_request_free(r);
        f->live--;
    }
}

static void complete_oldest(struct fake *f)
{
    const struct batch *batch = f->out[0];
    const bool failed = f->failed[0];
    struct sched_result results[128];
    bool dropped[128];
    assert_true(batch->count <= 128);
    if (f->between)
        f->between(f, batch);
    for (int32_t b = 0; b < batch->count; b++) {
        const struct sched_request *r = sched_span_request(f->sched, b);
        results[b] = failed ? (struct sched_result){.failed = true} : result_of(f, &batch->spans[b], r);
    }
    f->out_count--;
    memmove(f->out, f->out + 1, (size_t)f->out_count * sizeof(struct batch *));
    memmove(f->failed, f->failed + 1, (size_t)f->out_count * sizeof *f->failed);
    uint64_t named[128];
    const int32_t count = batch->count;
    const struct batch_span *spans = batch->spans;
    const int64_t before = sched_metrics(f->sched).generated_tokens, emitted = f->emitted;
    for (int32_t b = 0; b < count; b++)
        named[b] = batch->spans[b].request;
    sched_complete(f->sched, results, dropped);
    for (int32_t b = 0; b < count; b++) {
        f->dropped += dropped[b];
        if (!dropped[b])
            count_tokens(f, &spans[b], &results[b]);
        propose(f, f->requests[named[b] - 1]);
    }
    assert_int_equal(sched_metrics(f->sched).generated_tokens - before, f->emitted - emitted);
    assert_int_equal(f->emitted, f->due - f->cut);
    take_finished(f);
}

static void sound(const struct fake *f)
{
    qr_error err = {0};
    if (sched_broken(f->sched, &err) != QR_OK)
        fail_msg("%s", err.message);
}

bool fake_step(struct fake *f)
{
    const struct batch *batch;
    const int32_t most = f->options.sched.depth + 1;
    bool something = false;
    if (f->out_count < most && sched_next(f->sched, &batch)) {
        bool fails = f->options.fail_every && fake_random(f, (uint32_t)f->options.fail_every) == 0;
        for (int32_t i = 0; i < f->out_count; i++)
            fails |= f->failed[i]; /* what runs behind a failed step builds on it */
        f->failed[f->out_count] = fails;
        f->out[f->out_count++] = batch;
        run_batch(f, batch, f->failed[f->out_count - 1]);
        something = true;
    }
    if (f->out_count == most || (!something && f->out_count > 0)) {
        complete_oldest(f);
        something = true;
    }
    take_finished(f); /* some end without a batch */
    sound(f);
    return something;
}

void fake_run(struct fake *f)
{
    while (fake_step(f))
        continue;
    assert_int_equal(f->live, 0);
}

void fake_run_to(struct fake *f, int32_t number, int32_t rows)
{
    while (f->requests[number]->r && f->requests[number]->r->done < rows)
        assert_true(fake_step(f));
}
