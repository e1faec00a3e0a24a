#include <string.h>

#include "base/alloc.h"
#include "sched/state.h"

/* Prefill passes in a row while decode waits, where the two do not share steps (addendum 4.3.6). */
enum { PREFILL_PASSES_MOST = 8 };

/* ---- opening ---- */

static qr_status check_options(const struct sched_options *o, qr_error *err)
{
    const int32_t width = o->draft_width + 1;
    if (o->max_requests < 1 || o->max_requests > o->pool->slots)
        return qr_fail(err, QR_BAD_ARGUMENT, "%d requests at once in %lld slots", o->max_requests,
                       (long long)o->pool->slots);
    if (o->draft_width < 0 || width > SCHED_MAX_WIDTH || o->draft_width > o->geometry->options.draft_width)
        return qr_fail(err, QR_BAD_ARGUMENT, "a draft width of %d, the rings hold %d", o->draft_width,
                       o->geometry->options.draft_width);
    if (o->depth < 0 || o->depth > SCHED_MAX_DEPTH)
        return qr_fail(err, QR_BAD_ARGUMENT, "%d steps ahead, wanted 0 to %d", o->depth, SCHED_MAX_DEPTH);
    if (o->max_rows <= (int64_t)o->max_requests * width)
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "%d rows a step for %d requests of up to %d decode rows: none is left for a prompt", o->max_rows,
                       o->max_requests, width);
    if (o->max_logits < (int64_t)o->max_requests * width)
        return qr_fail(err, QR_BAD_ARGUMENT, "%d rows of logits a step for %d requests of up to %d decode rows",
                       o->max_logits, o->max_requests, width);
    if ((o->decoder_replay == REPLAY_BOUNDED || o->encoder_replay == REPLAY_BOUNDED) && rows_decoder(o->plan) < 0)
        return qr_fail(err, QR_REFUSED, "E26 bounded replay of a model without a KV source that layers follow: nothing to cut");
    if (o->max_length < 2 || o->long_prefill_cap < 0 || o->image_interval < 0)
        return qr_fail(err, QR_BAD_ARGUMENT, "max_length %d, long_prefill_cap %d, image_interval %d", o->max_length,
                       o->long_prefill_cap, o->image_interval);
    return QR_OK;
}

static bool open_batch(const struct sched *s, struct out_batch *o)
{
    const size_t n = (size_t)s->options.max_requests;
    o->spans = qr_calloc(n, sizeof *o->spans);
    o->request = qr_calloc(n, sizeof(struct sched_request *));
    o->blocks = qr_calloc(n, (size_t)s->max_blocks * sizeof *o->blocks);
    o->rows = qr_calloc(n, sizeof *o->rows);
    o->tokens = qr_calloc(n, (size_t)s->width * sizeof *o->tokens);
    o->copies = qr_calloc((size_t)s->copies_most, sizeof *o->copies);
    o->stores = qr_calloc((size_t)s->options.pool->slots, sizeof *o->stores);
    o->pins = qr_calloc(n, sizeof *o->pins);
    return o->spans && o->request && o->blocks && o->rows && o->tokens && o->copies && o->stores && o->pins;
}

static void close_batch(struct out_batch *o)
{
    qr_free(o->spans);
    qr_free(o->request);
    qr_free(o->blocks);
    qr_free(o->rows);
    qr_free(o->tokens);
    qr_free(o->copies);
    qr_free(o->stores);
    qr_free(o->pins);
}

static void take_numbers(struct sched *s, const struct sched_options *o)
{
    const int32_t slots = (int32_t)o->pool->slots;
    s->options = *o;
    s->block = o->geometry->options.block_tokens;
    s->width = o->draft_width + 1;
    s->history = (int32_t)(o->geometry->cursor_bytes / 8) - 1;
    s->window = o->plan->config.sliding_window;
    s->layers = o->plan->layers + (o->draft_width > 0 ? o->plan->draft_layers : 0);
    s->max_blocks = blocks_for(s, o->max_length);
    s->tail = o->decoder_replay == REPLAY_BOUNDED ? s->window : 0;
    s->own_rings = s->tail > 0 ? rows_decoder(o->plan) : s->layers;
    if (o->encoder_replay == REPLAY_BOUNDED) { /* no state is ever kept (runtime.md 5.3) */
        s->options.images = false;
        s->options.image_interval = 0;
    }
    /* every running request may store and restore, every leaving one store, every slot move */
    s->copies_most = (2 * o->max_requests + slots) * image_copies_most(o->geometry) + slots;
    s->root = block_key_root(o->identity ? o->identity : o->geometry->page_layout, o->provenance);
}

int64_t sched_bytes_for(const struct sched_options *options)
{
    struct sched s = {.block = 0};
    const struct out_batch *o = NULL;
    take_numbers(&s, options);
    const int64_t n = options->max_requests, slots = options->pool->slots, blocks = options->pool->blocks;
    const int64_t request = (int64_t)(sizeof *o->spans + sizeof *o->request + sizeof *o->rows + sizeof *o->pins +
                                      (size_t)s.max_blocks * sizeof *o->blocks + (size_t)s.width * sizeof *o->tokens);
    const int64_t batch = n * request + s.copies_most * (int64_t)sizeof *o->copies + slots * (int64_t)sizeof *o->stores;
    const int64_t settle = n * (SCHED_MAX_DEPTH + 1) * (int64_t)sizeof *s.settle;
    const int64_t slot = (int64_t)(sizeof *s.slots + sizeof *s.moves + sizeof *s.books.holder);
    return (int64_t)sizeof s + (options->depth + 1) * batch + settle + slots * slot +
           blocks * (int64_t)sizeof *s.books.references + blocks_bytes_for(blocks, s.block) +
           images_bytes_for(blocks, options->geometry);
}

static qr_status open_parts(struct sched *s, qr_error *err)
{
    const struct sched_options *o = &s->options;
    const size_t slots = (size_t)o->pool->slots;
    s->slots = qr_calloc(slots, sizeof *s->slots);
    s->moves = qr_calloc(slots, sizeof *s->moves);
    s->settle = qr_calloc((size_t)o->max_requests * (SCHED_MAX_DEPTH + 1), sizeof *s->settle);
    s->books.references = qr_calloc((size_t)o->pool->blocks, sizeof *s->books.references);
    s->books.holder = qr_calloc(slots, sizeof *s->books.holder);
    bool complete = s->slots && s->moves && s->settle && s->books.references && s->books.holder;
    for (int32_t i = 0; i <= o->depth; i++)
        complete = open_batch(s, &s->ring[i]) && complete;
    if (!complete)
        return qr_fail(err, QR_NO_MEMORY, "scheduler: no memory for batches of %d requests", o->max_requests);
    for (int32_t slot = (int32_t)slots - 1; slot >= 0; slot--)
        s->slots[s->slot_count++] = slot;
    qr_status st = blocks_open(o->pool->blocks, s->block, &s->blocks, err);
    return st == QR_OK ? images_open(s->blocks, o->geometry, o->pool, &s->images, err) : st;
}

qr_status sched_open(const struct sched_options *options, struct sched **out, qr_error *err)
{
    qr_status st = check_options(options, err);
    if (st != QR_OK)
        return st;
    struct sched *s = qr_calloc(1, sizeof *s);
    if (!s)
        return qr_fail(err, QR_NO_MEMORY, "scheduler: no memory for its record");
    take_numbers(s, options);
#ifdef QR_DEBUG
    s->options.check = true;
#endif
    st = open_parts(s, err);
    if (st != QR_OK) {
        sched_close(s);
        return st;
    }
    *out = s;
    return QR_OK;
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    images_close(s->images);
    blocks_close(s->blocks);
    for (int32_t i = 0; i <= s->options.depth; i++)
        close_batch(&s->ring[i]);
    qr_free(s->slots);
    qr_free(s->moves);
    qr_free(s->settle);
    qr_free(s->books.references);
    qr_free(s->books.holder);
    qr_free(s);
}

/* ---- requests come and go ---- */

static qr_status accept(struct sched *s, struct sched_request *r, qr_error *err)
{
    if (r->limit > s->options.max_length)
        return qr_fail(err, QR_BAD_REQUEST, "request %llu: %d tokens with the answer, the context holds %d",
                       (unsigned long long)r->id, r->limit, s->options.max_length);
    if (blocks_for(s, r->limit - 1) > blocks_usable(s->blocks))
        return qr_fail(err, QR_BAD_REQUEST, "request %llu: %d tokens with the answer need %d pages, the pool has %lld",
                       (unsigned long long)r->id, r->limit, blocks_for(s, r->limit - 1),
                       (long long)blocks_usable(s->blocks));
    if ((s->options.decoder_replay == REPLAY_BOUNDED || s->options.encoder_replay == REPLAY_BOUNDED) &&
        r->first_logits < r->prompt - 1)
        return qr_fail(err, QR_BAD_REQUEST,
                       "request %llu: logits from row %d of %d, bounded replay computes those of the last row only (E37)",
                       (unsigned long long)r->id, r->first_logits, r->prompt);
    r->arrival = ++s->arrivals;
    s->metrics.added++;
    return QR_OK;
}

qr_status sched_add(struct sched *s, struct sched_request *r, qr_error *err)
{
    qr_status st = accept(s, r, err);
    if (st != QR_OK)
        return st;
    r->state = SCHED_WAITING;
    queue_wait(&s->waiting, r);
    return QR_OK;
}

qr_status sched_add_after(struct sched *s, struct sched_request *r, struct sched_request *parent, qr_error *err)
{
    if (parent->state == SCHED_DECODE || parent->state == SCHED_FINISHED)
        return sched_add(s, r, err);
    qr_status st = accept(s, r, err);
    if (st != QR_OK)
        return st;
    r->state = SCHED_HELD;
    r->parent = parent;
    struct sched_request **end = &parent->children; /* in the order in which they came */
    while (*end)
        end = &(*end)->sibling;
    *end = r;
    s->held++;
    return QR_OK;
}

qr_status sched_fork(struct sched *s, const struct sched_request *parent, const struct request_given *given,
                     struct sched_request **out, qr_error *err)
{
    struct request_given child = *given;
    child.tokens = parent->tokens;
    child.count = parent->count;
    child.first_logits = parent->count - 1;
    child.image_mask = parent->image_mask;
    child.content = parent->content;
    child.salt = parent->salt;
    qr_status st = sched_request_make(&child, s->block, out, err);
    if (st != QR_OK)
        return st;
    st = sched_add(s, *out, err);
    if (st != QR_OK) {
        sched_request_free(*out);
        *out = NULL;
    }
    return st;
}

void sched_cancel(struct sched *s, struct sched_request *r)
{
    if (r->state == SCHED_FINISHED || r->state == SCHED_NEW)
        return;
    r->cancelled = true;
    if (r->flights == 0) /* else when its step comes back, whose output is dropped */
        finish_request(s, r, FINISH_CANCELLED);
}

void sched_draft(struct sched *s, struct sched_request *r, const int32_t *tokens, int32_t count)
{
    r->drafts = r->state == SCHED_DECODE ? sched_min(count, s->options.draft_width) : 0;
    if (r->drafts > 0)
        memcpy(r->draft, tokens, (size_t)r->drafts * sizeof *tokens);
}

struct sched_request *sched_finished(struct sched *s)
{
    for (struct sched_request *r = s->over.first; r; r = r->list_next)
        if (r->batches == 0) {
            queue_remove(&s->over, r);
            return r;
        }
    return NULL;
}

/* ---- a pass ---- */

static void begin_pass(struct sched *s)
{
    struct out_batch *o = &s->ring[(s->ring_first + s->out) % (s->options.depth + 1)];
    o->batch = (struct batch){.step = s->step + 1, .spans = o->spans, .copies = o->copies};
    o->store_count = o->pin_count = o->prefill_spans = 0;
    s->making = o;
    s->logits_left = s->options.max_logits;
    s->metrics.passes++;
}

/* Rows that requests which are ready to decode will run, and how many requests those are. */
static int32_t decode_demand(const struct sched *s, int32_t *requests)
{
    int32_t rows = 0;
    *requests = 0;
    for (const struct sched_request *r = s->running.first; r; r = r->list_next)
        if (decode_ready(s, r)) {
            rows += decode_rows(r);
            ++*requests;
        }
    return rows;
}

/* Rows for prefill in this step; decode keeps its own. */
static int32_t prefill_budget(const struct sched *s, int32_t decode)
{
    const int32_t most = s->options.max_prefill_rows, all = s->options.max_rows;
    if (most == 0)
        return decode > 0 && s->prefill_passes >= PREFILL_PASSES_MOST ? 0 : all;
    const int32_t left = all - decode;
    return most < 0 ? left : sched_min(most, left);
}

static void resume_prefills(struct sched *s)
{
    for (struct sched_request *r = s->running.first; r && s->prefill_left > 0; r = r->list_next) {
        if (r->state != SCHED_PREFILL || r->cancelled || r->next >= r->end || r->flights > s->options.depth ||
            r->image_due >= 0)
            continue;
        const struct chunk chunk = next_chunk(s, r);
        if (chunk.end > r->next)
            span_add(s, r, chunk);
    }
}

static void add_decodes(struct sched *s)
{
    for (struct sched_request *r = s->running.first; r; r = r->list_next)
        if (decode_ready(s, r))
            span_add(s, r, (struct chunk){r->next, r->next + decode_rows(r)});
}

static void fill(struct sched *s)
{
    attach_moves(s);
    grow_decoding(s);
    attach_stores(s);
    int32_t decoding;
    const int32_t decode = decode_demand(s, &decoding);
    const bool mixed = s->options.max_prefill_rows != 0;
    s->prefill_left = prefill_budget(s, decode);
    s->prompts_most = s->options.max_requests - (mixed ? decoding : 0);
    s->logits_left -= mixed ? decode : 0;
    resume_prefills(s);
    admit_waiting(s);
    s->logits_left += mixed ? decode : 0;
    const bool prefilled = s->making->prefill_spans > 0;
    s->prefill_passes = prefilled && decode > 0 ? s->prefill_passes + 1 : 0;
    if (mixed || !prefilled)
        add_decodes(s);
}

bool sched_next(struct sched *s, const struct batch **out)
{
    if (s->out > s->options.depth)
        return false;
    settle(s);
    begin_pass(s);
    fill(s);
    const bool something = s->making->batch.count > 0 || s->making->batch.copy_count > 0;
    if (something) {
        *out = &s->making->batch;
        s->step++;
        s->out++;
        s->metrics.batches++;
    } else {
        s->metrics.empty_passes++;
    }
    s->making = NULL;
    if (s->options.check && !s->broken.message[0])
        sched_check(s, &s->broken);
    return something;
}

/* ---- events ---- */

void sched_preempt(struct sched *s, struct sched_request *r)
{
    if (sched_request_running(r) && !r->cancelled)
        preempt(s, r);
}

void sched_drop_images(struct sched *s) { images_forget_all(s->images); }

void sched_drop_cache(struct sched *s)
{
    images_forget_all(s->images);
    blocks_forget(s->blocks);
}

void sched_vacate(struct sched *s)
{
    settle(s);
    s->move_count = 0;
    while (s->running.last) /* the first of them waits at the head then */
        preempt(s, s->running.last);
    for (struct sched_request *r; (r = s->leaving.first);) {
        r->image_due = -1;
        queue_remove(&s->leaving, r);
        give_up(s, r);
        queue_append(&s->over, r);
    }
    sched_drop_cache(s);
}

void sched_identify(struct sched *s, const char *identity)
{
    sched_drop_cache(s);
    s->root = block_key_root(identity, s->options.provenance);
    for (struct sched_request *r = s->waiting.first; r; r = r->list_next)
        r->key_count = 0;
}

bool sched_relocate(struct sched *s, struct sched_request *r, int32_t slot)
{
    if (!sched_request_running(r) || r->cancelled || r->flights > 0 || r->fresh || slot < 0 ||
        slot >= s->options.pool->slots || s->move_count == s->options.pool->slots)
        return false;
    for (int32_t i = 0; i < s->slot_count; i++)
        if (s->slots[i] == slot) {
            s->moves[s->move_count++] = slot_copy(s->options.geometry, s->options.pool, r->slot, slot);
            s->slots[i] = r->slot;
            r->slot = slot;
            r->restored = true;
            return true;
        }
    return false;
}

void sched_reverse(struct sched *s) { queue_reverse(&s->running); }

/* ---- what others look at ---- */

void sched_set_costs(struct sched *s, const struct sched_costs *costs) { s->options.costs = *costs; }

struct sched_metrics sched_metrics(const struct sched *s)
{
    struct sched_metrics m = s->metrics;
    m.waiting = s->waiting.count + s->held;
    m.running = s->running.count;
    m.slots_free = s->slot_count;
    return m;
}

struct blocks *sched_blocks(const struct sched *s) { return s->blocks; }

struct images *sched_images(const struct sched *s) { return s->images; }

int32_t sched_out(const struct sched *s) { return s->out; }

bool sched_idle(const struct sched *s)
{
    return s->waiting.count == 0 && s->running.count == 0 && s->held == 0 && s->leaving.count == 0;
}

qr_status sched_broken(const struct sched *s, qr_error *err)
{
    return s->broken.message[0] ? qr_fail(err, QR_INTERNAL, "%s", s->broken.message) : QR_OK;
}
