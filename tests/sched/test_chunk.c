/* label: A11 A12 */
/* Where chunks start and end under bounded replay (runtime.md 4.4, 4.6; 13, A11, A12): every small case. */
#include "sched/chunk.h"
#include "support/support.h"

enum { BLOCK = 32, TAIL = 24 };

static int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }

static void told(const struct chunk_rule *r, const struct chunk *c, const char *what)
{
    fail_msg("P %d, T_end %d, %d rows, cap %d, %d below, %s: chunk %d to %d %s", r->from, r->end, r->rows, r->cap, r->below,
             r->only ? "alone" : "beside others", c->first, c->end, what);
}

static void holds(const struct chunk_rule *r)
{
    const struct chunk c = chunk_of(r);
    const bool last = c.end == r->end;
    if (c.end < r->from || c.end > r->end)
        told(r, &c, "lies outside");
    if (c.end == r->from) { /* it waits */
        if (r->only && r->rows > 2 * BLOCK)
            told(r, &c, "waits with a whole step before it");
        return;
    }
    if (c.end - c.first > r->rows)
        told(r, &c, "is longer than its step");
    if (r->cap > 0 && c.end - r->from > r->cap)
        told(r, &c, "passes the cap");
    if (last && c.first > 0 && c.end - c.first < TAIL)
        told(r, &c, "ends the prompt without its tail");
    if (c.first == r->from - r->below)
        return;
    /* it backs off: only a last chunk, only when it must, one whole block below P and on the grid */
    if (!last || r->below > 0 || r->end - r->from >= TAIL || c.first != max(0, (r->from - BLOCK) / BLOCK * BLOCK))
        told(r, &c, "backs off");
}

static void every_small_chunk_keeps_the_rules(void **state)
{
    (void)state;
    for (int32_t end = 1; end < 260; end++)
        for (int32_t from = 0; from < end; from += 1 + end % 3)
            for (int32_t rows = 1; rows < 300; rows += rows < 70 ? 3 : 41)
                for (int32_t only = 0; only < 2; only++) {
                    struct chunk_rule r = {.from = from, .end = end, .tail = TAIL, .rows = rows, .block = BLOCK, .cut = -1,
                                           .first_logits = end - 1, .logits = 1, .only = only};
                    holds(&r);
                    r.cap = 40;
                    holds(&r);
                    r.cap = 0;
                    r.below = from > 0 && from % BLOCK == 0 ? BLOCK : 0; /* right after a bounded hit at P */
                    holds(&r);
                }
}

/* 4.4 rule 2: a forward that would end at P does not go out. */
static void a_step_too_small_to_pass_p_is_waited_for(void **state)
{
    (void)state;
    struct chunk_rule r = {.from = 96, .end = 130, .below = BLOCK, .tail = TAIL, .rows = BLOCK, .block = BLOCK, .cut = -1,
                           .first_logits = 129, .logits = 1, .only = true};
    assert_int_equal(chunk_of(&r).end, 96);
    r.rows = BLOCK + 5;
    assert_int_equal(chunk_of(&r).first, 64);
    assert_int_equal(chunk_of(&r).end, 101);
}

/* 4.4 rule 5: cheaper than the back-off. */
static void a_chunk_leaves_the_last_one_its_tail(void **state)
{
    (void)state;
    struct chunk_rule r = {.from = 0, .end = 300, .tail = TAIL, .rows = 290, .block = BLOCK, .cut = -1, .first_logits = 299,
                           .logits = 1, .only = true};
    assert_int_equal(chunk_of(&r).end, 256); /* the grid's */
    r.end = 270;
    r.rows = 260;
    assert_int_equal(chunk_of(&r).end, 192);
    r.from = 200; /* there is no such point: it will back off */
    r.rows = 64;
    assert_int_equal(chunk_of(&r).end, 256);
    r.from = 256;
    r.rows = 200;
    assert_int_equal(chunk_of(&r).first, 224);
    assert_int_equal(chunk_of(&r).end, 270);
    r.tail = 0; /* exact */
    assert_int_equal(chunk_of(&r).first, 256);
}

/* A back-off longer than the step: some more rows first, which need none. */
static void a_back_off_that_does_not_fit_comes_nearer_to_the_end(void **state)
{
    (void)state;
    struct chunk_rule r = {.from = 255, .end = 278, .tail = TAIL, .rows = 66, .block = BLOCK, .cut = -1, .first_logits = 277,
                           .logits = 1, .only = true};
    int32_t chunks = 0;
    for (; r.from < r.end; chunks++) {
        const struct chunk c = chunk_of(&r);
        assert_true(c.end > r.from);
        assert_true(c.end < r.end || c.end - c.first >= TAIL);
        r.from = c.end;
    }
    assert_in_range(chunks, 2, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_chunk_keeps_the_rules),
        cmocka_unit_test(a_step_too_small_to_pass_p_is_waited_for),
        cmocka_unit_test(a_chunk_leaves_the_last_one_its_tail),
        cmocka_unit_test(a_back_off_that_does_not_fit_comes_nearer_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
