/* label: A03 A04 A07 A25 */
/* Failures that other engines had (runtime.md 15), each played here where the scheduler and the cache could repeat it. The
 * executor looks for the right row wherever a model would read one, and for the right cursor before every span. */
#include "support/fake.h"
#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model/config.json"
#define TINY_V4 "tests/golden/v4/tiny/model/config.json"

static struct fake f;

static struct fake_options world(int64_t blocks, int64_t slots)
{
    return (struct fake_options){
        .config = SPEC_V41,
        .blocks = blocks,
        .slots = slots,
        .seed = 3,
        .sched = {.max_prefill_rows = -1, .prefix_cache = true, .images = true, .image_interval = 64}};
}

static void open(struct fake_options options) { fake_open(&f, &options); }

static void ended_well(int32_t number)
{
    assert_int_equal(fake_of(&f, number)->finish, FINISH_STOP);
}

/* 1, 24: the slot of a hit was another request's; its ring is rebuilt or restored over the whole window. */
static void a_hit_in_a_used_slot_reads_no_row_of_the_tenant_before(void **state)
{
    (void)state;
    for (int images = 0; images < 2; images++) {
        struct fake_options o = world(60, 1);
        o.sched.images = images;
        open(o);
        fake_prompt(&f, 1, 200, 200, 4);
        fake_run(&f);
        fake_prompt(&f, 2, 0, 150, 40); /* the only slot is full of its rows */
        fake_run(&f);
        const int32_t hit = fake_prompt(&f, 1, 160, 230, 60); /* decodes over several windows */
        fake_run(&f);
        ended_well(hit);
        assert_int_equal(fake_of(&f, hit)->cached, 160);
        fake_close(&f);
    }
}

/* 2: how a prompt is cut into chunks is not seen: the executor reads what a whole forward would read. */
static void a_prompt_in_chunks_reads_what_a_whole_one_reads(void **state)
{
    (void)state;
    for (int32_t rows = 7; rows < 140; rows += 33) {
        struct fake_options o = world(60, 2);
        o.sched.max_rows = rows;
        open(o);
        const int32_t a = fake_prompt(&f, 1, 0, 131, 9), b = fake_prompt(&f, 2, 0, 64, 9);
        fake_run(&f);
        ended_well(a);
        ended_well(b);
        fake_close(&f);
    }
}

/* 4: with steps ahead a preempted request has results on the way that nobody may append. */
static void a_preempted_request_keeps_only_final_tokens(void **state)
{
    (void)state;
    struct fake_options o = world(60, 3);
    o.sched.depth = 2;
    open(o);
    const int32_t a = fake_prompt(&f, 1, 0, 100, 30);
    for (int32_t rows = 32; rows < 130; rows += 7) {
        fake_run_to(&f, a, rows);
        if (fake_of(&f, a)->r)
            sched_preempt(f.sched, fake_of(&f, a)->r);
    }
    fake_run(&f);
    ended_well(a);
    assert_true(fake_of(&f, a)->preemptions > 3);
    fake_close(&f);
}

/* 5, 7, 26, 27: a prompt of many cached tokens and a few new ones is one short chunk; the hit is not silently nothing, and a
 * block is enough for one. */
static void a_large_hit_with_few_new_tokens_is_one_chunk(void **state)
{
    (void)state;
    open(world(100, 2));
    fake_prompt(&f, 1, 964, 964, 1);
    fake_run(&f);
    const int32_t large = fake_prompt(&f, 1, 960, 964, 5);
    fake_run(&f);
    ended_well(large);
    assert_int_equal(fake_of(&f, large)->cached, 960);
    fake_prompt(&f, 2, 33, 33, 1);
    fake_run(&f);
    const int32_t small = fake_prompt(&f, 2, 32, 40, 5);
    fake_run(&f);
    ended_well(small);
    assert_int_equal(fake_of(&f, small)->cached, 32);
    fake_close(&f);
}

/* 27: a writer and a reader that disagree are found before the first request; nothing is left behind. */
static void a_hit_is_proved_before_the_first_request(void **state)
{
    (void)state;
    for (int32_t depth = 0; depth < 2; depth++) {
        struct fake_options o = world(4, 1);
        o.sched.depth = depth;
        open(o);
        const int64_t unused = blocks_unused(sched_blocks(f.sched));
        qr_error err = {0};
        if (sched_prove_hit(f.sched, &err) != QR_OK)
            fail_msg("%s", err.message);
        assert_int_equal(blocks_unused(sched_blocks(f.sched)), unused);
        assert_int_equal(blocks_counters(sched_blocks(f.sched))->matched, 1);
        const int32_t a = fake_prompt(&f, 1, 40, 40, 2);
        fake_run(&f);
        ended_well(a);
        assert_int_equal(fake_of(&f, a)->cached, 0);
        fake_close(&f);
    }
}

/* 6: partial prefills and decoding requests change places every step. */
static void the_order_of_running_requests_is_no_part_of_them(void **state)
{
    (void)state;
    struct fake_options o = world(80, 5);
    o.sched.max_rows = 40;
    o.sched.long_prefill_cap = 32;
    open(o);
    int32_t numbers[5];
    for (int32_t i = 0; i < 5; i++)
        numbers[i] = fake_prompt(&f, i, 0, 50 + 40 * i, 20);
    while (fake_step(&f))
        sched_reverse(f.sched);
    for (int32_t i = 0; i < 5; i++)
        ended_well(numbers[i]);
    fake_close(&f);
}

/* 19, 29: cancelled in every state, step after step: no token comes after it, everything comes back (fake_close looks). */
static void a_cancel_in_any_step_ends_without_a_token(void **state)
{
    (void)state;
    for (int32_t depth = 0; depth < 3; depth++)
        for (int32_t after = 0; after < 24; after++) {
            struct fake_options o = world(60, 2);
            o.sched.depth = depth;
            o.sched.max_rows = 40;
            open(o);
            fake_prompt(&f, 1, 96, 96, 3);
            fake_run(&f);
            const int32_t a = fake_prompt(&f, 1, 96, 140, 10), b = fake_prompt(&f, 2, 0, 90, 10);
            const int32_t waits = fake_prompt(&f, 1, 64, 70, 10);
            for (int32_t i = 0; i < after; i++)
                fake_step(&f);
            fake_cancel(&f, a);
            fake_cancel(&f, waits);
            fake_run(&f);
            ended_well(b);
            fake_close(&f);
        }
}

static int32_t most_running;

static void note_running(struct fake *fake, const struct batch *batch)
{
    (void)batch;
    const int32_t running = (int32_t)sched_metrics(fake->sched).running;
    most_running = running > most_running ? running : most_running;
}

/* 21, 30: more requests than slots, in a pool that is too small for all: never two on a slot (I3), never more than slots. */
static void requests_beyond_the_slots_wait(void **state)
{
    (void)state;
    open(world(22, 3));
    f.watch = note_running;
    most_running = 0;
    int32_t numbers[12];
    for (int32_t i = 0; i < 12; i++)
        numbers[i] = fake_prompt(&f, i, 0, 60 + 17 * i, 60);
    fake_run(&f);
    for (int32_t i = 0; i < 12; i++)
        ended_well(numbers[i]);
    assert_int_equal(most_running, 3);
    assert_true(sched_metrics(f.sched).preemptions > 0);
    fake_close(&f);
}

/* 25: a request that wants the logits of its prompt is given all of them, whatever is cached. */
static void wanted_rows_are_run_though_their_pages_are_cached(void **state)
{
    (void)state;
    open(world(60, 2));
    int32_t tokens[200];
    for (int32_t i = 0; i < 200; i++)
        tokens[i] = i * 7 % 50;
    struct fake_given g = FAKE_GIVEN;
    g.tokens = tokens;
    g.count = 200;
    g.answer = 3;
    g.room = 4;
    fake_submit(&f, &g);
    fake_run(&f);
    for (int32_t from = 0; from < 200; from += 45) {
        g.first_logits = from;
        const int32_t all = fake_submit(&f, &g);
        fake_run(&f); /* looks that every row was delivered */
        ended_well(all);
        assert_int_equal(fake_of(&f, all)->cached, from / 32 * 32);
    }
    fake_close(&f);
}

static void move_somewhere(int32_t number)
{
    int32_t slot = 0;
    while (slot < f.options.slots && !sched_relocate(f.sched, fake_of(&f, number)->r, slot))
        slot++;
    assert_true(slot < f.options.slots);
}

static int32_t verify_spans;

/* That the drafts of a span are those of its request the executor sees itself. */
static void count_verify_spans(struct fake *fake, const struct batch *batch)
{
    (void)fake;
    for (int32_t b = 0; b < batch->count; b++)
        verify_spans += batch->spans[b].drafts > 0;
}

/* 6: drafts were an array of the running requests, and one that was put back at the head shifted them. Known failure 6. */
static void drafts_stay_with_their_request_when_others_come_and_go(void **state)
{
    (void)state;
    struct fake_options o = world(80, 5);
    o.draft_width = o.drafts = 4;
    o.accept_percent = 60;
    o.sched.max_rows = 48; /* prompts wait for room beside the verify rows */
    open(o);
    f.watch = count_verify_spans;
    verify_spans = 0;
    int32_t number[5];
    for (int i = 0; i < 5; i++)
        number[i] = fake_prompt(&f, i, 0, 40 + 30 * i, 60);
    for (int turn = 0; turn < 60 && fake_step(&f); turn++) {
        const int32_t n = number[turn % 5];
        if (turn % 4 == 3)
            sched_reverse(f.sched);
        if (turn % 7 == 5 && fake_of(&f, n)->r)
            sched_preempt(f.sched, fake_of(&f, n)->r);
    }
    fake_run(&f);
    for (int i = 0; i < 5; i++)
        ended_well(number[i]);
    assert_true(verify_spans > 60);
    fake_close(&f);
}

/* 31: a moved slot and a state to be stored wait through passes that make no batch, and through a preemption. */
static void maintenance_outlives_idle_passes(void **state)
{
    (void)state;
    open(world(60, 3));
    const int32_t a = fake_prompt(&f, 1, 0, 64, 40);
    fake_run_to(&f, a, 70);
    move_somewhere(a);
    sched_preempt(f.sched, fake_of(&f, a)->r);
    fake_run(&f);
    ended_well(a);
    const int32_t b = fake_prompt(&f, 2, 0, 64, 40);
    fake_run_to(&f, b, 70);
    move_somewhere(b);
    fake_run(&f);
    ended_well(b);
    fake_close(&f);
}

/* 36: the last token of an answer was drawn and never forwarded: the cache does not have its row. */
static void the_last_token_of_an_answer_is_no_cached_row(void **state)
{
    (void)state;
    open(world(60, 2));
    const int32_t a = fake_prompt(&f, 1, 120, 120, 8); /* 128 tokens, 127 rows */
    fake_run(&f);
    struct fake_given g = FAKE_GIVEN;
    g.tokens = fake_of(&f, a)->oracle;
    g.count = 128;
    g.answer = 30;
    g.room = 4;
    const int32_t next = fake_submit(&f, &g);
    fake_run(&f);
    ended_well(next);
    assert_int_equal(fake_of(&f, next)->cached, 96);
    fake_close(&f);
}

/* 23, 37: images are stored and restored in V4 too, whose state has tails; the cursor comes with them. */
static void an_image_brings_back_the_whole_state(void **state)
{
    (void)state;
    struct fake_options o = world(60, 2);
    o.config = TINY_V4;
    o.block = 128;
    o.sched.image_interval = 128;
    o.sched.encoder_replay = o.sched.decoder_replay = REPLAY_OFF;
    open(o);
    fake_prompt(&f, 1, 300, 300, 1);
    fake_run(&f);
    fake_prompt(&f, 2, 0, 300, 20);
    fake_run(&f);
    const int32_t a = fake_prompt(&f, 1, 256, 400, 20), b = fake_prompt(&f, 1, 256, 257, 20);
    fake_run(&f);
    ended_well(a);
    ended_well(b);
    assert_true(fake_of(&f, a)->cached == 256 && fake_of(&f, b)->cached == 256);
    assert_true(sched_metrics(f.sched).restores >= 2); /* one image, two requests */
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_in_a_used_slot_reads_no_row_of_the_tenant_before),
        cmocka_unit_test(a_prompt_in_chunks_reads_what_a_whole_one_reads),
        cmocka_unit_test(a_preempted_request_keeps_only_final_tokens),
        cmocka_unit_test(a_large_hit_with_few_new_tokens_is_one_chunk),
        cmocka_unit_test(a_hit_is_proved_before_the_first_request),
        cmocka_unit_test(the_order_of_running_requests_is_no_part_of_them),
        cmocka_unit_test(a_cancel_in_any_step_ends_without_a_token),
        cmocka_unit_test(requests_beyond_the_slots_wait),
        cmocka_unit_test(wanted_rows_are_run_though_their_pages_are_cached),
        cmocka_unit_test(drafts_stay_with_their_request_when_others_come_and_go),
        cmocka_unit_test(maintenance_outlives_idle_passes),
        cmocka_unit_test(the_last_token_of_an_answer_is_no_cached_row),
        cmocka_unit_test(an_image_brings_back_the_whole_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
