/* index_best.cuh: the k best of a row's scores, by one block of threads, or by as many as the row is long. */
#ifndef QR_OPS_CUDA_INDEX_BEST_CUH
#define QR_OPS_CUDA_INDEX_BEST_CUH

#include "ops/cuda/device.cuh"

enum { SELECT_THREADS = 512, SELECT_WARPS = SELECT_THREADS / WARP, MOST_SORTED = 8192, MOST_HELD = 8192 };

/* A number that orders as the score does; 0 for what is never kept (-inf, NaN). Zeros of both signs are equal. */
static __device__ uint32_t order_of(float score)
{
    if (!(score > -INFINITY))
        return 0;
    uint32_t bits = __float_as_uint(score + 0.0f);
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

/* Of counts by digit, the digit at which the sum from the largest down, and `above`, reaches k (0: it does not), and
 * the sum before it: a warp's work, a lane for eight digits. */
static __device__ void find_digit(const int *count, int above, int k, int *digit, int *better)
{
    const int first = 255 - 8 * lane_of();
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += count[first - i];
    int before = sum;
#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        int other = __shfl_up_sync(ALL_LANES, before, o);
        before += lane_of() >= o ? other : 0;
    }
    before += above - sum;
    uint32_t reached = __ballot_sync(ALL_LANES, before + sum >= k);
    if (lane_of() != (reached ? __ffs(reached) - 1 : WARP - 1))
        return;
    int at = first;
    while (at > 0 && before + count[at] < k)
        before += count[at--];
    *digit = at;
    *better = before;
}

/* Scores that a block of threads looks at, those of n places: `first` and what follows, or those that are listed
 * (negative ones are none). Their orders, the first MOST_HELD of them, are held in shared memory. */
struct contest {
    const float *scores;
    const int32_t *listed;
    uint32_t *held;
    int first, n;
    bool halves; /* scores are bf16: the lower half of their orders says nothing */
    __device__ int place(int i) const { return listed ? fresh(listed + i) : first + i; }
    __device__ uint32_t at(int i) const { return i < MOST_HELD ? held[i] : order_of(fresh(scores + first + i)); }
};

/* listed: at most MOST_HELD. */
static __device__ struct contest contest_of(const float *scores, const int32_t *listed, int first, int n, bool halves)
{
    LAUNCHED_SHARED(uint32_t, held_scores, 8);
    struct contest c = {scores, listed, held_scores, first, n, halves};
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < n && i < MOST_HELD; i += SELECT_THREADS) {
        int place = c.place(i);
        held_scores[i] = place < 0 ? 0 : order_of(fresh(scores + place));
    }
    __syncthreads();
    return c;
}

static size_t held_bytes(int64_t n) { return (size_t)((n < MOST_HELD ? n : (int64_t)MOST_HELD) + 1) / 2 * 8; }

/* The order of the k-th best, and how many are better: by eight bits at a time. Fewer than k: 0 and their number. */
static __device__ void threshold(const struct contest &c, int k, uint32_t *order, int *better)
{
    const int n = c.n;
    __shared__ int count[256], digit_found, better_found;
    uint32_t prefix = 0;
    int above = 0;
    for (int shift = 24; shift >= (c.halves ? 16 : 0); shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += SELECT_THREADS)
            count[i] = 0;
        __syncthreads();
        for (int first = warp_of() * WARP; first < n; first += SELECT_THREADS) {
            int i = first + lane_of();
            uint32_t o = i < n ? c.at(i) : 0;
            bool counts = o && (shift == 24 || o >> (shift + 8) == prefix >> (shift + 8));
            int digit = counts ? (int)(o >> shift & 255) : -1;
            uint32_t same = __match_any_sync(ALL_LANES, digit); /* many are alike: one lane adds for all */
            if (counts && (same & ((1u << lane_of()) - 1)) == 0)
                atomicAdd(&count[digit], __popc(same));
        }
        __syncthreads();
        if (warp_of() == 0)
            find_digit(count, above, k, &digit_found, &better_found);
        __syncthreads();
        prefix |= (uint32_t)digit_found << shift;
        above = better_found;
        __syncthreads();
    }
    *order = prefix;
    if (c.halves && prefix && !(prefix & 0x80000000)) /* as order_of has negative ones */
        *order |= 0xFFFF;
    *better = above;
}

/* Sorts count 64-bit numbers in shared memory, largest first; room for the next power of two. A thread keeps what it
 * compares with others of its warp. */
static __device__ void sort_falling(unsigned long long *key, int count)
{
    int size = 1;
    while (size < count)
        size *= 2;
    for (int i = count + threadIdx.x; i < size; i += SELECT_THREADS)
        key[i] = 0;
    __syncthreads();
    for (int length = 2; length <= size; length *= 2) {
        int gap = length / 2;
        for (; gap >= WARP; gap /= 2) {
            for (int i = threadIdx.x; i < size; i += SELECT_THREADS) {
                int other = i ^ gap;
                bool falling = (i & length) == 0;
                if (other > i && (key[i] < key[other]) == falling) {
                    unsigned long long moved = key[i];
                    key[i] = key[other];
                    key[other] = moved;
                }
            }
            __syncthreads();
        }
        for (int first = warp_of() * WARP; first < size; first += SELECT_THREADS) {
            const int i = first + lane_of();
            unsigned long long own = i < size ? key[i] : 0;
            for (int g = gap; g > 0; g /= 2) {
                unsigned long long other = __shfl_xor_sync(ALL_LANES, own, g);
                bool larger = (i & length) == 0 ? (i & g) == 0 : (i & g) != 0; /* whether this place wants it */
                own = larger == (other > own) ? other : own;
            }
            if (i < size)
                key[i] = own;
        }
        __syncthreads();
    }
}

/* Keeps the k best, equal ones by the smaller place; places ascending, or by falling score. Returns how many. */
static __device__ int keep_best(const struct contest &c, int k, bool by_score, int32_t *out)
{
    const int n = c.n;
    unsigned long long *sorted =
        (unsigned long long *)(void *)(c.held + ((n < MOST_HELD ? n : (int)MOST_HELD) + 1) / 2 * 2);
    __shared__ int better_in[SELECT_WARPS], equal_in[SELECT_WARPS];
    uint32_t order;
    int better, done_better = 0, done_equal = 0, kept;
    threshold(c, k, &order, &better);
    int wanted = k - better; /* of the equal ones, by id */

    for (int first = 0; first < n; first += SELECT_THREADS) {
        int i = first + threadIdx.x, place = i < n ? c.place(i) : 0;
        uint32_t o = i < n ? c.at(i) : 0;
        bool is_better = o > order, is_equal = o != 0 && o == order;
        uint32_t betters = __ballot_sync(ALL_LANES, is_better), equals = __ballot_sync(ALL_LANES, is_equal);
        uint32_t before = (1u << lane_of()) - 1;
        if (lane_of() == 0) {
            better_in[warp_of()] = __popc(betters);
            equal_in[warp_of()] = __popc(equals);
        }
        __syncthreads();
        int b = done_better + __popc(betters & before), e = done_equal + __popc(equals & before);
        for (int j = 0; j < SELECT_WARPS; j++) {
            if (j < warp_of()) {
                b += better_in[j];
                e += equal_in[j];
            }
            done_better += better_in[j];
            done_equal += equal_in[j];
        }
        int rank = b + (e < wanted ? e : wanted);
        if (is_better || (is_equal && e < wanted)) {
            if (by_score)
                sorted[rank] = (unsigned long long)o << 32 | (uint32_t)~place;
            else
                out[rank] = place;
        }
        __syncthreads();
    }
    kept = done_better + (done_equal < wanted ? done_equal : wanted);
    if (by_score) {
        sort_falling(sorted, kept);
        for (int i = threadIdx.x; i < kept; i += SELECT_THREADS)
            out[i] = (int32_t) ~(uint32_t)sorted[i];
    }
    return kept;
}

/* ---- rounds ----
 *
 * A row longer than MOST_HELD is cut into parts of so many, a block each; the best k of a part are a list, and the last
 * of `fan` lists to be there is merged with the others, and so on: whatever is among the k best of the row is among
 * those of every part and list that it is in, and places ascend in every list, so the result is that of one contest. */

/* fan 0: every row is one contest. lists: [rows][list_stride]; arrived: [rows][counters], zeros before and after. */
struct rounds {
    int32_t fan;
    int64_t list_stride;
    int32_t counters;
    int32_t *lists;
    uint32_t *arrived;
};

/* Of a choice of k among at most n. */
static struct rounds rounds_of(int64_t n, int32_t k)
{
    struct rounds r = {0};
    if (n <= MOST_HELD || 4 * (int64_t)k > MOST_HELD)
        return r;
    r.fan = MOST_HELD / k;
    for (int64_t parts = (n + MOST_HELD - 1) / MOST_HELD; parts > 1;) {
        int64_t merged = (parts + r.fan - 1) / r.fan;
        r.list_stride += parts * k;
        r.counters += (int32_t)merged;
        parts = merged;
    }
    return r;
}

/* Blocks of a row. */
static unsigned parts_of(const struct rounds *r, int64_t n)
{
    return r->fan ? (unsigned)((n + MOST_HELD - 1) / MOST_HELD) : 1;
}

/* Block `part` of row `row`'s n scores; -1 unless it is the one that comes last and has chosen, else how many. */
static __device__ int choose(const struct rounds &r, int64_t row, const float *scores, int n, int part, int k,
                             bool by_score, bool halves, int32_t *out)
{
    __shared__ bool last;
    int parts = r.fan && n > MOST_HELD ? (n + MOST_HELD - 1) / MOST_HELD : 1;
    if (part >= parts)
        return -1;
    int first = part * MOST_HELD, size = parts == 1 ? n : n - first < MOST_HELD ? n - first : (int)MOST_HELD;
    int32_t *lists = r.lists + row * r.list_stride;
    uint32_t *arrived = r.arrived + row * r.counters;
    struct contest c = contest_of(scores, NULL, first, size, halves);
    while (parts > 1) {
        int32_t *list = lists + (int64_t)part * k;
        for (int i = keep_best(c, k, false, list) + threadIdx.x; i < k; i += SELECT_THREADS)
            list[i] = -1;
        __threadfence();
        __syncthreads();
        const int group = part / r.fan, merged = (parts + r.fan - 1) / r.fan;
        const int members = parts - group * r.fan < r.fan ? parts - group * r.fan : r.fan;
        if (threadIdx.x == 0)
            last = atomicInc(arrived + group, (uint32_t)members - 1) == (uint32_t)members - 1;
        __syncthreads();
        if (!last)
            return -1;
        __threadfence();
        c = contest_of(scores, lists + (int64_t)group * r.fan * k, 0, members * k, halves);
        lists += (int64_t)parts * k;
        arrived += merged;
        part = group;
        parts = merged;
    }
    return keep_best(c, k, by_score, out);
}

#endif
