/* label: full once */
/* The laws of ratio and block verification over the steps of an answer, with a million answers of each language (T3, T5). */
#include "support/chains.h"
#include "support/support.h"

enum { ROUNDS = 1000000 };
static struct drawn drawn[2];

static void a_million_answers_have_the_law_of_the_target(void **state)
{
    (void)state;
    static const struct {
        int32_t vocab, drafts, tokens;
    } sizes[] = {{8, 1, 2}, {8, 3, 3}, {32, 2, 2}, {8, 5, 2}};
    for (int kind = 0; kind < CHAIN_KINDS; kind++) {
        const int turn = kind % (int)(sizeof sizes / sizeof *sizes);
        const struct chain c = chain_of(kind, sizes[turn].vocab, 900 + (uint64_t)kind);
        for (int i = 0; i < 2; i++) {
            const struct drawing how = {
                .verifier = i ? VERIFIER_BLOCK : VERIFIER_RATIO, .drafts = sizes[turn].drafts, .tokens = sizes[turn].tokens};
            chain_draw(&c, &how, ROUNDS, &drawn[i]);
            if (!chain_follows(&c, &how, ROUNDS, &drawn[i]))
                fail_msg("%s: %s does not follow the target", c.name, i ? "block" : "ratio");
        }
        assert_no_fewer(c.name, &drawn[1], &drawn[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_answers_have_the_law_of_the_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
