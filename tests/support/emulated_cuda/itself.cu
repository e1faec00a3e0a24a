/* The emulated device does what it says, and says what goes wrong; run under several orders. */
#include <stdio.h>

#include "ops/cuda/wgmma.cuh"

static cudaStream_t stream;
static int failures;

#define CHECK(what)                                   \
    do {                                              \
        if (!(what)) {                                \
            printf("line %d: %s\n", __LINE__, #what); \
            failures++;                               \
        }                                             \
    } while (0)

template <typename... P, typename... A>
static cudaError_t start(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... arguments)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    return cudaLaunchKernelEx(&c, kernel, arguments...);
}

template <typename T> static T *room(size_t n)
{
    void *p = NULL;
    CHECK(cudaMallocAsync(&p, n * sizeof(T), stream) == cudaSuccess);
    return (T *)p;
}

static bool in_usual_order(void)
{
    const char *order = getenv("QUIRE_EMULATED_ORDER");
    return !order || atoi(order) == 0;
}

/* ---- threads ---- */

enum { THREADS = 128 };

static __global__ void neighbours(int *out, bool wait)
{
    LAUNCHED_SHARED(int, x, 4);
    const int own = (int)threadIdx.x;
    x[own] = own + 1000 * (int)blockIdx.x;
    if (wait)
        __syncthreads();
    out[blockIdx.x * THREADS + own] = x[(own + 77) % THREADS];
}

static void threads_wait_for_each_other(void)
{
    enum { BLOCKS = 3 };
    int *out = room<int>(BLOCKS * THREADS);
    for (int wait = 0; wait < 2; wait++) {
        int wrong = 0;
        CHECK(start(neighbours, BLOCKS, THREADS, THREADS * 4, out, wait > 0) == cudaSuccess);
        for (int i = 0; i < BLOCKS * THREADS; i++)
            wrong += out[i] != (i + 77) % THREADS + 1000 * (i / THREADS);
        CHECK(wait ? wrong == 0 : wrong > 0); /* a barrier that is missing shows */
    }
    cudaFreeAsync(out, stream);
}

static __global__ void warps(double *sum, unsigned *votes, int *found)
{
    const int own = (int)threadIdx.x, lane = own % 32;
    double x = own;
    for (int o = 16; o > 0; o /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, o);
    sum[own] = x;
    votes[own] = __ballot_sync(ALL_LANES, lane % 3 == 0) ^ __match_any_sync(ALL_LANES, lane % 5);
    found[own] = __shfl_up_sync(ALL_LANES, __reduce_add_sync(ALL_LANES, lane - 20) + lane, 1);
}

static void lanes_exchange(void)
{
    double *sum = room<double>(THREADS);
    unsigned *votes = room<unsigned>(THREADS);
    int *found = room<int>(THREADS);
    CHECK(start(warps, 1, THREADS, 0, sum, votes, found) == cudaSuccess);
    for (int i = 0; i < THREADS; i++) {
        unsigned thirds = 0, same = 0;
        for (int l = 0; l < 32; l++) {
            thirds |= (unsigned)(l % 3 == 0) << l;
            same |= (unsigned)(l % 5 == i % 32 % 5) << l;
        }
        CHECK(sum[i] == 496 + 1024 * (i / 32) && votes[i] == (thirds ^ same));
        CHECK(found[i] == 496 - 640 + (i % 32 ? i % 32 - 1 : 0));
    }
    cudaFreeAsync(sum, stream);
    cudaFreeAsync(votes, stream);
    cudaFreeAsync(found, stream);
}

/* ---- what goes wrong ---- */

static __global__ void broken(int how)
{
    const int own = (int)threadIdx.x;
    if (how == 0 && own < 40)
        meet<3, 64>();
    if (how == 1 && own % 2)
        __syncwarp();
    else if (how == 1)
        __shfl_sync(ALL_LANES, own, 0);
    if (how == 2)
        shared_4(EMULATED_FIRST + 64 - 4 + 4 * (uint32_t)own);
    if (how == 3)
        shared_4(EMULATED_FIRST + 2);
    if (how == 4 && own == 5)
        barrier_make(EMULATED_FIRST, 2), barrier_arrive(EMULATED_FIRST), barrier_await(EMULATED_FIRST, 0);
}

static void what_goes_wrong_has_a_sentence(void)
{
    static const char *const says[] = {"40 of 96 threads wait for ever: 40 at barrier 3 (thread 0 first)",
                                       "while lanes of its warp wait in", "of the 64 bytes of launched shared memory",
                                       "which is no multiple", "1 at a barrier in shared memory (thread 5 first)"};
    for (int how = 0; how < 5; how++) {
        CHECK(start(broken, 1, 96, 64, how) == cudaErrorLaunchFailure);
        CHECK(strstr(cudaGetErrorString(cudaErrorLaunchFailure), says[how]));
    }
    CHECK(start(broken, 1, 2000, 64, 9) == cudaErrorInvalidConfiguration);
    CHECK(start(broken, 1, 96, 100 << 10, 9) == cudaErrorInvalidConfiguration);
    CHECK(start(broken, 1, 96, 64, 9) == cudaSuccess); /* as if nothing had been */
}

/* ---- copies ---- */

static __global__ void staged(const uint32_t *in, uint32_t *out, int open)
{
    LAUNCHED_SHARED(uint32_t, x, 16);
    const uint32_t own = threadIdx.x, at = shared_address(x) + 16 * own;
    copy_16(at, in + 4 * own);
    close_stage();
    copy_16(at + 16 * THREADS, in + 4 * (own + THREADS));
    close_stage();
    if (open == 0)
        await_stages<0>();
    if (open == 1)
        await_stages<1>();
    for (uint32_t i = 0; i < 4; i++) {
        out[4 * own + i] = x[4 * own + i];
        out[4 * (own + THREADS) + i] = x[4 * (own + THREADS) + i];
    }
}

static void copies_come_when_they_are_waited_for(void)
{
    enum { WORDS = 8 * THREADS };
    uint32_t *in = room<uint32_t>(WORDS), *out = room<uint32_t>(WORDS);
    for (uint32_t i = 0; i < WORDS; i++)
        in[i] = i;
    for (int open = 0; open < 3; open++) {
        int right = 0;
        CHECK(start(staged, 1, THREADS, WORDS * 4, in, out, open) == cudaSuccess);
        for (uint32_t i = 0; i < WORDS; i++)
            right += out[i] == i;
        CHECK(open == 0 ? right == WORDS : in_usual_order() ? right == (open == 1 ? WORDS / 2 : 0) : right < WORDS);
    }
    cudaFreeAsync(in, stream);
    cudaFreeAsync(out, stream);
}

/* A ring of two places, which the last thread fills and the others empty. */
static __global__ void ring(const uint32_t *in, uint32_t *out, int stages)
{
    LAUNCHED_SHARED(uint32_t, x, 16);
    const uint32_t base = shared_address(x), bytes = THREADS * 4, barriers = base + 2 * bytes;
    if (threadIdx.x == 0)
        for (uint32_t i = 0; i < 2; i++) {
            barrier_make(barriers + 8 * i, 1);
            barrier_make(barriers + 16 + 8 * i, THREADS);
        }
    __syncthreads();
    uint32_t sum = 0;
    for (int s = 0; s < stages; s++) {
        const uint32_t slot = (uint32_t)s % 2, parity = (uint32_t)s / 2 % 2;
        if (threadIdx.x == THREADS) {
            barrier_await(barriers + 16 + 8 * slot, parity ^ 1);
            bulk_copy(base + slot * bytes, in + s * THREADS, bytes / 2, barriers + 8 * slot);
            barrier_expect(barriers + 8 * slot, bytes);
            bulk_copy(base + slot * bytes + bytes / 2, in + s * THREADS + THREADS / 2, bytes / 2, barriers + 8 * slot);
        } else {
            barrier_await(barriers + 8 * slot, parity);
            sum = sum * 3 + x[slot * THREADS + (threadIdx.x + 50) % THREADS];
            barrier_arrive<16>(barriers + 8 * slot);
        }
    }
    if (threadIdx.x < THREADS)
        out[threadIdx.x] = sum;
}

static void a_ring_gives_its_stages_in_turn(void)
{
    enum { STAGES = 7 };
    uint32_t *in = room<uint32_t>(STAGES * THREADS), *out = room<uint32_t>(THREADS);
    for (uint32_t i = 0; i < STAGES * THREADS; i++)
        in[i] = i * i;
    CHECK(start(ring, 1, THREADS + 1, 2 * THREADS * 4 + 32, in, out, (int)STAGES) == cudaSuccess);
    for (uint32_t i = 0; i < THREADS; i++) {
        uint32_t sum = 0;
        for (uint32_t s = 0; s < STAGES; s++)
            sum = sum * 3 + in[s * THREADS + (i + 50) % THREADS];
        CHECK(out[i] == sum);
    }
    cudaFreeAsync(in, stream);
    cudaFreeAsync(out, stream);
}

/* ---- the matrix unit: products of whole numbers, which are exact ---- */

static int small(int i, int k) { return (i * 7 + k * 5 + i * k) % 9 - 4; }
static uint32_t pair_of(int i, int k) { return pack_pair((float)small(i, k), (float)small(i, k + 1)); }
static uint32_t four_of(int i, int k)
{
    uint32_t word = 0;
    for (int j = 0; j < 4; j++)
        word |= (uint32_t)(uint8_t)small(i, k + j) << 8 * j;
    return word;
}
/* Row i of A times column j of B, whose terms are those of row 100 + j. */
static int wanted(int i, int j, int terms)
{
    int sum = 0;
    for (int k = 0; k < terms; k++)
        sum += small(i, k) * small(100 + j, k);
    return sum;
}

static __global__ void products(float *f, int32_t *whole, double *d)
{
    const int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    float c[4] = {1, 1, 1, 1};
    int32_t n[4] = {1, 1, 1, 1};
    double e[4] = {1, 1, 1, 1}, a[4], b[4], x[4];
    mma(c, pair_of(g, 2 * t), pair_of(g + 8, 2 * t), pair_of(g, 2 * t + 8), pair_of(g + 8, 2 * t + 8),
        pair_of(100 + g, 2 * t), pair_of(100 + g, 2 * t + 8));
    mma_int8(n, four_of(g, 4 * t), four_of(g + 8, 4 * t), four_of(g, 4 * t + 16), four_of(g + 8, 4 * t + 16),
             four_of(100 + g, 4 * t), four_of(100 + g, 4 * t + 16));
    for (int i = 0; i < 4; i++) {
        a[i] = small(g, t * 4 + i);
        b[i] = small(g + 8, t * 4 + i);
        x[i] = small(100 + g, t * 4 + i);
    }
    mma_f64(e, a, b, x);
    for (int i = 0; i < 4; i++) {
        const int at = (g + i / 2 * 8) * 8 + 2 * t + i % 2;
        f[at] = c[i];
        whole[at] = n[i];
        d[at] = e[i];
    }
}

/* 64 rows of A in registers, 64 columns of B in the second 16 terms of rows of shared memory. */
static __global__ void wide(float *out, bool wait)
{
    LAUNCHED_SHARED(uint8_t, x, 1024);
    const int own = (int)threadIdx.x, lane = own % 32, g = own / 32 * 16 + lane / 4, t = lane % 4;
    for (int i = own; i < 64 * 32; i += THREADS) { /* words of rows of 128 bytes; the pieces of a row are moved */
        const int row = i / 32, word = i % 32, k = 2 * word - 16;
        *(uint32_t *)(void *)(x + row * 128 + ((word / 4) ^ (row % 8)) * 16 + word % 4 * 4) =
            k >= 0 && k < 16 ? pair_of(100 + row, k) : 0x7FFF7FFF;
    }
    show_stores();
    __syncthreads();
    const uint32_t a[4] = {pair_of(g, 2 * t), pair_of(g + 8, 2 * t), pair_of(g, 2 * t + 8), pair_of(g + 8, 2 * t + 8)};
    float d[32] = {};
    unit_begin();
    unit_multiply<false>(d, a, rows_at(shared_address(x) + 32));
    unit_multiply<true>(d, a, rows_at(shared_address(x) + 32));
    unit_close();
    if (wait)
        unit_await<0>();
    else
        unit_await<1>();
    for (int i = 0; i < 32; i++)
        out[(g + i % 4 / 2 * 8) * 64 + i / 4 * 8 + 2 * t + i % 2] = d[i];
}

static void products_are_those_of_rows_and_columns(void)
{
    float *f = room<float>(64 * 64);
    int32_t *whole = room<int32_t>(16 * 8);
    double *d = room<double>(16 * 8);
    CHECK(start(products, 1, 32, 0, f, whole, d) == cudaSuccess);
    for (int i = 0; i < 128; i++) {
        CHECK(f[i] == (float)(1 + wanted(i / 8, i % 8, 16)) && d[i] == 1 + wanted(i / 8, i % 8, 16));
        CHECK(whole[i] == 1 + wanted(i / 8, i % 8, 32));
    }
    for (int wait = 0; wait < 2; wait++) {
        int right = 0;
        CHECK(start(wide, 1, THREADS, 64 * 128, f, wait > 0) == cudaSuccess);
        for (int i = 0; i < 64 * 64; i++)
            right += f[i] == (float)(2 * wanted(i / 64, i % 64, 16));
        CHECK(wait ? right == 64 * 64 : right < 64 * 64);
    }
    cudaFreeAsync(f, stream);
    cudaFreeAsync(whole, stream);
    cudaFreeAsync(d, stream);
}

/* ---- graphs ---- */

static __global__ void append(int *list, int number)
{
    list[1 + list[0]] = number;
    list[0]++;
}

/* Three kernels, the first two of which the third waits for; `circle`: and they for it. */
static void a_graph_keeps_to_its_edges(void)
{
    int *list = room<int>(8);
    for (int circle = 0; circle < 2; circle++) {
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        cudaGraphNode_t from[2], to[2];
        cudaGraphEdgeData data[2];
        size_t edges = 2;
        list[0] = 0;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        for (int i = 0; i < 3; i++)
            CHECK(start(append, 1, 1, 0, list, i) == cudaSuccess);
        CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess && list[0] == 0);
        CHECK(cudaGraphGetEdges(graph, from, to, data, &edges) == cudaSuccess && edges == 2 && to[0] == from[1]);
        CHECK(cudaGraphRemoveDependencies(graph, from, to, data, 1) == cudaSuccess);
        CHECK(cudaGraphAddDependencies(graph, from, &to[1], data, 1) == cudaSuccess);
        if (circle)
            CHECK(cudaGraphAddDependencies(graph, &to[1], from, data, 1) == cudaSuccess);
        CHECK(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
        CHECK((cudaGraphLaunch(ready, stream) == cudaSuccess) == !circle);
        CHECK(circle || (list[0] == 3 && list[3] == 2 && list[1] + list[2] == 1));
        CHECK(!circle || list[0] == 1);
        cudaGraphExecDestroy(ready);
    }
    cudaFreeAsync(list, stream);
}

int main(void)
{
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    threads_wait_for_each_other();
    lanes_exchange();
    what_goes_wrong_has_a_sentence();
    copies_come_when_they_are_waited_for();
    a_ring_gives_its_stages_in_turn();
    products_are_those_of_rows_and_columns();
    a_graph_keeps_to_its_edges();
    cudaStreamDestroy(stream);
    printf("%d failures\n", failures);
    return failures > 0;
}
