/* ngrams.h: Engram's table rows of a step, fetched before the forward from the final token ids and the cursors'
 * histories (runtime.md 3.7, v41-model.md 8.5, 8.6). Without Engram layers every call does nothing. */
#ifndef QR_RUN_NGRAMS_H
#define QR_RUN_NGRAMS_H

#include "checkpoint/checkpoint.h"
#include "model/workspace.h"
#include "run/cursor.h"
#include "sched/batch.h"
#include "text/token_map.h"

struct ngrams;

/* `map` must outlive the stage; it may be NULL where the plan has no Engram layer. Refuses a map of another vocabulary
 * or whose count of keys is not engram_compressed_vocab_size, with both numbers. */
qr_status ngrams_open(const struct checkpoint *ck, const struct model_plan *plan, const struct token_map *map,
                      int32_t max_rows, struct ngrams **out, qr_error *err);
/* Bytes that it takes to stage so many rows. */
int64_t ngrams_bytes_for(const struct model_plan *plan, int32_t max_rows);
void ngrams_close(struct ngrams *n);

/* Compressed ids of tokens; CURSOR_DEAD for image-span tokens (mask, may be NULL). 0 without Engram. */
void ngrams_compress(const struct ngrams *n, const int32_t *tokens, const uint8_t *mask, int64_t count, int32_t *out);

/* Hashes and gathers the rows of a batch whose request b starts from cursor start[b]. Fails, naming tensor and row,
 * on a scale of 255. Touches host buffers only. */
qr_status ngrams_stage(struct ngrams *n, const struct batch *batch, const struct cursor *start, qr_error *err);
/* Uploads what was staged into workspace.engram. */
qr_status ngrams_upload(struct ngrams *n, struct backend *backend, const struct workspace *ws, qr_error *err);

/* Of the batch staged last: compressed ids [rows]; table rows [tables][rows][columns] (NULL without Engram). */
const int32_t *ngrams_ids(const struct ngrams *n);
const int64_t *ngrams_rows(const struct ngrams *n);

#endif
