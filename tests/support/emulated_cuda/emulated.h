/* emulated.h: a device's threads on a processor. The threads of a block are fibers, each with a stack of its own, that
 * run one at a time and give way only where they wait: for their warp, for a barrier, for a copy. The blocks of a grid
 * run one after the other. Which of those that could go on does is the number QUIRE_EMULATED_ORDER's choice (0, the
 * usual: the one that has waited longest), so a missing barrier gives other bits under another number, and the same
 * under the same.
 *
 * Copies that a kernel does not wait for are made as late as it lets them be; under another order than 0 some at once.
 * What can never be met, and what reads behind its shared memory, ends the launch with a sentence of its own. */
#ifndef QR_TESTS_EMULATED_H
#define QR_TESTS_EMULATED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMULATED_WARP = 32,
    EMULATED_SHARED = 256 << 10,
    EMULATED_FIRST = 1024 /* address of the launched shared memory */
};

struct emulated_index {
    unsigned x, y, z;
};
struct emulated_thread {
    struct emulated_index index; /* first */
    int number, lane;
    struct emulated_warp *warp;
    void *at;  /* its stack pointer while it waits */
    int stack; /* -1: it has not begun */
    bool ended;
    uint32_t barrier, parity;        /* of what it waits for in shared memory */
    struct emulated_thread *next;    /* that waits for the same */
    const char *waits;               /* for what, in words */
    uint32_t copied, started, stage; /* of copies.c: copies made and begun, stages closed */
};

/* Who runs, and where: what threadIdx and its like mean. */
extern struct emulated_thread *emulated_now;
extern uint64_t emulated_blocks; /* that have begun so far */
extern struct emulated_index blockIdx;
extern struct emulated_index blockDim, gridDim;

/* A kernel with its arguments. */
struct emulated_launch {
    struct emulated_index grid, block;
    size_t shared;
    const void *kernel;
    void (*run)(struct emulated_launch *launch); /* one thread of it */
    void (*drop)(struct emulated_launch *launch);
};
/* Runs it, or takes it into the graph that its stream is captured into, and drops it. */
cudaError_t emulated_start(struct emulated_launch *launch, cudaStream_t stream);
/* Runs all of it; what went wrong is what cudaGetErrorString says of cudaErrorLaunchFailure. */
cudaError_t emulated_run(struct emulated_launch *launch);

/* Ends the launch: a thread's own sentence. */
__attribute__((noreturn, format(printf, 1, 2))) void emulated_fail(const char *format, ...);
/* A number below n that the order chooses; 0 under order 0. */
uint32_t emulated_choice(uint32_t n);

/* A warp's work together: when all lanes of the mask that have not ended are there, `work` is done once, with what each
 * lane brought (NULL: it has ended), and they go on. Lanes that come with different work never meet. */
typedef void emulated_work(void *brought[EMULATED_WARP]);
void emulated_warp_meet(uint32_t mask, emulated_work *work, void *brought, const char *name);
/* Barrier 0 of all threads that have not ended: threads 0; else of so many. */
void emulated_block_meet(int number, int threads);

/* Shared memory by its address on the device, `bytes` of it. */
uint32_t emulated_address(const void *p);
extern uint8_t emulated_shared[EMULATED_SHARED]; /* the launched one, */
extern uint32_t emulated_launched;               /* so many bytes of it */
__attribute__((noreturn)) void emulated_wrong_address(uint32_t at, uint32_t bytes);
static inline void *emulated_shared_at(uint32_t at, uint32_t bytes)
{
    const uint32_t in = at - EMULATED_FIRST;
    if (__builtin_expect(
            at % (bytes < 16 ? bytes : 16) != 0 || (in < EMULATED_SHARED && in + bytes > emulated_launched), 0))
        emulated_wrong_address(at, bytes);
    return (void *)((uintptr_t)emulated_shared + (uintptr_t)(intptr_t)(int32_t)in);
}

/* Copies in stages, and barriers in shared memory that count arrivals and bytes. */
void emulated_copy(uint32_t to, const void *from, uint32_t bytes);
void emulated_close_stage(void);
void emulated_await_stages(int open);
void emulated_barrier_make(uint32_t at, uint32_t arrivals);
void emulated_barrier_arrive(uint32_t at, uint32_t bytes);
void emulated_barrier_await(uint32_t at, uint32_t parity);
void emulated_bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
/* For copies.c, of threads.c: waits until somebody wakes those that wait for that barrier. */
void emulated_sleep(uint32_t barrier, uint32_t parity);
void emulated_wake(uint32_t barrier);
/* Of copies.c: ends one that a barrier counts, if there is any; forgets them, when a block has ended. */
bool emulated_finish_copy(void);
void emulated_copies_end(void);

/* c += a b with sums in an order that is always the same: a [16][16] and b [8][16] bf16 with f32 sums rounded once;
 * [16][32] and [8][32] INT8; [16][16] and [8][16] binary64, a product after the other, fused. */
void emulated_mma_bf16(float c[16][8], const uint16_t a[16][16], const uint16_t b[8][16]);
void emulated_mma_int8(int32_t c[16][8], const int8_t a[16][32], const int8_t b[8][32]);
void emulated_mma_f64(double c[16][8], const double a[16][16], const double b[8][16]);

#ifdef __cplusplus
}
#endif
#endif
