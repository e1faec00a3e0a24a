/* translation.h: a request of another API on its way to become the body of a chat request (protocol.md 4.5, 4.6). Pure: it
 * knows JSON and refusals, no model and no connection. */
#ifndef QR_SERVE_TRANSLATION_H
#define QR_SERVE_TRANSLATION_H

#include "base/buffer.h"
#include "serve/refusal.h"

/* What a client calls the thing that an element of the chat request was made of. */
struct place {
    const char *name; /* "messages", "input"; static */
    size_t index;     /* of its element, or PLACE_WHOLE */
    bool same;        /* what is inside the element is numbered as in the chat's */
};
#define PLACE_WHOLE ((size_t)-1)

/* Zero-initialise; translation_free. */
struct translation {
    struct json_writer *w;          /* the chat request, until it is finished */
    const char *list, *format;      /* how the client calls "messages" and "response_format" */
    struct buffer messages, tools;  /* a struct place for each of the chat's */
    const char *text;               /* once finished: the chat request */
    size_t length;
};

/* Opens the request's object. False: no memory. */
bool translation_open(struct translation *t, const char *list, const char *format, struct refusal *refusal);
/* The next message or tool of the chat request is made of this. */
void translation_message(struct translation *t, struct place from);
void translation_tool(struct translation *t, struct place from);
/* Something had no memory: translation_finish will say so. */
void translation_lost(struct translation *t);
/* Closes the object. */
bool translation_finish(struct translation *t, struct refusal *refusal);
void translation_free(struct translation *t);

/* A refusal of the chat request becomes one of the client's: its path and its sentence name what the client sent. */
void translation_locate(const struct translation *t, struct refusal *refusal);

/* ---- for translators ---- */

/* A member as the client sent it, when there is one and it is not null. */
void copy_member(const struct json *from, const char *name, struct json_writer *w, const char *as);
/* Members of this server's own (and of others like it), which mean the same in a request of any API: how tokens are drawn, what
 * the answer has to be, whose cached pages are its. */
void copy_extensions(const struct json *from, struct json_writer *w);
/* "strict": true of a tool, which belongs to its function; one that says otherwise says nothing. */
void copy_strict(const struct json *tool, struct json_writer *w);
/* {"type": "text", "text": ...} */
void part_text(struct json_writer *w, const char *text, size_t length);
/* A part that the chat request answers for: {"type": ...} alone. */
void part_bare(struct json_writer *w, const struct json *type);
/* The string "type" of an object, or NULL. */
const struct json *type_of(const struct json *value);
/* How many bytes of a model's name count: "/" and "[1m]" at its end do not. */
size_t model_name_length(const char *name, size_t length);

#endif
