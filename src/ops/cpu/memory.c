#include "ops/cpu/memory.h"

#include <string.h>

#include "base/alloc.h"

enum { ALIGNMENT = 64 };

static qr_status memory_allocate(struct backend *b, int64_t bytes, void **out, qr_error *err)
{
    (void)b;
    *out = bytes >= 0 ? qr_aligned_alloc(ALIGNMENT, (size_t)bytes + !bytes) : NULL;
    if (!*out)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a buffer of %lld bytes", (long long)bytes);
    return QR_OK;
}

static void memory_release(struct backend *b, void *p)
{
    (void)b;
    qr_free(p);
}

static qr_status memory_move(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    (void)b;
    (void)err;
    if (bytes > 0)
        memmove(to, from, (size_t)bytes);
    return QR_OK;
}

static qr_status memory_fence(struct backend *b, qr_error *err)
{
    (void)b;
    (void)err;
    return QR_OK;
}

void cpu_memory_install(struct backend *b)
{
    b->allocate = memory_allocate;
    b->release = memory_release;
    b->upload = b->download = b->copy = memory_move;
    b->fence = memory_fence;
}

int64_t cpu_scratch_piece(int64_t bytes)
{
    return bytes > INT64_MAX - ALIGNMENT ? INT64_MAX : (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

qr_status cpu_scratch_make(struct cpu_backend *cpu, int64_t bytes_per_thread, int64_t *bytes, qr_error *err)
{
    int64_t total;
    if (__builtin_mul_overflow(cpu_scratch_piece(bytes_per_thread), cpu->threads, &total))
        return qr_fail(err, QR_BAD_ARGUMENT, "scratch of %lld bytes for each of %d threads is beyond 64 bits",
                       (long long)bytes_per_thread, cpu->threads);
    qr_free(cpu->scratch);
    cpu->scratch_bytes = 0;
    cpu->scratch = qr_aligned_alloc(ALIGNMENT, (size_t)total + !total);
    if (!cpu->scratch)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %lld bytes of operator scratch", (long long)total);
    cpu->scratch_bytes = total / cpu->threads;
    *bytes = total;
    return QR_OK;
}

qr_status cpu_need(const struct cpu_backend *cpu, const char *operator, int64_t bytes, qr_error *err)
{
    if (bytes <= cpu->scratch_bytes)
        return QR_OK;
    return qr_fail(err, QR_BAD_ARGUMENT, "%s: needs %lld bytes of scratch a thread, %lld were reserved", operator,
                   (long long)bytes, (long long)cpu->scratch_bytes);
}

qr_status cpu_run(struct backend *b, const void *op, int64_t items, void (*body)(void *job, int64_t item, int thread))
{
    struct cpu_backend *cpu = (struct cpu_backend *)b;
    struct job job = {cpu, op};
    pool_run(cpu->pool, items, body, &job);
    return QR_OK;
}
