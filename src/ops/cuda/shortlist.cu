#include "ops/cuda/device.cuh"

/* The ids of a row that a draw needs: ops/shortlist.h. A block takes a part of a row; a thread holds the keys of its ids,
 * and all halve the keys' range until a fitting number of ids is above. */

enum { THREADS = 512, WARPS = THREADS / WARP, HELD = SHORTLIST_PART / THREADS / 4, FEWEST = SHORTLIST_LENGTH / 2 };

/* Bits that order as the float does; 0 is nobody's. */
static __device__ uint32_t ordered(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ float unordered(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

static __device__ void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        const uint32_t even_low = 0xD2511F53u * c[0], even_high = __umulhi(0xD2511F53u, c[0]);
        const uint32_t odd_low = 0xCD9E8D57u * c[2], odd_high = __umulhi(0xCD9E8D57u, c[2]);
        c[0] = odd_high ^ c[1] ^ k0;
        c[2] = even_high ^ c[3] ^ k1;
        c[1] = odd_low;
        c[3] = even_low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* -ln E of E = -ln((2 word + 1) 2^-33); from the other side where the uniform is near 1, whose difference is what counts. */
static __device__ float gumbel(uint32_t word)
{
    const float from_one = (2.0f * (float)~word + 1.0f) * 0x1p-33f, from_zero = (2.0f * (float)word + 1.0f) * 0x1p-33f;
    const float e = word >> 31 ? -log1pf(-from_one) : -logf(from_zero);
    return -logf(e);
}

static __device__ uint32_t sum_of_block(uint32_t x, uint32_t *shared)
{
    x = __reduce_add_sync(ALL_LANES, x);
    if (lane_of() == 0)
        shared[warp_of()] = x;
    __syncthreads();
    x = lane_of() < WARPS ? shared[lane_of()] : 0;
    return __reduce_add_sync(ALL_LANES, x);
}

static __device__ uint32_t most_of_block(uint32_t x, uint32_t *shared)
{
    x = __reduce_max_sync(ALL_LANES, x);
    __syncthreads();
    if (lane_of() == 0)
        shared[warp_of()] = x;
    __syncthreads();
    x = lane_of() < WARPS ? shared[lane_of()] : 0;
    return __reduce_max_sync(ALL_LANES, x);
}

struct part {
    const float *logits, *added; /* of its first id */
    int32_t first, count;
};

/* The four logits of ids 4 i .. of the part. */
static __device__ float4 four_of(const struct part &p, int32_t i)
{
    float4 x = ((const float4 *)p.logits)[i];
    if (p.added) {
        const float4 y = ((const float4 *)p.added)[i];
        x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    }
    return x;
}

static __device__ uint32_t key_of(float l, const struct shortlist_ask &ask, float per_temperature, uint32_t word, bool *wrong)
{
    *wrong |= !(l < INFINITY);
    if (!(l > -INFINITY))
        return 0;
    return ordered(ask.race ? l * per_temperature + gumbel(word) : l + 0.0f);
}

static __device__ uint32_t count_from(const uint32_t (&keys)[4 * HELD], uint32_t least, uint32_t *shared)
{
    uint32_t n = 0;
#pragma unroll
    for (int i = 0; i < 4 * HELD; i++)
        n += keys[i] >= least;
    return sum_of_block(n, shared);
}

/* The least key of a list that fits: of FEWEST ids or more, where equal keys and the part's size let it. */
static __device__ uint32_t least_of(const uint32_t (&keys)[4 * HELD], uint32_t (*shared)[WARPS])
{
    uint32_t least = 0, n = 0;
    for (int bit = 31; bit >= 0; bit--) {
        const uint32_t more = count_from(keys, least | 1u << bit, shared[bit & 1]);
        if (more < FEWEST)
            continue;
        least |= 1u << bit;
        n = more;
        if (n <= SHORTLIST_LENGTH)
            return least;
    }
    if (least == 0)
        return 1; /* fewer than FEWEST have a key at all */
    return n <= SHORTLIST_LENGTH ? least : least + 1;
}

/* Sum of e^((l - largest) / T) over ids that are not left out: by threads, then by warps, ascending. */
static __device__ double mass_of(const struct part &p, const uint32_t *left_out, float largest, double temperature,
                                 double *shared)
{
    double sum = 0;
    for (int32_t i = threadIdx.x; i < p.count / 4; i += THREADS) {
        const float4 x = four_of(p, i);
        const float l[4] = {x.x, x.y, x.z, x.w};
        const int32_t id = p.first + 4 * i;
        const uint32_t out = left_out ? left_out[id >> 5] >> (id & 31) & 15 : 0;
        for (int k = 0; k < 4; k++)
            if (!(out >> k & 1) && l[k] > -INFINITY)
                sum += exp(((double)l[k] - (double)largest) / temperature);
    }
    for (int o = WARP / 2; o > 0; o /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, o);
    if (lane_of() == 0)
        shared[warp_of()] = sum;
    __syncthreads();
    double all = 0;
    for (int w = 0; w < WARPS; w++)
        all += shared[w];
    return all;
}

static __global__ void __launch_bounds__(THREADS) shortlist_kernel(struct op_shortlist op, int32_t size)
{
    __shared__ uint32_t sums[2][WARPS], most[WARPS];
    __shared__ double masses[WARPS];
    __shared__ int32_t listed, broken;
    const int32_t left = op.vocab - (int32_t)blockIdx.y * size;
    const struct shortlist_ask ask = op.asks[blockIdx.x];
    const struct part p = {op.logits + (int64_t)ask.row * op.vocab + (int64_t)blockIdx.y * size,
                           op.added ? op.added + (int64_t)ask.added_row * op.vocab + (int64_t)blockIdx.y * size : NULL,
                           (int32_t)blockIdx.y * size, left < 0 ? 0 : left < size ? left : size};
    struct shortlist_part *out = op.out + (int64_t)blockIdx.x * SHORTLIST_PARTS + blockIdx.y;
    const float per_temperature = ask.race ? (float)(1.0 / ask.temperature) : 0;
    uint32_t keys[4 * HELD], largest = 0;
    bool wrong = false;
    if (threadIdx.x == 0)
        listed = broken = 0;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        const int32_t i = h * THREADS + (int32_t)threadIdx.x, id = p.first + 4 * i;
        if (4 * i >= p.count) {
            keys[4 * h] = keys[4 * h + 1] = keys[4 * h + 2] = keys[4 * h + 3] = 0;
            continue;
        }
        const float4 x = four_of(p, i);
        uint32_t c[4] = {(uint32_t)id >> 2, (uint32_t)ask.position, ask.tag, (uint32_t)((uint64_t)ask.position >> 32)};
        if (ask.race)
            philox(c, (uint32_t)ask.seed, (uint32_t)(ask.seed >> 32));
        const float l[4] = {x.x, x.y, x.z, x.w};
        const uint32_t out_bits = op.left_out ? op.left_out[id >> 5] >> (id & 31) & 15 : 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            keys[4 * h + k] = key_of(l[k], ask, per_temperature, c[k], &wrong);
            if (l[k] > -INFINITY && !(out_bits >> k & 1))
                largest = max(largest, ordered(l[k]));
        }
    }
    __syncthreads();
    if (wrong)
        broken = 1;
    const uint32_t least = least_of(keys, sums);
    uint32_t behind = 0;
#pragma unroll
    for (int i = 0; i < 4 * HELD; i++) {
        if (keys[i] < least) {
            behind = max(behind, keys[i]);
            continue;
        }
        const int32_t at = atomicAdd(&listed, 1), in_part = 4 * ((i / 4) * THREADS + (int32_t)threadIdx.x) + i % 4;
        out->ids[at] = p.first + in_part;
        out->logits[at] = p.logits[in_part] + (p.added ? p.added[in_part] : 0.0f);
        out->keys[at] = unordered(keys[i]);
    }
    behind = most_of_block(behind, most);
    largest = most_of_block(largest, most);
    const float top = largest ? unordered(largest) : -INFINITY;
    const double mass = ask.weigh && largest ? mass_of(p, op.left_out, top, ask.temperature, masses) : 0;
    if (threadIdx.x == 0) {
        out->count = broken ? -1 : listed;
        out->bound = behind ? unordered(behind) : -INFINITY;
        out->largest = top;
        out->mass = mass;
    }
}

qr_status cuda_shortlist(struct backend *b, const struct op_shortlist *op, qr_error *err)
{
    if (!shortlist_takes(op->vocab))
        return qr_fail(err, QR_BAD_ARGUMENT, "shortlist: a vocabulary of %d, wanted a multiple of 4 and at most %d", op->vocab,
                       SHORTLIST_PARTS * SHORTLIST_PART);
    if (op->rows == 0)
        return QR_OK;
    TRY(cuda_enter(cuda_of(b), err));
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3((unsigned)op->rows, SHORTLIST_PARTS);
    launch.blockDim = dim3(THREADS);
    launch.stream = cuda_of(b)->stream;
    return cuda_check(cudaLaunchKernelEx(&launch, shortlist_kernel, *op, shortlist_part_size(op->vocab)), "shortlist", err);
}
