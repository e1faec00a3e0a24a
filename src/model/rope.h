/* rope.h: the rotary frequencies of a config. Pure. */
#ifndef QR_MODEL_ROPE_H
#define QR_MODEL_ROPE_H

#include "plan/plan.h"

/* Room for the frequencies of any config that is not refused: rope_head_dim is at most head_dim. */
enum { ROPE_MAX_PAIRS = 1024 };

/* The rope_head_dim / 2 frequencies of one kind of layer (v41-model.md 4.3, v4-model.md 5.1): ROPE_MAIN is 1 /
 * base^(2i/rd) with rope_theta, ROPE_COMPRESS the same with compress_rope_theta and YaRN over it. base^(2i/rd) is the
 * correctly rounded f32 power; every other step is one f32 operation. Fails with QR_BAD_CONFIG beyond ROPE_MAX_PAIRS.
 */
qr_status rope_frequencies(const struct qr_config *config, enum rope kind, float *out, qr_error *err);

#endif
