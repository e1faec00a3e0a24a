/* counters.h: what the server counts beside the engine, for /metrics. Safe from any thread. */
#ifndef QR_SERVE_COUNTERS_H
#define QR_SERVE_COUNTERS_H

#include "quire.h"

struct counters;
struct route;

/* Where a client went away. */
enum gone_phase { GONE_QUEUE, GONE_PREFILL, GONE_OUTPUT, GONE_PHASES };
extern const char *const gone_phase_names[GONE_PHASES];

/* How generations end. */
enum ended_by { ENDED_STOP, ENDED_LENGTH, ENDED_TOOL_CALLS, ENDED_CANCELLED, ENDED_ERROR, ENDED_KINDS };
extern const char *const ended_by_names[ENDED_KINDS];

struct counted {
    uint64_t gone[GONE_PHASES], ended[ENDED_KINDS];
    uint64_t reasoning_tokens, refused_calls, cut_calls, discarded_tokens, discarded_bytes;
    qr_histogram seconds;    /* whole generations */
    qr_histogram first_byte; /* from the end of a request to its answer */
};

struct counters *counters_open(void); /* NULL without memory */
void counters_close(struct counters *c);
void count_answer(struct counters *c, const struct route *route, int status); /* route NULL: a path that there is not */
void count_gone(struct counters *c, enum gone_phase phase);
/* `parsed` or NULL; discarded_bytes: of its discarded tokens. */
void count_ended(struct counters *c, enum ended_by how, double seconds, const qr_parser_state *parsed, uint64_t discarded_bytes);
/* Of a stream: to its first token; else to all of it. */
void count_first_byte(struct counters *c, double seconds);
struct counted counters_get(const struct counters *c);
/* Answers of the route with that number (route_count(): of none) and that status. */
uint64_t counters_answers(const struct counters *c, size_t route, int status);

#endif
