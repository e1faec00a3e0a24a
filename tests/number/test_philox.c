#include "support/support.h"

#include <math.h>

#include "number/philox.h"

static void published_vectors_come_out(void **state)
{
    const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t out[4];
        philox4x32(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void words_of_a_group_are_the_words_of_its_ids(void **state)
{
    const struct keyed_stream s = {.seed = (uint64_t)-5, .position = 1LL << 40, .tag = STREAM_DRAFT};
    uint32_t words[4];
    (void)state;
    for (uint32_t group = 0; group < 32320; group += 1077) {
        stream_words(&s, group, words);
        for (uint32_t k = 0; k < 4; k++)
            assert_int_equal(words[k], stream_word(&s, 4 * group + k));
    }
}

/* The upper half of seed and position and the purpose reach the generator. */
static void every_part_of_the_key_changes_the_word(void **state)
{
    const struct keyed_stream s = {.seed = 7, .position = 9, .tag = STREAM_TARGET};
    struct keyed_stream other;
    (void)state;
    other = s, other.seed |= 1ull << 63;
    assert_int_not_equal(stream_word(&s, 3), stream_word(&other, 3));
    other = s, other.position |= 1ll << 33;
    assert_int_not_equal(stream_word(&s, 3), stream_word(&other, 3));
    other = s, other.tag = STREAM_ACCEPT;
    assert_int_not_equal(stream_word(&s, 3), stream_word(&other, 3));
}

static void uniforms_never_reach_zero_or_one(void **state)
{
    (void)state;
    assert_true(stream_uniform(0) > 0 && stream_uniform(UINT32_MAX) < 1);
    assert_true(isfinite(stream_gumbel(0)) && isfinite(stream_gumbel(UINT32_MAX)));
    assert_true(stream_exponential(UINT32_MAX) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors_come_out),
        cmocka_unit_test(words_of_a_group_are_the_words_of_its_ids),
        cmocka_unit_test(every_part_of_the_key_changes_the_word),
        cmocka_unit_test(uniforms_never_reach_zero_or_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
