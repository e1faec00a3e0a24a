/* queue.h: lists of requests: those that wait, in the order in which they will be admitted, and those that run. */
#ifndef QR_SCHED_QUEUE_H
#define QR_SCHED_QUEUE_H

#include "sched/request.h"

struct queue {
    struct sched_request *first, *last;
    int32_t count;
};

void queue_append(struct queue *q, struct sched_request *r);
void queue_remove(struct queue *q, struct sched_request *r);
/* Puts a waiting request in its place: higher priority first; within one, preempted requests before others, the last
 * one preempted first; then by arrival (runtime.md 4.3). */
void queue_wait(struct queue *q, struct sched_request *r);
void queue_reverse(struct queue *q);
bool queue_holds(const struct queue *q, const struct sched_request *r);

#endif
