/* label: full once A09 A11 A12 */
/* Bounded replay against its control (test_bounded.c) for every length of what follows the cached tokens, 0 to 300 (of the
 * larger model every fifth), and for chunks that end anywhere. */
#include "support/bounded.h"
#include "support/support.h"

enum { SUFFIXES = 301 };

static void every_suffix(struct bounded_world w, int32_t hit, int32_t stride)
{
    struct bounded_counts c;
    int32_t suffixes[SUFFIXES], count = 0;
    for (int32_t i = 0; i < SUFFIXES; i += stride)
        suffixes[count++] = i;
    bounded_all(&w, &hit, 1, suffixes, count, &c);
    assert_true(c.hits > 0 && c.drifted > 0);
    if (w.cap > 0)
        assert_true(c.backed_off > 0);
}

static void every_suffix_of_the_golden_model(void **state)
{
    (void)state;
    const char *spec = "tests/golden/v41/spec-13.1/model";
    every_suffix((struct bounded_world){spec, 32, REPLAY_BOUNDED, REPLAY_BOUNDED, 500, 0, false}, 160, 1);
    every_suffix((struct bounded_world){spec, 32, REPLAY_BOUNDED, REPLAY_BOUNDED, 90, 33, false}, 160, 1);
    every_suffix((struct bounded_world){spec, 32, REPLAY_BOUNDED, REPLAY_EXACT, 75, 37, false}, 160, 3);
    every_suffix((struct bounded_world){spec, 32, REPLAY_EXACT, REPLAY_BOUNDED, 300, 0, false}, 160, 3);
}

static void every_suffix_of_the_tiny_model(void **state)
{
    (void)state;
    every_suffix((struct bounded_world){"models/tiny-v41", 64, REPLAY_BOUNDED, REPLAY_BOUNDED, 600, 0, false}, 192, 5);
    every_suffix((struct bounded_world){"models/tiny-v41", 64, REPLAY_BOUNDED, REPLAY_BOUNDED, 200, 67, false}, 192, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_suffix_of_the_golden_model),
        cmocka_unit_test(every_suffix_of_the_tiny_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
