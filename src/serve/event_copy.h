/* event_copy.h: an event of the engine with the memory that its pointers name, on its way to the thread of a connection. */
#ifndef QR_SERVE_EVENT_COPY_H
#define QR_SERVE_EVENT_COPY_H

#include "quire.h"

struct choice;

struct event_copy {
    struct event_copy *next;
    struct choice *choice;
    qr_event event;
    qr_usage usage;          /* of its request, when it was made: the last event takes the request with it */
    qr_error error;
    /* text, top, prompt and prompt_top behind it */
};

/* One block of memory; NULL without. qr_free. */
struct event_copy *event_copy_make(struct choice *choice, const qr_event *event);

#endif
