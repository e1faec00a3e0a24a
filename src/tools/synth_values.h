/* synth_values.h: random weights of lively scale: a matrix keeps the size of what it multiplies, norms are near one,
 * codes fill their range. A tensor's values follow from seed and name alone. */
#ifndef QR_TOOLS_SYNTH_VALUES_H
#define QR_TOOLS_SYNTH_VALUES_H

#include "checkpoint/config.h"
#include "checkpoint/tensor_spec.h"

/* Tables of the normal distribution at equal steps of probability: as numbers, as E4M3 codes of standard deviation 64,
 * as bytes of two E2M1 codes of standard deviation 2. */
struct synth_values {
    uint64_t seed;
    float normal[4096];
    uint8_t fp8[256], fp4[256];
};

void synth_values_init(struct synth_values *v, uint64_t seed);

/* How one tensor is filled. */
struct synth_tensor {
    const struct synth_values *values;
    uint64_t stream;
    enum dtype dtype;
    float mean, deviation; /* BF16, F32 */
    uint8_t scale;         /* E8M0: this byte or the one below */
    int32_t row, choices;  /* I64: rows of `row` distinct numbers below `choices` */
};

/* `weight` is the spec whose scale this one is, or NULL. */
void synth_tensor_init(struct synth_tensor *t, const struct synth_values *values, const struct qr_config *config,
                       const struct tensor_spec *spec, const struct tensor_spec *weight);

enum { SYNTH_CHUNK = 1 << 20 };
/* Bytes [at, at + size) of the tensor; both are multiples of SYNTH_CHUNK, but for the end. */
void synth_tensor_fill(const struct synth_tensor *t, uint64_t at, uint64_t size, void *out);

#endif
