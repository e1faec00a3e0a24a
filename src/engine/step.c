#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/histogram.h"

/* ---- tasks ---- */

static void link_task(struct qr_engine *engine, struct task *t)
{
    t->next = engine->tasks;
    if (t->next)
        t->next->previous = t;
    engine->tasks = t;
}

static void unlink_task(struct qr_engine *engine, struct task *t)
{
    *(t->previous ? &t->previous->next : &engine->tasks) = t->next;
    if (t->next)
        t->next->previous = t->previous;
}

/* Image-span marks of tokens; NULL in `out` where the model has no such token. */
static qr_status image_marks(const struct qr_engine *engine, const int32_t *tokens, int32_t count, uint8_t **out,
                             qr_error *err)
{
    const int32_t image = engine->model->config.image_token_id;
    *out = NULL;
    if (image < 0)
        return QR_OK;
    *out = qr_calloc((size_t)count, 1);
    if (!*out)
        return qr_fail(err, QR_NO_MEMORY, "no memory for marks of %d tokens", count);
    for (int32_t i = 0; i < count; i++)
        (*out)[i] = tokens[i] == image;
    return QR_OK;
}

/* The scheduler's record of the request that this one shares its beginning with; NULL: none, or it is over. */
static struct sched_request *parent_of(const struct task *t)
{
    for (const struct task *other = t->engine->tasks; t->r && t->r->after && other; other = other->next)
        if (other->r && other->r->handle == t->r->after)
            return other->sched;
    return NULL;
}

qr_status task_add(struct task *t, const int32_t *tokens, int32_t count, int32_t limit, int32_t first_logits, qr_error *err)
{
    struct qr_engine *engine = t->engine;
    uint8_t *marks;
    qr_status st = image_marks(engine, tokens, count, &marks, err);
    const struct request_given given = {.id = ++engine->next_task, .priority = t->r ? t->r->priority : 0, .tokens = tokens,
                                        .count = count, .limit = limit, .image_mask = marks, .first_logits = first_logits,
                                        .salt = t->r ? t->r->salt : (struct block_key){0}, .owner = t};
    if (st == QR_OK)
        st = sched_request_make(&given, engine->geometry.options.block_tokens, &t->sched, err);
    qr_free(marks);
    if (st != QR_OK)
        return st;
    struct sched_request *parent = parent_of(t);
    st = parent ? sched_add_after(engine->sched, t->sched, parent, err) : sched_add(engine->sched, t->sched, err);
    if (st != QR_OK) {
        sched_request_free(t->sched);
        t->sched = NULL;
        return st;
    }
    link_task(engine, t);
    return QR_OK;
}

void engine_pass_cancels(struct qr_engine *engine)
{
    for (struct task *t = engine->tasks; t; t = t->next)
        if (t->r && atomic_load(&t->r->cancelled))
            sched_cancel(engine->sched, t->sched);
        else if (t->r)
            t->sched->paused = atomic_load(&t->r->paused);
    speculation_pass(engine->speculation);
}

/* ---- a step ---- */

qr_status engine_logits(struct qr_engine *engine, int32_t row, const float **out, qr_error *err)
{
    const int64_t vocab = engine->model->config.vocab_size;
    const float *from = runner_workspace(engine->runner)->logits + row * vocab;
    *out = engine->logits;
    return engine->backend->download(engine->backend, engine->logits, from, vocab * (int64_t)sizeof *from, err);
}

/* Images and moved slots, before anything else of the step. */
static qr_status run_copies(struct qr_engine *engine, const struct batch *batch, qr_error *err)
{
    uint8_t *base = runner_cache(engine->runner).base;
    struct backend *backend = engine->backend;
    qr_status st = QR_OK;
    for (int32_t i = 0; st == QR_OK && i < batch->copy_count; i++)
        st = backend->copy(backend, base + batch->copies[i].to, base + batch->copies[i].from, batch->copies[i].bytes, err);
    for (int32_t b = 0; st == QR_OK && b < batch->count; b++)
        if (batch->spans[b].restored)
            st = runner_restored(engine->runner, batch->spans[b].slot, err);
    return st;
}

/* Pages of others that are looked at after every step of a debug build. */
enum { WATCHED_PAGES = 16 };

static qr_status run_batch(struct qr_engine *engine, const struct batch *batch, qr_error *err)
{
    qr_status st = run_copies(engine, batch, err);
    if (st == QR_OK && batch->count > 0)
        st = runner_step(engine->runner, batch, NULL, err);
    if (!engine->watch)
        return st;
    const qr_status watched = page_watch_step(engine->watch, batch, runner_cache(engine->runner).base, WATCHED_PAGES,
                                              st == QR_OK ? err : NULL);
    return st == QR_OK ? watched : st;
}

/* A task's share of the step's time: all of it, to what it was doing. */
static void note_time(struct task *t, const struct batch_span *span, double spent)
{
    *(span->rows ? &t->usage.seconds_prefill : &t->usage.seconds_decode) += spent;
}

/* The wait of requests whose first span this was ended when the step began. The lock is held. */
static void note_queue(struct qr_engine *engine, const struct batch *batch, double began)
{
    for (int32_t b = 0; b < batch->count; b++) {
        const struct sched_request *s = sched_span_request(engine->sched, b);
        struct task *t = s ? s->owner : NULL;
        if (!t || !t->r || t->begun)
            continue;
        t->begun = true;
        histogram_add(&engine->metrics.queue, began - t->r->submitted);
    }
}

static void note_spans(qr_metrics *m, const struct batch *batch)
{
    uint64_t chunks = 0, decoding = 0;
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *span = &batch->spans[b];
        const bool chunk = span->rows != NULL;
        *(chunk ? &chunks : &decoding) += 1;
        *(chunk ? &m->prefill_rows : &m->decode_rows) += (uint64_t)span->count;
        m->prefill_context_tokens += chunk ? (uint64_t)span->first_position : 0;
    }
    m->prefill_steps += chunks > 0;
    m->prefill_chunks += chunks;
    m->decode_steps += decoding > 0;
    m->decode_requests += decoding;
}

void engine_note_backend(struct qr_engine *engine)
{
    struct backend_counts c;
    qr_metrics *m = &engine->metrics;
    if (!engine->backend->count)
        return;
    engine->backend->count(engine->backend, &c);
    m->device_bytes = (uint64_t)c.bytes;
    m->device_bytes_most = (uint64_t)c.most_bytes;
    m->weights_laid = (uint64_t)c.weights_laid;
    m->graphs_recorded = (uint64_t)c.graphs_recorded;
    m->graphs_replayed = (uint64_t)c.graphs_replayed;
    m->lists_eager = (uint64_t)c.lists_eager;
    m->experts_found = (uint64_t)c.experts_found;
    m->experts_copied = (uint64_t)c.experts_copied;
    m->expert_bytes = (uint64_t)c.expert_bytes;
}

static void note_step(struct qr_engine *engine, const struct batch *batch, qr_status st, double began, double spent)
{
    pthread_mutex_lock(&engine->lock);
    note_queue(engine, batch, began);
    engine_note_backend(engine);
    qr_metrics *m = &engine->metrics;
    m->steps += batch->count > 0;
    m->step_seconds += spent;
    histogram_add(&m->step, spent);
    if (st == QR_OK)
        engine->last_step = clock_seconds();
    note_spans(m, batch);
    pthread_mutex_unlock(&engine->lock);
}

/* Finds the likeliest ids of every row that a token will be drawn from. Where that fails rows are read whole. */
static void find_lists(struct qr_engine *engine, const struct batch *batch)
{
    int32_t logits = 0;
    qr_error err;
    shortlists_clear(engine->lists);
    for (int32_t b = 0; engine->lists && b < batch->count; b++) {
        const struct span_rows rows = {&batch->spans[b], logits};
        const struct sched_request *s = sched_span_request(engine->sched, b);
        const struct task *t = s ? s->owner : NULL;
        logits += rows.span->count - rows.span->logits_from;
        if (t && t->r)
            generate_want(t, &rows);
    }
    (void)shortlists_find(engine->lists, runner_workspace(engine->runner)->logits, NULL, &err);
}

static void take_rows(struct qr_engine *engine, const struct batch *batch, qr_status st, const qr_error *err, double spent)
{
    int32_t logits = 0;
    for (int32_t b = 0; b < batch->count; b++) {
        const struct span_rows rows = {&batch->spans[b], logits};
        struct sched_request *s = sched_span_request(engine->sched, b);
        struct task *t = s ? s->owner : NULL;
        logits += rows.span->count - rows.span->logits_from;
        engine->results[b] = (struct sched_result){.accepted = rows.span->count, .failed = st != QR_OK};
        if (!t)
            continue;
        note_time(t, rows.span, spent);
        if (st != QR_OK) {
            t->status = st;
            t->error = *err;
        } else {
            (t->r ? generate_rows : score_rows)(t, &rows, &engine->results[b]);
        }
    }
}

/* Moves the cursors of a verify step over what became true. Cannot fail: the runner waits for just this verdict. */
static void commit(struct qr_engine *engine, const struct batch *batch)
{
    qr_error err;
    for (int32_t b = 0; b < batch->count; b++)
        engine->accepted[b] = engine->results[b].accepted;
    if (runner_commit(engine->runner, engine->accepted, &err) != QR_OK)
        for (int32_t b = 0; b < batch->count; b++)
            engine->results[b].failed = true;
    if (engine->watch) /* a debug build's commit changes pages that the step names */
        page_watch_step(engine->watch, batch, runner_cache(engine->runner).base, 0, NULL);
}

bool engine_step(struct qr_engine *engine)
{
    const struct batch *batch;
    qr_error err = {0};
    if (!sched_next(engine->sched, &batch))
        return false;
    const double start = clock_seconds();
    qr_status st = sched_broken(engine->sched, &err); /* a debug build looks after every pass */
    if (st == QR_OK)
        st = run_batch(engine, batch, &err);
    const double spent = clock_seconds() - start;
    note_step(engine, batch, st, start, spent);
    if (st == QR_OK)
        find_lists(engine, batch);
    take_rows(engine, batch, st, &err, spent);
    if (st == QR_OK && batch->tentative)
        commit(engine, batch);
    if (st == QR_OK)
        speculation_note(engine->speculation, batch, spent);
    sched_complete(engine->sched, engine->results, NULL);
    if (st == QR_OK)
        speculation_draft(engine->speculation);
    return true;
}

/* ---- ends ---- */

static void note_cache(const struct qr_engine *engine, qr_metrics *out)
{
    const struct sched_metrics m = sched_metrics(engine->sched);
    const struct images *images = sched_images(engine->sched);
    const struct images_counters *counters = images_counters(images);
    /* cached ones too, and images: with no batch out the next pass lets those go that are still pinned */
    out->blocks_free = (uint64_t)(blocks_free(sched_blocks(engine->sched)) +
                                  (sched_out(engine->sched) == 0 ? images_held(images) : images_evictable(images)));
    out->blocks_vacant = (uint64_t)blocks_unused(sched_blocks(engine->sched));
    out->slots_free = (uint64_t)m.slots_free;
    out->looked_up_tokens = (uint64_t)m.prompt_tokens;
    out->cached_tokens = (uint64_t)m.cached_tokens;
    out->preemptions = (uint64_t)m.preemptions;
    out->wanted_tokens = (uint64_t)m.wanted_tokens;
    out->hits = (uint64_t)m.hits;
    out->hits_restored = (uint64_t)m.restores;
    out->hits_restored_lower = (uint64_t)m.lower_restores;
    out->hits_rerun = (uint64_t)m.reruns;
    out->rows_rerun = (uint64_t)m.rows_rerun;
    out->rows_backed_off = (uint64_t)m.rows_backed_off;
    out->row_layers_trimmed = (uint64_t)m.rows_trimmed;
    out->images_wanted = (uint64_t)m.demands;
    out->images_declined = (uint64_t)m.demands_declined;
    out->images_kept = (uint64_t)counters->kept;
    out->images_dropped = (uint64_t)counters->dropped;
    out->images_evicted = (uint64_t)counters->evicted;
    out->images_orphaned = (uint64_t)counters->orphaned;
    out->chunks_cut = (uint64_t)m.chunks_cut;
    out->images_held = (uint64_t)images_held(images);
}

static void note_pools(struct qr_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    note_cache(engine, &engine->metrics);
    pthread_mutex_unlock(&engine->lock);
}

static void note_prompt_tokens(struct qr_engine *engine, const struct sched_request *s)
{
    const int32_t run = s->done < s->prompt ? s->done : s->prompt;
    pthread_mutex_lock(&engine->lock);
    engine->metrics.prompt_tokens += (uint64_t)run;
    pthread_mutex_unlock(&engine->lock);
}

void engine_finish_tasks(struct qr_engine *engine)
{
    note_pools(engine);
    for (struct sched_request *s; (s = sched_finished(engine->sched));) {
        struct task *t = s->owner;
        const enum finish finish = s->finish;
        if (t->r)
            note_prompt_tokens(engine, s);
        sched_request_free(s);
        t->sched = NULL;
        unlink_task(engine, t);
        if (t->r)
            generate_end(t, finish);
        else
            score_end(t);
    }
}
