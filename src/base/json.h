/* json.h: JSON over yajl. Reading keeps number text, key order and NULs in strings; a lone surrogate, invalid UTF-8,
 * trailing text and nesting beyond 512 are refused. Two readers: a tree for configurations and requests, and events
 * for a file too large for one (a safetensors header). */
#ifndef QR_BASE_JSON_H
#define QR_BASE_JSON_H

#include "base/status.h"

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* A value of a parsed document; lives as long as the document. For a member of an object `key` is its name.
 * `text`/`length`: a string's bytes (UTF-8, may hold NULs, NUL-terminated besides) or a number's text as written.
 * Children of an array or object are linked by `next` in file order. */
struct json {
    enum json_kind kind;
    bool boolean;
    const char *key;
    size_t key_length;
    const char *text;
    size_t length;
    struct json *child, *next;
    size_t count; /* children */
};

struct json_document;

/* Parses `size` bytes. `name` (a path, "request 3") is quoted in errors. A duplicate key is refused when
 * `unique_keys`. Free with json_close. */
qr_status json_parse(const char *data, size_t size, const char *name, bool unique_keys, struct json_document **out,
                     qr_error *err);
const struct json *json_root(const struct json_document *doc);
void json_close(struct json_document *doc);

/* The member `key` of an object (the last one of that name), or NULL. NULL when `object` is NULL or no object. */
const struct json *json_get(const struct json *object, const char *key);
/* Element `index` of an array or NULL. */
const struct json *json_at(const struct json *array, size_t index);
bool json_equals(const struct json *string, const char *text);

/* Conversions; false when the value is NULL, of another kind or out of range. Integers accept only integer text
 * (so 1e3 and 1.0 are no integers); doubles accept any JSON number that is finite. */
bool json_int64(const struct json *value, int64_t *out);
bool json_uint64(const struct json *value, uint64_t *out);
bool json_double(const struct json *value, double *out);
bool json_bool(const struct json *value, bool *out);

/* Events. A callback returns false to stop (json_scan then returns QR_CANCELLED without touching err; the callback
 * reports its own reason). Any callback may be NULL. Strings are not NUL-terminated here. */
struct json_events {
    bool (*null)(void *user);
    bool (*boolean)(void *user, bool value);
    bool (*number)(void *user, const char *text, size_t length);
    bool (*string)(void *user, const char *text, size_t length);
    bool (*key)(void *user, const char *text, size_t length);
    bool (*start_object)(void *user);
    bool (*end_object)(void *user);
    bool (*start_array)(void *user);
    bool (*end_array)(void *user);
};
qr_status json_scan(const char *data, size_t size, const char *name, const struct json_events *events, void *user,
                    qr_error *err);

/* Writing. Every call appends to one growing buffer; what goes wrong is remembered and reported by json_finish: no
 * memory (QR_NO_MEMORY); a string that is not UTF-8, a number that is not finite, nesting beyond 127, calls out of
 * order (QR_BAD_ARGUMENT). Numbers written by json_w_double use the shortest text that reads back equal. `json_w_raw`
 * inserts JSON text as is. The text of json_w_string_n may be NULL when it has no bytes. */
struct json_writer;
struct json_writer *json_writer_open(bool pretty); /* NULL without memory */
void json_w_object(struct json_writer *w);
void json_w_end_object(struct json_writer *w);
void json_w_array(struct json_writer *w);
void json_w_end_array(struct json_writer *w);
void json_w_key(struct json_writer *w, const char *key);
void json_w_string(struct json_writer *w, const char *text);
void json_w_string_n(struct json_writer *w, const char *text, size_t length);
void json_w_int(struct json_writer *w, int64_t value);
void json_w_uint(struct json_writer *w, uint64_t value);
void json_w_double(struct json_writer *w, double value);
void json_w_bool(struct json_writer *w, bool value);
void json_w_null(struct json_writer *w);
void json_w_raw(struct json_writer *w, const char *text, size_t length);
/* Any parsed value as it was read: number text and key order kept. */
void json_w_value(struct json_writer *w, const struct json *value);
/* A member of the open object: its key and its value. What JSON cannot say is null: a string that is NULL, a number
 * that is not finite. */
void json_w_member_string(struct json_writer *w, const char *key, const char *text);
void json_w_member_string_n(struct json_writer *w, const char *key, const char *text, size_t length);
void json_w_member_int(struct json_writer *w, const char *key, int64_t value);
void json_w_member_uint(struct json_writer *w, const char *key, uint64_t value);
void json_w_member_number(struct json_writer *w, const char *key, double value);
void json_w_member_bool(struct json_writer *w, const char *key, bool value);
void json_w_member_null(struct json_writer *w, const char *key);
/* The text so far, NUL-terminated, owned by the writer until json_writer_close. */
qr_status json_finish(struct json_writer *w, const char **text, size_t *length, qr_error *err);
/* Empties the writer for the next line. */
void json_writer_reset(struct json_writer *w);
void json_writer_close(struct json_writer *w);

#endif
