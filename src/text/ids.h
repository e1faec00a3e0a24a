/* ids.h: a growing list of token ids. */
#ifndef QR_TEXT_IDS_H
#define QR_TEXT_IDS_H

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/status.h"

/* Zero-initialise; free with tok_ids_free. The functions that append to one leave it as it was when they fail. */
struct tok_ids {
    int32_t *data;
    size_t count, capacity;
};

static inline bool tok_ids_push(struct tok_ids *ids, int32_t id)
{
    if (ids->count == ids->capacity && !array_grow(&ids->data, &ids->capacity, ids->count, sizeof *ids->data))
        return false;
    ids->data[ids->count++] = id;
    return true;
}

static inline void tok_ids_free(struct tok_ids *ids)
{
    qr_free(ids->data);
    *ids = (struct tok_ids){0};
}

#endif
