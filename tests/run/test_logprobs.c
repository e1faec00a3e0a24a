#include "support/support.h"

#include <math.h>

#include "run/logprobs.h"

enum { VOCAB = 50 };

static void fill(float *logits, int turn)
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)((i * 7919 + turn * 104729) % 23) * 0.5f - 4;
}

static void probabilities_sum_to_one(void **state)
{
    float logits[VOCAB];
    struct token_logprob best[VOCAB];
    (void)state;
    for (int turn = 0; turn < 20; turn++) {
        double sum = 0;
        fill(logits, turn);
        assert_int_equal(logprobs_of_row(logits, VOCAB, 0, VOCAB, NULL, best, NULL), QR_OK);
        for (int i = 0; i < VOCAB; i++)
            sum += exp(best[i].logprob);
        assert_true(fabs(sum - 1) < 1e-12);
    }
}

static void the_list_is_ordered_and_agrees_with_each_token_alone(void **state)
{
    float logits[VOCAB];
    (void)state;
    for (int turn = 0; turn < 20; turn++) {
        fill(logits, turn);
        for (int top = 0; top <= VOCAB + 3; top += 7) {
            struct token_logprob best[VOCAB + 3], one;
            assert_int_equal(logprobs_of_row(logits, VOCAB, 0, top, NULL, best, NULL), QR_OK);
            for (int i = 0; i < top && i < VOCAB; i++) {
                assert_int_equal(logprobs_of_row(logits, VOCAB, best[i].id, 0, &one, NULL, NULL), QR_OK);
                assert_int_equal(one.rank, i + 1);
                assert_int_equal(one.id, best[i].id);
                assert_true(one.logprob == best[i].logprob && best[i].rank == i + 1);
            }
        }
    }
}

static void huge_logits_neither_overflow_nor_vanish(void **state)
{
    const float logits[] = {3e38f, 3e38f, -3e38f, -INFINITY};
    struct token_logprob best[4];
    (void)state;
    assert_int_equal(logprobs_of_row(logits, 4, 0, 4, NULL, best, NULL), QR_OK);
    assert_int_equal(best[0].id, 0);
    assert_int_equal(best[1].id, 1);
    assert_true(fabs(best[0].logprob + log(2)) < 1e-12);
    assert_true(isfinite(best[2].logprob));
    assert_true(best[3].logprob == -INFINITY);
}

static void rows_without_a_number_are_errors(void **state)
{
    const float bad[] = {1, NAN}, none[] = {-INFINITY, -INFINITY}, good[] = {1, 2};
    struct token_logprob one;
    (void)state;
    assert_int_equal(logprobs_of_row(bad, 2, 0, 0, &one, NULL, NULL), QR_NUMERIC);
    assert_int_equal(logprobs_of_row(none, 2, 0, 0, &one, NULL, NULL), QR_NUMERIC);
    assert_int_equal(logprobs_of_row(good, 2, 2, 0, &one, NULL, NULL), QR_BAD_ARGUMENT);
    assert_int_equal(logprobs_of_row(good, 2, -1, 0, &one, NULL, NULL), QR_BAD_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probabilities_sum_to_one),
        cmocka_unit_test(the_list_is_ordered_and_agrees_with_each_token_alone),
        cmocka_unit_test(huge_logits_neither_overflow_nor_vanish),
        cmocka_unit_test(rows_without_a_number_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
