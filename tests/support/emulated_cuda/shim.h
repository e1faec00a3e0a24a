/* shim.h: what nvcc's compiler knows of itself, for a compiler of C++ that has the kernels' sources before it: it is
 * included first in each of them. */
#ifndef QR_TESTS_EMULATED_SHIM_H
#define QR_TESTS_EMULATED_SHIM_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emulated.h"

#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __shared__ static /* one block runs at a time */
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#undef __noinline__
#define __noinline__ __attribute__((noinline))

#define threadIdx (emulated_now->index)

/* ---- vectors ---- */

struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(16) double2 { double x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }

/* ---- numbers ---- */

template <typename To, typename From> static inline To emulated_bits(From x)
{
    To y;
    static_assert(sizeof x == sizeof y, "");
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline int __float_as_int(float x) { return emulated_bits<int>(x); }

/* A number beats none. */
static inline float emulated_fmaxf(float a, float b) { return a != a ? b : b != b ? a : a > b ? a : b; }
#define fmaxf emulated_fmaxf

static inline int min(int a, int b) { return a < b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline long min(long a, long b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline long max(long a, long b) { return a > b ? a : b; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which)
{
    const uint64_t all = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned s = which >> 4 * i & 15, byte = (unsigned)(all >> 8 * (s & 7)) & 255;
        out |= (s & 8 ? byte & 128 ? 255u : 0u : byte) << 8 * i;
    }
    return out;
}
static inline unsigned __vcmpeq4(unsigned a, unsigned b)
{
    unsigned out = 0;
    for (int i = 0; i < 32; i += 8)
        out |= ((a ^ b) >> i & 255 ? 0u : 255u) << i;
    return out;
}

/* ---- memory: one thread runs at a time ---- */

template <typename T> static inline T __ldg(const T *p)
{
    if ((uintptr_t)p % alignof(T))
        emulated_fail("loads %zu bytes from %p, which is no multiple", sizeof(T), (const void *)p);
    return *p;
}
template <typename T> static inline T __ldcg(const T *p) { return __ldg(p); }
template <typename T> static inline T __ldcs(const T *p) { return __ldg(p); }
template <typename T> static inline T atomicAdd(T *p, std::common_type_t<T> x)
{
    const T before = *p;
    *p += x;
    return before;
}
static inline unsigned atomicOr(unsigned *p, unsigned x)
{
    const unsigned before = *p;
    *p |= x;
    return before;
}
static inline unsigned atomicInc(unsigned *p, unsigned most)
{
    const unsigned before = *p;
    *p = before >= most ? 0 : before + 1;
    return before;
}
static inline void __threadfence() {}
static inline size_t __cvta_generic_to_shared(const void *p) { return emulated_address(p); }

/* ---- a block, a warp ---- */

static inline void __syncthreads() { emulated_block_meet(0, 0); }
static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { emulated_warp_meet(mask, NULL, NULL, "__syncwarp"); }

/* What a lane brings: its number and whose it wants; for the others, what all come to. */
template <typename T> struct emulated_exchange {
    T own, found;
    int from;
};
template <typename T> static void emulated_exchange_all(void *brought[EMULATED_WARP])
{
    for (int i = 0; i < EMULATED_WARP; i++) {
        auto *to = (emulated_exchange<T> *)brought[i];
        if (!to)
            continue;
        auto *from = (emulated_exchange<T> *)brought[to->from];
        if (!from)
            emulated_fail("exchanges with lane %d, which has ended", to->from);
        to->found = from->own;
    }
}
template <typename T> static inline T emulated_shuffle(unsigned mask, T x, int from)
{
    emulated_exchange<T> e = {x, x, from};
    emulated_warp_meet(mask, emulated_exchange_all<T>, &e, "a shuffle");
    return e.found;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T x, int from)
{
    return emulated_shuffle(mask, x, from & 31);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int by)
{
    return emulated_shuffle(mask, x, (emulated_now->lane ^ by) & 31);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by)
{
    const int lane = emulated_now->lane;
    return emulated_shuffle(mask, x, lane >= (int)by ? lane - (int)by : lane);
}

template <typename T, typename Fold> static inline T emulated_fold(unsigned mask, T x, const char *name)
{
    emulated_exchange<T> e = {x, x, 0};
    emulated_warp_meet(
        mask,
        [](void *brought[EMULATED_WARP]) {
            T all{};
            bool any = false;
            for (int i = 0; i < EMULATED_WARP; i++)
                if (auto *b = (emulated_exchange<T> *)brought[i]) {
                    all = any ? Fold()(all, b->own, i) : Fold().first(b->own, i);
                    any = true;
                }
            for (int i = 0; i < EMULATED_WARP; i++)
                if (auto *b = (emulated_exchange<T> *)brought[i])
                    b->found = all;
        },
        &e, name);
    return e.found;
}
struct emulated_sum {
    unsigned first(unsigned x, int) const { return x; }
    unsigned operator()(unsigned a, unsigned b, int) const { return a + b; }
};
struct emulated_most {
    unsigned first(unsigned x, int) const { return x; }
    unsigned operator()(unsigned a, unsigned b, int) const { return a > b ? a : b; }
};
struct emulated_votes {
    unsigned first(unsigned x, int i) const { return (unsigned)(x != 0) << i; }
    unsigned operator()(unsigned a, unsigned b, int i) const { return a | (unsigned)(b != 0) << i; }
};
static inline unsigned __reduce_add_sync(unsigned mask, unsigned x)
{
    return emulated_fold<unsigned, emulated_sum>(mask, x, "a sum");
}
static inline int __reduce_add_sync(unsigned mask, int x) { return (int)__reduce_add_sync(mask, (unsigned)x); }
static inline unsigned __reduce_max_sync(unsigned mask, unsigned x)
{
    return emulated_fold<unsigned, emulated_most>(mask, x, "a maximum");
}
static inline unsigned __ballot_sync(unsigned mask, int x)
{
    return emulated_fold<unsigned, emulated_votes>(mask, x != 0, "a ballot");
}
static inline int __any_sync(unsigned mask, int x) { return __ballot_sync(mask, x) != 0; }
static inline unsigned __match_any_sync(unsigned mask, int x)
{
    emulated_exchange<unsigned> e = {(unsigned)x, 0, 0};
    emulated_warp_meet(
        mask,
        [](void *brought[EMULATED_WARP]) {
            for (int i = 0; i < EMULATED_WARP; i++)
                for (int j = 0; brought[i] && j < EMULATED_WARP; j++) {
                    auto *a = (emulated_exchange<unsigned> *)brought[i], *b = (emulated_exchange<unsigned> *)brought[j];
                    if (b && a->own == b->own)
                        a->found |= 1u << j;
                }
        },
        &e, "a match");
    return e.found;
}

/* ---- launches ---- */

template <typename... Parameters> struct emulated_call {
    struct emulated_launch launch; /* first */
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
    static void run(struct emulated_launch *l)
    {
        auto *call = (emulated_call *)l;
        std::apply(call->kernel, call->arguments);
    }
    static void drop(struct emulated_launch *l) { delete (emulated_call *)l; }
};

template <typename... Parameters, typename... Arguments>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(Parameters...),
                                             Arguments &&...arguments)
{
    const dim3 &g = c->gridDim, &b = c->blockDim;
    auto *call = new (std::nothrow)
        emulated_call<Parameters...>{{{g.x, g.y, g.z},
                                      {b.x, b.y, b.z},
                                      c->dynamicSmemBytes,
                                      (const void *)kernel,
                                      emulated_call<Parameters...>::run,
                                      emulated_call<Parameters...>::drop},
                                     kernel,
                                     std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)};
    return call ? emulated_start(&call->launch, c->stream) : cudaErrorMemoryAllocation;
}

#endif
