/* settle.h: what a folder's shard headers decide about its config (v4-model.md 2.1 "decide by the dtype in the shard
 * header", speculation.md 1). Reads headers only. */
#ifndef QR_PLAN_SETTLE_H
#define QR_PLAN_SETTLE_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"

/* Completes a V4 config from the tensors present: the format of the routed experts, and the number of DSpark stages
 * (the released config states one and three are stored). V4.1 and INT8 configs are left as they are. Fails with
 * QR_BAD_FILE when mtp.* are those of another drafter than the config's: they share names but are different networks. */
qr_status config_settle(const struct checkpoint *ck, struct qr_config *config, qr_error *err);

/* Opens a model folder: config.json, the shards, and the one settled by the other. On failure nothing is left open. */
qr_status model_folder_open(const char *dir, struct qr_config *config, struct checkpoint **ck, qr_error *err);

#endif
