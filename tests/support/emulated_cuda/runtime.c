#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

/* ---- the device: an H200's numbers, so that what is chosen by them is chosen as there ---- */

enum { PROCESSORS = 132, MOST_SHARED = 227 << 10, USUAL_SHARED = 48 << 10, MOST_ALLOWED = 256 };
static const size_t memory_bytes = (size_t)16 << 30;

static size_t taken;
static cudaError_t last;

static cudaError_t keep(cudaError_t status)
{
    if (status != cudaSuccess)
        last = status;
    return status;
}

const char *emulated_failure(void);

const char *cudaGetErrorString(cudaError_t status)
{
    switch (status) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorLaunchFailure:
        return emulated_failure();
    default:
        return "invalid argument";
    }
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t status = last;
    last = cudaSuccess;
    return status;
}

/* QUIRE_EMULATED_DEVICE: 80 is a device without Hopper's matrix unit. */
static int capability(void)
{
    const char *name = getenv("QUIRE_EMULATED_DEVICE");
    return name ? atoi(name) : 90;
}

cudaError_t cudaGetDeviceCount(int *out)
{
    *out = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) { return ordinal == 0 ? cudaSuccess : keep(cudaErrorInvalidValue); }

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int ordinal)
{
    (void)ordinal;
    switch (which) {
    case cudaDevAttrMultiProcessorCount:
        *out = PROCESSORS;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *out = capability() / 10;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *out = capability() % 10;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *out = MOST_SHARED;
        return cudaSuccess;
    }
    return keep(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int ordinal)
{
    (void)ordinal;
    *out = NULL;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value)
{
    (void)pool, (void)which, (void)value;
    return cudaSuccess;
}

/* ---- memory ----
 * A piece ends where a page ends, but for the alignment that a device gives it, and nothing is mapped before or behind
 * it: what reads or writes there ends the program, as does what uses a piece that was given back. */

enum { ALIGNMENT = 256, FILLED = 1 << 20 };

struct head {
    uint8_t *mapped;
    size_t bytes;
};

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static cudaError_t take(void **out, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = round_up(bytes + !bytes, ALIGNMENT),
                 pages = round_up(used, page);
    if (pages > memory_bytes - taken)
        return keep(cudaErrorMemoryAllocation);
    /* a page for the head, one that nobody may touch, the piece, another one */
    uint8_t *mapped =
        mmap(NULL, pages + 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return keep(cudaErrorMemoryAllocation);
    *(struct head *)(void *)mapped = (struct head){mapped, pages};
    uint8_t *end = mapped + 2 * page + pages;
    (void)mprotect(mapped + page, page, PROT_NONE);
    (void)mprotect(end, page, PROT_NONE);
    memset(end - used, 0xFF, used < FILLED ? used : FILLED); /* what nobody has written is no number */
    taken += pages;
    *out = end - used;
    return cudaSuccess;
}

static cudaError_t give(void *p)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!p)
        return cudaSuccess;
    const uint8_t *first = (const uint8_t *)((uintptr_t)p / page * page);
    struct head *head = (struct head *)(void *)(uintptr_t)(first - 2 * page);
    taken -= head->bytes;
    (void)munmap(head->mapped, head->bytes + 3 * page);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *total = memory_bytes;
    *available = memory_bytes - taken;
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return take(out, bytes);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
    (void)stream;
    return give(p);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) { return take(out, bytes); }
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return take(out, bytes);
}
cudaError_t cudaFreeHost(void *p) { return give(p); }

/* ---- the driver's: ranges of addresses ---- */

static CUresult reserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
    (void)alignment, (void)wanted, (void)flags;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *out = (CUdeviceptr)(uintptr_t)p;
    return p == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult unreserve(CUdeviceptr at, size_t bytes)
{
    return munmap((void *)(uintptr_t)at, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A handle is how many bytes it holds. */
static CUresult create(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *what,
                       unsigned long long flags)
{
    (void)what, (void)flags;
    if (bytes > memory_bytes - taken)
        return CUDA_ERROR_OUT_OF_MEMORY;
    taken += bytes;
    *out = bytes;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUmemGenericAllocationHandle memory)
{
    taken -= (size_t)memory;
    return CUDA_SUCCESS;
}

static CUresult remap(CUdeviceptr at, size_t bytes, int rights)
{
    void *p = (void *)(uintptr_t)at;
    return mmap(p, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == p
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle memory,
                    unsigned long long flags)
{
    (void)offset, (void)flags;
    return bytes == memory ? remap(at, bytes, PROT_READ | PROT_WRITE) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult unmap(CUdeviceptr at, size_t bytes) { return remap(at, bytes, PROT_NONE); }

static CUresult give_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *who, size_t count)
{
    (void)at, (void)bytes, (void)who, (void)count;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    static const struct {
        const char *name;
        uintptr_t function;
    } calls[] = {{"cuMemAddressReserve", (uintptr_t)reserve},
                 {"cuMemAddressFree", (uintptr_t)unreserve},
                 {"cuMemCreate", (uintptr_t)create},
                 {"cuMemRelease", (uintptr_t)destroy},
                 {"cuMemMap", (uintptr_t)map},
                 {"cuMemUnmap", (uintptr_t)unmap},
                 {"cuMemSetAccess", (uintptr_t)give_access}};
    (void)version, (void)flags;
    *found = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, name) == 0) {
            *out = (void *)calls[i].function;
            *found = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}

/* ---- launches ---- */

static struct {
    const void *kernel;
    size_t bytes;
} allowed[MOST_ALLOWED];

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel)
{
    (void)kernel;
    out->sharedSizeBytes = 0; /* nobody counts them here */
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which, int value)
{
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize || value > MOST_SHARED)
        return keep(cudaErrorInvalidValue);
    for (int i = 0; i < MOST_ALLOWED; i++)
        if (!allowed[i].kernel || allowed[i].kernel == kernel) {
            allowed[i].kernel = kernel;
            allowed[i].bytes = (size_t)value;
            return cudaSuccess;
        }
    return keep(cudaErrorInvalidValue);
}

static bool may_start(const struct emulated_launch *l)
{
    const struct emulated_index *n = &l->block, *g = &l->grid;
    size_t room = USUAL_SHARED;
    for (int i = 0; i < MOST_ALLOWED && allowed[i].kernel; i++)
        if (allowed[i].kernel == l->kernel && allowed[i].bytes > room)
            room = allowed[i].bytes;
    return n->x > 0 && n->y > 0 && n->z > 0 && n->x * n->y * n->z <= 1024 && g->x > 0 && g->x <= 0x7FFFFFFF &&
           g->y > 0 && g->y <= 65535 && g->z > 0 && g->z <= 65535 && l->shared <= room;
}

cudaError_t emulated_start(struct emulated_launch *l, cudaStream_t stream)
{
    cudaError_t status = cudaErrorInvalidConfiguration;
    if (may_start(l)) {
        const struct emulated_task task = {.type = cudaGraphNodeTypeKernel, .launch = l};
        return keep(emulated_do(stream, &task));
    }
    l->drop(l);
    return keep(status);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    const struct emulated_task task = {cudaGraphNodeTypeMemcpy, NULL, to, from, to_pitch, from_pitch, width, height, 0};
    (void)kind;
    return keep(emulated_do(stream, &task));
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    const struct emulated_task task = {cudaGraphNodeTypeMemset, NULL, at, NULL, bytes, 0, bytes, 1, value};
    return keep(emulated_do(stream, &task));
}
