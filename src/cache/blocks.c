#include "cache/blocks.h"

#include "base/alloc.h"

struct blocks {
    int64_t count, free;
    int32_t *references; /* [count] */
    block_id *stack;     /* free ids, the next to take on top */
};

qr_status blocks_open(int64_t count, struct blocks **out, qr_error *err)
{
    if (count < 2 || count > INT32_MAX)
        return qr_fail(err, QR_BAD_ARGUMENT, "a pool of %lld blocks, wanted 2 to %d", (long long)count, INT32_MAX);
    struct blocks *b = qr_calloc(1, sizeof *b);
    if (!b)
        goto no_memory;
    b->count = count;
    b->references = qr_calloc((size_t)count, sizeof *b->references);
    b->stack = qr_realloc_array(NULL, (size_t)count, sizeof *b->stack);
    if (!b->references || !b->stack)
        goto no_memory;
    b->references[0] = 1;
    for (int64_t id = count - 1; id > 0; id--)
        b->stack[b->free++] = (block_id)id;
    *out = b;
    return QR_OK;

no_memory:
    blocks_close(b);
    return qr_fail(err, QR_NO_MEMORY, "a table of %lld blocks", (long long)count);
}

void blocks_close(struct blocks *b)
{
    if (!b)
        return;
    qr_free(b->references);
    qr_free(b->stack);
    qr_free(b);
}

bool blocks_take(struct blocks *b, int64_t n, block_id *out)
{
    if (n > b->free)
        return false;
    for (int64_t i = 0; i < n; i++) {
        out[i] = b->stack[--b->free];
        b->references[out[i]] = 1;
    }
    return true;
}

void blocks_hold(struct blocks *b, block_id id) { b->references[id]++; }

void blocks_release(struct blocks *b, const block_id *ids, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--) /* backwards, so that the same ids come again in the same order */
        if (--b->references[ids[i]] == 0)
            b->stack[b->free++] = ids[i];
}

int64_t blocks_free(const struct blocks *b) { return b->free; }

int64_t blocks_usable(const struct blocks *b) { return b->count - 1; }

int32_t blocks_references(const struct blocks *b, block_id id) { return b->references[id]; }
