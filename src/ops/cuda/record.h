/* record.h: operators are not started when they are called but written down; what stands between two moments at which
 * the host looks (an upload, a download, a fence) is a list. A list that was met before is replayed as one graph; the
 * bits are those of the operators started one by one: some are started together, in kernels that compute the same, and those
 * that need not wait for each other (order.h) run side by side.
 *
 * The capture rules of runtime.md 8, as they hold here. A list is recorded from its operators' arguments, none of which
 * is run meanwhile: no synthetic request, no page named, nothing to clear afterwards (1 to 3); positions, tables and bounds
 * are read from device memory at replay. It was started one by one before, so every kernel is loaded and every table
 * there: recording allocates no device memory, synchronizes nothing, loads and unloads no module (4). A graph owns no memory
 * that another graph could have; all read and write the buffers of the one step in hand (5). */
#ifndef QR_OPS_CUDA_RECORD_H
#define QR_OPS_CUDA_RECORD_H

#include "ops/cuda/cuda.h"

struct recorder;

qr_status record_open(struct recorder **out, qr_error *err);
void record_close(struct recorder *r); /* NULL is fine */

/* Starts everything that is written down, in order. On failure the rest is dropped. */
qr_status record_flush(struct cuda_backend *cuda, qr_error *err);
/* Starts what is written down and forgets every graph; lists that follow run so. */
void record_run_as(struct cuda_backend *cuda, const struct run_mode *mode);
/* Lists recorded, replayed and started one by one so far. */
void record_count(const struct recorder *r, struct backend_counts *out);
/* Device memory that all graphs kept at once may take. */
int64_t record_graph_bytes(void);
/* Forgets every graph: something they name is about to go. */
void record_forget(struct cuda_backend *cuda);

/* The operators of a backend that writes them down. */
void record_install(struct backend *b);
/* A copy on the device. */
qr_status record_copy(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err);

#endif
