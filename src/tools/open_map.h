/* open_map.h: the compressed token map of a model folder. */
#ifndef QR_TOOLS_OPEN_MAP_H
#define QR_TOOLS_OPEN_MAP_H

#include "checkpoint/config.h"
#include "text/token_map.h"

/* Computes the map from the folder's tokenizer (v41-model.md 8.2). A folder without a tokenizer whose config counts as many
 * keys as ids is a synthetic one, whose ids are their own numbers; of another one the missing file is named. Leaves `out` as it is where the config has no Engram layers. Free with token_map_free. */
qr_status open_token_map(const char *dir, const struct qr_config *config, const struct qr_log *log, struct token_map *out,
                         qr_error *err);

/* Whether the folder has a tokenizer: 1 or 0; -1 without memory. */
int folder_has_tokenizer(const char *dir);

#endif
