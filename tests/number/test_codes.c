/* Every code and every rounding of the small formats, against the definition in double. */
#include <math.h>

#include "number/bf16.h"
#include "number/dtype.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/f16.h"
#include "support/support.h"

/* The value of a sign-exponent-mantissa code by its definition. */
static double minifloat(unsigned code, int exponent_bits, int mantissa_bits, int bias)
{
    unsigned mantissa = code & ((1u << mantissa_bits) - 1);
    unsigned exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
    double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1u << mantissa_bits), (int)exponent - bias - mantissa_bits);
}

/* Nearest of the ascending magnitudes 0 .. last, ties to the even code, saturating. */
static unsigned nearest(const double *values, unsigned last, double x)
{
    unsigned low = 0, high = last;
    if (x >= values[last])
        return last;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        *(values[middle] <= x ? &low : &high) = middle;
    }
    double below = x - values[low], above = values[high] - x;
    if (below == above)
        return low & 1 ? high : low;
    return below < above ? low : high;
}

/* Calls check with every bf16 magnitude and sign, and with the f32 values around each. */
static void each_probe(void (*check)(float x))
{
    for (uint32_t high = 0; high < 0x10000; high++)
        for (uint32_t low = 0; low < 6; low++) {
            static const uint32_t tails[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
            float x = f32_from_bits(high << 16 | tails[low]);
            if (!isnan(x))
                check(x);
        }
}

static double e4m3_magnitudes[127], e2m1_magnitudes[8];

static void check_e4m3(float x)
{
    unsigned want = nearest(e4m3_magnitudes, 126, fabs((double)x)) | (signbit(x) ? 0x80 : 0);
    assert_int_equal(e4m3_encode(x), want);
}

static void every_e4m3_code_has_its_value_and_comes_back(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        if ((c & 0x7F) == 0x7F) {
            assert_true(isnan(e4m3_decode((uint8_t)c)));
            assert_int_equal(e4m3_encode(copysignf(NAN, c & 0x80 ? -1.0f : 1.0f)), c);
            continue;
        }
        double want = minifloat(c, 4, 3, 7);
        assert_true(e4m3_decode((uint8_t)c) == want && !signbit(e4m3_decode((uint8_t)c)) == !signbit(want));
        assert_int_equal(e4m3_encode((float)want), c);
    }
    assert_true(e4m3_decode(0x7E) == 448.0f);
}

static void the_first_e4m3_nan_is_found_wherever_it_stands(void **state)
{
    (void)state;
    static uint8_t codes[1000];
    for (int i = 0; i < 1000; i++)
        codes[i] = (uint8_t)(i % 127 | (i & 1) << 7);
    assert_int_equal(e4m3_first_nan(codes, 0, 1000), -1);
    for (int at = 0; at < 1000; at += at % 256 < 3 || at % 256 > 252 ? 1 : 50) {
        uint8_t held = codes[at];
        codes[at] = at & 1 ? 0xFF : 0x7F;
        assert_int_equal(e4m3_first_nan(codes, 0, 1000), at);
        assert_int_equal(e4m3_first_nan(codes, at, 1000), at);
        assert_int_equal(e4m3_first_nan(codes, at + 1, 1000), -1);
        assert_int_equal(e4m3_first_nan(codes, 0, at), -1);
        codes[at] = held;
    }
}

static void e4m3_rounds_to_nearest_even_and_saturates(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 127; c++)
        e4m3_magnitudes[c] = minifloat(c, 4, 3, 7);
    each_probe(check_e4m3);
    for (unsigned c = 0; c + 1 < 127; c++) { /* every midpoint and its neighbours */
        float middle = (float)((e4m3_magnitudes[c] + e4m3_magnitudes[c + 1]) / 2);
        check_e4m3(middle);
        check_e4m3(-middle);
        check_e4m3(nextafterf(middle, 0));
        check_e4m3(nextafterf(middle, 1000));
    }
}

static void check_e2m1(float x)
{
    unsigned want = nearest(e2m1_magnitudes, 7, fabs((double)x)) | (signbit(x) ? 8 : 0);
    assert_int_equal(e2m1_encode(x), want);
}

static void every_e2m1_code_has_its_value_and_rounding_is_nearest_even(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 16; c++) {
        double want = minifloat(c, 2, 1, 1);
        assert_true(e2m1_decode((uint8_t)c) == want && !signbit(e2m1_decode((uint8_t)c)) == !signbit(want));
        assert_int_equal(e2m1_encode((float)want), c);
        if (c < 8)
            e2m1_magnitudes[c] = want;
    }
    each_probe(check_e2m1);
    for (unsigned c = 0; c + 1 < 8; c++) {
        float middle = (float)((e2m1_magnitudes[c] + e2m1_magnitudes[c + 1]) / 2);
        check_e2m1(middle);
        check_e2m1(nextafterf(middle, 0));
        check_e2m1(nextafterf(middle, 10));
    }
}

static void packed_e2m1_holds_the_even_index_in_the_low_nibble(void **state)
{
    (void)state;
    uint8_t packed[2] = {e2m1_pack(3, 12), e2m1_pack(15, 1)};
    assert_int_equal(packed[0], 0xC3);
    assert_int_equal(e2m1_at(packed, 0), 3);
    assert_int_equal(e2m1_at(packed, 1), 12);
    assert_int_equal(e2m1_at(packed, 2), 15);
    assert_int_equal(e2m1_at(packed, 3), 1);
}

static void every_e8m0_byte_is_its_power_of_two(void **state)
{
    (void)state;
    for (int b = 0; b < 255; b++)
        assert_true(e8m0_decode((uint8_t)b) == ldexp(1, b - 127));
    assert_true(isnan(e8m0_decode(255)));
    assert_true(e8m0_decode(0) > 0);
}

static void scale_exponent_is_the_ceiling_of_log2(void **state)
{
    (void)state;
    for (int k = -126; k < 127; k++) {
        float power = ldexpf(1, k);
        assert_int_equal(exponent_up(power), k);
        assert_int_equal(exponent_up(nextafterf(power, INFINITY)), k + 1);
        assert_int_equal(e8m0_encode_up(power), k + 127);
    }
    assert_int_equal(e8m0_encode_up(INFINITY), 255);
}

static void bf16_rounds_to_nearest_even_and_keeps_nan(void **state)
{
    (void)state;
    for (uint32_t high = 0; high < 0x10000; high++) {
        uint16_t x = (uint16_t)high;
        float value = bf16_decode(x);
        if (isnan(value)) {
            assert_true(isnan(bf16_decode(bf16_encode(value))));
            assert_true(isnan(bf16_decode(bf16_encode(f32_from_bits((high & 0x8000) << 16 | 0x7F800001)))));
            continue;
        }
        assert_int_equal(bf16_encode(value), x);
        if (isinf(value))
            continue;
        uint32_t bits = high << 16; /* towards the next magnitude, which may be infinity */
        assert_int_equal(bf16_encode(f32_from_bits(bits + 0x7FFF)), x);
        assert_int_equal(bf16_encode(f32_from_bits(bits + 0x8000)), x & 1 ? x + 1 : x);
        assert_int_equal(bf16_encode(f32_from_bits(bits + 0x8001)), x + 1);
    }
}

static void every_f16_code_has_its_value(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0x10000; c++) {
        float value = f16_decode((uint16_t)c);
        if ((c & 0x7C00) == 0x7C00) {
            assert_true(c & 0x3FF ? isnan(value) : isinf(value) && (value < 0) == (c >> 15));
            continue;
        }
        double want = minifloat(c, 5, 10, 15);
        assert_true(value == want && !signbit(value) == !signbit(want));
    }
}

static void dtype_names_come_back(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        enum dtype found = DTYPE_COUNT;
        const char *name = dtype_name((enum dtype)i);
        size_t n = 0;
        while (name[n])
            n++;
        assert_true(dtype_parse(name, n, &found));
        assert_int_equal(found, i);
        assert_false(dtype_parse(name, n - 1, &found) && found == (enum dtype)i);
        assert_true(dtype_size((enum dtype)i) > 0);
    }
    enum dtype found;
    assert_false(dtype_parse("F31", 3, &found));
    assert_false(dtype_parse("", 0, &found));
}

/* Every length around the lanes, with the ends at every place. */
static void the_range_of_scales_is_that_of_each_byte(void **state)
{
    (void)state;
    uint8_t bytes[200], least, most;
    e8m0_range(bytes, 0, &least, &most);
    assert_true(least == 255 && most == 0);
    for (int64_t n = 1; n <= 200; n++)
        for (int64_t at = 0; at < n; at++) {
            memset(bytes, 100, sizeof bytes);
            bytes[at] = 3;
            bytes[n - 1 - at] = at == n - 1 - at ? 3 : 254;
            e8m0_range(bytes, n, &least, &most);
            assert_int_equal(least, 3);
            assert_int_equal(most, n == 1 ? 3 : at == n - 1 - at ? 100 : 254);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_e4m3_code_has_its_value_and_comes_back),
        cmocka_unit_test(the_first_e4m3_nan_is_found_wherever_it_stands),
        cmocka_unit_test(e4m3_rounds_to_nearest_even_and_saturates),
        cmocka_unit_test(every_e2m1_code_has_its_value_and_rounding_is_nearest_even),
        cmocka_unit_test(packed_e2m1_holds_the_even_index_in_the_low_nibble),
        cmocka_unit_test(every_e8m0_byte_is_its_power_of_two),
        cmocka_unit_test(scale_exponent_is_the_ceiling_of_log2),
        cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(every_f16_code_has_its_value),
        cmocka_unit_test(dtype_names_come_back),
        cmocka_unit_test(the_range_of_scales_is_that_of_each_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
