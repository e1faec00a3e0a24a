#include "ops/cuda/expert.cuh"

/* Experts of host memory come to their seats (seats.h). */

/* Small blocks, and few: they find room beside the shared expert's. */
enum { FETCH_THREADS = 256, EACH = MOST_EXPERTS / FETCH_THREADS, FETCH_BLOCKS = 4, COPIES = 8 };

/* Where a block's decision stands; every block comes to the same. */
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

/* How many experts are on the device, come to a seat, and sit. */
struct tally {
    int here, arrivals, seated;
};

static __device__ void write_expert(const struct expert_work &w, const struct decision &d, const struct role &r, int e,
                                    unsigned long long now)
{
    const struct seating &s = w.seating;
    struct seat_books *books = s.books;
    if (r.needed) {
        books->turn[e] = r.sits ? w.op.experts + r.seat : !r.absent && s.nth == 0 ? e : -1;
        if (s.nth == 0)
            books->visits[s.table][e] += d.visits[e];
    }
    if (r.sits)
        books->stamp[r.seat] = now;
    if (!r.comes)
        return;
    int32_t *home = books->home[s.table] + e, *before = books->owner[r.seat];
    if (before)
        *before = -1;
    books->owner[r.seat] = home;
    *home = r.seat;
    struct expert_view *views = (struct expert_view *)w.experts, &view = views[w.op.experts + r.seat];
    view.w1.large_scales = views[e].w1.large_scales;
    view.w2.large_scales = views[e].w2.large_scales;
    view.w3.large_scales = views[e].w3.large_scales;
}

static __device__ void write_counts(const struct seating &s, const struct tally &n, unsigned long long now)
{
    struct seat_books *books = s.books;
    volatile struct seat_counts *counts = s.counts;
    books->clock = now;
    books->seated = n.seated;
    books->counts.found += (unsigned)(n.here + n.seated - n.arrivals);
    books->counts.copied += (unsigned)n.arrivals;
    books->counts.bytes += (unsigned long long)n.arrivals * s.bytes;
    counts->found = books->counts.found;
    counts->copied = books->counts.copied;
    counts->bytes = books->counts.bytes;
}

/* Seats those of this round; `role`: of the thread's experts. */
static __device__ struct tally decide(const struct expert_work &w, struct decision &d, struct role (&role)[EACH])
{
    const struct seating &s = w.seating;
    const int first = EACH * threadIdx.x;
    unsigned long long own = 0, all, arrivals;
    int comes = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        role[j].needed = d.visits[first + j] > 0;
        role[j].absent = role[j].needed && w.experts[first + j].on_host;
        own += role[j].absent ? 1 : role[j].needed ? 1ull << 32 : 0;
    }
    int rank = (int)(uint32_t)sum_before(own, &all);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        struct role &r = role[j];
        r.sits = r.absent && rank / s.count == s.nth;
        rank += r.absent;
        r.seat = r.sits ? fresh(s.books->home[s.table] + first + j) : -1;
        r.comes = r.sits && r.seat < 0;
        comes += r.comes;
        if (r.seat >= 0)
            d.taken[r.seat] = true;
    }
    __syncthreads();
    int number = (int)sum_before((unsigned)comes, &arrivals);
    if (arrivals > 0) {
        find_free(d, s.count, (int)arrivals);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (role[j].comes) {
                role[j].seat = d.free[number];
                d.coming[number++] = first + j;
            }
        __syncthreads();
    }
    const int left = (int)(uint32_t)all - s.nth * s.count;
    return {s.nth == 0 ? (int)(all >> 32) : 0, (int)arrivals, left < 0 ? 0 : left < s.count ? left : s.count};
}

/* The kernel behind it is started when all has come: until then others may have the multiprocessors. */
static __global__ void __launch_bounds__(FETCH_THREADS, 4) fetch_kernel(const __grid_constant__ struct expert_work w)
{
    __shared__ struct decision d;
    __shared__ bool last;
    const struct seating &s = w.seating;
    await_alone();
    for (int e = threadIdx.x; e < MOST_EXPERTS; e += FETCH_THREADS)
        d.visits[e] = 0;
    for (int i = threadIdx.x; i < s.count; i += FETCH_THREADS) {
        d.stamp[i] = __ldcg(&s.books->stamp[i]);
        d.taken[i] = false;
    }
    __syncthreads();
    count_visits(w, d.visits);
    __syncthreads();
    struct role role[EACH];
    const struct tally n = decide(w, d, role);
    for (int i = 0; i < n.arrivals; i++)
        copy_expert(s, w.experts[d.coming[i]], d.free[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicInc(&s.books->arrived, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!last)
        return; /* the last block to come writes the books */
    const unsigned long long now = s.books->clock + 1;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        write_expert(w, d, role[j], EACH * threadIdx.x + j, now);
    __syncthreads();
    if (threadIdx.x == 0)
        write_counts(s, n, now);
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
