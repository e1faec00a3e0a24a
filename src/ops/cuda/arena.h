/* arena.h: device memory that can be given back while its addresses stay: a range of addresses is reserved once, memory
 * stands behind it chunk by chunk. Weights lie in one arena, each pool in one of its own; recorded graphs name addresses
 * only, so they outlive a rest. */
#ifndef QR_OPS_CUDA_ARENA_H
#define QR_OPS_CUDA_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct memory_arena;

/* A range of `most` bytes on device `ordinal`, nothing behind it. QR_UNSUPPORTED where the driver cannot map memory. */
qr_status arena_reserve(int ordinal, int64_t most, struct memory_arena **out, qr_error *err);
/* The device must be idle. NULL is fine. */
void arena_free_all(struct memory_arena *a);

/* `bytes` from the arena's end, rounded up to ARENA_ALIGNMENT; takes memory by whole chunks of ARENA_CHUNK.
 * QR_NO_MEMORY: nothing changed. */
enum { ARENA_CHUNK = 32 << 20, ARENA_ALIGNMENT = 256 };
qr_status arena_take(struct memory_arena *a, int64_t bytes, void **out, qr_error *err);
/* Gives a piece back. The last piece's bytes can be taken again; others wait until every piece is back. */
void arena_give(struct memory_arena *a, void *p, int64_t bytes);

/* Bytes of memory that stand behind it, and that would stand behind it with `bytes` more taken. */
int64_t arena_behind(const struct memory_arena *a);
int64_t arena_behind_with(const struct memory_arena *a, int64_t bytes);
const void *arena_start(const struct memory_arena *a);

/* Gives the memory back, the device being idle, and takes as much again, of any content. QR_NO_MEMORY: it rests on. */
void arena_rest(struct memory_arena *a);
qr_status arena_rise(struct memory_arena *a, qr_error *err);

#endif
