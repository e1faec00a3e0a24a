#include "serve/counters.h"

#include <pthread.h>

#include "base/alloc.h"
#include "serve/routes.h"

enum { MOST_ROUTES = 64, STATUSES = 600 };

const char *const gone_phase_names[GONE_PHASES] = {"queue", "prefill", "output"};
const char *const ended_by_names[ENDED_KINDS] = {"stop", "length", "tool_calls", "cancelled", "error"};

struct counters {
    pthread_mutex_t lock;
    struct counted sum;
    uint64_t answers[MOST_ROUTES][STATUSES];
};

struct counters *counters_open(void)
{
    struct counters *c = qr_calloc(1, sizeof *c);
    if (c)
        pthread_mutex_init(&c->lock, NULL);
    return c;
}

void counters_close(struct counters *c)
{
    if (!c)
        return;
    pthread_mutex_destroy(&c->lock);
    qr_free(c);
}

void count_answer(struct counters *c, const struct route *route, int status)
{
    const size_t number = route ? route_number(route) : route_count();
    if (number >= MOST_ROUTES || status < 0 || status >= STATUSES)
        return;
    pthread_mutex_lock(&c->lock);
    c->answers[number][status]++;
    pthread_mutex_unlock(&c->lock);
}

uint64_t counters_answers(const struct counters *c, size_t route, int status)
{
    struct counters *locked = (struct counters *)c;
    pthread_mutex_lock(&locked->lock);
    const uint64_t n = route < MOST_ROUTES && status >= 0 && status < STATUSES ? c->answers[route][status] : 0;
    pthread_mutex_unlock(&locked->lock);
    return n;
}

void count_gone(struct counters *c, enum gone_phase phase)
{
    pthread_mutex_lock(&c->lock);
    c->sum.gone[phase]++;
    pthread_mutex_unlock(&c->lock);
}

static void add_to_histogram(qr_histogram *h, double seconds)
{
    int bucket = 0;
    while (bucket + 1 < QR_HISTOGRAM_BUCKETS && seconds > qr_histogram_bound(bucket))
        bucket++;
    h->count[bucket]++;
    h->sum += seconds;
}

void count_first_byte(struct counters *c, double seconds)
{
    pthread_mutex_lock(&c->lock);
    add_to_histogram(&c->sum.first_byte, seconds);
    pthread_mutex_unlock(&c->lock);
}

void count_ended(struct counters *c, enum ended_by how, double seconds, const qr_parser_state *parsed, uint64_t discarded_bytes)
{
    pthread_mutex_lock(&c->lock);
    c->sum.ended[how]++;
    add_to_histogram(&c->sum.seconds, seconds);
    if (parsed) {
        c->sum.reasoning_tokens += (uint64_t)parsed->reasoning_tokens;
        c->sum.refused_calls += (uint64_t)parsed->refused_calls;
        c->sum.cut_calls += (uint64_t)parsed->cut_calls;
        c->sum.discarded_tokens += (uint64_t)parsed->discarded_tokens;
        c->sum.discarded_bytes += discarded_bytes;
    }
    pthread_mutex_unlock(&c->lock);
}

struct counted counters_get(const struct counters *c)
{
    struct counters *locked = (struct counters *)c;
    pthread_mutex_lock(&locked->lock);
    const struct counted sum = c->sum;
    pthread_mutex_unlock(&locked->lock);
    return sum;
}
