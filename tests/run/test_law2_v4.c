/* label: full A01 A14 A15 */
#define _GNU_SOURCE
/* Law 2 for V4 (runtime.md 13, v4-model.md 13): decoding, cuts, company, blocks and threads change no bit of the
 * logits, in both profiles and on both paths. Every prefill length is tried in law2_v4_full. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "support/scratch.h"
#include "support/shared_memory.h"
#include "support/v4_law.h"

static const struct {
    const char *device; /* NULL: the fast one */
    enum qr_profile profile;
} ways[] = {{NULL, QR_PROFILE_REFERENCE},
            {NULL, QR_PROFILE_W8A8},
            {"cpu-reference", QR_PROFILE_REFERENCE},
            {"cpu-reference", QR_PROFILE_W8A8}};
enum { WAYS = sizeof ways / sizeof *ways };

static const char *device_of(int way) { return ways[way].device ? ways[way].device : fast_device(); }
static bool is_fast(int way) { return way < 2; }

/* Around every boundary of groups of 4 and of 128, of the window, and of the selection, which bites from position 35
 * on. */
static void decoding_after_a_prefill_of_any_length_gives_the_bits_of_a_longer_prefill(void **state)
{
    (void)state;
    static const int32_t lengths[] = {1, 2, 3, 4, 7, 8, 34, 35, 124, 126, 127, 128, 129, 255, 256, 300};
    for (int way = 0; way < WAYS; way++) {
        struct rig r;
        int32_t tokens[LAW_TOKENS];
        law_open(&r, scratch, device_of(way), ways[way].profile, 1);
        law_tokens(&r, tokens);
        struct rig_request whole = law_whole(&r, tokens, LAW_TOKENS);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            if (!is_fast(way) && i % 3 != 0) /* the oracle is slow */
                continue;
            rig_poison(&r);
            law_decode_equals_prefill(&r, &whole, lengths[i], 4);
        }
        rig_request_free(&whole);
        rig_close(&r);
    }
}

static void any_cut_into_steps_gives_the_bits_of_one_forward(void **state)
{
    (void)state;
    static const int32_t cuts[][6] = {{3, 1, 129, 0}, {1, 0}, {7, 0}, {128, 0}, {5, 2, 64, 31, 1, 0}};
    for (int way = 0; way < WAYS; way++) {
        struct rig r;
        int32_t tokens[LAW_TOKENS];
        law_open(&r, scratch, device_of(way), ways[way].profile, 1);
        law_tokens(&r, tokens);
        struct rig_request whole = law_whole(&r, tokens, LAW_TOKENS);
        for (size_t i = 0; i < (is_fast(way) ? sizeof cuts / sizeof *cuts : 1); i++) {
            struct rig_request q = rig_request(&r, tokens, LAW_TOKENS, (int32_t)i % 3, 31, -5);
            rig_poison(&r);
            rig_run(&r, &q, cuts[i]);
            assert_same_logits(&r, &whole, &q, device_of(way));
            rig_request_free(&q);
        }
        rig_request_free(&whole);
        rig_close(&r);
    }
}

/* However few rows an attention call takes (--attn-prefill-chunk-size), in steps of any size. */
static void attention_in_cuts_gives_the_bits_of_all_rows_at_once(void **state)
{
    (void)state;
    static const int32_t rows[] = {1, 19, 64, 303}, cut[] = {200, 1, 40, 0};
    enum { LENGTH = 260 };
    for (int way = 0; way < WAYS; way++) {
        struct rig r;
        int32_t tokens[LAW_TOKENS];
        const int32_t count = is_fast(way) ? LENGTH : 60;
        law_open(&r, scratch, device_of(way), ways[way].profile, 1);
        law_tokens(&r, tokens);
        struct rig_request whole = law_whole(&r, tokens, count);
        rig_close(&r);
        for (int i = 0; i < 4; i++) {
            law_open_cut(&r, scratch, device_of(way), ways[way].profile, rows[i]);
            struct rig_request q = rig_request(&r, tokens, count, i % 3, 31, -5);
            rig_poison(&r);
            rig_run(&r, &q, cut);
            assert_same_logits(&r, &whole, &q, "cuts");
            rig_request_free(&q);
            rig_close(&r);
        }
        rig_request_free(&whole);
    }
}

/* Three requests of other lengths and paces in the same steps: prefill chunks beside decode rows, blocks interleaved.
 */
static void requests_that_share_steps_get_the_bits_of_being_alone(void **state)
{
    (void)state;
    static const int32_t paces[3][4] = {{17, 1, 1, 65}, {1, 40, 3, 1}, {9, 0, 2, 131}};
    enum { LENGTH = 170 };
    for (int way = 0; way < WAYS; way++) {
        struct rig r;
        int32_t tokens[3][LENGTH];
        struct rig_request alone[3], shared[3], *list[3];
        law_open(&r, scratch, device_of(way), ways[way].profile, 1);
        for (int i = 0; i < 3; i++) {
            rig_tokens(&r, 20 + (uint32_t)i, tokens[i], LENGTH);
            alone[i] = rig_request(&r, tokens[i], LENGTH - 13 * i, 3, 1, 1);
            rig_run(&r, &alone[i], NULL);
        }
        rig_poison(&r);
        for (int i = 0; i < 3; i++) {
            shared[i] = rig_request(&r, tokens[i], LENGTH - 13 * i, i, 10 + i, 3);
            list[i] = &shared[i];
        }
        for (int step = 0, left = 1; left > 0; step++) {
            int32_t counts[3];
            left = 0;
            for (int i = 0; i < 3; i++) {
                int32_t rest = shared[i].count - shared[i].position, pace = paces[i][step % 4];
                counts[i] = pace < rest ? pace : rest;
                left += rest;
            }
            if (counts[0] + counts[1] + counts[2] > 0)
                rig_step(&r, list, counts, 3);
        }
        for (int i = 0; i < 3; i++) {
            assert_same_logits(&r, &alone[i], &shared[i], "company");
            rig_request_free(&alone[i]);
            rig_request_free(&shared[i]);
        }
        rig_close(&r);
    }
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        struct rig one, three;
        int32_t tokens[LAW_TOKENS];
        law_open(&one, scratch, device_of(way), ways[way].profile, 1);
        law_open(&three, scratch, device_of(way), ways[way].profile, 3);
        law_tokens(&one, tokens);
        int32_t count = is_fast(way) ? 200 : 40;
        struct rig_request a = rig_request(&one, tokens, count, 0, 1, 1),
                           b = rig_request(&three, tokens, count, 2, 9, 2);
        rig_run(&one, &a, NULL);
        rig_run(&three, &b, (const int32_t[]){29, 3, 0});
        assert_same_logits(&one, &a, &b, "threads");
        rig_request_free(&a);
        rig_request_free(&b);
        rig_close(&one);
        rig_close(&three);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_after_a_prefill_of_any_length_gives_the_bits_of_a_longer_prefill),
        cmocka_unit_test(any_cut_into_steps_gives_the_bits_of_one_forward),
        cmocka_unit_test(attention_in_cuts_gives_the_bits_of_all_rows_at_once),
        cmocka_unit_test(requests_that_share_steps_get_the_bits_of_being_alone),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
