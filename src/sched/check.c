#include <string.h>

#include "sched/state.h"

static qr_status broken(qr_error *err, const char *rule, const struct sched_request *r, const char *what)
{
    return qr_fail(err, QR_INTERNAL, "%s: request %llu (%s, rows to %d of %d tokens) %s", rule,
                   (unsigned long long)r->id, sched_state_name(r->state), r->next, r->count, what);
}

/* ---- one request ---- */

static qr_status check_progress(const struct sched *s, const struct sched_request *r, qr_error *err)
{
    int32_t row = r->cancelled && r->flights > 0 ? r->flight[0].first : r->done; /* what it ran since is dropped */
    if (r->count < r->prompt || r->count > r->limit || r->done > r->count ||
        r->next > r->count + s->width + s->options.depth)
        return broken(err, "I1", r, "has rows beyond its tokens");
    for (int32_t i = 0; i < r->flights; i++) {
        if (r->flight[i].first != row)
            return broken(err, "I1", r, "has spans in flight that do not follow one another");
        row += r->flight[i].count;
    }
    if (row != r->next)
        return broken(err, "I1", r, "would not go on where its slot's cursor stands");
    if (r->state == SCHED_DECODE && r->flights == 0 && r->next != r->count - 1)
        return broken(err, "I1", r, "decodes, but its last token is not the next row");
    if (r->block_count < blocks_for(s, r->next) || r->block_count > blocks_for(s, r->limit))
        return broken(err, "I2", r, "has too few or too many pages");
    return QR_OK;
}

/* Pages that it will write are its own; those it published are whole and final. */
static qr_status check_pages(const struct sched *s, const struct sched_request *r, qr_error *err)
{
    const int32_t first_written = sched_max(r->done, r->hit) / s->block;
    for (int32_t i = 0; i < r->block_count; i++) {
        const block_id id = r->blocks[i];
        if (id < 1 || id > blocks_usable(s->blocks))
            return broken(err, "I2", r, "names a page that is not there");
        if (i >= first_written && (blocks_references(s->blocks, id) != 1 || blocks_indexed(s->blocks, id)))
            return broken(err, "I2", r, "will write a page that another may read");
        if (blocks_indexed(s->blocks, id) &&
            (i >= r->published || i >= r->key_count ||
             blocks_find(s->blocks, &r->keys[i], r->tokens + (int64_t)i * s->block) != id))
            return broken(err, "I4", r, "has a page in the index that is not its tokens'");
    }
    if (r->published > sched_max(r->hit, sched_min(r->done, r->count)) / s->block)
        return broken(err, "I4", r, "published a page that is not computed");
    return QR_OK;
}

/* Its ranges are those of its admission, and they hold every row that it wants (I6, I9). */
static qr_status check_rows(const struct sched *s, const struct sched_request *r, qr_error *err)
{
    const int32_t wanted = sched_min(r->first_logits, r->end - 1);
    if (r->state != SCHED_PREFILL)
        return QR_OK;
    if (r->rows.end != r->end || r->rows.first > r->next)
        return broken(err, "I6", r, "runs ranges of another end or start than its own");
    if (r->hit > wanted || r->rows.layer[s->options.plan->layers - 1].query > wanted)
        return broken(err, "I9", r, "wants logits of rows that its ranges leave out");
    return QR_OK;
}

static qr_status check_request(const struct sched *s, const struct sched_request *r, const struct books *books,
                               qr_error *err)
{
    qr_status st = check_progress(s, r, err);
    if (st == QR_OK)
        st = check_pages(s, r, err);
    if (st == QR_OK)
        st = check_rows(s, r, err);
    if (st != QR_OK)
        return st;
    if (r->slot < 0 || r->slot >= s->options.pool->slots || books->holder[r->slot]++ > 0)
        return broken(err, "I3", r, "has no slot of its own");
    for (int32_t i = 0; i < r->block_count; i++)
        books->references[r->blocks[i]]++;
    return QR_OK;
}

static qr_status check_queue(const struct sched *s, const struct queue *q, const struct books *books, qr_error *err)
{
    int32_t count = 0;
    qr_status st = QR_OK;
    for (const struct sched_request *r = q->first; st == QR_OK && r; r = r->list_next, count++)
        st = check_request(s, r, books, err);
    if (st == QR_OK && count != q->count)
        return qr_fail(err, QR_INTERNAL, "a queue of %d requests says it has %d", count, q->count);
    return st;
}

/* ---- batches that are out ---- */

/* The record of the span, if its result will be taken; NULL. */
static const struct flight *flight_of(const struct sched_request *r, uint64_t step)
{
    for (int32_t i = 0; i < r->flights; i++)
        if (r->flight[i].step == step)
            return &r->flight[i];
    return NULL;
}

/* The ranges that follow from the request, where the chunk lies and, of a bounded decoder, whether it had to go back. */
static bool ranges_follow(const struct sched *s, const struct batch_span *span, const struct sched_request *r)
{
    const int32_t again = s->tail > 0 ? span->rows->layer[0].again : 0;
    const struct chunk chunk = {span->first_position, span->first_position + span->count};
    struct row_plan wanted;
    span_ranges(s, r, chunk, again, &wanted);
    return memcmp(span->rows, &wanted, sizeof wanted) == 0 && span->write_from == sched_max(r->hit, again) &&
           (again == 0 || (chunk.end == r->end && again > chunk.first && r->end - again < s->tail));
}

/* What a step runs, whether it has a head, draws and verifies, stands in its record alone, whoever still wants its
 * result: a chunk has ranges and no drafts and draws at its prompt's end; decode rows run every layer, all have logits and
 * draw, and are drafts but for the first (I7). */
static const char *record_at_odds(const struct batch *batch, const struct batch_span *span)
{
    const int32_t end = span->first_position + span->count;
    if (span->count < 1 || span->logits_from < 0 || span->logits_from > span->count)
        return "has a span in flight without rows, or with logits of others";
    if (span->drafts != (span->rows ? 0 : span->count - 1))
        return "has a span in flight whose rows are not what its drafts say";
    if (span->drafts > 0 && !batch->tentative)
        return "has drafts in flight in a step that does not verify";
    if (span->rows ? span->final != (end == span->rows->end) : !span->final || span->logits_from > 0)
        return "has a span in flight that does not say whether it is the last";
    return span->final && span->logits_from == span->count ? "has a last span in flight that runs no head" : NULL;
}

/* The record says what follows from the request, and what the scheduler itself remembers of it (I7). */
static const char *record_of_another(const struct sched_request *r, const struct batch_span *span,
                                     const struct flight *flight)
{
    const int32_t end = span->first_position + span->count,
                  wanted = sched_min(r->first_logits, r->end - 1) - span->first_position;
    if ((span->first_position < r->end) != (span->rows != NULL) || span->request != r->id || span->slot != r->slot)
        return "has a span in flight that is another kind of step, or another's";
    if (flight->final != span->final || flight->first - flight->below != span->first_position ||
        flight->first + flight->count != end)
        return "has a span in flight that is not the one remembered";
    return span->rows && span->logits_from != sched_max(0, sched_min(wanted, span->count))
               ? "has a chunk in flight whose head runs on other rows than are wanted"
               : NULL;
}

/* A chunk's ranges are its request's, however the prompt is cut (I6). What a step runs follows from its record, and the
 * record from the request, so that every rank would do the same (I7). */
static qr_status check_span(const struct sched *s, const struct batch *batch, const struct batch_span *span,
                            const struct sched_request *r, qr_error *err)
{
    const struct flight *flight = flight_of(r, batch->step);
    const char *odds = record_at_odds(batch, span);
    if (!odds && flight)
        odds = record_of_another(r, span, flight);
    if (odds)
        return broken(err, "I7", r, odds);
    if (flight && span->rows && !ranges_follow(s, span, r))
        return broken(err, "I6", r, "has a chunk in flight with ranges of its own");
    return QR_OK;
}

/* A step verifies when a span of it has drafts, and its rows are those that its buffers were made for. */
static qr_status check_batch(const struct sched *s, const struct out_batch *o, qr_error *err)
{
    int64_t rows = 0, logits = 0, drafts = 0;
    for (int32_t b = 0; b < o->batch.count; b++) {
        const struct batch_span *span = &o->batch.spans[b];
        const qr_status st = check_span(s, &o->batch, span, o->request[b], err);
        if (st != QR_OK)
            return st;
        rows += span->count;
        logits += span->count - span->logits_from;
        drafts += span->drafts;
    }
    if (o->batch.tentative == (drafts > 0) && rows <= s->options.max_rows && logits <= s->options.max_logits)
        return QR_OK;
    return qr_fail(err, QR_INTERNAL, "I7: step %llu %s, with %lld drafts in %lld rows, %lld of them with logits",
                   (unsigned long long)o->batch.step, o->batch.tentative ? "verifies" : "does not verify", (long long)drafts,
                   (long long)rows, (long long)logits);
}

static qr_status check_batches(const struct sched *s, qr_error *err)
{
    qr_status st = QR_OK;
    for (int32_t i = 0; st == QR_OK && i < s->out; i++)
        st = check_batch(s, &s->ring[(s->ring_first + i) % (s->options.depth + 1)], err);
    return st;
}

/* ---- all together ---- */

/* References of pages: each request that names one, each image that lies in it. */
static qr_status check_references(const struct sched *s, const struct books *books, qr_error *err)
{
    int64_t image_units = 0;
    for (block_id id = 1; id <= blocks_usable(s->blocks); id++) {
        const int32_t more = blocks_references(s->blocks, id) - books->references[id];
        if (more < 0 || more > 1)
            return qr_fail(err, QR_INTERNAL, "I2: page %d has %d references, %d requests name it", id,
                           blocks_references(s->blocks, id), books->references[id]);
        image_units += more;
    }
    if (image_units != images_held(s->images))
        return qr_fail(err, QR_INTERNAL, "I11: %lld pages belong to no request, images hold %lld",
                       (long long)image_units, (long long)images_held(s->images));
    return QR_OK;
}

static qr_status check_slots(const struct sched *s, const struct books *books, qr_error *err)
{
    for (int32_t i = 0; i < s->slot_count; i++)
        if (books->holder[s->slots[i]]++ > 0)
            return qr_fail(err, QR_INTERNAL, "I3: slot %d is free and held", s->slots[i]);
    for (int32_t slot = 0; slot < s->options.pool->slots; slot++)
        if (books->holder[slot] != 1)
            return qr_fail(err, QR_INTERNAL, "I3: slot %d is lost", slot);
    return QR_OK;
}

/* Stores stand in batches that are out: none is lost, none waits for a batch that never runs. */
static qr_status check_maintenance(const struct sched *s, qr_error *err)
{
    int32_t stores = 0;
    for (int32_t i = 0; i < s->out; i++)
        stores += s->ring[(s->ring_first + i) % (s->options.depth + 1)].store_count;
    if (stores != images_copying(s->images))
        return qr_fail(err, QR_INTERNAL, "I8: %d images are being copied, %d in batches that are out",
                       images_copying(s->images), stores);
    return QR_OK;
}

static qr_status check_all(const struct sched *s, const struct books *books, qr_error *err)
{
    qr_status st = blocks_check(s->blocks, err);
    if (st == QR_OK)
        st = images_check(s->images, err);
    if (st == QR_OK)
        st = check_queue(s, &s->running, books, err);
    if (st == QR_OK)
        st = check_queue(s, &s->leaving, books, err);
    if (st == QR_OK)
        st = check_references(s, books, err);
    if (st == QR_OK)
        st = check_slots(s, books, err);
    if (st == QR_OK)
        st = check_batches(s, err);
    return st == QR_OK ? check_maintenance(s, err) : st;
}

/* The books are emptied and written again: whose they are is no state of the scheduler. */
qr_status sched_check(const struct sched *s, qr_error *err)
{
    memset(s->books.references, 0, ((size_t)blocks_usable(s->blocks) + 1) * sizeof *s->books.references);
    memset(s->books.holder, 0, (size_t)s->options.pool->slots * sizeof *s->books.holder);
    return check_all(s, &s->books, err);
}
