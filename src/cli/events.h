/* events.h: the events that quire generate injects: JSON lines {"at_step", "op", "id"} (cli.md). */
#ifndef QR_CLI_EVENTS_H
#define QR_CLI_EVENTS_H

#include "quire.h"

struct event_line {
    uint64_t number; /* of its line, from 1 */
    uint64_t at_step;
    qr_injection what;
    char *id; /* JSON text of the request's id; NULL: the event concerns none */
};
struct event_list {
    struct event_line *lines;
    size_t count, capacity;
};

/* Reads a file whole. QR_BAD_REQUEST names file, line and what is wrong with it. Free with events_free. */
qr_status events_read(const char *path, struct event_list *out, qr_error *err);
void events_free(struct event_list *list);

/* Hands the engine the events that concern no request. */
qr_status events_start(const struct event_list *list, qr_engine *engine, qr_error *err);
/* Hands it those of the request whose id this is, once it has a handle. */
qr_status events_of(const struct event_list *list, const char *id, qr_engine *engine, qr_handle handle, qr_error *err);

#endif
