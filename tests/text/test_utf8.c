#include "support/support.h"

#include <string.h>

#include "base/utf8.h"
#include "text/byte_map.h"
#include "text/utf8.h"

static void every_scalar_value_reads_back(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        uint8_t bytes[4];
        uint32_t back;
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        size_t length = utf8_encode(cp, bytes);
        if (utf8_decode(bytes, length, &back) != length || back != cp ||
            utf8_valid_prefix((char *)bytes, length) != length)
            fail_msg("U+%04X reads back as U+%04X", cp, back);
    }
}

static void check_sanitized(const char *bytes, size_t n, const char *want)
{
    struct buffer out = {0};
    assert_true(utf8_sanitize((const uint8_t *)bytes, n, &out));
    assert_int_equal(out.length, strlen(want));
    assert_memory_equal(out.data ? out.data : "", want, out.length);
    buffer_free(&out);
}

#define R "\xEF\xBF\xBD"

static void one_replacement_stands_for_each_maximal_bad_part(void **state)
{
    (void)state;
    check_sanitized("", 0, "");
    check_sanitized("ab\x80", 3, "ab" R);
    check_sanitized("\xC0\xAF", 2, R R); /* overlong */
    check_sanitized("\xE2\x82", 2, R);   /* cut */
    check_sanitized("\xE2\x82z", 3, R "z");
    check_sanitized("\xF0\x9F\x98", 3, R);
    check_sanitized("\xF0\x9F\x98\xE2\x82\xAC", 6, R "\xE2\x82\xAC");
    check_sanitized("\xED\xA0\x80", 3, R R R);       /* a surrogate */
    check_sanitized("\xE0\x80\x80", 3, R R R);       /* overlong */
    check_sanitized("\xF4\x90\x80\x80", 4, R R R R); /* beyond 10FFFF */
    check_sanitized("\xF5\xFF", 2, R R);
    check_sanitized("a" R "b", 5, "a" R "b");
}

/* Feeding bytes to utf8_step and cutting them with utf8_decode are two routes to the same text. */
static void steps_agree_with_whole_decoding(void **state)
{
    static const uint8_t some[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2,
                                   0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    enum { N = sizeof some };
    (void)state;
    for (size_t i = 0; i < (size_t)N * N * N * N; i++) {
        uint8_t bytes[4] = {some[i % N], some[i / N % N], some[i / N / N % N], some[i / N / N / N]}, held[3];
        size_t n = 0, at = 0;
        uint32_t cp;
        for (size_t k = 0; k < 4; k++) {
            enum utf8_state s = utf8_step(held, n, bytes[k]);
            if (s == UTF8_BAD && n) {
                assert_int_equal(utf8_decode(bytes + at, 4 - at, &cp), n);
                assert_int_equal(cp, UTF8_REPLACEMENT);
                at += n;
                n = 0;
                s = utf8_step(held, 0, bytes[k]);
            }
            if (s == UTF8_PARTIAL) {
                held[n++] = bytes[k];
                continue;
            }
            size_t length = s == UTF8_BAD ? 1 : n + 1;
            assert_int_equal(utf8_decode(bytes + at, 4 - at, &cp), length);
            assert_int_equal(cp == UTF8_REPLACEMENT, s == UTF8_BAD);
            at += length;
            n = 0;
        }
        assert_int_equal(at + n, 4);
    }
}

static void the_byte_alphabet_is_a_bijection(void **state)
{
    int mapped = 0;
    (void)state;
    for (int byte = 0; byte < 256; byte++)
        assert_int_equal(byte_map_byte(byte_map_character((uint8_t)byte)), byte);
    for (uint32_t cp = 0; cp < 0x110000; cp++)
        mapped += byte_map_byte(cp) >= 0;
    assert_int_equal(mapped, 256);
    assert_int_equal(byte_map_character(' '), 0x120);
    assert_int_equal(byte_map_character('\n'), 0x10A);
    assert_int_equal(byte_map_character(0xAD), 0x143);
    assert_int_equal(byte_map_character('!'), '!');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_value_reads_back),
        cmocka_unit_test(one_replacement_stands_for_each_maximal_bad_part),
        cmocka_unit_test(steps_agree_with_whole_decoding),
        cmocka_unit_test(the_byte_alphabet_is_a_bijection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
