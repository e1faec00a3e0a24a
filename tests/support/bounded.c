#include "support/bounded.h"

#include <string.h>

#include "base/alloc.h"
#include "support/rig.h"
#include "support/support.h"

enum { LONGEST = 900, ANSWER = 3, BLOCKS = 90, KEPT = 0, ASIDE = 1, BASE = 2 };

/* What came of a prompt: the logits of its last row and of each decoded one, and where its forwards started. */
struct outcome {
    int32_t tokens[LONGEST + ANSWER], count;
    float *logits; /* [ANSWER][vocab] */
    int32_t rows;  /* of logits */
    int32_t cached, start; /* H; S of the first forward */
    int32_t last_first, last_again; /* S and C of the forward that finished the prompt; C is 0 without a back-off */
    int32_t last_progress;          /* P of it */
};

struct bench {
    const struct bounded_world *world;
    struct rig run, control; /* what the scheduler runs; what the test runs */
    struct sched *sched;
    struct pool_layout pool;
    int32_t block, window, decoder;
    size_t vocab;
    uint64_t ids;
};

static int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }
static int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }

/* ---- opening ---- */

static void open_sched(struct bench *b)
{
    const struct bounded_world *w = b->world;
    qr_error err = {0};
    must(geometry_pool(&b->run.geometry, BLOCKS, 2, &b->pool, &err), &err);
    const struct sched_options o = {.plan = &b->run.plan,
                                    .geometry = &b->run.geometry,
                                    .pool = &b->pool,
                                    .max_requests = 2,
                                    .max_rows = w->rows,
                                    .max_logits = 2,
                                    .max_length = LONGEST + ANSWER,
                                    .max_prefill_rows = -1,
                                    .long_prefill_cap = w->cap,
                                    .image_token = -1,
                                    .prefix_cache = true,
                                    .images = w->images,
                                    .image_interval = w->images ? w->block : 0,
                                    .decoder_replay = w->decoder,
                                    .encoder_replay = w->encoder,
                                    .costs = {.row_layer = 1e-4, .step = 1e-6, .byte = 1e-12},
                                    .check = true};
    must(sched_open(&o, &b->sched, &err), &err);
}

static void open_bench(struct bench *b, const struct bounded_world *w)
{
    memset(b, 0, sizeof *b);
    b->world = w;
    struct rig_options o = {.model = w->model,
                            .device = "cpu",
                            .threads = 2,
                            .block = w->block,
                            .blocks = BLOCKS,
                            .slots = 2,
                            .max_rows = LONGEST,
                            .max_positions = LONGEST + ANSWER};
    o.attention_rows = 29; /* of the run alone: how many rows attention takes at a time is not seen */
    rig_open(&b->run, &o);
    o.attention_rows = 0;
    o.slots = 3;
    rig_open(&b->control, &o);
    b->block = w->block;
    b->window = b->run.plan.config.sliding_window;
    b->decoder = rows_decoder(&b->run.plan);
    b->vocab = (size_t)b->run.config.vocab_size;
    open_sched(b);
}

static void close_bench(struct bench *b)
{
    sched_close(b->sched);
    rig_close(&b->run);
    rig_close(&b->control);
}

/* The first `shared` tokens every prompt has; those behind are its own. */
static void make_prompt(const struct bench *b, int32_t shared, int32_t count, uint32_t own, struct outcome *o)
{
    assert_in_range(count, 1, LONGEST);
    rig_tokens(&b->run, 77, o->tokens, shared);
    rig_tokens(&b->run, 1000 + own, o->tokens + shared, count - shared);
    o->count = count;
    o->rows = 0;
    o->logits = qr_calloc(ANSWER * b->vocab, sizeof *o->logits);
    assert_non_null(o->logits);
}

static int32_t likeliest(const float *logits, size_t vocab)
{
    size_t best = 0;
    for (size_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* ---- as the scheduler runs it ---- */

/* A copy of what a back-off must leave as it is: rings of the encoder below C, and every page below it. */
struct untouched {
    int32_t slot, from, to, last_page;
    const block_id *blocks;
    uint8_t *bytes;
    int64_t used, room;
};

static void keep_bytes(const struct bench *b, struct untouched *u, const uint8_t *at, int64_t bytes)
{
    assert_true(u->used + bytes <= u->room);
    rig_read(&b->run, u->bytes + u->used, at, bytes);
    u->used += bytes;
}

/* Rows [from, to) of the encoder's rings, and the main rows of the pages below. */
static void read_untouched(const struct bench *b, struct untouched *u)
{
    const struct geometry *g = &b->run.geometry;
    int64_t size;
    uint8_t *base = rig_pool(&b->run, &size);
    u->used = 0;
    for (int32_t layer = 0; layer < b->decoder; layer++) {
        struct ring_plane ring;
        geometry_window(g, &b->pool, base, layer, &ring);
        for (int32_t p = u->from; p < u->to; p++)
            keep_bytes(b, u, ring.values + u->slot * ring.slot_stride + p % ring.rows * ring.value_row_stride,
                       ring.value_row_stride);
    }
    for (int32_t i = 0; i < u->last_page; i++)
        keep_bytes(b, u, base + b->pool.main_offset + u->blocks[i] * g->main_page_bytes, g->main_page_bytes);
}

static void begin_untouched(const struct bench *b, const struct batch_span *span, int32_t again, struct untouched *u)
{
    const int32_t end = span->first_position + span->count, rows = b->run.geometry.ring_rows;
    *u = (struct untouched){.slot = span->slot,
                            .from = max(0, end - rows),
                            .to = max(again, max(0, end - rows)),
                            .last_page = again / b->block,
                            .blocks = span->blocks,
                            .room = 1 << 22};
    u->bytes = qr_malloc((size_t)u->room);
    assert_non_null(u->bytes);
    read_untouched(b, u);
}

static void end_untouched(const struct bench *b, struct untouched *u)
{
    uint8_t *before = u->bytes;
    const int64_t used = u->used;
    u->bytes = qr_malloc((size_t)u->room);
    assert_non_null(u->bytes);
    read_untouched(b, u);
    assert_int_equal(used, u->used);
    if (memcmp(before, u->bytes, (size_t)used) != 0)
        fail_msg("%s: a back-off has written below row %d", b->world->model, u->to);
    qr_free(before);
    qr_free(u->bytes);
}

static void note_span(const struct bench *b, const struct sched_request *r, const struct batch_span *span,
                      struct outcome *o)
{
    if (!span->rows)
        return;
    if (o->start < 0)
        o->start = span->first_position;
    if (!span->final)
        return;
    o->last_first = span->first_position;
    o->last_again = span->rows->layer[0].again;
    o->last_progress = r->flight[r->flights - 1].first;
    (void)b;
}

/* Runs a batch; result->tokens point into the outcomes. */
static void run_batch(struct bench *b, const struct batch *batch, struct outcome *const *of, struct sched_result *results)
{
    struct backend *backend = b->run.backend;
    struct untouched u = {.bytes = NULL};
    qr_error err = {0};
    int64_t size;
    uint8_t *base = rig_pool(&b->run, &size);
    for (int32_t i = 0; i < batch->copy_count; i++)
        must(backend->copy(backend, base + batch->copies[i].to, base + batch->copies[i].from, batch->copies[i].bytes, &err),
             &err);
    for (int32_t i = 0; i < batch->count; i++) {
        const struct batch_span *span = &batch->spans[i];
        if (span->restored)
            must(runner_restored(b->run.runner, span->slot, &err), &err);
        note_span(b, sched_span_request(b->sched, i), span, of[span->request]);
        if (span->rows && span->rows->layer[0].again > 0)
            begin_untouched(b, span, span->rows->layer[0].again, &u);
    }
    if (batch->count > 0)
        must(runner_step(b->run.runner, batch, NULL, &err), &err);
    if (u.bytes)
        end_untouched(b, &u);
    const float *logits = runner_workspace(b->run.runner)->logits;
    for (int32_t i = 0; i < batch->count; i++) {
        const struct batch_span *span = &batch->spans[i];
        struct outcome *o = of[span->request];
        results[i] = (struct sched_result){.accepted = span->count};
        if (span->logits_from == span->count)
            continue;
        float *out = o->logits + (size_t)o->rows * b->vocab;
        rig_read(&b->run, out, logits, (int64_t)(b->vocab * sizeof *out));
        logits += b->vocab;
        o->tokens[o->count] = likeliest(out, b->vocab);
        results[i].tokens = &o->tokens[o->count++];
        results[i].token_count = 1;
        if (++o->rows == ANSWER)
            results[i].finish = FINISH_STOP;
    }
}

/* Runs one or two prompts to the end of their answers. */
static void run_scheduled(struct bench *b, struct outcome *const *prompts, int n)
{
    struct outcome *of[64] = {NULL}; /* by id */
    qr_error err = {0};
    b->ids = 0;
    for (int i = 0; i < n; i++) {
        struct outcome *o = prompts[i];
        struct sched_request *r;
        const struct request_given given = {.id = ++b->ids,
                                            .tokens = o->tokens,
                                            .count = o->count,
                                            .limit = o->count + ANSWER,
                                            .first_logits = o->count - 1};
        o->start = -1;
        of[given.id] = o;
        must(sched_request_make(&given, b->block, &r, &err), &err);
        must(sched_add(b->sched, r, &err), &err);
    }
    const struct batch *batch;
    struct sched_result results[2];
    while (sched_next(b->sched, &batch)) {
        run_batch(b, batch, of, results);
        sched_complete(b->sched, results, NULL);
        must(sched_broken(b->sched, &err), &err);
    }
    for (struct sched_request *r; (r = sched_finished(b->sched));) {
        of[r->id]->cached = r->cached_tokens;
        assert_int_equal(r->finish, FINISH_STOP);
        sched_request_free(r);
    }
}

/* ---- as the test runs it ---- */

/* Windows begin at `encoder` in the layers below the decoder, at `decoder` in the others. */
struct lows {
    int32_t encoder, decoder;
};

/* Rows [from, to) in `slot`: every layer on every row. `logits` NULL: none wanted, else the last row's. */
static void run_rows(struct bench *b, const struct outcome *o, const struct rig_request *q, int32_t slot, int32_t from,
                     int32_t to, bool place, int32_t write_from, struct lows lows, float *logits)
{
    struct rig_request at = *q;
    struct row_plan rows;
    const int32_t history = min(3, from);
    qr_error err = {0};
    at.position = from;
    at.slot = slot;
    rows_all(&b->control.plan, 0, to, &rows);
    for (int32_t layer = 0; layer < b->control.plan.layers; layer++)
        rows.layer[layer].low = layer < b->decoder ? lows.encoder : lows.decoder;
    struct batch_span span = rig_span(&b->control, &at, to - from);
    span.rows = &rows;
    span.write_from = write_from;
    span.logits_from = logits ? to - from - 1 : to - from;
    span.place = place && from > 0;
    span.before = o->tokens + from - history;
    span.before_count = history;
    const struct batch batch = {.count = 1, .spans = &span};
    must(runner_step(b->control.runner, &batch, NULL, &err), &err);
    if (logits)
        rig_read(&b->control, logits, runner_workspace(b->control.runner)->logits, (int64_t)(b->vocab * sizeof *logits));
}

/* The decoder's rings of slot ASIDE into KEPT; scales stand in the rows. */
static void take_decoder_rings(struct bench *b)
{
    struct backend *backend = b->control.backend;
    qr_error err = {0};
    int64_t size;
    uint8_t *base = rig_pool(&b->control, &size);
    const struct model_cache cache = runner_cache(b->control.runner);
    for (int32_t layer = b->decoder; layer < b->control.plan.layers; layer++) {
        struct ring_plane ring;
        geometry_window(&b->control.geometry, cache.pool, base, layer, &ring);
        must(backend->copy(backend, ring.values + KEPT * ring.slot_stride, ring.values + ASIDE * ring.slot_stride,
                           ring.rows * ring.value_row_stride, &err),
             &err);
    }
}

/* The whole prompt again: `start` where the encoder is rebuilt from (0: it is exact), the last forward as the scheduler
 * cut it. Every step before it is cut another way. */
static void run_control(struct bench *b, const struct outcome *o, int32_t prompt, int32_t hit, struct rig_request *q,
                        float *logits)
{
    const bool bounded = b->world->decoder == REPLAY_BOUNDED;
    const int32_t start = b->world->encoder == REPLAY_BOUNDED ? max(0, hit - b->block) : 0;
    const int32_t write_from = b->world->encoder == REPLAY_BOUNDED ? hit : 0, tail = max(0, prompt - b->window);
    const struct lows before = {start, start}, last = {start, bounded ? tail : start};
    int32_t from = start;
    bool place = true;
    /* what needs no tail, in uneven steps */
    const int32_t end = o->last_again > 0 ? o->last_again : max(start, tail);
    while (from < end) {
        const int32_t to = min(end, from + 41 + from % 29);
        run_rows(b, o, q, KEPT, from, to, place, write_from, before, NULL);
        from = to;
        place = false;
    }
    if (o->last_again > 0) {
        run_rows(b, o, q, ASIDE, o->last_first, o->last_again, true, prompt, (struct lows){o->last_first, tail}, NULL);
        take_decoder_rings(b);
    }
    run_rows(b, o, q, KEPT, from, prompt, place, write_from, last, logits);
    for (int32_t i = 1; i < ANSWER; i++)
        run_rows(b, o, q, KEPT, prompt + i - 1, prompt + i, false, 0, (struct lows){0, 0}, logits + (size_t)i * b->vocab);
}

static bool same(const struct bench *b, const struct outcome *o, const float *logits)
{
    return memcmp(o->logits, logits, ANSWER * b->vocab * sizeof *logits) == 0;
}

/* The control's pages below `hit` were computed by a cold run of the prompt that left them. */
static void compare(struct bench *b, const struct outcome *o, int32_t shared, struct bounded_counts *counts)
{
    const int32_t prompt = o->count - ANSWER;
    float *logits = qr_calloc(ANSWER * b->vocab, sizeof *logits);
    struct rig_request q = rig_request(&b->control, o->tokens, o->count, KEPT, 1, 1);
    const struct lows whole = {0, 0};
    assert_non_null(logits);
    memset(q.image_mask, 0, (size_t)o->count); /* nor does the scheduler's request have one */
    if (shared > 0)
        run_rows(b, o, &q, BASE, 0, shared, false, 0, whole, NULL);
    run_control(b, o, prompt, o->cached, &q, logits);
    if (!same(b, o, logits))
        fail_msg("%s: %d tokens, %d cached, last forward from %d with C %d: not the control's bits", b->world->model, prompt,
                 o->cached, o->last_first, o->last_again);
    run_rows(b, o, &q, BASE, 0, prompt, false, 0, whole, logits);
    counts->drifted += memcmp(o->logits, logits, b->vocab * sizeof *logits) != 0;
    counts->prompts++;
    counts->hits += o->cached > 0;
    rig_request_free(&q);
    qr_free(logits);
}

static void hold(struct bench *b, int32_t hit, int32_t suffix, struct bounded_counts *counts)
{
    struct outcome base, one, two;
    sched_drop_cache(b->sched);
    make_prompt(b, hit, hit + 1, 0, &base);
    run_scheduled(b, (struct outcome *const[]){&base}, 1);
    qr_free(base.logits);
    const int32_t count = max(1, hit + suffix), cached = (count - 1) / b->block * b->block;
    make_prompt(b, min(hit, count), count, (uint32_t)(suffix + 1), &one);
    run_scheduled(b, (struct outcome *const[]){&one}, 1);
    if (b->world->encoder != REPLAY_OFF)
        assert_int_equal(one.cached, min(cached, hit));
    compare(b, &one, min(hit, count), counts);
    /* the same beside another prompt, from what the first has left */
    make_prompt(b, min(hit, count), count, (uint32_t)(suffix + 1), &two);
    make_prompt(b, min(hit, count), count, (uint32_t)(suffix + 500), &base);
    run_scheduled(b, (struct outcome *const[]){&base, &two}, 2);
    compare(b, &base, min(hit, count), counts);
    qr_free(base.logits);
    qr_free(one.logits);
    qr_free(two.logits);
}

void bounded_all(const struct bounded_world *w, const int32_t *hits, int hit_count, const int32_t *suffixes,
                 int suffix_count, struct bounded_counts *out)
{
    struct bench b;
    *out = (struct bounded_counts){0};
    open_bench(&b, w);
    for (int i = 0; i < hit_count; i++)
        for (int k = 0; k < suffix_count; k++)
            hold(&b, hits[i], suffixes[k], out);
    const struct sched_metrics m = sched_metrics(b.sched);
    out->backed_off = m.rows_backed_off;
    out->restored = m.restores + m.lower_restores;
    print_message("%s, decoder %d, encoder %d: %lld prompts, %lld of cached tokens, %lld rows run again by a back-off, %lld "
                  "restored, %lld drifted\n",
                  w->model, (int)w->decoder, (int)w->encoder, (long long)out->prompts, (long long)out->hits,
                  (long long)out->backed_off, (long long)out->restored, (long long)out->drifted);
    close_bench(&b);
}
