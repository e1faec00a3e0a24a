#include "sched/queue.h"

#include <stddef.h>

static void insert_before(struct queue *q, struct sched_request *r, struct sched_request *next)
{
    r->list_next = next;
    r->list_prev = next ? next->list_prev : q->last;
    *(r->list_prev ? &r->list_prev->list_next : &q->first) = r;
    *(next ? &next->list_prev : &q->last) = r;
    q->count++;
}

void queue_append(struct queue *q, struct sched_request *r) { insert_before(q, r, NULL); }

void queue_remove(struct queue *q, struct sched_request *r)
{
    *(r->list_prev ? &r->list_prev->list_next : &q->first) = r->list_next;
    *(r->list_next ? &r->list_next->list_prev : &q->last) = r->list_prev;
    r->list_prev = r->list_next = NULL;
    q->count--;
}

/* Whether `waiting` goes before `r`, who comes now. */
static bool goes_before(const struct sched_request *waiting, const struct sched_request *r)
{
    if (waiting->priority != r->priority)
        return waiting->priority > r->priority;
    if (r->preempted)
        return false;
    return waiting->preempted || waiting->arrival < r->arrival;
}

void queue_wait(struct queue *q, struct sched_request *r)
{
    struct sched_request *after = q->last; /* from the back: most come last */
    while (after && !goes_before(after, r))
        after = after->list_prev;
    insert_before(q, r, after ? after->list_next : q->first);
}

void queue_reverse(struct queue *q)
{
    struct sched_request *r = q->first;
    q->first = q->last;
    q->last = r;
    while (r) {
        struct sched_request *next = r->list_next;
        r->list_next = r->list_prev;
        r->list_prev = next;
        r = next;
    }
}

bool queue_holds(const struct queue *q, const struct sched_request *r)
{
    for (const struct sched_request *at = q->first; at; at = at->list_next)
        if (at == r)
            return true;
    return false;
}
