/* op_head.h: the head over vocabulary shards of simulated ranks (v4-model.md 8.5), for the operator and for whole
 * forwards. */
#ifndef QR_TOOLS_OP_HEAD_H
#define QR_TOOLS_OP_HEAD_H

#include "tools/op_adapters.h"

/* Rows whose logits a rank may ask for in one call. */
enum { LOGIT_ROWS = 8 };

struct sharded_head {
    int32_t owners, shards, vocab, hidden;
    const struct weight **shard; /* [shards] */
};

/* Prepares the shards of `weight` (host, bf16 [vocab][hidden]). Refuses worlds of 8.1: bad world. */
qr_status head_open(struct op_run *run, const uint16_t *weight, int32_t vocab, int32_t hidden, int32_t owners, int32_t shards,
                    struct sharded_head *out, qr_error *err);
/* Row k of owner o is row index[o * 8 + k] of its `rows` in `hidden` (backend memory, bf16 [owners * rows][D]); -1 is a row
 * of zeros. logits: host [owners * 8][vocab]; ids: host [owners * 8][8], the lowest id of the largest logit first. Refuses an
 * index out of range; a logit that is no number is a failure of its row. */
qr_status head_run(struct op_run *run, const struct sharded_head *head, const void *hidden, int32_t rows, const int32_t *index,
                   float *logits, int32_t *ids, qr_error *err);

#endif
