#include "ops/cuda/module.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/record.h"
#include "ops/cuda/seats.h"
#include "ops/limits.h"

qr_status cuda_check(cudaError_t status, const char *what, qr_error *err)
{
    if (status == cudaSuccess)
        return QR_OK;
    return qr_fail(err, status == cudaErrorMemoryAllocation ? QR_NO_MEMORY : QR_INTERNAL, "CUDA: %s: %s", what,
                   cudaGetErrorString(status));
}

qr_status cuda_enter(const struct cuda_backend *cuda, qr_error *err)
{
    return cuda_check(cudaSetDevice(cuda->ordinal), "device", err);
}

/* ---- memory ---- */

qr_status cuda_hold(struct cuda_backend *cuda, int64_t bytes, qr_error *err)
{
    if (bytes > 0 && cuda->may_hold > 0 && bytes > cuda->may_hold - cuda->held)
        return qr_fail(err, QR_NO_MEMORY, "device memory: %lld bytes more are wanted, %lld of the %lld planned are taken",
                       (long long)bytes, (long long)cuda->held, (long long)cuda->may_hold);
    cuda->held += bytes;
    if (cuda->held > cuda->most_held)
        cuda->most_held = cuda->held;
    return QR_OK;
}

qr_status cuda_take(struct cuda_backend *cuda, struct memory_arena *a, int64_t bytes, void **out, qr_error *err)
{
    const int64_t more = arena_behind_with(a, bytes) - arena_behind(a);
    TRY(cuda_enter(cuda, err));
    TRY(cuda_hold(cuda, more, err));
    const qr_status st = arena_take(a, bytes, out, err);
    if (st != QR_OK)
        (void)cuda_hold(cuda, -more, NULL);
    return st;
}

void cuda_rest(struct cuda_backend *cuda, struct memory_arena *a)
{
    (void)record_flush(cuda, NULL);
    (void)cudaStreamSynchronize(cuda->stream);
    (void)cuda_hold(cuda, -arena_behind(a), NULL);
    arena_rest(a);
}

qr_status cuda_rise(struct cuda_backend *cuda, struct memory_arena *a, qr_error *err)
{
    if (arena_behind(a) > 0)
        return QR_OK;
    const int64_t behind = arena_behind_with(a, 0);
    TRY(cuda_enter(cuda, err));
    TRY(cuda_hold(cuda, behind, err));
    const qr_status st = arena_rise(a, err);
    if (st != QR_OK)
        (void)cuda_hold(cuda, -behind, NULL);
    return st;
}

static qr_status memory_allocate(struct backend *b, int64_t bytes, void **out, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    TRY(cuda_enter(cuda, err));
    if (bytes < 0 || cuda->buffer_count == MOST_BUFFERS)
        return qr_fail(err, QR_NO_MEMORY, "no device memory for a buffer of %lld bytes beside %d others", (long long)bytes,
                       cuda->buffer_count);
    TRY(cuda_hold(cuda, bytes, err));
    cudaError_t status = cudaMallocAsync(out, (size_t)bytes + !bytes, cuda->stream);
    if (status == cudaSuccess) {
        cuda->buffers[cuda->buffer_count++] = (struct buffer_record){*out, bytes};
        return QR_OK;
    }
    (void)cuda_hold(cuda, -bytes, NULL);
    (void)cudaGetLastError(); /* a failed allocation leaves the device usable */
    return qr_fail(err, QR_NO_MEMORY, "no device memory for a buffer of %lld bytes (%s)", (long long)bytes,
                   cudaGetErrorString(status));
}

static struct memory_arena **find_pool(struct cuda_backend *cuda, const void *p)
{
    for (int i = 0; i < MOST_POOLS; i++)
        if (cuda->pools[i] && arena_start(cuda->pools[i]) == p)
            return &cuda->pools[i];
    return NULL;
}

static void release_pool(struct cuda_backend *cuda, struct memory_arena **pool)
{
    (void)cudaStreamSynchronize(cuda->stream);
    (void)cuda_hold(cuda, -arena_behind(*pool), NULL);
    arena_free_all(*pool);
    *pool = NULL;
    record_forget(cuda); /* another pool may get the address */
}

static void memory_release(struct backend *b, void *p)
{
    struct cuda_backend *cuda = cuda_of(b);
    if (!p)
        return;
    (void)record_flush(cuda, NULL); /* what it reads may be what goes */
    struct memory_arena **pool = find_pool(cuda, p);
    if (pool) {
        release_pool(cuda, pool);
        return;
    }
    (void)cudaFreeAsync(p, cuda->stream);
    for (int32_t i = cuda->buffer_count; i-- > 0;)
        if (cuda->buffers[i].at == p) {
            (void)cuda_hold(cuda, -cuda->buffers[i].bytes, NULL);
            cuda->buffers[i] = cuda->buffers[--cuda->buffer_count];
            break;
        }
}

/* ---- pools ---- */

static qr_status allocate_pool(struct backend *b, int64_t bytes, void **out, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    struct memory_arena **pool = cuda->pools;
    while (pool < cuda->pools + MOST_POOLS && *pool)
        pool++;
    if (pool == cuda->pools + MOST_POOLS)
        return qr_fail(err, QR_NO_MEMORY, "no device memory for more than %d pools", MOST_POOLS);
    TRY(cuda_enter(cuda, err));
    TRY(arena_reserve(cuda->ordinal, bytes, pool, err));
    const qr_status st = cuda_take(cuda, *pool, bytes, out, err);
    if (st != QR_OK) {
        arena_free_all(*pool);
        *pool = NULL;
    }
    return st;
}

static void rest_pool(struct backend *b, void *p)
{
    struct cuda_backend *cuda = cuda_of(b);
    struct memory_arena **pool = find_pool(cuda, p);
    if (pool)
        cuda_rest(cuda, *pool);
}

static qr_status rise_pool(struct backend *b, void *p, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    struct memory_arena **pool = find_pool(cuda, p);
    return pool ? cuda_rise(cuda, *pool, err) : qr_fail(err, QR_INTERNAL, "a pool that there is not rises");
}

static void hold_at_most(struct backend *b, int64_t bytes, int64_t score_bytes)
{
    cuda_of(b)->may_hold = bytes;
    cuda_of(b)->score_band = score_bytes > 0 && score_bytes < SCRATCH_BYTES ? score_bytes : SCRATCH_BYTES;
}

static void run_as(struct backend *b, const struct run_mode *mode) { record_run_as(cuda_of(b), mode); }

static void count(const struct backend *b, struct backend_counts *out)
{
    const struct cuda_backend *cuda = b->self;
    record_count(cuda->recorder, out);
    out->bytes = cuda->held;
    out->most_bytes = cuda->most_held;
    out->weights_laid = cuda->weights_laid;
    if (cuda->seats) {
        const volatile struct seat_counts *counts = cuda->seats->counts;
        out->experts_found = (int64_t)counts->found;
        out->experts_copied = (int64_t)counts->copied;
        out->expert_bytes = (int64_t)counts->bytes;
    }
}

static qr_status move(struct backend *b, void *to, const void *from, int64_t bytes, enum cudaMemcpyKind kind,
                      const char *what, qr_error *err)
{
    if (bytes <= 0)
        return QR_OK;
    TRY(cuda_enter(cuda_of(b), err));
    return cuda_check(cudaMemcpyAsync(to, from, (size_t)bytes, kind, cuda_of(b)->stream), what, err);
}

static qr_status memory_upload(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    TRY(record_flush(cuda_of(b), err));
    return move(b, to, from, bytes, cudaMemcpyHostToDevice, "upload", err);
}

static qr_status memory_download(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    TRY(record_flush(cuda_of(b), err));
    return move(b, to, from, bytes, cudaMemcpyDeviceToHost, "download", err);
}

static qr_status report(struct cuda_backend *cuda, qr_error *err)
{
    int32_t found = *cuda->trouble_host, number = found >> TROUBLE_BITS;
    if (found == TROUBLE_NONE)
        return QR_OK;
    *cuda->trouble_host = TROUBLE_NONE;
    TRY(cuda_check(cudaMemsetAsync(cuda->trouble, 0, sizeof *cuda->trouble, cuda->stream), "fence", err));
    switch (found & ((1 << TROUBLE_BITS) - 1)) {
    case TROUBLE_TOKEN:
        return qr_fail(err, QR_BAD_ARGUMENT, "embed: token %d is outside the vocabulary", number);
    case TROUBLE_UNPREPARED:
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: expert %d is not prepared", number);
    case TROUBLE_GROUP:
        return qr_fail(err, QR_BAD_ARGUMENT, "compress: position %d ends no group", number);
    default:
        return qr_fail(err, QR_BAD_ARGUMENT, "route or expert: there is no expert %d", number);
    }
}

static qr_status memory_fence(struct backend *b, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    TRY(record_flush(cuda, err));
    TRY(move(b, cuda->trouble_host, cuda->trouble, sizeof *cuda->trouble, cudaMemcpyDeviceToHost, "fence", err));
    TRY(cuda_check(cudaStreamSynchronize(cuda->stream), "fence", err));
    return report(cuda, err);
}

/* ---- tables of experts ---- */

static struct weight_view view_of(const struct weight *w) { return w ? w->view : (struct weight_view){.values = NULL}; }

static bool holds(const struct expert_table *t, int32_t experts, const struct weight *const *w1,
                  const struct weight *const *w2, const struct weight *const *w3)
{
    size_t bytes = (size_t)experts * sizeof *w1;
    return t->experts == experts && memcmp(t->w1, w1, bytes) == 0 && memcmp(t->w2, w2, bytes) == 0 &&
           memcmp(t->w3, w3, bytes) == 0;
}

/* Fills a table that held other experts, or none. */
static qr_status fill_table(struct cuda_backend *cuda, struct expert_table *t, int32_t experts,
                            const struct weight *const *w1, const struct weight *const *w2,
                            const struct weight *const *w3, qr_error *err)
{
    size_t bytes = (size_t)experts * sizeof *w1;
    if (t->experts) { /* what is written down or recorded may name it */
        TRY(record_flush(cuda, err));
        record_forget(cuda);
    }
    if (cuda->seats)
        TRY(seats_clear(cuda, err));
    t->experts = 0;
    memcpy(t->w1, w1, bytes);
    memcpy(t->w2, w2, bytes);
    memcpy(t->w3, w3, bytes);
    for (int32_t e = 0; e < experts; e++)
        t->host[e] = (struct expert_view){.w1 = view_of(w1[e]), .w2 = view_of(w2[e]), .w3 = view_of(w3[e])};
    t->experts = experts;
    t->on_host = 0;
    qr_status st = cuda->seats ? seats_fill(cuda, t, err) : QR_OK;
    const int32_t views = experts + (t->on_host > 0 ? cuda->seats->count : 0);
    if (st == QR_OK)
        st = move(&cuda->base, t->device, t->host, views * (int64_t)sizeof *t->host, cudaMemcpyHostToDevice, "experts", err);
    if (st != QR_OK)
        t->experts = 0;
    return st;
}

const struct expert_table *cuda_expert_table(struct cuda_backend *cuda, int32_t experts, const struct weight *const *w1,
                                             const struct weight *const *w2, const struct weight *const *w3,
                                             qr_error *err)
{
    struct expert_table *oldest = cuda->tables;
    if (experts < 1 || experts > MOST_EXPERTS) {
        qr_fail(err, QR_UNSUPPORTED, "expert: %d experts, wanted 1 to %d", experts, MOST_EXPERTS);
        return NULL;
    }
    for (struct expert_table *t = cuda->tables; t < cuda->tables + EXPERT_TABLES; t++) {
        if (holds(t, experts, w1, w2, w3)) {
            t->stamp = ++cuda->uses;
            return t;
        }
        if (t->stamp < oldest->stamp)
            oldest = t;
    }
    if (fill_table(cuda, oldest, experts, w1, w2, w3, err) != QR_OK)
        return NULL;
    oldest->stamp = ++cuda->uses;
    return oldest;
}

/* A weight that goes takes its tables with it: another may get its handle. */
void cuda_expert_forget(struct cuda_backend *cuda, const struct weight *w)
{
    for (struct expert_table *t = cuda->tables; t < cuda->tables + EXPERT_TABLES; t++)
        for (int32_t e = 0; e < t->experts; e++)
            if (t->w1[e] == w || t->w2[e] == w || t->w3[e] == w) {
                t->experts = 0;
                t->stamp = 0;
            }
}

/* ---- opening ---- */

enum { TABLE_BYTES = EXPERT_TABLES * MOST_EXPERTS * (int)sizeof(struct expert_view) };

static qr_status cuda_reserve(struct backend *b, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    void *p;
    cuda->max_k = (int32_t)limits_widest_input(&limits->plan->config);
    if (!cuda->scratch) {
        TRY(memory_allocate(b, SCRATCH_BYTES + SIDE_BYTES, &p, err));
        cuda->scratch = p;
        cuda->side = cuda->scratch + SCRATCH_BYTES;
        TRY(memory_allocate(b, TABLE_BYTES, &p, err));
        cuda->device_tables = p;
        for (int i = 0; i < EXPERT_TABLES; i++)
            cuda->tables[i].device = cuda->device_tables + (size_t)i * MOST_EXPERTS;
    }
    *bytes = SCRATCH_BYTES + SIDE_BYTES + TABLE_BYTES;
    return QR_OK;
}

static void cuda_close(struct backend *b)
{
    struct cuda_backend *cuda = cuda_of(b);
    if (!cuda)
        return;
    if (cuda->stream) {
        (void)record_flush(cuda, NULL);
        record_close(cuda->recorder);
        cuda->recorder = NULL;
        memory_release(b, cuda->scratch);
        memory_release(b, cuda->staging);
        memory_release(b, cuda->device_tables);
        memory_release(b, cuda->trouble);
        memory_release(b, cuda->arrived);
        (void)cudaStreamSynchronize(cuda->stream);
        seats_close(cuda);
        (void)cudaStreamSynchronize(cuda->stream);
        (void)cudaStreamDestroy(cuda->stream);
    }
    for (int i = 0; i < MOST_POOLS; i++)
        arena_free_all(cuda->pools[i]);
    arena_free_all(cuda->weights);
    if (cuda->trouble_host)
        (void)cudaFreeHost(cuda->trouble_host);
    qr_free(cuda->buffers);
    qr_free(cuda->views);
    qr_free(cuda->handles);
    qr_free(cuda);
}

/* Freed memory stays with the pool: a step never waits for the driver to give it back. */
static qr_status keep_memory(int ordinal, qr_error *err)
{
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    TRY(cuda_check(cudaDeviceGetDefaultMemPool(&pool, ordinal), "memory pool", err));
    return cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "memory pool", err);
}

/* Any part of the device's memory may come to be weights. */
static qr_status open_memory(struct cuda_backend *cuda, qr_error *err)
{
    size_t available, total;
    cuda->score_band = SCRATCH_BYTES;
    cuda->rests = 1;
    struct buffer_record *buffers = cuda->buffers = qr_calloc(MOST_BUFFERS, sizeof *buffers);
    if (!buffers)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the CUDA backend");
    TRY(cuda_check(cudaMemGetInfo(&available, &total), "device memory", err));
    return arena_reserve(cuda->ordinal, (int64_t)total, &cuda->weights, err);
}

static qr_status start(struct cuda_backend *cuda, qr_error *err)
{
    void *p;
    TRY(cuda_check(cudaSetDevice(cuda->ordinal), "device", err));
    TRY(cuda_check(cudaDeviceGetAttribute(&cuda->processors, cudaDevAttrMultiProcessorCount, cuda->ordinal), "device",
                   err));
    int shared, major;
    TRY(cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->ordinal), "device", err));
    cuda->starts_early = major >= 9;
    cuda->has_wgmma = QUIRE_WGMMA && major == 9;
    TRY(cuda_check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, cuda->ordinal), "device",
                   err));
    cuda->most_shared = (size_t)shared;
    TRY(cuda_check(cudaDeviceGetStreamPriorityRange(NULL, &cuda->most_urgent), "device", err));
    TRY(keep_memory(cuda->ordinal, err));
    TRY(cuda_check(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), "stream", err));
    TRY(open_memory(cuda, err));
    TRY(memory_allocate(&cuda->base, sizeof *cuda->trouble, &p, err));
    cuda->trouble = p;
    TRY(cuda_check(cudaMemsetAsync(p, 0, sizeof *cuda->trouble, cuda->stream), "stream", err));
    TRY(memory_allocate(&cuda->base, 2 * MOST_ARRIVED * (int64_t)sizeof *cuda->arrived, &p, err));
    cuda->arrived = p;
    TRY(cuda_check(cudaMemsetAsync(p, 0, 2 * MOST_ARRIVED * sizeof *cuda->arrived, cuda->stream), "stream", err));
    TRY(cuda_check(cudaMallocHost(&p, sizeof *cuda->trouble_host), "pinned memory", err));
    cuda->trouble_host = p;

    const size_t all = (size_t)EXPERT_TABLES * MOST_EXPERTS;
    struct expert_view *views = cuda->views = qr_calloc(all, sizeof *views);
    const struct weight **handles = cuda->handles = qr_calloc(3 * all, sizeof *handles);
    if (!views || !handles)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the CUDA backend");
    for (int i = 0; i < EXPERT_TABLES; i++) {
        struct expert_table *t = &cuda->tables[i];
        t->host = views + (size_t)i * MOST_EXPERTS;
        t->w1 = handles + (size_t)i * 3 * MOST_EXPERTS;
        t->w2 = t->w1 + MOST_EXPERTS;
        t->w3 = t->w2 + MOST_EXPERTS;
    }
    return record_open(&cuda->recorder, err);
}

static qr_status shortlist(struct backend *b, const struct op_shortlist *op, qr_error *err)
{
    TRY(record_flush(cuda_of(b), err));
    return cuda_shortlist(b, op, err);
}

static void install(struct backend *b)
{
    b->close = cuda_close;
    b->reserve = cuda_reserve;
    b->allocate = memory_allocate;
    b->release = memory_release;
    b->upload = memory_upload;
    b->download = memory_download;
    b->fence = memory_fence;
    b->prepare_weight = cuda_prepare_weight;
    b->release_weight = cuda_release_weight;
    b->hold = hold_at_most;
    b->allocate_pool = allocate_pool;
    b->rest_pool = rest_pool;
    b->rise_pool = rise_pool;
    b->rest_weights = cuda_rest_weights;
    b->renew_weight = cuda_renew_weight;
    b->count = count;
    b->run_as = run_as;
    b->seat_experts = seats_open;
    b->expert_uses = seats_uses;
    b->shortlist = shortlist;
    record_install(b);
}

static qr_status module_name(int ordinal, char *out, size_t size, qr_error *err)
{
    int devices = 0, major = 0, minor = 0;
    cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0)
        return qr_fail(err, QR_UNSUPPORTED, "no CUDA device (%s)",
                       status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
    if (ordinal < 0 || ordinal >= devices)
        return qr_fail(err, QR_UNSUPPORTED, "CUDA device %d: this machine has devices 0 to %d", ordinal, devices - 1);
    TRY(cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "device", err));
    TRY(cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "device", err));
    snprintf(out, size, "cuda-sm%d%d", major, minor);
    return QR_OK;
}

static qr_status module_open(int ordinal, const struct qr_log *log, struct backend **out, qr_error *err)
{
    char name[sizeof((struct cuda_backend *)0)->name];
    (void)log;
    TRY(module_name(ordinal, name, sizeof name, err));
    struct cuda_backend *cuda = qr_calloc(1, sizeof *cuda);
    if (!cuda)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the CUDA backend");
    cuda->ordinal = ordinal;
    cuda->base.self = cuda;
    install(&cuda->base);
    qr_status st = start(cuda, err);
    if (st != QR_OK) {
        cuda_close(&cuda->base);
        return st;
    }
    memcpy(cuda->name, name, sizeof name);
    cuda->base.name = cuda->name;
    *out = &cuda->base;
    return QR_OK;
}

static qr_status module_memory(int ordinal, struct device_memory *out, qr_error *err)
{
    char name[64];
    size_t available, total;
    TRY(module_name(ordinal, name, sizeof name, err));
    TRY(cuda_check(cudaSetDevice(ordinal), "device", err));
    TRY(cuda_check(cudaMemGetInfo(&available, &total), "device memory", err));
    *out = (struct device_memory){.total = (int64_t)total,
                                  .free = (int64_t)available,
                                  .scratch = SCRATCH_BYTES + SIDE_BYTES + TABLE_BYTES + (1 << 20),
                                  .score_band = SCRATCH_BYTES,
                                  .staging = STAGING_BYTES,
                                  .graphs = record_graph_bytes(),
                                  .weight_chunk = ARENA_CHUNK,
                                  .expert_books = sizeof(struct seat_books),
                                  .expert_views = MOST_EXPERTS,
                                  .most_seats = MOST_SEATS,
                                  .weight_bytes = cuda_weight_bytes,
                                  .staged_bytes = cuda_staged_bytes};
    return QR_OK;
}

__attribute__((visibility("default"))) const struct cuda_module *quire_cuda_module(void);

const struct cuda_module *quire_cuda_module(void)
{
    static const struct cuda_module module = {QUIRE_VERSION, cuda_module_layout, module_name, module_open,
                                             module_memory};
    return &module;
}
