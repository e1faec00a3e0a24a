/* label: full once */
#define _GNU_SOURCE
/* Law 2 for V4 at every prefill length: prefill(N), then decoding, gives the bits of prefill(N + k), for every N
 * in 1..300, on the fast path and on the oracle, in both profiles (v4-model.md 13). */
#include "support/support.h"

#include <stdlib.h>

#include "support/scratch.h"
#include "support/shared_memory.h"
#include "support/v4_law.h"

static void every_length(const char *device, enum qr_profile profile)
{
    enum { LAST = 300 };
    struct rig r;
    int32_t tokens[LAW_TOKENS];
    law_open(&r, scratch, device, profile, 2);
    law_tokens(&r, tokens);
    struct rig_request whole = law_whole(&r, tokens, LAST + 4);
    for (int32_t n = 1; n <= LAST; n++)
        law_decode_equals_prefill(&r, &whole, n, 4);
    rig_request_free(&whole);
    rig_close(&r);
}

static void every_length_of_the_reference_profile_on_the_fast_path(void **state)
{
    (void)state;
    every_length(fast_device(), QR_PROFILE_REFERENCE);
}

static void every_length_of_the_int8_profile_on_the_fast_path(void **state)
{
    (void)state;
    every_length(fast_device(), QR_PROFILE_W8A8);
}

static void every_length_of_the_reference_profile_on_the_oracle(void **state)
{
    (void)state;
    every_length("cpu-reference", QR_PROFILE_REFERENCE);
}

static void every_length_of_the_int8_profile_on_the_oracle(void **state)
{
    (void)state;
    every_length("cpu-reference", QR_PROFILE_W8A8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_of_the_reference_profile_on_the_fast_path),
        cmocka_unit_test(every_length_of_the_int8_profile_on_the_fast_path),
        cmocka_unit_test(every_length_of_the_reference_profile_on_the_oracle),
        cmocka_unit_test(every_length_of_the_int8_profile_on_the_oracle),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
