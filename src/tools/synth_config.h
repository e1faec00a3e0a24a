/* synth_config.h: a config.json cut to fewer layers, for `quire synth --layers`. */
#ifndef QR_TOOLS_SYNTH_CONFIG_H
#define QR_TOOLS_SYNTH_CONFIG_H

#include "base/json.h"
#include "checkpoint/config.h"

/* Writes the document `root` (which was read as `config`) into `w` with its first `layers` backbone layers only: every
 * list and layer number follows, draft stages stay, all else is as it was. The result is for config_parse to judge. */
void synth_config_cut(struct json_writer *w, const struct json *root, const struct qr_config *config, int32_t layers);

#endif
