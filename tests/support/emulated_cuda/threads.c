#define _GNU_SOURCE
#include "emulated.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- stacks, and how a processor goes from one to another ---- */

/* Stacks are no multiple of a page apart: they would want the same lines of a cache. The number at the end of one says
 * that it was long enough. */
enum { MOST_THREADS = 1024, STACK_BYTES = (48 << 10) + 17 * 64, NAMED = 16 };
#define STACK_END 0x5AFE57ACC0FFEE00u

#if defined(__x86_64__)

/* Keeps what a call keeps on the stack; *from: the stack pointer then. */
void emulated_switch(void **from, void *to);
__asm__(".text\n.hidden emulated_switch\n.globl emulated_switch\n.type emulated_switch, @function\nemulated_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size emulated_switch, .-emulated_switch\n");

/* A stack that begins with a call of `run`. */
static void *stack_begin(uint8_t *end, void (*run)(void))
{
    void **at = (void **)(void *)end;
    *--at = NULL; /* where run would return to: it never does */
    *--at = (void *)(uintptr_t)run;
    return at - 6;
}

#else
#include <ucontext.h>

/* Slower: it asks the system for the signals that are let through. */
static void emulated_switch(void **from, void *to)
{
    ucontext_t here;
    *from = &here;
    swapcontext(&here, to);
}

static void *stack_begin(uint8_t *end, void (*run)(void))
{
    ucontext_t *c = (ucontext_t *)(void *)(end - (sizeof(ucontext_t) + 63) / 64 * 64);
    uint8_t *bottom = end - STACK_BYTES / 2;
    getcontext(c);
    c->uc_stack.ss_sp = bottom;
    c->uc_stack.ss_size = (size_t)((uint8_t *)c - bottom);
    c->uc_link = NULL;
    makecontext(c, run, 0);
    return c;
}
#endif

/* ---- a block ---- */

struct emulated_warp {
    uint32_t alive, arrived, mask;
    emulated_work *work;
    const char *name;
    void *brought[EMULATED_WARP];
};

struct meeting {
    int arrived, wanted;
    struct emulated_thread *first;
};

struct emulated_thread *emulated_now;
uint64_t emulated_blocks;
struct emulated_index blockIdx, blockDim, gridDim;

static struct {
    struct emulated_launch *launch;
    struct emulated_thread threads[MOST_THREADS];
    struct emulated_warp warps[MOST_THREADS / EMULATED_WARP];
    struct meeting meeting[NAMED];
    struct emulated_thread *sleeping; /* on barriers in shared memory */
    int count, alive;
    struct emulated_thread *ready[MOST_THREADS]; /* a ring */
    unsigned first, behind;
    int stacks[MOST_THREADS], spare; /* stacks that nobody has */
    void *outside, *nobody;
    bool failed;
    uint64_t order, dice;
} block;

static uint8_t *stacks;
static char failure[1024];
uint32_t emulated_launched;
uint8_t emulated_shared[EMULATED_SHARED] __attribute__((aligned(1024)));

/* For runtime.c. */
const char *emulated_failure(void);
const char *emulated_failure(void) { return failure; }

uint32_t emulated_choice(uint32_t n)
{
    if (block.order == 0 || n < 2)
        return 0;
    block.dice ^= block.dice << 13;
    block.dice ^= block.dice >> 7;
    block.dice ^= block.dice << 17;
    return (uint32_t)((block.dice >> 32) * n >> 32);
}

void emulated_fail(const char *format, ...)
{
    va_list list;
    char what[512];
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    snprintf(failure, sizeof failure, "launch failed: thread %d of block (%u, %u, %u) %s", emulated_now->number,
             blockIdx.x, blockIdx.y, blockIdx.z, what);
    block.failed = true;
    emulated_switch(&block.nobody, block.outside);
    abort();
}

static void make_ready(struct emulated_thread *t)
{
    t->waits = NULL;
    block.ready[block.behind++ % MOST_THREADS] = t;
}

/* All wait: says for what, by how many. */
static void fail_stuck(void)
{
    char what[256] = "";
    size_t used = 0;
    int left = 0, shown = 0;
    for (int i = 0; i < block.count; i++) {
        const struct emulated_thread *t = &block.threads[i];
        bool known = t->ended;
        for (int j = 0; !known && j < i; j++)
            known = !block.threads[j].ended && strcmp(block.threads[j].waits, t->waits) == 0;
        left += !t->ended;
        if (known || shown == 3)
            continue;
        int same = 0;
        for (int j = i; j < block.count; j++)
            same += !block.threads[j].ended && strcmp(block.threads[j].waits, t->waits) == 0;
        used += (size_t)snprintf(what + used, sizeof what - used, "%s%d at %s (thread %d first)", shown++ ? ", " : "",
                                 same, t->waits, i);
        if (used >= sizeof what)
            break;
    }
    snprintf(failure, sizeof failure, "launch failed: block (%u, %u, %u): %d of %d threads wait for ever: %s",
             blockIdx.x, blockIdx.y, blockIdx.z, left, block.count, what);
    block.failed = true;
}

static void run_thread(void);

/* Who goes on now; NULL: nobody can. */
static struct emulated_thread *take_ready(void)
{
    while (block.behind == block.first && emulated_finish_copy()) /* nobody else can see to it that copies end */
        ;
    const unsigned n = block.behind - block.first;
    if (n == 0)
        return NULL;
    struct emulated_thread **here = &block.ready[block.first % MOST_THREADS];
    struct emulated_thread **there = &block.ready[(block.first + emulated_choice(n)) % MOST_THREADS], *taken = *there;
    *there = *here;
    block.first++;
    return taken;
}

/* Goes on as another thread, keeping where this one stood in *from. */
static void go_on(void **from, struct emulated_thread *to)
{
    if (!to) {
        if (block.alive > 0)
            fail_stuck();
        emulated_switch(from, block.outside);
        return;
    }
    emulated_now = to;
    if (to->stack < 0) {
        to->stack = block.stacks[--block.spare];
        to->at = stack_begin(stacks + (size_t)(to->stack + 1) * STACK_BYTES, run_thread);
    }
    emulated_switch(from, to->at);
}

static void wait_here(const char *why)
{
    struct emulated_thread *self = emulated_now;
    self->waits = why;
    struct emulated_thread *next = take_ready();
    if (next != self)
        go_on(&self->at, next);
}

static void meet_all(struct meeting *m);
static void warp_goes_on(struct emulated_warp *w);

/* Threads one after the other, as long as those that come have not begun: they need no stack of their own. */
static void run_thread(void)
{
    for (;;) {
        struct emulated_thread *self = emulated_now;
        block.launch->run(block.launch);
        self->ended = true;
        block.alive--;
        struct emulated_warp *w = self->warp;
        w->alive &= ~(1u << self->lane);
        if (w->arrived && w->arrived == (w->mask & w->alive))
            warp_goes_on(w);
        if (block.meeting[0].first && block.meeting[0].arrived == block.alive)
            meet_all(&block.meeting[0]);
        struct emulated_thread *next = take_ready();
        if (!next || next->stack >= 0) {
            block.stacks[block.spare++] = self->stack;
            go_on(&block.nobody, next);
        }
        next->stack = self->stack;
        emulated_now = next;
    }
}

/* ---- meeting ---- */

static void warp_goes_on(struct emulated_warp *w)
{
    const uint32_t there = w->arrived;
    struct emulated_thread *first = &block.threads[(int)(w - block.warps) * EMULATED_WARP];
    for (int i = 0; i < EMULATED_WARP; i++)
        if (!(there >> i & 1))
            w->brought[i] = NULL;
    w->arrived = 0;
    if (w->work)
        w->work(w->brought);
    for (int i = 0; i < EMULATED_WARP; i++)
        if (there >> i & 1 && &first[i] != emulated_now)
            make_ready(&first[i]);
}

void emulated_warp_meet(uint32_t mask, emulated_work *work, void *brought, const char *name)
{
    struct emulated_thread *self = emulated_now;
    struct emulated_warp *w = self->warp;
    if (!(mask >> self->lane & 1))
        emulated_fail("is no lane of the mask 0x%08x of its %s", mask, name);
    if (w->arrived && (w->work != work || w->mask != mask))
        emulated_fail("comes to %s (mask 0x%08x) while lanes of its warp wait in %s (mask 0x%08x)", name, mask, w->name,
                      w->mask);
    w->work = work;
    w->name = name;
    w->mask = mask;
    w->brought[self->lane] = brought;
    w->arrived |= 1u << self->lane;
    if (w->arrived == (mask & w->alive))
        warp_goes_on(w);
    else
        wait_here(name);
}

static void meet_all(struct meeting *m)
{
    for (struct emulated_thread *t = m->first, *next; t; t = next) {
        next = t->next;
        make_ready(t);
    }
    *m = (struct meeting){.first = NULL};
}

void emulated_block_meet(int number, int threads)
{
    static const char *const name[NAMED] = {"__syncthreads", "barrier 1",  "barrier 2",  "barrier 3",
                                            "barrier 4",     "barrier 5",  "barrier 6",  "barrier 7",
                                            "barrier 8",     "barrier 9",  "barrier 10", "barrier 11",
                                            "barrier 12",    "barrier 13", "barrier 14", "barrier 15"};
    struct emulated_thread *self = emulated_now;
    struct meeting *m = &block.meeting[number];
    if (m->first && m->wanted != threads)
        emulated_fail("comes to %s as one of %d threads, others as of %d", name[number], threads, m->wanted);
    m->wanted = threads;
    if (++m->arrived == (threads ? threads : block.alive)) {
        meet_all(m);
        return;
    }
    self->next = m->first; /* the order in which they go on is that in which they came, turned round */
    m->first = self;
    wait_here(name[number]);
}

void emulated_sleep(uint32_t barrier, uint32_t parity)
{
    struct emulated_thread *self = emulated_now;
    self->barrier = barrier;
    self->parity = parity;
    self->next = block.sleeping;
    block.sleeping = self;
    wait_here("a barrier in shared memory");
}

void emulated_wake(uint32_t barrier)
{
    struct emulated_thread **at = &block.sleeping;
    while (*at) {
        struct emulated_thread *t = *at;
        if (t->barrier == barrier) {
            *at = t->next;
            make_ready(t);
        } else {
            at = &t->next;
        }
    }
}

/* ---- shared memory ---- */

uint32_t emulated_address(const void *p)
{
    return (uint32_t)((uintptr_t)p - (uintptr_t)emulated_shared + EMULATED_FIRST);
}

void emulated_wrong_address(uint32_t at, uint32_t bytes)
{
    if (at % (bytes < 16 ? bytes : 16))
        emulated_fail("takes %u bytes at address %u of shared memory, which is no multiple", bytes, at);
    emulated_fail("takes %u bytes at %u of the %zu bytes of launched shared memory", bytes, at - EMULATED_FIRST,
                  block.launch->shared);
}

/* ---- a grid ---- */

static uint64_t *stack_last(int i) { return (uint64_t *)(void *)(stacks + (size_t)i * STACK_BYTES); }

static void prepare(void)
{
    const char *order = getenv("QUIRE_EMULATED_ORDER");
    block.order = order ? strtoull(order, NULL, 10) : 0;
    block.dice = block.order * 0x9E3779B97F4A7C15u | 1;
    stacks = mmap(NULL, (size_t)MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        abort();
#ifdef MADV_HUGEPAGE
    (void)madvise(stacks, (size_t)MOST_THREADS * STACK_BYTES, MADV_HUGEPAGE);
#endif
    for (int i = 0; i < MOST_THREADS; i++)
        *stack_last(i) = STACK_END;
}

static bool run_block(struct emulated_launch *l)
{
    const struct emulated_index n = l->block;
    emulated_blocks++;
    block.count = block.alive = (int)(n.x * n.y * n.z);
    block.first = block.behind = 0;
    block.spare = 0;
    block.sleeping = NULL;
    memset(block.meeting, 0, sizeof block.meeting);
    memset(emulated_shared, 0xFF, l->shared); /* what nobody has written is no number */
    for (int i = MOST_THREADS; i-- > 0;)
        block.stacks[block.spare++] = i;
    for (int i = 0; i < (block.count + EMULATED_WARP - 1) / EMULATED_WARP; i++) {
        const int lanes = block.count - i * EMULATED_WARP;
        block.warps[i].alive = lanes < EMULATED_WARP ? (1u << lanes) - 1 : 0xFFFFFFFFu;
        block.warps[i].arrived = 0;
    }
    for (int i = 0; i < block.count; i++) {
        struct emulated_thread *t = &block.threads[i];
        const unsigned u = (unsigned)i;
        t->index = (struct emulated_index){u % n.x, u / n.x % n.y, u / n.x / n.y};
        t->number = i;
        t->lane = i % EMULATED_WARP;
        t->warp = &block.warps[i / EMULATED_WARP];
        t->stack = -1;
        t->ended = false;
        t->copied = t->started = t->stage = 0;
        make_ready(t);
    }
    go_on(&block.outside, take_ready());
    emulated_copies_end();
    return !block.failed;
}

cudaError_t emulated_run(struct emulated_launch *l)
{
    if (!stacks)
        prepare();
    block.launch = l;
    emulated_launched = (uint32_t)l->shared;
    block.failed = false;
    blockDim = l->block;
    gridDim = l->grid;
    for (blockIdx.z = 0; blockIdx.z < l->grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < l->grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < l->grid.x; blockIdx.x++)
                if (!run_block(l))
                    return cudaErrorLaunchFailure;
    for (int i = 0; i < block.count; i++)
        if (*stack_last(i) != STACK_END)
            abort();
    return cudaSuccess;
}
