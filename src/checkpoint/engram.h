/* engram.h: rows of an n-gram table, read where they lie in the mapping. The table is never copied whole
 * (v41-model.md 8.6). */
#ifndef QR_CHECKPOINT_ENGRAM_H
#define QR_CHECKPOINT_ENGRAM_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"

struct engram_table {
    const char *path; /* of the file, for messages; the checkpoint's */
    const char *scale_name;
    const uint8_t *codes;  /* [rows][width] E4M3 */
    const uint8_t *scales; /* [rows][width / 32] E8M0 */
    int64_t rows;
    int32_t width; /* engram_head_dim */
};

/* Finds layers.L.engram.embed.{weight,scale} of Engram layer `ordinal` and checks their shapes; tells the system that
 * rows will be read at random. The table lives as long as the checkpoint. */
qr_status engram_open(const struct checkpoint *ck, const struct qr_config *config, int32_t ordinal,
                      struct engram_table *out, qr_error *err);

/* Starts reading the pages of `count` rows, so that a gather finds them in memory. Never fails; may do nothing. */
void engram_prefetch(const struct engram_table *t, const int64_t *rows, int64_t count);

/* Gathers `count` rows as bf16: out [count][width] = bf(code * scale), exact. Refuses a row number outside the table
 * (QR_INTERNAL) and a scale byte 255 (QR_NUMERIC), naming tensor and index. */
qr_status engram_gather(const struct engram_table *t, const int64_t *rows, int64_t count, uint16_t *out, qr_error *err);

/* The same as stored: codes [count][width], scales [count][width / 32]. They are Q8 blocks already, except where a
 * block's largest value is below 1e-4 (8.6). */
qr_status engram_gather_codes(const struct engram_table *t, const int64_t *rows, int64_t count, uint8_t *codes,
                              uint8_t *scales, qr_error *err);

#endif
