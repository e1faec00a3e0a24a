/* v4_law.h: what the law tests of V4 share: the section-13 model (v4-model.md 13), made once, and cases over profiles
 * and paths. */
#ifndef QR_TESTS_V4_LAW_H
#define QR_TESTS_V4_LAW_H

#include "support/rig.h"

enum { LAW_TOKENS = 304 };

/* A rig over the section-13 model; its folder is made by `quire synth` under `scratch` when it is not there yet. */
void law_open(struct rig *r, const char *scratch, const char *device, enum qr_profile profile, int threads);
/* The same, whose attention takes at most so many rows at a time. */
void law_open_cut(struct rig *r, const char *scratch, const char *device, enum qr_profile profile, int32_t attention_rows);
/* The token sequence of all law tests. */
void law_tokens(const struct rig *r, int32_t out[LAW_TOKENS]);
/* The first `count` tokens in one step, in slot 3: what everything is compared with. */
struct rig_request law_whole(struct rig *r, const int32_t *tokens, int32_t count);
/* prefill(n), then `more` tokens one by one, gives the logits of `whole` at those positions. */
void law_decode_equals_prefill(struct rig *r, const struct rig_request *whole, int32_t n, int32_t more);

/* Greedy choice of the logits of one row. */
int32_t law_best(const struct rig *r, const float *logits);

#endif
