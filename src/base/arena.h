/* arena.h: many small allocations, one free. */
#ifndef QR_BASE_ARENA_H
#define QR_BASE_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_block *head;
    size_t block_size;
};

/* No allocation happens until the first arena_alloc. block_size 0: 64 KiB. */
void arena_init(struct arena *a, size_t block_size);
/* Zeroed, 16-byte aligned; NULL without memory. Lives until arena_free. */
void *arena_alloc(struct arena *a, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n);
void arena_free(struct arena *a);

#endif
