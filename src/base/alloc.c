#define _GNU_SOURCE
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#ifdef QR_ALLOC_FAULTS
#include <malloc.h>
#include <stdatomic.h>
/* The one exception to "no mutable globals": it exists in test builds only. */
static _Atomic int64_t fault_in, live, live_bytes, made;
static _Atomic int fault_sticky;

static int refuse(void)
{
    atomic_fetch_add(&made, 1);
    int64_t n = atomic_load(&fault_in);
    if (n == 0)
        return 0;
    if (n > 1) {
        atomic_fetch_sub(&fault_in, 1);
        return 0;
    }
    if (!atomic_load(&fault_sticky))
        atomic_store(&fault_in, 0);
    return 1;
}

static void *born(void *p)
{
    if (p) {
        atomic_fetch_add(&live, 1);
        atomic_fetch_add(&live_bytes, (int64_t)malloc_usable_size(p));
    }
    return p;
}

int alloc_fault_supported(void) { return 1; }
void alloc_fault_at(int64_t n, int sticky)
{
    atomic_store(&fault_sticky, sticky);
    atomic_store(&fault_in, n);
}
int64_t alloc_live(void) { return atomic_load(&live); }
int64_t alloc_count(void) { return atomic_load(&made); }
int64_t alloc_live_bytes(void) { return atomic_load(&live_bytes); }
static void died(void *p)
{
    atomic_fetch_sub(&live, 1);
    atomic_fetch_sub(&live_bytes, (int64_t)malloc_usable_size(p));
}
static void resized(int64_t before, void *q) { atomic_fetch_add(&live_bytes, (int64_t)malloc_usable_size(q) - before); }
static int64_t usable(void *p) { return (int64_t)malloc_usable_size(p); }
#else
static int refuse(void) { return 0; }
static void *born(void *p) { return p; }
static void died(void *p) { (void)p; }
static void resized(int64_t before, void *q)
{
    (void)before;
    (void)q;
}
static int64_t usable(void *p)
{
    (void)p;
    return 0;
}
int alloc_fault_supported(void) { return 0; }
void alloc_fault_at(int64_t n, int sticky)
{
    (void)n;
    (void)sticky;
}
int64_t alloc_live(void) { return 0; }
int64_t alloc_count(void) { return 0; }
int64_t alloc_live_bytes(void) { return 0; }
#endif

void *qr_malloc(size_t size) { return refuse() ? NULL : born(malloc(size ? size : 1)); }

void *qr_calloc(size_t count, size_t size)
{
    if (refuse())
        return NULL;
    return born(count && size ? calloc(count, size) : calloc(1, 1));
}

void *qr_realloc(void *p, size_t size)
{
    if (refuse())
        return NULL;
    const int64_t before = p ? usable(p) : 0;
    void *q = realloc(p, size ? size : 1);
    if (!p)
        return born(q);
    if (q)
        resized(before, q);
    return q;
}

void *qr_realloc_array(void *p, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return qr_realloc(p, bytes);
}

void qr_free(void *p)
{
    if (p)
        died(p);
    free(p);
}

char *qr_strndup(const char *s, size_t n)
{
    char *p = qr_malloc(n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

char *qr_strdup(const char *s) { return qr_strndup(s, strlen(s)); }

void *qr_aligned_alloc(size_t alignment, size_t size)
{
    void *p = NULL;
    if (refuse())
        return NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    if (posix_memalign(&p, alignment, size ? size : 1))
        return NULL;
    return born(p);
}
