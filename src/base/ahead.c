#define _GNU_SOURCE
#include "base/ahead.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/thread.h"

enum { THREADS = 4 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

struct read_ahead {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    pthread_t thread[THREADS];
    int threads;
    void (*bring)(const void *data, uint64_t bytes);
    uint64_t distance, passed;
    bool closing;
    size_t part;             /* the next piece: of which part, */
    uint64_t within, before; /* from which byte of it on, behind so many of all parts */
    size_t count;
    struct ahead_part parts[];
};

/* Whole pages. A file that was cut short is an error here, not a signal; a system that knows no such advice is given the
 * older one. */
static void bring_pages(const void *data, uint64_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)data / page * page;
    const uintptr_t end = (uintptr_t)data + bytes;
    if (madvise((void *)first, end - first, MADV_POPULATE_READ) != 0)
        (void)madvise((void *)first, end - first, MADV_WILLNEED);
}

/* Takes the next piece when it may be brought; false: there is none, or nobody wants it. The lock is held. */
static bool take_piece(struct read_ahead *a, struct ahead_part *out)
{
    while (!a->closing && a->part < a->count && a->before >= a->passed + a->distance)
        pthread_cond_wait(&a->moved, &a->lock);
    if (a->closing || a->part >= a->count)
        return false;
    const struct ahead_part *part = &a->parts[a->part];
    const uint64_t left = part->bytes - a->within;
    out->data = (const uint8_t *)part->data + a->within;
    out->bytes = left < AHEAD_PIECE ? left : AHEAD_PIECE;
    a->within += out->bytes;
    a->before += out->bytes;
    if (a->within == part->bytes) {
        a->part++;
        a->within = 0;
    }
    return true;
}

static void *work(void *argument)
{
    struct read_ahead *a = argument;
    pthread_mutex_lock(&a->lock);
    struct ahead_part piece;
    while (take_piece(a, &piece)) {
        pthread_mutex_unlock(&a->lock);
        a->bring(piece.data, piece.bytes);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

qr_status ahead_open(const struct ahead_part *parts, size_t count, uint64_t distance, void (*bring)(const void *data, uint64_t bytes),
                     struct read_ahead **out, qr_error *err)
{
    struct read_ahead *a = qr_calloc(1, sizeof *a + count * sizeof *a->parts);
    if (!a)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the list of %zu parts to read", count);
    for (size_t i = 0; i < count; i++)
        if (parts[i].bytes > 0)
            a->parts[a->count++] = parts[i];
    a->bring = bring ? bring : bring_pages;
    a->distance = distance;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->moved, NULL);
    while (a->threads < THREADS && thread_start(&a->thread[a->threads], work, a) == 0)
        a->threads++;
    *out = a;
    return QR_OK;
}

void ahead_passed(struct read_ahead *a, uint64_t bytes)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->passed += bytes;
    pthread_cond_broadcast(&a->moved);
    pthread_mutex_unlock(&a->lock);
}

void ahead_close(struct read_ahead *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->closing = true;
    pthread_cond_broadcast(&a->moved);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->threads; i++)
        pthread_join(a->thread[i], NULL);
    pthread_cond_destroy(&a->moved);
    pthread_mutex_destroy(&a->lock);
    qr_free(a);
}
