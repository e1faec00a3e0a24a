/* memory.h: the CPU backend's memory is the host's; operators are finished when they return, so nothing waits. */
#ifndef QR_OPS_CPU_MEMORY_H
#define QR_OPS_CPU_MEMORY_H

#include "ops/cpu/cpu.h"

/* Fill the memory entries of a table. */
void cpu_memory_install(struct backend *b);

/* What `bytes` of scratch take of a thread: whole cache lines. */
int64_t cpu_scratch_piece(int64_t bytes);
/* Makes (or remakes) the scratch of every thread. */
qr_status cpu_scratch_make(struct cpu_backend *cpu, int64_t bytes_per_thread, int64_t *bytes, qr_error *err);

#endif
