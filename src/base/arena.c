#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(16) unsigned char data[];
};

void arena_init(struct arena *a, size_t block_size)
{
    a->head = NULL;
    a->block_size = block_size ? block_size : 65536;
}

void *arena_alloc(struct arena *a, size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;
    size = (size + 15) & ~(size_t)15;
    struct arena_block *b = a->head;
    if (!b || b->size - b->used < size) {
        size_t want = size > a->block_size / 4 ? size : a->block_size;
        struct arena_block *fresh = qr_malloc(sizeof *fresh + want);
        if (!fresh)
            return NULL;
        fresh->used = 0;
        fresh->size = want;
        if (b && want == size) { /* a large one goes behind, so that the current block keeps filling */
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            a->head = fresh;
        }
        b = fresh;
    }
    void *p = b->data + b->used;
    b->used += size;
    memset(p, 0, size);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

void arena_free(struct arena *a)
{
    for (struct arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        qr_free(b);
    }
    a->head = NULL;
}
