/* The rotary frequencies against the tables of the specifications. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "model/rope.h"

static uint32_t bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static struct qr_config released(void)
{
    struct qr_config c;
    memset(&c, 0, sizeof c);
    c.rope_head_dim = 64;
    c.rope_theta = 10000;
    c.compress_rope_theta = 160000;
    c.rope_factor = 16;
    c.rope_beta_fast = 32;
    c.rope_beta_slow = 1;
    c.rope_original_positions = 65536;
    return c;
}

static void released_frequencies_have_the_bits_of_the_table(void **state)
{
    (void)state;
    /* v4-model.md 5.1; V4.1's numbers are the same. */
    static const uint32_t main_bits[32] = {
        0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887, 0x3e088d77,
        0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f, 0x3c91ad39, 0x3c5a7bf2,
        0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38, 0x3b1b690d, 0x3ae91528, 0x3aaec98e,
        0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725, 0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472};
    static const uint32_t compress_bits[32] = {
        0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4, 0x3d94e963,
        0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88, 0x3bad3d5e, 0x3b6e4237,
        0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af, 0x39305978, 0x38be904d, 0x383e9b5f,
        0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8, 0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d};
    struct qr_config c = released();
    float f[ROPE_MAX_PAIRS];

    assert_int_equal(rope_frequencies(&c, ROPE_MAIN, f, NULL), QR_OK);
    for (int i = 0; i < 32; i++)
        assert_int_equal(bits(f[i]), main_bits[i]);
    assert_int_equal(rope_frequencies(&c, ROPE_COMPRESS, f, NULL), QR_OK);
    for (int i = 0; i < 32; i++)
        assert_int_equal(bits(f[i]), compress_bits[i]);
}

static void tiny_yarn_equals_the_vector_of_13_3(void **state)
{
    (void)state;
    static const double wanted[8] = {1,       1.397542486e-1, 1.25e-2,  2.795084972e-3,
                                     6.25e-4, 1.397542486e-4, 3.125e-5, 6.987712430e-6};
    struct qr_config c = released();
    c.rope_head_dim = 16;
    c.rope_factor = 4;
    c.rope_original_positions = 64;
    float f[ROPE_MAX_PAIRS];

    assert_int_equal(rope_frequencies(&c, ROPE_COMPRESS, f, NULL), QR_OK);
    for (int i = 0; i < 8; i++)
        assert_true(fabs(f[i] - wanted[i]) <= 1e-6 * wanted[i]);
}

/* 36-rope of golden/ops4: pair 2 of factor 4, original 256. The families write the blend differently. */
static void each_family_blends_in_its_own_order(void **state)
{
    (void)state;
    struct qr_config c = released();
    float f[ROPE_MAX_PAIRS];
    c.rope_factor = 4;
    c.rope_original_positions = 256;
    c.family = QR_FAMILY_V4;
    assert_int_equal(rope_frequencies(&c, ROPE_COMPRESS, f, NULL), QR_OK);
    assert_int_equal(bits(f[2]), 0x3ecdcb1a);
    c.family = QR_FAMILY_V41;
    assert_int_equal(rope_frequencies(&c, ROPE_COMPRESS, f, NULL), QR_OK);
    assert_int_equal(bits(f[2]), 0x3ecdcb1b);
}

static void a_factor_of_one_turns_yarn_off(void **state)
{
    (void)state;
    struct qr_config c = released();
    c.rope_factor = 1;
    c.compress_rope_theta = c.rope_theta;
    float plain[ROPE_MAX_PAIRS], off[ROPE_MAX_PAIRS];
    assert_int_equal(rope_frequencies(&c, ROPE_MAIN, plain, NULL), QR_OK);
    assert_int_equal(rope_frequencies(&c, ROPE_COMPRESS, off, NULL), QR_OK);
    assert_memory_equal(plain, off, 32 * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_frequencies_have_the_bits_of_the_table),
        cmocka_unit_test(tiny_yarn_equals_the_vector_of_13_3),
        cmocka_unit_test(each_family_blends_in_its_own_order),
        cmocka_unit_test(a_factor_of_one_turns_yarn_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
