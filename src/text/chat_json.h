/* chat_json.h: JSON as it stands in a prompt: what Python's default dumper writes, non-ASCII characters left as they are
 * (protocol.md 2.7). */
#ifndef QR_TEXT_CHAT_JSON_H
#define QR_TEXT_CHAT_JSON_H

#include "base/buffer.h"
#include "base/json.h"

/* Appends a value: separators ", " and ": ", integers exact, other numbers as the shortest text of their double in
 * Python's form, objects in their order with each key once (at its first place, with its last value). No memory: the
 * buffer's `failed`. */
void chat_json_write(struct buffer *out, const struct json *value);

/* Appends a string with its quotation marks; or what stands between them. */
void chat_json_string(struct buffer *out, const char *text, size_t length);
void chat_json_escape(struct buffer *out, const char *text, size_t length);

/* The members of an object with each key once: for every key, at its first place, the member that has its last value.
 * `*members` gets an array of `*count` pointers (qr_free). False without memory. */
bool chat_json_members(const struct json *object, const struct json ***members, size_t *count);

#endif
