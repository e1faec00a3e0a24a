#include "ops/cuda/arena.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

/* The driver's calls, which the runtime finds: nothing links against the driver. */
struct driver {
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*unreserve)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*destroy)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
};

struct chunk {
    CUmemGenericAllocationHandle memory;
    size_t bytes;
};

struct memory_arena {
    struct driver driver;
    int ordinal;
    CUdeviceptr start;
    size_t reserved, behind; /* bytes of the range, and of the chunks */
    size_t used, pieces;
    struct chunk *chunks;
    size_t count;
    bool resting;
};

static bool find(const char *name, void *out)
{
    enum cudaDriverEntryPointQueryResult found;
    void *function = NULL;
    if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess || !function) {
        (void)cudaGetLastError();
        return false;
    }
    memcpy(out, &function, sizeof function);
    return true;
}

static bool find_all(struct driver *d)
{
    return find("cuMemAddressReserve", &d->reserve) && find("cuMemAddressFree", &d->unreserve) &&
           find("cuMemCreate", &d->create) && find("cuMemRelease", &d->destroy) && find("cuMemMap", &d->map) &&
           find("cuMemUnmap", &d->unmap) && find("cuMemSetAccess", &d->access);
}

/* A build for compute-sanitizer: every piece has a chunk of its own and ends where that ends, but for its alignment, with
 * addresses behind it that nothing is mapped to. Without it memcheck knows no pieces, only chunks, and takes a copy that
 * begins in one and ends in the next for wrong. Nothing that was given back is taken again. */
#ifdef QUIRE_CUDA_FENCED
enum { FENCE = 2 << 20, GRAIN = 2 << 20, FENCED = 1 };
static const size_t fenced_range = (size_t)1 << 42;
#else
enum { FENCE = 0, GRAIN = ARENA_CHUNK, FENCED = 0 };
static const size_t fenced_range = 0;
#endif

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

qr_status arena_reserve(int ordinal, int64_t most, struct memory_arena **out, qr_error *err)
{
    struct memory_arena *a = qr_calloc(1, sizeof *a);
    if (!a)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the record of a range of device memory");
    a->ordinal = ordinal;
    a->reserved = FENCED ? fenced_range : round_up((size_t)most + !most, ARENA_CHUNK);
    if (!find_all(&a->driver) || a->driver.reserve(&a->start, a->reserved, 0, 0, 0) != CUDA_SUCCESS) {
        const size_t wanted = a->reserved;
        qr_free(a);
        return qr_fail(err, QR_UNSUPPORTED, "CUDA: the driver reserves no range of %zu bytes to map memory into", wanted);
    }
    *out = a;
    return QR_OK;
}

static void unmap_all(struct memory_arena *a)
{
    size_t at = 0;
    for (size_t i = 0; i < a->count; i++) {
        (void)a->driver.unmap(a->start + at, a->chunks[i].bytes);
        (void)a->driver.destroy(a->chunks[i].memory);
        at += a->chunks[i].bytes + FENCE;
    }
}

void arena_free_all(struct memory_arena *a)
{
    if (!a)
        return;
    if (!a->resting)
        unmap_all(a);
    (void)a->driver.unreserve(a->start, a->reserved);
    qr_free(a->chunks);
    qr_free(a);
}

/* Memory for one chunk at offset `at`. */
static qr_status map_chunk(struct memory_arena *a, size_t at, struct chunk *c, qr_error *err)
{
    const CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = a->ordinal}};
    const CUmemAccessDesc who = {.location = what.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (a->driver.create(&c->memory, c->bytes, &what, 0) != CUDA_SUCCESS)
        return qr_fail(err, QR_NO_MEMORY, "no device memory for %zu bytes of weights or pools", c->bytes);
    if (a->driver.map(a->start + at, c->bytes, 0, c->memory, 0) != CUDA_SUCCESS) {
        (void)a->driver.destroy(c->memory);
        return qr_fail(err, QR_NO_MEMORY, "CUDA: %zu bytes of device memory cannot be mapped", c->bytes);
    }
    if (a->driver.access(a->start + at, c->bytes, &who, 1) == CUDA_SUCCESS)
        return QR_OK;
    (void)a->driver.unmap(a->start + at, c->bytes);
    (void)a->driver.destroy(c->memory);
    return qr_fail(err, QR_NO_MEMORY, "CUDA: %zu bytes of device memory cannot be made accessible", c->bytes);
}

int64_t arena_behind(const struct memory_arena *a) { return a->resting ? 0 : (int64_t)a->behind; }

int64_t arena_behind_with(const struct memory_arena *a, int64_t bytes)
{
    const size_t used = FENCED ? a->behind : a->used, wanted = used + round_up((size_t)bytes, ARENA_ALIGNMENT);
    return wanted > a->behind ? (int64_t)(a->behind + round_up(wanted - a->behind, GRAIN) + FENCE) : (int64_t)a->behind;
}

const void *arena_start(const struct memory_arena *a)
{
    const void *start;
    memcpy(&start, &a->start, sizeof start);
    return start;
}

qr_status arena_take(struct memory_arena *a, int64_t bytes, void **out, qr_error *err)
{
    const size_t wanted = (size_t)arena_behind_with(a, bytes);
    if (a->resting || wanted > a->reserved)
        return qr_fail(err, QR_NO_MEMORY, "device memory: %lld bytes more in a range of %zu, %zu of them taken",
                       (long long)bytes, a->reserved, a->used);
    if (wanted > a->behind) {
        struct chunk c = {.bytes = wanted - a->behind - FENCE};
        struct chunk *more = qr_realloc(a->chunks, (a->count + 1) * sizeof *more);
        if (!more)
            return qr_fail(err, QR_NO_MEMORY, "no memory for the record of a range of device memory");
        a->chunks = more;
        TRY(map_chunk(a, a->behind, &c, err));
        a->chunks[a->count++] = c;
        a->behind = wanted;
        if (FENCED)
            a->used = wanted - FENCE - round_up((size_t)bytes, ARENA_ALIGNMENT);
    }
    const CUdeviceptr at = a->start + a->used;
    memcpy(out, &at, sizeof at);
    a->used += round_up((size_t)bytes, ARENA_ALIGNMENT);
    a->pieces++;
    return QR_OK;
}

void arena_give(struct memory_arena *a, void *p, int64_t bytes)
{
    CUdeviceptr at;
    memcpy(&at, &p, sizeof at);
    if (at - a->start + round_up((size_t)bytes, ARENA_ALIGNMENT) == a->used)
        a->used = (size_t)(at - a->start);
    if (--a->pieces == 0)
        a->used = 0;
}

void arena_rest(struct memory_arena *a)
{
    if (!a->resting)
        unmap_all(a);
    a->resting = true;
}

qr_status arena_rise(struct memory_arena *a, qr_error *err)
{
    size_t at = 0;
    if (!a->resting)
        return QR_OK;
    for (size_t i = 0; i < a->count; i++) {
        const qr_status st = map_chunk(a, at, &a->chunks[i], err);
        if (st != QR_OK) {
            const size_t all = a->count;
            a->count = i;
            unmap_all(a);
            a->count = all;
            return st;
        }
        at += a->chunks[i].bytes + FENCE;
    }
    a->resting = false;
    return QR_OK;
}
