#include "ops/cuda/expert.cuh"

/* Experts of host memory come to their seats (seats.h). */

enum { FETCH_THREADS = MOST_EXPERTS, FETCH_BLOCKS = 8, COPIES = 4 };

/* Where the books of a block's decision stand; every block comes to the same. */
struct decision {
    uint32_t visits[MOST_EXPERTS];
    unsigned long long stamp[MOST_SEATS];
    bool taken[MOST_SEATS];
    int32_t free[MOST_SEATS], coming[MOST_SEATS]; /* the seats of those that come, and who they are */
};

static __device__ void count_visits(const struct expert_work &w, uint32_t *visits)
{
    for (int i = threadIdx.x; i < w.places; i += FETCH_THREADS) {
        const int32_t e = fresh(w.op.idx + row_of(w, i / w.routes) * w.routes + i % w.routes);
        if (e >= 0 && e < w.op.experts)
            atomicAdd(&visits[e], 1);
    }
}

/* Seats that nobody of this round has, those first that were not needed for longest: the first `wanted` of them. */
static __device__ void find_free(struct decision &d, int seats, int wanted)
{
    const int own = threadIdx.x;
    if (own >= seats || d.taken[own])
        return;
    const unsigned long long mine = d.stamp[own];
    int before = 0;
    for (int s = 0; s < seats; s++)
        before += !d.taken[s] && (d.stamp[s] < mine || (d.stamp[s] == mine && s < own));
    if (before < wanted)
        d.free[before] = own;
}

/* A block's share of a copy; bytes are a multiple of 16. Several reads are on their way at once. */
static __device__ void copy_share(const uint8_t *from, uint8_t *to, int64_t bytes)
{
    const int64_t n = bytes / 16, step = (int64_t)gridDim.x * FETCH_THREADS;
    const uint4 *in = (const uint4 *)(const void *)from;
    uint4 *out = (uint4 *)(void *)to;
    for (int64_t i = (int64_t)blockIdx.x * FETCH_THREADS + threadIdx.x; i < n; i += COPIES * step) {
        uint4 x[COPIES];
#pragma unroll
        for (int c = 0; c < COPIES; c++)
            if (i + c * step < n)
                x[c] = __ldcs(in + i + c * step);
#pragma unroll
        for (int c = 0; c < COPIES; c++)
            if (i + c * step < n)
                out[i + c * step] = x[c];
    }
}

static __device__ void copy_expert(const struct seating &s, const struct expert_view &from, int32_t seat)
{
    uint8_t *to = s.memory + seat * s.bytes;
    copy_share(from.w1.values, to, s.part[0]);
    copy_share(from.w2.values, to + s.part[0], s.part[1]);
    copy_share(from.w3.values, to + s.part[0] + s.part[1], s.part[2]);
}

/* What an expert of the layer is to this round. */
struct role {
    bool needed, absent, sits, comes;
    int32_t seat;
};

/* The last block to come writes the books; a thread an expert. */
static __device__ void write_books(const struct expert_work &w, const struct decision &d, const struct role &r, int found,
                                   int copied, int seated)
{
    const struct seating &s = w.seating;
    struct seat_books *books = s.books;
    struct expert_view *views = (struct expert_view *)w.experts;
    int32_t *home = books->home[s.table] + threadIdx.x;
    const int e = threadIdx.x;
    const unsigned long long now = books->clock + 1;
    if (r.needed) {
        books->turn[e] = r.sits ? w.op.experts + r.seat : !r.absent && s.nth == 0 ? e : -1;
        if (s.nth == 0)
            books->visits[s.table][e] += d.visits[e];
    }
    if (r.sits)
        books->stamp[r.seat] = now;
    if (r.comes) {
        int32_t *before = books->owner[r.seat];
        if (before)
            *before = -1;
        books->owner[r.seat] = home;
        *home = r.seat;
        struct expert_view &view = views[w.op.experts + r.seat];
        view.w1.large_scales = views[e].w1.large_scales;
        view.w2.large_scales = views[e].w2.large_scales;
        view.w3.large_scales = views[e].w3.large_scales;
    }
    __syncthreads();
    if (e > 0)
        return;
    books->clock = now;
    books->seated = seated;
    books->counts.found += (unsigned)found;
    books->counts.copied += (unsigned)copied;
    books->counts.bytes += (unsigned long long)copied * s.bytes;
    *(volatile unsigned long long *)&s.counts->found = books->counts.found;
    *(volatile unsigned long long *)&s.counts->copied = books->counts.copied;
    *(volatile unsigned long long *)&s.counts->bytes = books->counts.bytes;
}

static __global__ void __launch_bounds__(FETCH_THREADS) fetch_kernel(const __grid_constant__ struct expert_work w)
{
    __shared__ struct decision d;
    __shared__ bool last;
    const struct seating &s = w.seating;
    const int e = threadIdx.x;
    unsigned long long all, arrivals;
    await_earlier();
    d.visits[e] = 0;
    if (e < s.count) {
        d.stamp[e] = __ldcg(&s.books->stamp[e]);
        d.taken[e] = false;
    }
    __syncthreads();
    count_visits(w, d.visits);
    __syncthreads();
    struct role r = {.needed = d.visits[e] > 0};
    r.absent = r.needed && w.experts[e].on_host;
    const int64_t rank = (int64_t)(sum_before((unsigned long long)(r.needed && !r.absent) << 32 | r.absent, &all) & 0xFFFFFFFF);
    r.sits = r.absent && rank / s.count == s.nth;
    r.seat = r.sits ? fresh(s.books->home[s.table] + e) : -1;
    r.comes = r.sits && r.seat < 0;
    if (r.seat >= 0)
        d.taken[r.seat] = true;
    __syncthreads();
    const int number = (int)sum_before(r.comes, &arrivals);
    if (arrivals > 0) {
        find_free(d, s.count, (int)arrivals);
        __syncthreads();
        if (r.comes) {
            r.seat = d.free[number];
            d.coming[number] = e;
        }
        __syncthreads();
        for (int i = 0; i < (int)arrivals; i++)
            copy_expert(s, w.experts[d.coming[i]], d.free[i]);
    }
    __threadfence();
    __syncthreads();
    if (e == 0)
        last = atomicInc(&s.books->arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!last)
        return;
    const int absent = (int)(all & 0xFFFFFFFF), here = (int)(all >> 32), left = absent - s.nth * s.count;
    const int seated = left < s.count ? (left > 0 ? left : 0) : s.count;
    write_books(w, d, r, (s.nth == 0 ? here : 0) + seated - (int)arrivals, (int)arrivals, seated);
}

struct seating seating_of(const struct cuda_backend *cuda, const struct op_expert *op, const struct expert_table *table,
                          int64_t places, int32_t *rounds)
{
    const struct seats *s = cuda->seats;
    struct seating seating = {};
    *rounds = 1;
    if (!s || !op->idx)
        return seating;
    seating = {.books = s->books,
               .counts = s->counts,
               .memory = s->memory,
               .part = {s->part[0], s->part[1], s->part[2]},
               .bytes = s->bytes,
               .count = s->count,
               .table = cuda_table_number(cuda, table)};
    const int64_t most = table->on_host < places ? table->on_host : places;
    if (most > s->count)
        *rounds = (int32_t)((most + s->count - 1) / s->count);
    return seating;
}

qr_status expert_fetch(struct backend *b, const struct expert_work *w, qr_error *err)
{
    if (w->seating.books)
        LAUNCH("expert", fetch_kernel, FETCH_BLOCKS, FETCH_THREADS, 0, *w);
    return QR_OK;
}
