#include "serve/event_copy.h"

#include <string.h>

#include "base/alloc.h"

static void *place(char **at, const void *from, size_t bytes)
{
    void *to = *at;
    if (bytes)
        memcpy(to, from, bytes);
    *at += (bytes + 15) / 16 * 16;
    return to;
}

struct event_copy *event_copy_make(struct choice *choice, const qr_event *event)
{
    const size_t entry = sizeof(qr_token_logprob);
    const size_t top = event->top_count * entry, prompt = event->prompt_count * entry,
                 prompt_top = event->prompt_count * event->prompt_top_count * entry;
    const size_t head = (sizeof(struct event_copy) + 15) / 16 * 16;
    struct event_copy *e = qr_malloc(head + event->text_length + top + prompt + prompt_top + 64);
    if (!e)
        return NULL;
    char *at = (char *)e + head;
    *e = (struct event_copy){.choice = choice, .event = *event};
    e->event.text = place(&at, event->text, event->text_length);
    e->event.top = place(&at, event->top, top);
    e->event.prompt = place(&at, event->prompt, prompt);
    e->event.prompt_top = place(&at, event->prompt_top, prompt_top);
    if (event->error) {
        e->error = *event->error;
        e->event.error = &e->error;
    }
    return e;
}
