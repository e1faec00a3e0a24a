/* The order of a pass (runtime.md 4.3 to 4.5; addendum 4.3.6, 4.3.7), at every place where it could be another: who goes
 * before whom, who is put off, who gives way, and in what order a step's copies are made. */
#include <string.h>

#include "support/fake.h"
#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model/config.json"

static struct fake f;

static struct fake_options world(int64_t blocks, int64_t slots)
{
    return (struct fake_options){
        .config = SPEC_V41, .blocks = blocks, .slots = slots, .seed = 11, .sched = {.max_prefill_rows = -1, .max_rows = 64}};
}

/* ---- what the batches were ---- */

enum { MOST_STARTS = 64 };

static struct seen {
    int32_t batches, mixed; /* mixed: prompts' rows beside decode rows */
    int32_t all_kinds;      /* batches with a chunk that goes on, a first chunk and a decode row */
    int32_t row, most_row;  /* batches of prompts alone, one after the other, while somebody could decode */
    int32_t most_prefill;   /* rows of prompts in a step with decode rows */
    uint64_t start[MOST_STARTS]; /* requests in the order of their first chunks; again after a preemption */
    int32_t starts;
} seen;

enum kind { GOES_ON, BEGINS, DECODES };

static enum kind kind_of(const struct batch_span *s)
{
    if (!s->rows)
        return DECODES;
    return s->first_position > s->rows->first ? GOES_ON : BEGINS;
}

static int32_t decoding(const struct fake *world)
{
    int32_t n = 0;
    for (int32_t i = 0; i < world->request_count; i++)
        n += world->requests[i]->r && world->requests[i]->r->state == SCHED_DECODE;
    return n;
}

/* Chunks of prompts in progress, then new prompts, then decode rows. */
static void watch(struct fake *world, const struct batch *batch)
{
    int32_t rows[3] = {0};
    for (int32_t b = 0; b < batch->count; b++) {
        const enum kind kind = kind_of(&batch->spans[b]);
        for (enum kind later = kind + 1; later <= DECODES; later++)
            assert_int_equal(rows[later], 0);
        rows[kind] += batch->spans[b].count;
        if (kind == BEGINS && seen.starts < MOST_STARTS)
            seen.start[seen.starts++] = batch->spans[b].request;
    }
    const int32_t prefill = rows[GOES_ON] + rows[BEGINS];
    seen.batches++;
    seen.mixed += prefill > 0 && rows[DECODES] > 0;
    seen.all_kinds += rows[GOES_ON] > 0 && rows[BEGINS] > 0 && rows[DECODES] > 0;
    if (rows[DECODES] > 0 && prefill > seen.most_prefill)
        seen.most_prefill = prefill;
    seen.row = prefill > 0 && rows[DECODES] == 0 && decoding(world) > 0 ? seen.row + 1 : 0;
    if (seen.row > seen.most_row)
        seen.most_row = seen.row;
}

static void open(struct fake_options options)
{
    memset(&seen, 0, sizeof seen);
    fake_open(&f, &options);
    f.watch = watch;
}

static void ended_well(int32_t number) { assert_int_equal(fake_of(&f, number)->finish, FINISH_STOP); }

static struct sched_request *live(int32_t number)
{
    assert_non_null(fake_of(&f, number)->r);
    return fake_of(&f, number)->r;
}

static int32_t submit(int32_t count, int32_t answer, int32_t priority)
{
    int32_t tokens[512];
    for (int32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)fake_random(&f, 900);
    struct fake_given g = FAKE_GIVEN;
    g.tokens = tokens;
    g.count = count;
    g.answer = answer;
    g.room = 8;
    g.priority = priority;
    return fake_submit(&f, &g);
}

/* The requests began in this order, the first of them as number `from`. */
static void began_in_order(int32_t from, const int32_t *numbers, int32_t count)
{
    assert_in_range(seen.starts, from + count, MOST_STARTS);
    for (int32_t i = 0; i < count; i++)
        assert_int_equal(seen.start[from + i], fake_of(&f, numbers[i])->id);
}

/* ---- one step ---- */

static void chunks_go_before_new_prompts_and_both_before_decode_rows(void **state)
{
    (void)state;
    struct fake_options o = world(60, 4);
    o.sched.long_prefill_cap = 20;
    open(o);
    const int32_t a = submit(30, 40, 0);
    fake_run_to(&f, a, 31);
    const int32_t b = submit(100, 5, 0);
    fake_step(&f);
    const int32_t c = submit(60, 5, 0), d = submit(20, 5, 0);
    fake_run(&f);
    ended_well(a);
    ended_well(b);
    ended_well(c);
    ended_well(d);
    assert_true(seen.all_kinds > 0);
    began_in_order(1, (const int32_t[]){b, c, d}, 3);
    fake_close(&f);
}

/* Whoever can decode does so in every step, however long a prompt is; prompts get what is left, or what they may have. */
static void decode_rows_are_kept_free(void **state)
{
    (void)state;
    for (int32_t most = -1; most < 60; most += 21) {
        struct fake_options o = world(60, 4);
        o.sched.max_prefill_rows = most == 0 ? -1 : most;
        open(o);
        const int32_t a = submit(20, 60, 0), b = submit(20, 60, 0), c = submit(20, 60, 0);
        fake_run_to(&f, c, 21);
        memset(&seen, 0, sizeof seen);
        const int32_t long_one = submit(400, 3, 0);
        fake_run_to(&f, long_one, 390);
        assert_int_equal(seen.mixed, seen.batches);
        assert_int_equal(seen.most_prefill, most <= 0 ? 64 - 3 : most);
        assert_int_equal(seen.most_row, 0);
        fake_run(&f);
        ended_well(a);
        ended_well(b);
        ended_well(c);
        fake_close(&f);
    }
}

/* A prompt ends in the step that has its last row, whoever decodes beside it and with how many drafts: no row of logits is
 * kept for it twice. */
static void a_prompt_ends_beside_requests_that_decode(void **state)
{
    (void)state;
    enum { OTHERS = 7 };
    for (int32_t width = 0; width < 5; width += 4) {
        struct fake_options o = world(100, OTHERS + 1);
        o.draft_width = o.drafts = width;
        open(o);
        int32_t others[OTHERS];
        for (int i = 0; i < OTHERS; i++)
            others[i] = submit(20, 100, 0);
        fake_run_to(&f, others[OTHERS - 1], 22);
        assert_int_equal(decoding(&f), OTHERS);
        const int32_t prompt = submit(20, 4, 0);
        fake_step(&f);
        assert_int_equal(live(prompt)->state, SCHED_DECODE);
        fake_run(&f);
        ended_well(prompt);
        fake_close(&f);
    }
}

/* Addendum 4.3.6. */
static void without_mixing_decode_waits_for_eight_steps_at_most(void **state)
{
    (void)state;
    struct fake_options o = world(60, 3);
    o.sched.max_prefill_rows = 0;
    o.sched.max_rows = 32;
    open(o);
    const int32_t a = submit(20, 12, 0);
    fake_run_to(&f, a, 21);
    seen.row = seen.most_row = 0;
    const int32_t b = submit(500, 3, 0);
    fake_run(&f);
    ended_well(a);
    ended_well(b);
    assert_int_equal(seen.mixed, 0);
    assert_int_equal(seen.most_row, 8);
    fake_close(&f);
}

/* ---- who is admitted ---- */

static void nobody_passes_a_prompt_that_does_not_fit(void **state)
{
    (void)state;
    open(world(12, 4)); /* 11 pages */
    const int32_t a = submit(96, 40, 0);
    fake_run_to(&f, a, 97);
    const int32_t large = submit(300, 2, 0), small = submit(20, 2, 0);
    for (int32_t i = 0; i < 20; i++)
        fake_step(&f);
    assert_int_equal(seen.starts, 1); /* there is room for the small one, whose turn it is not */
    assert_int_equal(live(small)->state, SCHED_WAITING);
    fake_run(&f);
    began_in_order(1, (const int32_t[]){large, small}, 2);
    fake_close(&f);
}

/* 4.3, 4.5: or the newcomer would be the victim of the growth that it left no room for. */
static void a_newcomer_leaves_a_page_for_each_that_runs(void **state)
{
    (void)state;
    open(world(5, 3)); /* 4 pages: two requests of a page, which will have two each */
    const int32_t a = submit(30, 20, 0), b = submit(30, 20, 0), c = submit(30, 20, 0);
    fake_run_to(&f, b, 40);
    assert_int_equal(live(c)->state, SCHED_WAITING);
    fake_run(&f);
    began_in_order(0, (const int32_t[]){a, b, c}, 3);
    assert_int_equal(sched_metrics(f.sched).preemptions, 0);
    fake_close(&f);
}

/* Higher classes first; in a class those that were preempted, the last of them first; then by arrival. */
static void waiting_requests_stand_by_class_preemption_and_arrival(void **state)
{
    (void)state;
    struct fake_options o = world(60, 3);
    o.sched.max_requests = 1;
    open(o);
    const int32_t a = submit(30, 10, 0);
    fake_run_to(&f, a, 33);
    const int32_t b = submit(30, 2, 0), c = submit(30, 2, 1), d = submit(30, 2, 0), e = submit(30, 2, 1), g = submit(30, 2, -1);
    sched_preempt(f.sched, live(a));
    fake_run(&f);
    began_in_order(1, (const int32_t[]){c, e, a, b, d, g}, 6);
    fake_close(&f);

    o.sched.max_requests = 2;
    open(o);
    const int32_t first = submit(30, 10, 0), second = submit(30, 10, 0), third = submit(30, 10, 0);
    fake_run_to(&f, second, 33);
    sched_preempt(f.sched, live(first));
    sched_preempt(f.sched, live(second));
    fake_run(&f);
    began_in_order(2, (const int32_t[]){second, first, third}, 3);
    fake_close(&f);
}

/* sched_add_after: or it would compute what its parent is computing. */
static void a_child_begins_when_its_parent_has_passed_its_prompt(void **state)
{
    (void)state;
    struct fake_options o = world(60, 3);
    o.sched.prefix_cache = true;
    open(o);
    const int32_t parent = submit(200, 20, 0);
    struct fake_given g = FAKE_GIVEN;
    g.tokens = fake_of(&f, parent)->oracle;
    g.count = 200;
    g.answer = 3;
    g.room = 4;
    g.parent = parent;
    const int32_t child = fake_submit(&f, &g), other = submit(20, 3, 0);
    fake_run_to(&f, parent, 150);
    assert_int_equal(live(child)->state, SCHED_HELD);
    fake_run(&f);
    ended_well(child);
    ended_well(other);
    assert_int_equal(fake_of(&f, child)->cached, 192);
    fake_close(&f);
}

/* ---- who gives way ---- */

static void step_to_preemption(int64_t number)
{
    while (sched_metrics(f.sched).preemptions < number)
        assert_true(fake_step(&f));
}

/* The lowest class first, in it the youngest; the oldest of the highest class goes on. */
static void the_lowest_class_gives_way_and_in_it_the_youngest(void **state)
{
    (void)state;
    open(world(7, 3)); /* 6 pages: two for each */
    const int32_t a = submit(30, 90, 0), low = submit(30, 90, -1);
    fake_run_to(&f, low, 30);
    const int32_t young = submit(30, 90, 0);
    step_to_preemption(1);
    assert_int_equal(live(low)->state, SCHED_WAITING);
    assert_true(sched_request_running(live(a)) && sched_request_running(live(young)));
    step_to_preemption(2);
    assert_int_equal(live(young)->state, SCHED_WAITING);
    assert_int_equal(live(a)->state, SCHED_DECODE);
    fake_run(&f);
    ended_well(a);
    ended_well(low);
    ended_well(young);
    assert_int_equal(fake_of(&f, a)->preemptions, 0);
    fake_close(&f);
}

/* 4.4, 4.8: T_end is all that is final by then, and the answer goes on behind it. */
static void a_preempted_answer_is_prompt_when_it_comes_back(void **state)
{
    (void)state;
    open(world(60, 2));
    const int32_t a = submit(50, 40, 0);
    fake_run_to(&f, a, 71);
    const int32_t count = live(a)->count;
    assert_true(count > 60);
    sched_preempt(f.sched, live(a));
    fake_step(&f);
    assert_int_equal(live(a)->end, count);
    fake_run(&f);
    ended_well(a);
    fake_close(&f);
}

/* ---- copies of a step ---- */

static struct copies {
    int32_t of[3];         /* moves, stores, restores */
    int32_t steps_of_both; /* steps with stores and restores */
    int32_t steps_of_all;
} copies;

/* Moves of slots, then stores, then restores (3.10, 5.6): what is stored is stored as it is now, and a slot that a restore
 * fills is nobody else's any more. */
static void watch_copies(struct fake *world, const struct batch *batch)
{
    const int64_t states = world->pool.layout.state_offset;
    int32_t of[3] = {0};
    for (int32_t i = 0; i < batch->copy_count; i++) {
        const bool from = batch->copies[i].from >= states, to = batch->copies[i].to >= states;
        const int32_t kind = from && to ? 0 : from ? 1 : 2;
        assert_true(from || to);
        for (int32_t later = kind + 1; later < 3; later++)
            assert_int_equal(of[later], 0);
        of[kind]++;
    }
    for (int32_t k = 0; k < 3; k++)
        copies.of[k] += of[k];
    copies.steps_of_both += of[1] > 0 && of[2] > 0;
    copies.steps_of_all += of[0] > 0 && of[1] > 0 && of[2] > 0;
}

static void move_anywhere(int32_t number)
{
    for (int32_t slot = 0; slot < f.options.slots && fake_of(&f, number)->r; slot++)
        if (sched_relocate(f.sched, fake_of(&f, number)->r, slot))
            return;
}

static void copies_are_moves_then_stores_then_restores(void **state)
{
    (void)state;
    struct fake_options o = world(100, 4);
    o.sched.prefix_cache = o.sched.images = true;
    memset(&copies, 0, sizeof copies);
    open(o);
    f.watch = watch_copies;
    fake_prompt(&f, 1, 64, 64, 2);
    fake_run(&f); /* its image stands at 64 */
    const int32_t a = fake_prompt(&f, 2, 0, 90, 80);
    for (int32_t i = 0; i < 60; i++) {
        fake_prompt(&f, 1, 64, 70, 1);
        move_anywhere(a);
        fake_step(&f);
    }
    fake_run(&f);
    ended_well(a);
    assert_true(copies.of[0] > 0 && copies.of[1] > 0 && copies.of[2] > 0);
    assert_true(copies.steps_of_both > 0 && copies.steps_of_all > 0);
    fake_close(&f);
}

/* 4.10: the second goes where the first one was. */
static void a_slot_may_move_where_another_has_just_left(void **state)
{
    (void)state;
    open(world(60, 3));
    const int32_t a = submit(40, 60, 0), b = submit(40, 60, 0);
    fake_run_to(&f, b, 50);
    for (int32_t turn = 0; turn < 6; turn++) {
        const int32_t from = live(a)->slot, other = live(b)->slot, free_slot = 3 - from - other;
        assert_true(sched_relocate(f.sched, live(a), free_slot));
        assert_true(sched_relocate(f.sched, live(b), from));
        assert_true(sched_relocate(f.sched, live(a), other)); /* and again before anything was copied */
        assert_false(sched_relocate(f.sched, live(b), other));
        fake_step(&f);
    }
    fake_run(&f);
    ended_well(a);
    ended_well(b);
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_go_before_new_prompts_and_both_before_decode_rows),
        cmocka_unit_test(decode_rows_are_kept_free),
        cmocka_unit_test(a_prompt_ends_beside_requests_that_decode),
        cmocka_unit_test(without_mixing_decode_waits_for_eight_steps_at_most),
        cmocka_unit_test(nobody_passes_a_prompt_that_does_not_fit),
        cmocka_unit_test(a_newcomer_leaves_a_page_for_each_that_runs),
        cmocka_unit_test(waiting_requests_stand_by_class_preemption_and_arrival),
        cmocka_unit_test(a_child_begins_when_its_parent_has_passed_its_prompt),
        cmocka_unit_test(the_lowest_class_gives_way_and_in_it_the_youngest),
        cmocka_unit_test(a_preempted_answer_is_prompt_when_it_comes_back),
        cmocka_unit_test(copies_are_moves_then_stores_then_restores),
        cmocka_unit_test(a_slot_may_move_where_another_has_just_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
