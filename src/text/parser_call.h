/* parser_call.h: one call of the model: its parameters, one after the other or as a JSON body, become the text of a
 * JSON object, piece by piece (protocol.md 3.4). */
#ifndef QR_TEXT_PARSER_CALL_H
#define QR_TEXT_PARSER_CALL_H

#include "text/deltas.h"
#include "text/parser_tag.h"
#include "text/tool_list.h"

enum value_mode { VALUE_SKIPPED, VALUE_STRING, VALUE_JSON };

struct call_key {
    size_t offset, length; /* in `key_text` */
};

/* Zero-initialise; free with call_free. `lost` calls take everything in and say nothing. */
struct call {
    const struct tool *tool; /* NULL: a name that no tool has */
    uint32_t index;          /* of its deltas */
    struct buffer name;
    bool lost;
    bool started;          /* its DELTA_CALL was sent */
    bool opened;           /* the brace of its arguments was sent */
    size_t parameters;     /* begun, repeated keys included */
    struct call_key *keys; /* the different ones */
    size_t key_count, key_capacity;
    struct buffer key_text;
    enum value_mode mode; /* of the value that is coming */
    bool wrapped;         /* the first parameter is held: it may hold all arguments */
    bool holds_json;      /* what `value` may be, else a string */
    struct buffer value;  /* a value that cannot be sent as it comes */
    struct buffer scratch;
};

/* Forgets the call before and begins one. */
void call_begin(struct call *c, const struct tool *tool, uint32_t index, bool lost);
void call_free(struct call *c);

/* A parameter begins; the first starts the call. A key that came before is swallowed with its value. */
void call_parameter(struct call *c, const char *key, size_t length, enum string_attribute attribute,
                    struct deltas *out);
void call_value(struct call *c, const char *text, size_t length, struct deltas *out);
void call_value_end(struct call *c, struct deltas *out);

/* The call is whole. */
void call_end(struct call *c, struct deltas *out);

/* A call may have a body instead of parameters: a JSON object. *is_object tells whether it is one (QR_NO_MEMORY
 * otherwise); then call_body starts and ends the call. */
qr_status call_body_check(const char *text, size_t length, bool *is_object);
void call_body(struct call *c, const char *text, size_t length, struct deltas *out);

/* True when some of the work above found no memory. */
bool call_failed(const struct call *c);

#endif
