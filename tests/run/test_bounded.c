/* label: full A09 A11 A12 */
/* Bounded replay is an approximation, but always the same one: whatever the chunks, the hit and who shares the step, a
 * prompt goes on with the bits of a control that starts where it starts (runtime.md 7.1, 7.3; 13, A09, A11, A12). */
#include "support/bounded.h"
#include "support/support.h"

#define SPEC "tests/golden/v41/spec-13.1/model"
#define TINY "models/tiny-v41"
#define COUNT(list) (int)(sizeof(list) / sizeof *(list))

static void run(struct bounded_world w, const int32_t *hits, int hit_count, const int32_t *suffixes, int suffix_count)
{
    struct bounded_counts c;
    bounded_all(&w, hits, hit_count, suffixes, suffix_count, &c);
    assert_true(c.hits > 0);
    assert_true(c.drifted > 0); /* else nothing was bounded */
    if (w.cap > 0)
        assert_true(c.backed_off > 0);
    if (w.images)
        assert_true(c.restored > 0);
}

/* The window is 8, the decoder layers 5 to 7. */
static const int32_t hits[] = {32, 128}, near[] = {0, 1, 7, 8, 9, 33, 70}, few[] = {1, 8, 33, 35};

static void both_halves_of_the_golden_model(void **state)
{
    (void)state;
    run((struct bounded_world){SPEC, 32, REPLAY_BOUNDED, REPLAY_BOUNDED, 400, 0, false}, hits, 2, near, COUNT(near));
}

static void chunks_that_end_anywhere(void **state)
{
    (void)state;
    run((struct bounded_world){SPEC, 32, REPLAY_BOUNDED, REPLAY_BOUNDED, 90, 33, false}, hits, 2, near, COUNT(near));
}

static void each_half_alone(void **state)
{
    (void)state;
    run((struct bounded_world){SPEC, 32, REPLAY_BOUNDED, REPLAY_EXACT, 400, 0, false}, hits + 1, 1, few, COUNT(few));
    run((struct bounded_world){SPEC, 32, REPLAY_BOUNDED, REPLAY_EXACT, 75, 32, false}, hits + 1, 1, few, COUNT(few));
    run((struct bounded_world){SPEC, 32, REPLAY_EXACT, REPLAY_BOUNDED, 80, 0, false}, hits + 1, 1, few, COUNT(few));
    run((struct bounded_world){SPEC, 32, REPLAY_OFF, REPLAY_BOUNDED, 400, 0, false}, hits + 1, 1, few, COUNT(few));
}

static void images_serve_a_bounded_decoder(void **state)
{
    (void)state;
    run((struct bounded_world){SPEC, 32, REPLAY_BOUNDED, REPLAY_EXACT, 400, 0, true}, hits + 1, 1, few, COUNT(few));
    run((struct bounded_world){SPEC, 32, REPLAY_BOUNDED, REPLAY_OFF, 400, 0, true}, hits + 1, 1, few, COUNT(few));
}

/* The window is 64, the decoder layers 6 to 9. */
static void the_tiny_model(void **state)
{
    (void)state;
    static const int32_t some[] = {128}, lengths[] = {1, 63, 65}, cut[] = {4, 70};
    run((struct bounded_world){TINY, 64, REPLAY_BOUNDED, REPLAY_BOUNDED, 600, 0, false}, some, 1, lengths, COUNT(lengths));
    run((struct bounded_world){TINY, 64, REPLAY_BOUNDED, REPLAY_BOUNDED, 150, 67, false}, some, 1, cut, COUNT(cut));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_halves_of_the_golden_model), cmocka_unit_test(chunks_that_end_anywhere),
        cmocka_unit_test(each_half_alone),                 cmocka_unit_test(images_serve_a_bounded_decoder),
        cmocka_unit_test(the_tiny_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
