#include "model/rope.h"

#include <math.h>

/* YaRN's d(n): the (fractional) pair whose wave turns n times within the original context. */
static double pair_of_turns(const struct qr_config *c, double turns)
{
    const double pi = 3.14159265358979323846;
    return c->rope_head_dim * log(c->rope_original_positions / (turns * 2.0 * pi)) /
           (2.0 * log(c->compress_rope_theta));
}

/* Slow pairs are interpolated (divided by the factor), fast ones kept, those between lo and hi blended. */
static void yarn(const struct qr_config *c, int32_t pairs, float *f)
{
    double low = fmax(floor(pair_of_turns(c, c->rope_beta_fast)), 0.0);
    double high = fmin(ceil(pair_of_turns(c, c->rope_beta_slow)), c->rope_head_dim - 1.0);
    float lo = (float)low, width = (float)fmax(high - low, 0.001), factor = (float)c->rope_factor;

    for (int32_t i = 0; i < pairs; i++) {
        float ramp = ((float)i - lo) / width;
        ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
        float keep = 1.0f - ramp;
        float divide = c->family == QR_FAMILY_V4 ? 1.0f - keep : ramp; /* V4's text takes it back from `keep`: an ulp */
        f[i] = f[i] / factor * divide + f[i] * keep;
    }
}

qr_status rope_frequencies(const struct qr_config *config, enum rope kind, float *out, qr_error *err)
{
    int32_t pairs = config->rope_head_dim / 2;
    if (pairs > ROPE_MAX_PAIRS)
        return qr_fail(err, QR_BAD_CONFIG, "rotary width %d is more than the %d channels supported",
                       config->rope_head_dim, 2 * ROPE_MAX_PAIRS);

    double base = kind == ROPE_MAIN ? config->rope_theta : config->compress_rope_theta;
    for (int32_t i = 0; i < pairs; i++)
        out[i] = 1.0f / (float)pow(base, (double)(2 * i) / config->rope_head_dim);
    if (kind == ROPE_COMPRESS && config->rope_factor > 1.0)
        yarn(config, pairs, out);
    return QR_OK;
}
