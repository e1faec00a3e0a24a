/* op_forward.h: a whole model on the arrays of a file: the layers' flat pools (v4-model.md 7.5), its tiles and its head. */
#ifndef QR_TOOLS_OP_FORWARD_H
#define QR_TOOLS_OP_FORWARD_H

#include "tools/op_head.h"
#include "tools/op_layer.h"

#define FORWARD_NEEDS "num_hidden_layers num_attention_heads head_dim index_head_dim hc_mult hidden_size vocab_size sliding_window"

/* Opens the model that the file's params (a config.json) and weights are, and its caches; `mtp`: with the MTP layer. Layer l
 * has the pages [l N, (l + 1) N) of a pool; each table that is absent is in.block_table. */
qr_status forward_open(struct op_run *run, struct op_composition *c, bool mtp, qr_error *err);
/* Rows [from, from + 128) of every request through every layer and to out.hidden; tokens: host, by row of the arrays. */
qr_status forward_tile(struct op_run *run, struct op_composition *c, int32_t from, const int32_t *tokens, bool *any, qr_error *err);
/* The tile's streams behind the last layer, to rows of a host array. */
qr_status forward_streams(struct op_run *run, struct op_composition *c, void *out, qr_error *err);
/* Logits and greedy tokens of the rows wanted of output `hidden`, as op_head.h; params may say `tp`. */
qr_status forward_head(struct op_run *run, const struct op_composition *c, const char *hidden, const int32_t *index, const char *logits,
                       const char *ids, qr_error *err);

#endif
