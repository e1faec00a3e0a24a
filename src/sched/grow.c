#include "sched/state.h"

int32_t decode_rows(const struct sched_request *r)
{
    return 1 + sched_max(0, sched_min(r->drafts, r->limit - 1 - r->count)); /* the last token is never forwarded */
}

bool decode_ready(const struct sched *s, const struct sched_request *r)
{
    if (r->state != SCHED_DECODE || r->cancelled || r->paused || r->next + 1 >= r->limit)
        return false;
    if (r->flights == 0)
        return true;
    /* One step ahead of what is known: its token is drawn by the step before this one. */
    const struct flight *last = &r->flight[r->flights - 1];
    return s->options.draft_width == 0 && r->flights <= s->options.depth && last->step == s->step && last->final &&
           r->image_due < 0;
}

void preempt(struct sched *s, struct sched_request *r)
{
    queue_remove(&s->running, r);
    give_up(s, r);
    r->state = SCHED_WAITING;
    r->preempted = true;
    r->preemptions++;
    r->next = r->below = r->done = r->hit = r->published = r->flights = r->drafts = 0;
    r->boundary = r->demand = r->image_due = -1;
    r->fresh = r->restored = false;
    s->metrics.preemptions++;
    queue_wait(&s->waiting, r);
}

/* The running request of the lowest class that came last. None has rows in the batch being made: growth comes first. */
static struct sched_request *victim(const struct sched *s)
{
    struct sched_request *chosen = s->running.last;
    for (struct sched_request *r = s->running.last; r; r = r->list_prev)
        if (r->priority < chosen->priority)
            chosen = r;
    return chosen;
}

/* Pages for its next decode span; ends early when the request itself has to go. */
static void grow(struct sched *s, struct sched_request *r)
{
    const int32_t need = blocks_for(s, r->next + decode_rows(r));
    while (r->block_count < need) {
        if (take_blocks(s, 1, r->blocks + r->block_count)) {
            r->block_count++;
            continue;
        }
        struct sched_request *v = victim(s);
        preempt(s, v);
        if (v == r)
            return;
    }
}

void grow_decoding(struct sched *s)
{
    struct sched_request **ready = s->making->request; /* free until spans are added; victims drop out on the way */
    int32_t count = 0;
    for (struct sched_request *r = s->running.first; r; r = r->list_next)
        if (decode_ready(s, r))
            ready[count++] = r;
    for (int32_t i = 0; i < count; i++)
        if (ready[i]->state == SCHED_DECODE)
            grow(s, ready[i]);
}
