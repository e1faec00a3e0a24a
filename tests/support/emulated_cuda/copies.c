#include "emulated.h"

#include <string.h>

/* ---- copies in stages ---- */

enum { MOST_OPEN = 256 };

/* Those that a thread has begun, in a ring. */
static struct {
    const void *from;
    uint32_t to, bytes, stage;
} copies[1024][MOST_OPEN];

static void make_copy(uint32_t to, const void *from, uint32_t bytes)
{
    memcpy(emulated_shared_at(to, bytes), from, bytes);
}

void emulated_copy(uint32_t to, const void *from, uint32_t bytes)
{
    struct emulated_thread *t = emulated_now;
    if ((uintptr_t)from % bytes)
        emulated_fail("copies %u bytes from %p, which is no multiple", bytes, from);
    (void)emulated_shared_at(to, bytes);
    if (emulated_choice(2)) {
        make_copy(to, from, bytes);
        return;
    }
    if (t->started - t->copied == MOST_OPEN)
        emulated_fail("has %d copies under way", MOST_OPEN);
    const uint32_t i = t->started++ % MOST_OPEN;
    copies[t->number][i].from = from;
    copies[t->number][i].to = to;
    copies[t->number][i].bytes = bytes;
    copies[t->number][i].stage = t->stage;
}

void emulated_close_stage(void) { emulated_now->stage++; }

void emulated_await_stages(int open)
{
    struct emulated_thread *t = emulated_now;
    for (; t->copied != t->started; t->copied++) {
        const uint32_t i = t->copied % MOST_OPEN;
        if (copies[t->number][i].stage + (uint32_t)open >= t->stage)
            break;
        make_copy(copies[t->number][i].to, copies[t->number][i].from, copies[t->number][i].bytes);
    }
}

/* ---- barriers in shared memory ---- */

/* In the eight bytes that they take: a phase ends when no arrival and no byte is wanted any more. */
struct barrier {
    uint16_t arrivals, wanted; /* of each phase; of this one */
    int32_t phase_and_bytes;   /* twice the bytes that are still to come, and the phase's parity */
};

static struct {
    const void *from;
    uint32_t to, bytes, barrier;
} bulk[MOST_OPEN];
static uint32_t bulk_count;

static struct barrier *barrier_at(uint32_t at) { return emulated_shared_at(at, sizeof(struct barrier)); }

static void end_phase(struct barrier *b, uint32_t at)
{
    if (b->wanted > 0 || b->phase_and_bytes >> 1 != 0)
        return;
    b->wanted = b->arrivals;
    b->phase_and_bytes ^= 1;
    emulated_wake(at);
}

void emulated_barrier_make(uint32_t at, uint32_t arrivals)
{
    struct barrier *b = barrier_at(at);
    b->arrivals = b->wanted = (uint16_t)arrivals;
    b->phase_and_bytes = 0;
}

void emulated_barrier_arrive(uint32_t at, uint32_t bytes)
{
    struct barrier *b = barrier_at(at);
    if (b->wanted == 0 || b->wanted > b->arrivals)
        emulated_fail(
            "arrives at a barrier in shared memory (address %u) that waits for nobody any more, or was never made", at);
    b->wanted--;
    b->phase_and_bytes += 2 * (int32_t)bytes;
    end_phase(b, at);
}

static void finish_bulk(uint32_t i)
{
    const uint32_t at = bulk[i].barrier, to = bulk[i].to, bytes = bulk[i].bytes;
    const void *from = bulk[i].from;
    bulk[i] = bulk[--bulk_count];
    (void)emulated_shared_at(to + bytes - 16, 16);
    memcpy(emulated_shared_at(to, 16), from, bytes);
    struct barrier *b = barrier_at(at);
    b->phase_and_bytes -= 2 * (int32_t)bytes;
    end_phase(b, at);
}

void emulated_bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    if ((uintptr_t)from % 16 || to % 16 || bytes % 16 || bytes == 0)
        emulated_fail("copies %u bytes from %p to address %u of shared memory at once, wanted multiples of 16", bytes,
                      from, to);
    if (bulk_count == MOST_OPEN)
        emulated_fail("starts a copy while %d are under way", MOST_OPEN);
    bulk[bulk_count].from = from;
    bulk[bulk_count].to = to;
    bulk[bulk_count].bytes = bytes;
    bulk[bulk_count++].barrier = barrier;
    if (emulated_choice(2))
        finish_bulk(bulk_count - 1);
}

/* The copies that it counts are made when somebody begins to wait, or when all do. */
void emulated_barrier_await(uint32_t at, uint32_t parity)
{
    for (;;) {
        for (uint32_t i = bulk_count; i-- > 0;)
            if (bulk[i].barrier == at && i < bulk_count)
                finish_bulk(i);
        if (((uint32_t)barrier_at(at)->phase_and_bytes & 1) != (parity & 1))
            return;
        emulated_sleep(at, parity);
    }
}

bool emulated_finish_copy(void)
{
    if (bulk_count == 0)
        return false;
    finish_bulk(emulated_choice(bulk_count));
    return true;
}

void emulated_copies_end(void) { bulk_count = 0; }
