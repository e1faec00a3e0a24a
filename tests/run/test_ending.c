#include "support/support.h"

#include "run/ending.h"

static const int32_t eos[] = {1, 9}, stops[] = {9, 5};

static struct ending rules(bool ignore_eos, int32_t min, int32_t max)
{
    return (struct ending){.eos = eos,
                           .eos_count = 2,
                           .ignore_eos = ignore_eos,
                           .stop_tokens = stops,
                           .stop_token_count = 2,
                           .min_tokens = min,
                           .max_tokens = max};
}

static void end_and_stop_tokens_end_an_answer(void **state)
{
    struct ending e = rules(false, 0, 100);
    (void)state;
    assert_int_equal(ending_after(&e, 1, 1), ENDED_EOS);
    assert_int_equal(ending_after(&e, 9, 1), ENDED_EOS);
    assert_int_equal(ending_after(&e, 5, 1), ENDED_STOP_TOKEN);
    assert_int_equal(ending_after(&e, 2, 99), ENDED_NOT);
    assert_int_equal(ending_after(&e, 2, 100), ENDED_LENGTH);
    assert_int_equal(ending_after(&e, 1, 100), ENDED_EOS);
}

static void ignored_end_tokens_end_only_as_stop_tokens(void **state)
{
    struct ending e = rules(true, 0, 100);
    (void)state;
    assert_int_equal(ending_after(&e, 1, 1), ENDED_NOT);
    assert_int_equal(ending_after(&e, 9, 1), ENDED_STOP_TOKEN);
    assert_int_equal(ending_after(&e, 1, 100), ENDED_LENGTH);
}

/* A row that bans end tokens draws none, so what ending_after would say of one there is the same as no end. */
static void the_ban_and_the_end_agree_at_every_count(void **state)
{
    (void)state;
    for (int32_t min = 0; min < 5; min++) {
        struct ending e = rules(false, min, 100);
        for (int32_t made = 1; made < 8; made++) {
            assert_int_equal(ending_after(&e, 1, made) == ENDED_NOT, ending_bans_stops(&e, made - 1));
            assert_int_equal(ending_hears_strings(&e, made), made >= min);
        }
    }
}

static void min_equal_to_max_gives_exactly_that_many(void **state)
{
    (void)state;
    for (int32_t n = 1; n < 6; n++) {
        struct ending e = rules(false, n, n);
        for (int32_t made = 1; made < n; made++)
            assert_int_equal(ending_after(&e, 1, made), ENDED_NOT);
        assert_int_equal(ending_after(&e, 1, n), ENDED_LENGTH);
    }
}

static void what_a_step_emits_after_the_end_is_dropped(void **state)
{
    const int32_t tokens[] = {2, 3, 1, 4, 5};
    enum ended ended;
    struct ending e = rules(false, 0, 100), ignoring = rules(true, 0, 100), brief = rules(false, 0, 12);
    (void)state;
    assert_int_equal(ending_cut(&e, tokens, 5, 10, &ended), 3);
    assert_int_equal(ended, ENDED_EOS);
    assert_int_equal(ending_cut(&ignoring, tokens, 5, 10, &ended), 5);
    assert_int_equal(ended, ENDED_STOP_TOKEN);
    assert_int_equal(ending_cut(&ignoring, tokens, 4, 10, &ended), 4);
    assert_int_equal(ended, ENDED_NOT);
    assert_int_equal(ending_cut(&brief, tokens, 5, 10, &ended), 2);
    assert_int_equal(ended, ENDED_LENGTH);
    assert_int_equal(ending_cut(&e, tokens, 0, 10, &ended), 0);
    assert_int_equal(ended, ENDED_NOT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(end_and_stop_tokens_end_an_answer),
        cmocka_unit_test(ignored_end_tokens_end_only_as_stop_tokens),
        cmocka_unit_test(the_ban_and_the_end_agree_at_every_count),
        cmocka_unit_test(min_equal_to_max_gives_exactly_that_many),
        cmocka_unit_test(what_a_step_emits_after_the_end_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
