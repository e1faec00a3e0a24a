/* A step runs what its record says and nothing else, so that every rank of a group would run the same (runtime.md 4.11, I7;
 * 15, 8): a record that says other than its request is found by the check of the invariants, whatever it is that differs. */
#include <string.h>

#include "support/engines.h"
#include "support/fake.h"
#include "support/support.h"

static struct fake f;
static int spoiled[3]; /* batches that were looked at, by kind: a middle chunk, a last one, decode rows */

enum kind { MIDDLE, LAST, DECODE };

/* The batch with its first span changed. */
static void spoil(struct fake *world, const struct batch *batch, const struct batch_span *with)
{
    struct batch_span *span = (struct batch_span *)batch->spans; /* the scheduler's own memory */
    const struct batch_span kept = *span;
    qr_error err = {0};
    *span = *with;
    assert_refused(sched_check(world->sched, &err), &err, QR_INTERNAL, "I7");
    *span = kept;
    must(sched_check(world->sched, &err), &err);
}

static enum kind kind_of(const struct batch_span *span) { return !span->rows ? DECODE : span->final ? LAST : MIDDLE; }

static void change_each_part(struct fake *world, const struct batch *batch)
{
    if (batch->count == 0)
        return;
    const struct batch_span span = batch->spans[0];
    struct batch_span other = span;
    spoiled[kind_of(&span)]++;
    other.final = !span.final; /* draws, or not */
    spoil(world, batch, &other);
    other = span;
    other.drafts++; /* verifies */
    spoil(world, batch, &other);
    other = span;
    other.logits_from = span.logits_from > 0 ? span.logits_from - 1 : span.count; /* another head, or none */
    spoil(world, batch, &other);
    other = span;
    other.count++; /* of rows */
    spoil(world, batch, &other);
    other = span;
    other.slot++;
    spoil(world, batch, &other);
    other = span;
    other.rows = NULL; /* every layer, where a chunk leaves some out */
    if (span.rows)
        spoil(world, batch, &other);

    struct batch *whole = (struct batch *)batch;
    qr_error err = {0};
    whole->tentative = !whole->tentative;
    assert_refused(sched_check(world->sched, &err), &err, QR_INTERNAL, "I7");
    whole->tentative = !whole->tentative;
}

static void every_part_of_a_record_follows_from_the_request(void **state)
{
    (void)state;
    for (int32_t width = 0; width < 3; width += 2) {
        fake_open(&f, &(struct fake_options){.config = "tests/golden/v41/spec-13.1/model/config.json",
                                             .draft_width = width,
                                             .accept_percent = 50,
                                             .blocks = 60,
                                             .slots = 2,
                                             .sched = {.max_prefill_rows = -1, .max_rows = 50, .prefix_cache = true}});
        memset(spoiled, 0, sizeof spoiled);
        f.watch = change_each_part;
        fake_prompt(&f, 1, 0, 131, 9);
        fake_prompt(&f, 2, 0, 64, 9);
        fake_run(&f);
        assert_true(spoiled[MIDDLE] > 1 && spoiled[LAST] > 0 && spoiled[DECODE] > 3);
        fake_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_part_of_a_record_follows_from_the_request)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
