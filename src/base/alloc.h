/* alloc.h: the only way the library gets memory. In a build with QR_ALLOC_FAULTS every allocation can be made to fail
 * in turn, so that tests walk all failure paths. */
#ifndef QR_BASE_ALLOC_H
#define QR_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* As malloc, calloc, realloc, free; NULL on failure. qr_calloc and qr_realloc_array check count * size for overflow.
 * Zero sizes return a unique pointer. */
void *qr_malloc(size_t size);
void *qr_calloc(size_t count, size_t size);
void *qr_realloc(void *p, size_t size);
void *qr_realloc_array(void *p, size_t count, size_t size);
void qr_free(void *p);
char *qr_strdup(const char *s);
char *qr_strndup(const char *s, size_t n);
/* `alignment` is a power of two; free with qr_free. */
void *qr_aligned_alloc(size_t alignment, size_t size);

/* Tests only (declared always, effective only with QR_ALLOC_FAULTS; otherwise alloc_fault_supported returns 0).
 * alloc_fault_at(n): the n-th allocation from now (1 = the next) fails, and every one after it when `sticky`;
 * 0 turns faults off. alloc_live: allocations not yet freed. alloc_count: allocations made so far. alloc_live_bytes: bytes
 * of what is not yet freed, as the system counts them. */
int alloc_fault_supported(void);
void alloc_fault_at(int64_t n, int sticky);
int64_t alloc_live(void);
int64_t alloc_count(void);
int64_t alloc_live_bytes(void);

#endif
