/* What the CUDA backend's streaming operators reach beside the memory they read: products of FP8, FP4 and INT8 weights
 * at the released widths, experts, the choice among index keys, what stands between two sub-blocks, attention, likeliest
 * ids. The bound is read in the same run. Arguments name the parts to run (linear, expert, index, between, attend, lists, or
 * a word of a line's name); none: all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

extern "C" {
#include "base/clock.h"
#include "ops/device.h"
}

enum { READ_THREADS = 512, REPEATS = 5, MOST_CALLS = 64 };

static struct backend *gpu;
static double read_rate; /* bytes a second */
static uint64_t dice = 88172645463325252u;

#define MUST(call)                                  \
    do {                                            \
        qr_error must_err_ = {}, *err = &must_err_; \
        if ((call) != QR_OK) {                      \
            printf("%s\n", must_err_.message);      \
            exit(1);                                \
        }                                           \
    } while (0)

static uint32_t roll(void)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (uint32_t)(dice >> 16);
}

/* ---- the bound ---- */

static __global__ void read_kernel(const uint4 *data, int64_t n, uint32_t *out)
{
    uint32_t sum = 0;
    int64_t stride = (int64_t)gridDim.x * READ_THREADS, i = (int64_t)blockIdx.x * READ_THREADS + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 a = __ldcs(data + i), b = __ldcs(data + i + stride), c = __ldcs(data + i + 2 * stride),
              d = __ldcs(data + i + 3 * stride);
        sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (sum == 0x12345678)
        *out = sum;
}

static __global__ void fill_kernel(uint4 *data, int64_t n)
{
    int64_t stride = (int64_t)gridDim.x * READ_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * READ_THREADS + threadIdx.x; i < n; i += stride) {
        uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32);
        data[i] = make_uint4(x, x * 3, x * 5, x * 7);
    }
}

static void measure_read(void)
{
    const int64_t bytes = (int64_t)8 << 30;
    uint4 *data;
    uint32_t *out;
    if (cudaMalloc(&data, bytes) != cudaSuccess || cudaMalloc(&out, 4) != cudaSuccess)
        exit(1);
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    fill_kernel<<<p.multiProcessorCount * 4, READ_THREADS>>>(data, bytes / 16);
    cudaDeviceSynchronize();
    for (int i = 0; i < REPEATS; i++) {
        cudaEvent_t a, b;
        float ms;
        cudaEventCreate(&a), cudaEventCreate(&b);
        cudaEventRecord(a);
        read_kernel<<<p.multiProcessorCount * 4, READ_THREADS>>>(data, bytes / 16, out);
        cudaEventRecord(b);
        cudaEventSynchronize(b);
        cudaEventElapsedTime(&ms, a, b);
        double rate = (double)bytes / (ms * 1e-3);
        read_rate = rate > read_rate ? rate : read_rate;
    }
    cudaFree(data);
    cudaFree(out);
    printf("%s, %d multiprocessors: reads %.0f GB/s\n", p.name, p.multiProcessorCount, read_rate / 1e9);
}

/* ---- data ---- */

static void *device(const void *from, int64_t bytes)
{
    void *p;
    MUST(gpu->allocate(gpu, bytes, &p, err));
    if (from)
        MUST(gpu->upload(gpu, p, from, bytes, err));
    return p;
}

static uint8_t *bytes_of(int64_t n, bool e4m3)
{
    uint8_t *b = (uint8_t *)malloc((size_t)n + 8);
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t x = roll();
        memcpy(b + i, &x, 4);
    }
    for (int64_t i = 0; e4m3 && i < n; i++)
        if ((b[i] & 0x7F) == 0x7F)
            b[i] ^= 1;
    return b;
}

static uint8_t *scales_of(int64_t n)
{
    uint8_t *b = (uint8_t *)malloc((size_t)n);
    for (int64_t i = 0; i < n; i++)
        b[i] = (uint8_t)(114 + roll() % 6);
    return b;
}

static struct weight *weight_of(enum weight_format format, int32_t n, int32_t k, int32_t splits, const uint8_t *values,
                                const uint8_t *scales)
{
    struct weight *w;
    struct weight_spec s = {"bench", format, n, k, 32, splits, false, values, scales};
    MUST(gpu->prepare_weight(gpu, &s, &w, err));
    return w;
}

static struct activation q8_rows(int32_t rows, int32_t cols, int32_t block)
{
    uint8_t *codes = bytes_of((int64_t)rows * cols, true), *scales = scales_of((int64_t)rows * cols / block);
    struct activation a = {ACT_Q8, cols, block, device(codes, (int64_t)rows * cols),
                           device(scales, (int64_t)rows * cols / block)};
    free(codes), free(scales);
    return a;
}

static float *factors_of(int64_t n)
{
    float *f = (float *)malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        f[i] = 1e-3f * (float)(1 + roll() % 16);
    return f;
}

/* block: columns of a scale. */
static struct activation int8_rows(int32_t rows, int32_t cols, int32_t block)
{
    uint8_t *codes = bytes_of((int64_t)rows * cols, false);
    float *scales = factors_of((int64_t)rows * cols / block);
    struct activation a = {ACT_I8, cols, block, device(codes, (int64_t)rows * cols),
                           device(scales, (int64_t)rows * cols / block * 4)};
    free(codes), free(scales);
    return a;
}

static struct activation plain_rows(int32_t rows, int32_t cols)
{
    struct activation a = {ACT_BF16, cols, 0, device(NULL, (int64_t)rows * cols * 2), NULL};
    return a;
}

/* ---- time ---- */

/* Seconds of one call among `count` in a row: the least of several rounds, behind three (to warm up, and to record). */
template <typename Call> static double seconds_of(int count, Call call)
{
    double best = 1e9;
    for (int round = -3; round < REPEATS; round++) {
        MUST(gpu->fence(gpu, err));
        double start = clock_seconds();
        for (int i = 0; i < count; i++)
            call(i);
        MUST(gpu->fence(gpu, err));
        double each = (clock_seconds() - start) / count;
        if (round >= 0 && each < best)
            best = each;
    }
    return best;
}

static void line(const char *name, int rows, double bytes, double seconds)
{
    printf("%-34s rows %5d  %9.1f us  %7.1f MB  %5.0f GB/s  share %.3f\n", name, rows, seconds * 1e6, bytes / 1e6,
           bytes / seconds / 1e9, bytes / seconds / read_rate);
}

static void flops_line(const char *name, int rows, double flops, double seconds)
{
    printf("%-34s rows %5d  %9.1f us  %7.1f GFLOP  %6.1f TFLOP/s\n", name, rows, seconds * 1e6, flops / 1e9,
           flops / seconds / 1e12);
}

static const int32_t row_counts[] = {1, 8, 16, 32, 64, 128, 256};
static const int32_t many_rows[] = {1024, 4096};

/* The arguments: what to run. */
static int n_words;
static char **words;

static bool wanted(const char *part, const char *name)
{
    for (int i = 0; i < n_words; i++)
        if (strcmp(words[i], part) == 0 || strstr(name, words[i]))
            return true;
    return n_words == 0;
}

/* ---- products ---- */

/* INT8 rows have a scale for each of `splits` ranges of K. */
static void bench_linear(const char *name, enum weight_format format, int32_t n, int32_t k, int32_t splits)
{
    if (!wanted("linear", name))
        return;
    const bool fp4 = format == WEIGHT_FP4, fp8 = format == WEIGHT_FP8, int8 = format == WEIGHT_INT8;
    int64_t values = (int64_t)n * k / (fp4 ? 2 : 1) * (format == WEIGHT_BF16 ? 2 : 1);
    int64_t scales = fp4 ? (int64_t)n * k / 32 : fp8 ? (int64_t)(n / 32) * (k / 32) : int8 ? 4 * (int64_t)n : 0;
    int copies = (int)(((int64_t)3 << 30) / values);
    copies = copies < 2 ? 2 : copies > MOST_CALLS ? MOST_CALLS : copies;
    uint8_t *codes = bytes_of(values, fp8), *factors = int8 ? (uint8_t *)factors_of(n) : scales_of(scales + 1);
    if (format == WEIGHT_BF16)
        for (int64_t i = 1; i < values; i += 2)
            codes[i] = (uint8_t)(0x3C | (codes[i] & 0x80));
    struct weight *w[MOST_CALLS];
    for (int i = 0; i < copies; i++)
        w[i] = weight_of(format, n, k, splits, codes, factors);
    free(codes), free(factors);
    struct activation in = format == WEIGHT_BF16 ? plain_rows(4096, k)
                           : int8                ? int8_rows(4096, k, k / splits)
                                                 : q8_rows(4096, k, 32),
                      out = plain_rows(4096, n);
    if (format == WEIGHT_BF16) {
        uint8_t *x = bytes_of((int64_t)4096 * k * 2, false);
        for (int64_t i = 1; i < (int64_t)4096 * k * 2; i += 2)
            x[i] = (uint8_t)(0x3F | (x[i] & 0x80));
        MUST(gpu->upload(gpu, in.codes, x, (int64_t)4096 * k * 2, err));
        free(x);
    }
    auto run = [&](int32_t rows, int calls) {
        return seconds_of(calls, [&](int i) {
            struct op_linear op = {{NULL, rows}, in, w[i % copies], 0, 0, out};
            MUST(gpu->linear(gpu, &op, err));
        });
    };
    int calls = copies < 8 ? 8 : copies;
    for (int32_t rows : row_counts)
        line(name, rows, (double)(values + scales), run(rows, calls));
    for (int32_t rows : many_rows)
        flops_line(name, rows, 2.0 * rows * n * k, run(rows, 8));
    for (int i = 0; i < copies; i++)
        gpu->release_weight(gpu, w[i]);
    gpu->release(gpu, in.codes), gpu->release(gpu, in.scales), gpu->release(gpu, out.codes);
}

/* ---- experts ---- */

static void bench_experts(const char *name, enum weight_format format, int32_t experts, int32_t active, int32_t hidden,
                          int32_t inner, int32_t block)
{
    enum { MOST_ROWS = 4096, CALLS = 24 };
    if (!wanted("expert", name))
        return;
    static const struct weight *w1[512], *w2[512], *w3[512];
    const bool int8 = format == WEIGHT_INT8;
    int64_t values = (int64_t)hidden * inner / (int8 ? 1 : 2);
    int64_t scales = int8 ? 4 * (int64_t)(hidden + 2 * inner) / 3 : values / 16; /* of one of three weights */
    uint8_t *codes = bytes_of(values, false),
            *factors = int8 ? (uint8_t *)factors_of(hidden + inner) : scales_of(scales);
    for (int32_t e = 0; e < experts; e++) {
        w1[e] = weight_of(format, inner, hidden, 1, codes, factors);
        w3[e] = weight_of(format, inner, hidden, 1, codes, factors);
        w2[e] = weight_of(format, hidden, inner, 1, codes, factors);
    }
    free(codes), free(factors);
    struct activation x = int8 ? int8_rows(MOST_ROWS, hidden, hidden) : q8_rows(MOST_ROWS, hidden, block);
    void *out = device(NULL, (int64_t)MOST_ROWS * active * hidden * 2);
    float *weight = (float *)malloc(MOST_ROWS * 16 * 4);
    for (int i = 0; i < MOST_ROWS * 16; i++)
        weight[i] = 0.1f;
    float *device_weight = (float *)device(weight, MOST_ROWS * 16 * 4);
    int32_t *host = (int32_t *)malloc(MOST_ROWS * 16 * 4);
    auto run = [&](int32_t rows) {
        const int calls = rows > 256 ? 4 : (int)CALLS;
        double distinct = 0;
        int32_t *idx[CALLS];
        for (int c = 0; c < calls; c++) {
            static bool seen[512];
            memset(seen, 0, sizeof seen);
            for (int r = 0; r < rows; r++)
                for (int a = 0; a < active; a++) {
                    bool again = true;
                    while (again) {
                        host[r * active + a] = (int32_t)(roll() % (uint32_t)experts);
                        again = false;
                        for (int b = 0; b < a; b++)
                            again |= host[r * active + b] == host[r * active + a];
                    }
                    distinct += !seen[host[r * active + a]];
                    seen[host[r * active + a]] = true;
                }
            idx[c] = (int32_t *)device(host, rows * active * 4);
        }
        double seconds = seconds_of(calls, [&](int i) {
            struct op_expert op = {{NULL, rows}, x,  idx[i], device_weight, experts, active,
                                   w1,           w2, w3,     10.0f,         int8,    out};
            MUST(gpu->expert(gpu, &op, err));
        });
        line(name, rows, distinct / calls * 3.0 * (double)(values + scales), seconds);
        if (rows > 256)
            flops_line(name, rows, 6.0 * rows * active * hidden * inner, seconds);
        for (int c = 0; c < calls; c++)
            gpu->release(gpu, idx[c]);
    };
    for (int32_t rows : row_counts)
        run(rows);
    for (int32_t rows : many_rows)
        run(rows);
    free(host);
    for (int32_t e = 0; e < experts; e++) {
        gpu->release_weight(gpu, (struct weight *)w1[e]);
        gpu->release_weight(gpu, (struct weight *)w2[e]);
        gpu->release_weight(gpu, (struct weight *)w3[e]);
    }
    gpu->release(gpu, x.codes), gpu->release(gpu, x.scales), gpu->release(gpu, out), gpu->release(gpu, device_weight);
}

/* ---- attention ---- */

/* Memory on the device full of bf16 values around 1. */
static void *noise(int64_t bytes)
{
    enum { PIECE = 1 << 20 };
    uint8_t *host = bytes_of(PIECE, false), *to = (uint8_t *)device(NULL, bytes);
    for (int i = 1; i < PIECE; i += 2)
        host[i] = (uint8_t)(0x3E | (host[i] & 0x80));
    for (int64_t at = 0; at < bytes; at += PIECE)
        MUST(gpu->upload(gpu, to + at, host, bytes - at < PIECE ? bytes - at : (int64_t)PIECE, err));
    free(host);
    return to;
}

/* Rows behind `visible` compressed rows, topk of them chosen, or all (0). At most MOST_ROWS each of a request of its
 * own; more are a prompt's. No compressed rows: the window alone. */
static void bench_attend(const char *name, int32_t visible, int32_t topk)
{
    enum { HEADS = 64, DIM = 512, WINDOW = 128, MOST_ROWS = 64, PROMPT = 4096, CALLS = 16, BLOCK_ROWS = 32, RATIO = 4 };
    if (!wanted("attend", name))
        return;
    static const int32_t counts[] = {1, 8, 16, 64, 1024, PROMPT};
    const int32_t blocks = (visible + PROMPT / RATIO) / BLOCK_ROWS + 1, kept = topk ? topk : 1;
    int32_t *numbers = (int32_t *)malloc(PROMPT * 4 + 4), *ends = (int32_t *)malloc(PROMPT * 4),
            *many = (int32_t *)malloc(PROMPT * 4), *table = (int32_t *)malloc((size_t)blocks * MOST_ROWS * 4),
            *ids = (int32_t *)malloc((size_t)kept * PROMPT * 4);
    for (int i = 0; i < PROMPT; i++)
        numbers[i] = i, ends[i] = visible * RATIO + WINDOW + i, many[i] = kept;
    numbers[PROMPT] = PROMPT;
    for (int i = 0; i < blocks * MOST_ROWS; i++)
        table[i] = i % blocks;
    for (int i = 0; i < kept * PROMPT; i++)
        ids[i] = (int32_t)(roll() % (uint32_t)(visible ? visible : 1));
    struct step step = {};
    step.positions = (int32_t *)device(ends, PROMPT * 4);
    step.block_table = (int32_t *)device(table, (int64_t)blocks * MOST_ROWS * 4);
    step.block_stride = blocks;
    int32_t *zeros = (int32_t *)calloc(PROMPT, 4), whole[2] = {0, PROMPT};
    int32_t *own = (int32_t *)device(numbers, PROMPT * 4 + 4), *none = (int32_t *)device(zeros, PROMPT * 4),
            *bounds = (int32_t *)device(whole, sizeof whole);
    struct op_attend op = {};
    op.step = &step;
    op.heads = HEADS, op.head_dim = DIM, op.window_size = WINDOW, op.block = 64, op.ratio = RATIO;
    op.scale = 0.04f;
    op.q = noise((int64_t)PROMPT * HEADS * DIM * 2);
    op.fresh = noise((int64_t)PROMPT * DIM * 2);
    op.key_from = step.positions;
    op.ring.format = ROW_BF16, op.ring.rows = WINDOW;
    op.ring.value_row_stride = DIM * 2, op.ring.slot_stride = WINDOW * DIM * 2;
    op.ring.values = (uint8_t *)noise((int64_t)MOST_ROWS * WINDOW * DIM * 2);
    op.has_plane = visible > 0;
    op.plane.format = ROW_BF16, op.plane.rows_per_block = BLOCK_ROWS, op.plane.tile_rows = BLOCK_ROWS;
    op.plane.value_row_stride = DIM * 2,
    op.plane.value_tile_stride = op.plane.value_block_stride = BLOCK_ROWS * DIM * 2;
    op.plane.values = (uint8_t *)noise((int64_t)blocks * BLOCK_ROWS * DIM * 2);
    op.selected = topk ? (int32_t *)device(ids, (int64_t)kept * PROMPT * 4) : NULL;
    op.selected_stride = kept;
    op.selected_count = (int32_t *)device(many, PROMPT * 4);
    op.sinks = (float *)noise(HEADS * 4);
    op.out = plain_rows(PROMPT, HEADS * DIM);
    for (int32_t rows : counts) {
        const bool prompt = rows > MOST_ROWS;
        op.rows.index = NULL, op.rows.count = rows;
        step.rows = rows;
        step.batch_id = prompt ? none : own;
        step.first_row = prompt ? bounds : own;
        step.first_position = step.positions;
        step.slot = own;
        const double seconds = seconds_of(prompt ? 4 : CALLS, [&](int) { MUST(gpu->attend(gpu, &op, err)); });
        const double keys = (double)rows * (WINDOW + (topk ? topk : visible));
        if (prompt)
            flops_line(name, rows, keys * HEADS * DIM * 4, seconds);
        else
            line(name, rows, keys * DIM * 2, seconds);
    }
    free(numbers), free(ends), free(many), free(table), free(ids), free(zeros);
}

/* ---- the choice among index keys ---- */

/* Each row at the end of `visible` keys of its own, which lie behind each other; a reader chooses within a pool
 * instead. */
static void bench_index(const char *name, int32_t heads, enum row_format format, int32_t visible, int32_t pool)
{
    enum { DIM = 128, TOPK = 512, PER_BLOCK = 64, MOST_ROWS = 64, CALLS = 8, BLOCK_SIZE = 8 };
    static const int32_t counts[] = {1, 8, MOST_ROWS};
    if (!wanted("index", name))
        return;
    const int32_t blocks = (visible + PER_BLOCK - 1) / PER_BLOCK, of_row = format == ROW_INDEX_FP4 ? DIM / 2 : DIM;
    const int32_t of_scales = format == ROW_INDEX_FP4 ? DIM / 32 : 4, values = PER_BLOCK * of_row,
                  scales = PER_BLOCK * of_scales;
    const int64_t keys = (int64_t)blocks * MOST_ROWS * PER_BLOCK;
    int32_t numbers[MOST_ROWS], ends[MOST_ROWS], full[MOST_ROWS],
        *table = (int32_t *)malloc((size_t)blocks * MOST_ROWS * 4);
    int32_t *chosen = (int32_t *)malloc((size_t)(pool + 1) * MOST_ROWS * 4);
    for (int32_t i = 0; i < MOST_ROWS; i++) {
        numbers[i] = i, ends[i] = visible - 1, full[i] = pool;
        for (int32_t j = 0; j < pool; j++)
            chosen[i * pool + j] = (int32_t)((int64_t)j * (visible / BLOCK_SIZE) / pool);
    }
    for (int64_t i = 0; i < (int64_t)blocks * MOST_ROWS; i++)
        table[i] = (int32_t)i;
    uint8_t *codes = bytes_of(1 << 20, false), *powers = bytes_of(1 << 20, false);
    for (int i = 0; i < 1 << 20; i++) {
        codes[i] &= 0xBB;
        powers[i] = format == ROW_INDEX_FP4 ? (uint8_t)(124 + (powers[i] & 3)) : i % 4 == 3 ? 0x3E : 0;
    }
    struct step step = {};
    step.positions = (int32_t *)device(ends, sizeof ends), step.batch_id = (int32_t *)device(numbers, sizeof numbers);
    step.block_table = (int32_t *)device(table, (int64_t)blocks * MOST_ROWS * 4), step.block_stride = blocks;
    struct op_index_select op = {};
    op.step = &step, op.heads = heads, op.dim = DIM, op.ratio = 1, op.topk = TOPK, op.mode = SCORE_BF16;
    op.query = plain_rows(MOST_ROWS, heads * DIM), op.query.codes = noise((int64_t)MOST_ROWS * heads * DIM * 2);
    op.weights = (float *)noise((int64_t)MOST_ROWS * heads * 4);
    op.plane.format = format, op.plane.rows_per_block = op.plane.tile_rows = PER_BLOCK;
    op.plane.value_row_stride = of_row, op.plane.value_tile_stride = op.plane.value_block_stride = values;
    op.plane.scale_row_stride = of_scales, op.plane.scale_tile_stride = op.plane.scale_block_stride = scales;
    op.plane.values = (uint8_t *)device(NULL, keys * of_row),
    op.plane.scales = (uint8_t *)device(NULL, keys * of_scales);
    for (int64_t at = 0; at < keys * of_row; at += 1 << 20)
        MUST(gpu->upload(gpu, op.plane.values + at, codes, keys * of_row - at < 1 << 20 ? keys * of_row - at : 1 << 20,
                         err));
    for (int64_t at = 0; at < keys * of_scales; at += 1 << 20)
        MUST(gpu->upload(gpu, op.plane.scales + at, powers,
                         keys * of_scales - at < 1 << 20 ? keys * of_scales - at : 1 << 20, err));
    op.use_candidates = pool > 0, op.block_size = BLOCK_SIZE, op.topk_blocks = pool;
    op.candidates = (int32_t *)device(chosen, (int64_t)(pool + 1) * MOST_ROWS * 4);
    op.candidate_count = (int32_t *)device(full, sizeof full);
    op.selected = (int32_t *)device(NULL, (int64_t)MOST_ROWS * TOPK * 4),
    op.selected_count = (int32_t *)device(NULL, MOST_ROWS * 4);
    for (int32_t rows : counts) {
        op.rows.count = step.rows = rows;
        line(name, rows, (double)rows * (pool ? pool * BLOCK_SIZE : visible) * (of_row + of_scales),
             seconds_of(CALLS, [&](int) { MUST(gpu->index_select(gpu, &op, err)); }));
    }
    gpu->release(gpu, op.plane.values), gpu->release(gpu, op.plane.scales);
    free(table), free(chosen), free(codes), free(powers);
}

/* ---- what stands between two sub-blocks, and the router ---- */

static void bench_between(const char *name, int32_t hidden, int32_t experts, int32_t active)
{
    enum { MOST_ROWS = 4096, STREAMS = 4, OUTPUTS = (2 + STREAMS) * STREAMS, CALLS = 8 };
    static const int32_t counts[] = {1, 8, 64, 256, MOST_ROWS};
    if (!wanted("between", name))
        return;
    const int64_t inputs = (int64_t)STREAMS * hidden;
    uint8_t *fn = bytes_of(OUTPUTS * inputs * 4, false), *codes = bytes_of((int64_t)experts * hidden * 2, false);
    for (int64_t i = 0; i < OUTPUTS * inputs; i++)
        ((float *)(void *)fn)[i] = (float)(int8_t)fn[4 * i] * 1e-4f;
    for (int64_t i = 1; i < (int64_t)experts * hidden * 2; i += 2)
        codes[i] = (uint8_t)(0x3B | (codes[i] & 0x80));
    struct weight_spec mixing = {"bench", WEIGHT_F32, OUTPUTS, (int32_t)inputs, 0, 1, false, fn, NULL},
                       choosing = {"bench", WEIGHT_BF16, experts, hidden, 0, 1, false, codes, NULL};
    struct weight *mixes, *gate;
    MUST(gpu->prepare_weight(gpu, &mixing, &mixes, err));
    MUST(gpu->prepare_weight(gpu, &choosing, &gate, err));
    int32_t *ids = (int32_t *)malloc((size_t)MOST_ROWS * active * 4);
    for (int i = 0; i < MOST_ROWS * active; i++)
        ids[i] = i % active * 7 + (int32_t)(roll() % 7);
    const struct streams x = {ACT_BF16, STREAMS, hidden, noise(MOST_ROWS * inputs * 2)};
    struct activation normed = plain_rows(MOST_ROWS, hidden);
    struct step step = {};
    static float mean[MOST_ROWS * STREAMS * STREAMS]; /* streams stay finite, call after call */
    for (float &c : mean)
        c = 0.2f;
    float *comb = (float *)device(mean, sizeof mean), *post = (float *)noise(MOST_ROWS * STREAMS * 4),
          *pre = (float *)noise(MOST_ROWS * STREAMS * 4), *base = (float *)noise(OUTPUTS * 4);
    struct op_combine sum = {};
    sum.idx = (int32_t *)device(ids, (int64_t)MOST_ROWS * active * 4), sum.active = active, sum.hidden = hidden;
    sum.routed = noise((int64_t)MOST_ROWS * active * hidden * 2), sum.shared = noise((int64_t)MOST_ROWS * hidden * 2);
    sum.out = noise((int64_t)MOST_ROWS * hidden * 2);
    struct op_expand expand = {};
    expand.y = sum.out, expand.post = post, expand.comb = comb, expand.x = x;
    struct op_mhc_mix mix = {};
    mix.x = x, mix.fn = mixes, mix.base = mix.scale = base, mix.norm_eps = mix.hc_eps = 1e-6f, mix.iterations = 20;
    mix.pre = pre, mix.post = post, mix.comb = comb;
    struct op_collapse collapse = {};
    collapse.x = x, collapse.pre = pre, collapse.norm = noise(hidden * 2), collapse.norm_eps = 1e-6f,
    collapse.normed = normed;
    struct op_route route = {};
    route.step = &step, route.x = normed, route.gate = gate, route.experts = experts, route.active = active,
    route.scaling = 1;
    route.idx = (int32_t *)noise((int64_t)MOST_ROWS * active * 4),
    route.weight = (float *)noise((int64_t)MOST_ROWS * active * 4);
    const double row_bytes = (double)inputs * 4 + hidden * 2.0 * (active + 3);
    char route_name[64];
    snprintf(route_name, sizeof route_name, "%s, router", name);
    for (int32_t rows : counts) {
        sum.rows.count = expand.rows.count = mix.rows.count = collapse.rows.count = route.rows.count = rows;
        line(name, rows, rows * row_bytes, seconds_of(CALLS, [&](int) {
                 MUST(gpu->combine(gpu, &sum, err));
                 MUST(gpu->expand(gpu, &expand, err));
                 MUST(gpu->mhc_mix(gpu, &mix, err));
                 MUST(gpu->collapse(gpu, &collapse, err));
             }));
        line(route_name, rows, (double)hidden * 2 * (rows + experts),
             seconds_of(CALLS, [&](int) { MUST(gpu->route(gpu, &route, err)); }));
    }
    gpu->release_weight(gpu, mixes), gpu->release_weight(gpu, gate);
    free(fn), free(codes), free(ids);
}

/* ---- likeliest ids of rows of logits, on the host in the end ---- */

static void bench_lists(const char *name, bool race, bool weigh)
{
    enum { VOCAB = 129280, MOST_ROWS = 256, CALLS = 4 };
    static const int32_t counts[] = {1, 8, 64, MOST_ROWS};
    if (!wanted("lists", name))
        return;
    float *logits = (float *)malloc(sizeof(float) * VOCAB * MOST_ROWS);
    for (int64_t i = 0; i < (int64_t)VOCAB * MOST_ROWS; i++)
        logits[i] = (float)(int32_t)roll() * 2e-9f;
    static struct shortlist_ask asks[MOST_ROWS];
    for (int32_t i = 0; i < MOST_ROWS; i++)
        asks[i] = {i, 0, race, weigh, 0.7, 11, 1000 + i, 0};
    static struct shortlist_part parts[MOST_ROWS * SHORTLIST_PARTS];
    struct op_shortlist op = {};
    op.vocab = VOCAB, op.logits = (float *)device(logits, sizeof(float) * VOCAB * MOST_ROWS);
    op.asks = (struct shortlist_ask *)device(asks, sizeof asks),
    op.out = (struct shortlist_part *)device(parts, sizeof parts);
    for (int32_t rows : counts) {
        op.rows = rows;
        line(name, rows, rows * 4.0 * VOCAB, seconds_of(CALLS, [&](int) {
                 MUST(gpu->shortlist(gpu, &op, err));
                 MUST(gpu->download(gpu, parts, op.out, rows * (int64_t)sizeof *parts * SHORTLIST_PARTS, err));
             }));
    }
    free(logits);
}

int main(int argc, char **argv)
{
    static struct model_plan plan;
    words = argv + 1;
    n_words = argc - 1;
    int64_t bytes;
    MUST(backend_cuda_open(NULL, NULL, &gpu, err));
    plan.config.hidden_size = 32768;
    struct op_limits limits = {&plan, 4096, 64, 1 << 20};
    MUST(gpu->reserve(gpu, &limits, &bytes, err));
    measure_read();
    bench_linear("FP8 wq_b 32768 x 1280", WEIGHT_FP8, 32768, 1280, 1);
    bench_linear("FP8 wo_b 5120 x 8192", WEIGHT_FP8, 5120, 8192, 8);
    bench_linear("FP8 wq_a 1280 x 5120", WEIGHT_FP8, 1280, 5120, 1);
    bench_linear("FP8 131072 x 5120", WEIGHT_FP8, 131072, 5120, 1);
    bench_linear("FP4 131072 x 5120", WEIGHT_FP4, 131072, 5120, 1);
    bench_linear("FP4 131072 x 2304", WEIGHT_FP4, 131072, 2304, 1);
    bench_linear("BF16 head 129280 x 5120", WEIGHT_BF16, 129280, 5120, 1);
    bench_linear("INT8 wq_b 32768 x 1024", WEIGHT_INT8, 32768, 1024, 1);
    bench_linear("INT8 wo_b 4096 x 8192", WEIGHT_INT8, 4096, 8192, 8);
    bench_linear("INT8 131072 x 4096", WEIGHT_INT8, 131072, 4096, 1);
    bench_experts("experts V4.1 384 x 6, 5120, 2304", WEIGHT_FP4, 384, 6, 5120, 2304, 32);
    bench_experts("experts V4 256 x 6, 4096, 2048", WEIGHT_FP4, 256, 6, 4096, 2048, 128);
    bench_experts("INT8 experts V4 256 x 6, 4096, 2048", WEIGHT_INT8, 256, 6, 4096, 2048, 0);
    bench_index("index FP4, 64 heads, 8,192 keys", 64, ROW_INDEX_FP4, 8192, 0);
    bench_index("index FP4, 64 heads, 32,000 keys", 64, ROW_INDEX_FP4, 32000, 0);
    bench_index("index FP4, 64 heads, 250,000 keys", 64, ROW_INDEX_FP4, 250000, 0);
    bench_index("index FP8, 32 heads, 1,000,000 keys", 32, ROW_INDEX_FP8, 1000000, 0);
    bench_index("index FP8, 32 heads, 2,048 blocks of 1,000,000 keys", 32, ROW_INDEX_FP8, 1000000, 2048);
    bench_between("between 4 x 4096, 6 of 256", 4096, 256, 6);
    bench_attend("attend 128", 0, 0);
    bench_attend("attend 128 + 512 chosen", 32768, 512);
    bench_attend("attend 128 + 2048 rows", 2048, 0);
    bench_lists("lists of 129280, greedy", false, false);
    bench_lists("lists of 129280, drawn", true, false);
    bench_lists("lists of 129280, top_p", false, true);
    gpu->close(gpu);
    return 0;
}
