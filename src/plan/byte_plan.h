/* byte_plan.h: everything large, by name and size, before anything is mapped or reserved. A list that each floor adds
 * its own items to; printed as a table and as JSON. */
#ifndef QR_PLAN_BYTE_PLAN_H
#define QR_PLAN_BYTE_PLAN_H

#include "base/buffer.h"
#include "base/json.h"

/* Who holds the bytes. */
enum byte_kind {
    BYTES_WEIGHTS,   /* mapped from the folder, used where they lie */
    BYTES_TABLES,    /* mapped, read a few rows at a time: Engram */
    BYTES_PREPARED,  /* allocated: weights in another form than the file's */
    BYTES_PAGES,     /* the PAGE pool */
    BYTES_STATES,    /* the STATE pool */
    BYTES_WORKSPACE, /* buffers of a step, scratch */
    /* on a device with memory of its own, where the pools lie too */
    BYTES_DEVICE_WEIGHTS,   /* weights in its layout */
    BYTES_DEVICE_WORKSPACE, /* buffers of a step, scratch, staging */
    BYTES_GRAPHS,           /* recorded steps */
    BYTES_COLLECTIVE,       /* what exchange between devices takes outside of any allocation here (runtime.md 15, 28) */
    BYTES_BESIDE,           /* taken by others, and left free for safety */
    BYTES_HOST_EXPERTS,     /* experts that the device has no room for, pinned in host memory in its layout */
    BYTES_KINDS
};

struct byte_item {
    enum byte_kind kind;
    char name[64];
    int64_t count, each, bytes; /* count * each, or a sum of its own with count 0 */
};

struct byte_plan {
    struct byte_item *items; /* freed by byte_plan_free */
    size_t count, room;
    bool failed; /* memory ran out; asked once at the end */
};

/* Zero-initialise a plan. Adds `count` things of `each` bytes; sizes that do not fit 63 bits become INT64_MAX. */
void byte_plan_add(struct byte_plan *plan, enum byte_kind kind, const char *name, int64_t count, int64_t each);
/* Adds `bytes` to the item of that kind and name, which is made when it is not there. */
void byte_plan_grow(struct byte_plan *plan, enum byte_kind kind, const char *name, int64_t bytes);
int64_t byte_plan_total(const struct byte_plan *plan, enum byte_kind kind);
void byte_plan_free(struct byte_plan *plan);

/* "weights", "tables", "prepared", "pages", "states", "workspace", "device_weights", ... */
const char *byte_kind_name(enum byte_kind kind);

/* Adds a tensor of a folder (either naming, v41-model.md 2.3, v4-model.md 2.1 and 7.1) to its part: attention, routed
 * experts, Engram tables, drafter, vision ... */
void byte_plan_tensor(struct byte_plan *plan, const char *name, int64_t bytes);
/* The part that a tensor belongs to. */
const char *byte_plan_part(const char *name);

/* "1,234,567" in `out`, returned. */
const char *number_grouped(int64_t n, char out[32]);

/* The table for people: a block for each kind that has items, with its total. */
void byte_plan_text(const struct byte_plan *plan, struct buffer *out);
/* {"weights": {"total": N, "items": [{"name", "bytes", "count", "each"}]}, ...} as the value of the next key. */
void byte_plan_json(const struct byte_plan *plan, struct json_writer *w);

#endif
