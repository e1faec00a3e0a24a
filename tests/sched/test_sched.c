/* Who runs what, in which step (runtime.md 4), against an executor that checks every row it is asked to read. */
#include "support/fake.h"
#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model/config.json"

static void one_request_gives_its_tokens(void **state)
{
    (void)state;
    struct fake f;
    fake_open(&f, &(struct fake_options){.config = SPEC_V41, .blocks = 40, .slots = 2});
    const int32_t a = fake_prompt(&f, 1, 0, 96, 4);
    fake_run(&f);
    assert_int_equal(fake_of(&f, a)->finish, FINISH_STOP);
    assert_int_equal(fake_of(&f, a)->cached, 0);
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_gives_its_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
