#include "sched/state.h"

bool take_blocks(struct sched *s, int32_t n, block_id *out)
{
    if (n > blocks_free(s->blocks) + images_evictable(s->images))
        return false;
    while (blocks_unused(s->blocks) < n && images_evict(s->images)) /* images go before pages */
        continue;
    return blocks_take(s->blocks, n, out);
}

/* Keeps the first start->blocks of the claimed blocks. */
static void choose(struct sched *s, struct sched_request *r, int32_t claimed, bool use_images, struct start *start)
{
    start_choose(s, r, claimed, use_images, start);
    blocks_release(s->blocks, r->blocks + start->blocks, claimed - start->blocks);
}

/* Claims the request's cached blocks and chooses its start; returns how many blocks there were. */
static int32_t claim(struct sched *s, struct sched_request *r, struct start *start)
{
    int32_t matched = 0;
    if (s->options.prefix_cache) {
        sched_request_keys(r, &s->root, s->block, (r->end - 1) / s->block);
        matched = blocks_match(s->blocks, r->keys, r->tokens, r->end, r->blocks);
    }
    choose(s, r, matched, true, start);
    return matched;
}

/* What the request would hold is free. A page for each running request stays free, or the newcomer would soon be the
 * victim of their growth. */
static bool pages_fit(const struct sched *s, const struct sched_request *r, const struct start *start)
{
    const int32_t fresh = blocks_for(s, r->end) - start->blocks;
    return fresh + s->running.count <= blocks_free(s->blocks) + images_evictable(s->images);
}

/* Takes the pages of all its known tokens, and pins its image. Where both do not fit, the request does without the
 * image if it can rerun; if nothing else runs, it must. False: there is no room; blocks claimed stay claimed. */
static bool take_pages(struct sched *s, struct sched_request *r, struct start *start)
{
    if (start->image != IMAGE_NONE) {
        images_pin(s->images, start->image);
        if (!pages_fit(s, r, start)) {
            images_unpin(s->images, start->image);
            start->image = IMAGE_NONE;
            if (s->options.encoder_replay == REPLAY_OFF && s->running.count > 0)
                return false;
            choose(s, r, start->blocks, false, start);
        }
    }
    return pages_fit(s, r, start) && take_blocks(s, blocks_for(s, r->end) - start->blocks, r->blocks + start->blocks);
}

static void note_admission(struct sched *s, struct sched_request *r, const struct start *start, int32_t matched)
{
    struct sched_metrics *m = &s->metrics;
    m->hits += start->hit > 0;
    m->restores += start->image != IMAGE_NONE && start->rings_from == start->hit;
    m->lower_restores += start->image != IMAGE_NONE && start->rings_from < start->hit;
    m->reruns += start->hit > 0 && start->image == IMAGE_NONE;
    m->demands += start->demand >= 0;
    m->demands_declined += start->declined;
    m->rows_trimmed += (int64_t)s->options.plan->layers * (start->rows.end - start->rows.first) -
                       rows_query_total(s->options.plan, &start->rows);
    if (r->cached_tokens >= 0)
        return; /* again after a preemption */
    r->cached_tokens = start->hit;
    m->prompt_tokens += r->prompt;
    m->cached_tokens += start->hit;
    m->wanted_tokens += (int64_t)matched * s->block;
}

/* What next_chunk looks at. */
static void take_start(const struct sched *s, struct sched_request *r, const struct start *start)
{
    r->hit = start->hit;
    /* a rerun advances from its own first row; a bounded one counts what the cache holds as done (runtime.md 0) */
    r->next = r->done = s->options.encoder_replay == REPLAY_BOUNDED ? start->hit : start->rows.first;
    r->below = r->next - start->rows.first;
    r->boundary = start->boundary;
    r->demand = start->demand;
}

/* The drafter reads nothing below: rows that an image brought, or the first that this admission writes. */
static int32_t drafts_from(const struct sched *s, const struct start *start)
{
    const int32_t layer = s->options.plan->layers, key = start->rows.layer[layer].key;
    if (s->options.draft_width == 0)
        return 0;
    const bool brought = start->image != IMAGE_NONE && start->ring_layers > layer && key <= start->rings_from;
    return brought ? sched_max(0, start->rings_from - s->window) : key;
}

static void begin(struct sched *s, struct sched_request *r, const struct start *start)
{
    take_start(s, r, start);
    r->state = SCHED_PREFILL;
    r->slot = s->slots[--s->slot_count];
    r->block_count = blocks_for(s, r->end);
    r->published = start->blocks;
    r->rows = start->rows;
    r->rings_from = start->rings_from;
    r->ring_layers = start->ring_layers;
    r->draft_from = drafts_from(s, start);
    r->draft_gap = r->draftless && s->options.draft_width > 0 ? r->end : 0;
    r->last_image = start->rings_from;
    r->answer_block = 0;
    r->fresh = true;
    r->restored = false;
    queue_remove(&s->waiting, r);
    queue_append(&s->running, r);
}

/* False: the head of the line does not fit, and nobody passes it. The chunk is computed before slot and pages are taken
 * (addendum 4.2). */
static bool admit(struct sched *s, struct sched_request *r)
{
    struct start start;
    r->end = r->count;
    const int32_t matched = claim(s, r, &start);
    take_start(s, r, &start);
    if (next_chunk(s, r).end == r->next || !take_pages(s, r, &start)) {
        blocks_release(s->blocks, r->blocks, start.blocks);
        return false;
    }
    begin(s, r, &start);
    note_admission(s, r, &start, matched);
    if (start.image != IMAGE_NONE)
        attach_restore(s, r, start.image);
    const struct chunk chunk = next_chunk(s, r); /* without its image it starts lower, and may have to wait after all */
    if (chunk.end > r->next)
        span_add(s, r, chunk);
    return true;
}

void admit_waiting(struct sched *s)
{
    while (s->waiting.first && s->running.count < s->options.max_requests && s->slot_count > 0 && s->prefill_left > 0)
        if (!admit(s, s->waiting.first))
            break;
}
