/* label: release */
/* The fast path of the CPU and the oracle form every sum that is rounded, ranked or kept to the same bits, so that no
 * code, route, selection or logit behind one can part them. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "support/rig.h"

enum { TOKENS = 150 };

static const struct {
    const char *model;
    enum qr_profile profile;
} models[] = {{"tests/golden/v4/tiny/model", QR_PROFILE_REFERENCE},    {"tests/golden/v4/tiny/model", QR_PROFILE_W8A8},
              {"tests/golden/v4/fp8exp/model", QR_PROFILE_REFERENCE},  {"tests/golden/v4/fp8exp/model", QR_PROFILE_W8A8},
              {"tests/golden/v4/wide/model", QR_PROFILE_REFERENCE},    {"tests/golden/v4/wide/model", QR_PROFILE_W8A8},
              {"tests/golden/v41/spec-13.1/model", QR_PROFILE_REFERENCE},
              {"tests/golden/v41/wide/model", QR_PROFILE_REFERENCE},   {"tests/golden/v41/pad/model", QR_PROFILE_REFERENCE}};
enum { MODELS = sizeof models / sizeof *models };

/* A pass of the model on `device`: logits, and all that it left in the pools. */
static struct rig_request pass(struct rig *r, int model, const char *device, const int32_t *tokens)
{
    int64_t bytes;
    rig_open(r, &(struct rig_options){.model = models[model].model, .profile = models[model].profile, .device = device});
    uint8_t *pool = rig_pool(r, &bytes);
    memset(pool, 0, (size_t)bytes);
    struct rig_request q = rig_request(r, tokens, TOKENS, 0, 1, 1);
    rig_run(r, &q, (const int32_t[]){41, 1, 3, 0});
    return q;
}

static void the_fast_path_gives_the_bits_of_the_oracle(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct rig fast, oracle;
        int32_t tokens[TOKENS];
        int64_t bytes, as_many;
        rig_open(&fast, &(struct rig_options){.model = models[m].model, .profile = models[m].profile});
        rig_tokens(&fast, 3 + (uint32_t)m, tokens, TOKENS);
        rig_close(&fast);
        struct rig_request a = pass(&fast, m, "cpu", tokens), b = pass(&oracle, m, "cpu-reference", tokens);
        assert_same_logits(&fast, &a, &b, models[m].model);
        const uint8_t *x = rig_pool(&fast, &bytes), *y = rig_pool(&oracle, &as_many);
        assert_int_equal(bytes, as_many);
        assert_memory_equal(x, y, (size_t)bytes);
        rig_request_free(&a);
        rig_request_free(&b);
        rig_close(&fast);
        rig_close(&oracle);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_fast_path_gives_the_bits_of_the_oracle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
