#include <string.h>

#include "sched/state.h"

/* ---- ends ---- */

void give_up(struct sched *s, struct sched_request *r)
{
    blocks_release(s->blocks, r->blocks, r->block_count);
    r->block_count = 0;
    if (r->slot >= 0)
        s->slots[s->slot_count++] = r->slot;
    r->slot = -1;
    r->answer_block = 0;
}

void release_children(struct sched *s, struct sched_request *r)
{
    for (struct sched_request *child = r->children, *next; child; child = next) {
        next = child->sibling;
        child->sibling = child->parent = NULL;
        child->state = SCHED_WAITING;
        s->held--;
        queue_wait(&s->waiting, child);
    }
    r->children = NULL;
}

static void leave_parent(struct sched *s, struct sched_request *r)
{
    struct sched_request **at = &r->parent->children;
    while (*at != r)
        at = &(*at)->sibling;
    *at = r->sibling;
    r->parent = r->sibling = NULL;
    s->held--;
}

void finish_request(struct sched *s, struct sched_request *r, enum finish finish)
{
    const bool running = sched_request_running(r);
    if (running)
        queue_remove(&s->running, r);
    else if (r->state == SCHED_WAITING)
        queue_remove(&s->waiting, r);
    else if (r->state == SCHED_HELD)
        leave_parent(s, r);
    release_children(s, r);
    r->state = SCHED_FINISHED;
    r->finish = finish;
    r->flights = 0;
    r->next = r->done; /* nothing follows */
    s->metrics.finished += finish == FINISH_STOP || finish == FINISH_LENGTH;
    s->metrics.cancelled += finish == FINISH_CANCELLED;
    s->metrics.failed += finish == FINISH_FAILED;

    const bool image = running && r->image_due >= 0 && r->image_due <= r->done && finish != FINISH_FAILED &&
                       finish != FINISH_CANCELLED;
    if (!image)
        give_up(s, r);
    queue_append(image ? &s->leaving : &s->over, r);
}

/* ---- results ---- */

/* Blocks whose rows are computed and whose tokens are final enter the index. */
static void publish(struct sched *s, struct sched_request *r)
{
    const int32_t full = sched_min(r->done, r->count) / s->block;
    if (!s->options.prefix_cache || full <= r->published)
        return;
    sched_request_keys(r, &s->root, s->block, full);
    for (; r->published < full; r->published++)
        blocks_publish(s->blocks, r->blocks[r->published], &r->keys[r->published],
                       r->tokens + (int64_t)r->published * s->block);
}

static void append(struct sched *s, struct sched_request *r, const struct sched_result *result)
{
    const int32_t room = r->limit - r->count, n = sched_min(result->token_count, room);
    if (n > 0)
        memcpy(r->tokens + r->count, result->tokens, (size_t)n * sizeof *r->tokens);
    for (int32_t i = 0; r->image_mask && i < n; i++)
        r->image_mask[r->count + i] = result->tokens[i] == s->options.image_token;
    r->count += n;
    r->drafts = 0;
    s->metrics.generated_tokens += n;
}

static void take_result(struct sched *s, struct sched_request *r, const struct flight *f,
                        const struct sched_result *result)
{
    if (result->failed) {
        finish_request(s, r, FINISH_FAILED);
        return;
    }
    r->done = f->first + result->accepted - f->below;
    if (result->accepted < f->below + f->count)
        r->next = r->done; /* rejected rows: the next ones go over them */
    r->first_logits = sched_max(r->first_logits, r->done);
    if (f->final)
        append(s, r, result);
    r->done = sched_min(r->done, r->count);
    publish(s, r);
    if (result->finish != FINISH_NONE) {
        finish_request(s, r, result->finish);
    } else if (f->final && r->count >= r->limit) {
        finish_request(s, r, FINISH_LENGTH);
    } else if (f->final && r->state == SCHED_PREFILL) {
        r->state = SCHED_DECODE;
        release_children(s, r);
    }
}

/* The record of this step in the request, taken out; false: the request was preempted, cancelled or ended meanwhile. */
static bool take_flight(struct sched_request *r, uint64_t step, struct flight *out)
{
    for (int32_t i = 0; i < r->flights; i++)
        if (r->flight[i].step == step) {
            *out = r->flight[i];
            r->flights--;
            memmove(r->flight + i, r->flight + i + 1, (size_t)(r->flights - i) * sizeof *r->flight);
            return true;
        }
    return false;
}

static bool any_failed(const struct out_batch *o, const struct sched_result *results)
{
    for (int32_t b = 0; b < o->batch.count; b++)
        if (results[b].failed)
            return true;
    return false;
}

/* The maintenance of a batch is over with it; pins wait for the next pass (addendum 5.6). Nobody knows what a failed
 * batch has copied. */
static void complete_maintenance(struct sched *s, struct out_batch *o, const struct sched_result *results)
{
    const bool failed = any_failed(o, results);
    for (int32_t i = 0; i < o->store_count; i++)
        (failed ? images_abandon : images_stored)(s->images, o->stores[i]);
    for (int32_t i = 0; i < o->pin_count; i++)
        s->settle[s->settle_count++] = o->pins[i];
}

void sched_complete(struct sched *s, const struct sched_result *results, bool *dropped)
{
    struct out_batch *o = &s->ring[s->ring_first];
    if (s->out == 0)
        return;
    s->ring_first = (s->ring_first + 1) % (s->options.depth + 1);
    s->out--;
    complete_maintenance(s, o, results);
    for (int32_t b = 0; b < o->batch.count; b++) {
        struct sched_request *r = o->request[b];
        struct flight f;
        r->batches--;
        const bool listens = take_flight(r, o->batch.step, &f) && !r->cancelled;
        if (listens)
            take_result(s, r, &f, &results[b]);
        else if (r->cancelled && sched_request_running(r) && r->flights == 0)
            finish_request(s, r, FINISH_CANCELLED);
        if (dropped)
            dropped[b] = !listens;
    }
    if (s->options.check && !s->broken.message[0])
        sched_check(s, &s->broken);
}

struct sched_request *sched_span_request(const struct sched *s, int32_t b)
{
    const struct out_batch *o = &s->ring[s->ring_first];
    if (s->out == 0 || b < 0 || b >= o->batch.count)
        return NULL;
    struct sched_request *r = o->request[b];
    for (int32_t i = 0; i < r->flights; i++)
        if (r->flight[i].step == o->batch.step)
            return r->cancelled ? NULL : r;
    return NULL;
}
