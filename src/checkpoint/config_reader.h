/* config_reader.h: reads the fields of a config.json by either of their two spellings and collects everything that is
 * wrong with them into one sentence. What config_v41.c and config_v4.c share. */
#ifndef QR_CHECKPOINT_CONFIG_READER_H
#define QR_CHECKPOINT_CONFIG_READER_H

#include "base/json.h"
#include "checkpoint/config.h"

enum { CONFIG_SCOPES = 2 };

struct config_reader {
    const char *name; /* of the file, for messages */
    const char *prefix; /* "vision_config." before the names of its fields, or "" */
    const struct json *root;
    /* Where fields are looked for: every place counts, and all values found must agree. */
    const struct json *scope[CONFIG_SCOPES];
    int scopes;
    int problems, shown; /* shown: those that found room in `text` */
    bool admission; /* a rule with an admission id (runtime.md 11) is among the problems */
    bool unread;    /* a field is missing or no value for it, so that rules between fields cannot be looked at */
    char text[800];
    size_t used;
};

void config_reader_open(struct config_reader *r, const char *name, const struct json *root);
void config_reader_scope(struct config_reader *r, const struct json *object);
/* Adds one problem; `id` is its admission id or NULL. Problems beyond the room are counted only. */
void config_problem(struct config_reader *r, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a rule between fields: says nothing once a field could not be read, which has been said. */
void config_rule(struct config_reader *r, const char *id, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Whether `value` is NULL: then "field LABEL is missing" is said. */
bool config_missing(struct config_reader *r, const struct json *value, const char *id, const char *label);
/* QR_OK, or the verdict with all problems: QR_REFUSED where an admission rule is among them, else QR_BAD_CONFIG. */
qr_status config_verdict(const struct config_reader *r, qr_error *err);

/* The value of a field under `key` or `other` (NULL: no second spelling) in any scope, or NULL when it is absent or
 * null. Two places that disagree are a problem. */
const struct json *config_find(struct config_reader *r, const char *key, const char *other);
bool config_same(const struct json *a, const struct json *b);

/* Required fields: absent, of another kind or outside [low, high] is a problem and leaves *out alone. */
bool config_int(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int32_t *out);
bool config_int64(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int64_t *out);
bool config_double(struct config_reader *r, const char *key, const char *other, double low, double high, double *out);
bool config_float(struct config_reader *r, const char *key, const char *other, double low, double high, float *out);
/* Fields that may be absent: *out keeps its value then. */
void config_int_or(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int32_t *out);
void config_bool_or(struct config_reader *r, const char *key, const char *other, bool *out);
/* A list of at most `room` integers, each in [low, high]. */
bool config_ints(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int32_t room,
                 int32_t *out, int32_t *count);
bool config_int64s(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int32_t room,
                   int64_t *out, int32_t *count);

/* Values that have one legal setting. An absent one is a problem only when `required`. */
void config_must_be_text(struct config_reader *r, const struct json *value, const char *id, const char *label,
                         const char *wanted, bool required);
void config_must_be_int(struct config_reader *r, const struct json *value, const char *id, const char *label,
                        int64_t wanted, bool required);
void config_must_be_bool(struct config_reader *r, const struct json *value, const char *label, bool wanted);

/* What a value looks like in a message: 47 bytes of its text at most. */
const char *config_shown(const struct json *value, char room[64]);

/* YaRN, written as the object rope_scaling or as flat keys (both families). */
void config_rope(struct config_reader *r, struct qr_config *out);
/* architectures and model_type, E01. */
void config_identity(struct config_reader *r, const char *architecture, const char *model_type);
/* Fields that mean the same in both families: sizes, router, mHC, norms, RoPE bases, special tokens. */
void config_common(struct config_reader *r, struct qr_config *out);

/* The dspark_* fields that both families have. */
void config_dspark(struct config_reader *r, struct qr_config *out);

void config_read_v41(struct config_reader *r, struct qr_config *out);
void config_read_v4(struct config_reader *r, struct qr_config *out);

#endif
