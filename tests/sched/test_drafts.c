/* label: A16 */
/* Verify steps as the scheduler sees them: images of answers, pages and ends inside a block (speculation.md 5.3, 12: T14, T16).
 * The executor looks for the right row wherever a model would read one. */
#include <string.h>

#include "support/fake.h"
#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model/config.json"
#define TINY_V4 "tests/golden/v4/tiny/model/config.json"

static struct fake f;

static void open_with(int32_t width, int32_t percent, bool v4, enum replay decoder, enum replay encoder)
{
    const int32_t block = v4 ? 128 : 32;
    const struct fake_options o = {.config = v4 ? TINY_V4 : SPEC_V41,
                                   .block = block,
                                   .blocks = 80,
                                   .slots = 3,
                                   .seed = 11,
                                   .draft_width = width,
                                   .drafts = width,
                                   .accept_percent = percent,
                                   .sched = {.max_prefill_rows = -1,
                                             .prefix_cache = true,
                                             .images = true,
                                             .image_interval = 4 * block,
                                             .decoder_replay = decoder,
                                             .encoder_replay = encoder}};
    fake_open(&f, &o);
}

/* Hits by images alone. */
static void open(int32_t width, int32_t percent, bool v4) { open_with(width, percent, v4, REPLAY_EXACT, REPLAY_OFF); }

/* The next turn of a conversation: all that was said and `more` tokens. Returns how much of it was cached. */
static int32_t go_on(int32_t number, int32_t more)
{
    const struct fake_request *q = fake_of(&f, number);
    int32_t tokens[1024];
    for (int32_t p = 0; p < q->count + more; p++)
        tokens[p] = p < q->count ? q->oracle[p] : p % 100;
    struct fake_given g = FAKE_GIVEN;
    g.tokens = tokens;
    g.count = q->count + more;
    g.answer = 20;
    g.room = 3;
    const int32_t next = fake_submit(&f, &g);
    fake_run(&f);
    assert_int_equal(fake_of(&f, next)->finish, FINISH_STOP);
    return fake_of(&f, next)->cached;
}

/* Whatever of the drafts that pass a boundary is right, also where the answer ends. */
static void an_answer_with_drafts_leaves_an_image_at_its_last_boundary(void **state)
{
    (void)state;
    for (int v4 = 0; v4 < 2; v4++)
        for (int32_t width = 1; width <= (v4 ? 1 : 7); width++)
            for (int32_t percent = 0; percent <= 100; percent += 50)
                for (int32_t answer = 60; answer < 60 + (v4 ? 4 : 40); answer += 3) {
                    open(width, percent, v4);
                    const int32_t block = f.geometry.options.block_tokens, prompt = v4 ? 200 : 50;
                    const int32_t a = fake_prompt(&f, 1, 0, prompt, answer);
                    fake_run(&f);
                    const int32_t cached = go_on(a, block); /* the last token has a row only where it was a draft */
                    assert_int_equal(cached % block, 0);
                    assert_in_range(cached, (prompt + answer - 1) / block * block, (prompt + answer) / block * block);
                    fake_close(&f);
                }
}

/* The state that is stored while one request has been rejected and another accepted beyond its boundary, and a slot moves. */
static void images_of_requests_that_draft_are_used_by_others_at_once(void **state)
{
    (void)state;
    int32_t cached = 0;
    open(5, 70, false);
    for (int32_t i = 0; i < 12; i++) {
        const int32_t a = fake_prompt(&f, i % 3, 90, 100 + i, 70), b = fake_prompt(&f, i % 3, 90, 130, 40);
        fake_run_to(&f, a, 140);
        const int32_t fork = fake_of(&f, a)->r ? fake_fork(&f, a, 30) : -1;
        if (fake_of(&f, b)->r)
            sched_preempt(f.sched, fake_of(&f, b)->r);
        fake_run(&f);
        cached += fork >= 0 && fake_of(&f, fork)->cached >= 96;
    }
    assert_true(cached >= 10); /* now and then an image finds no room */
    assert_true(sched_metrics(f.sched).restores + sched_metrics(f.sched).lower_restores > 12);
    fake_close(&f);
}

/* A chunk beside verify rows takes none of their room, twice in a row, and the request whose prompt ends drafts at once. */
static void prompts_beside_verify_rows_lose_no_row_and_draft_behind_their_last(void **state)
{
    (void)state;
    open(5, 100, false);
    int32_t a = fake_prompt(&f, 1, 0, 40, 90), b;
    fake_run_to(&f, a, 50);
    b = fake_prompt(&f, 2, 0, 300, 30);
    while (fake_of(&f, b)->r && fake_of(&f, b)->r->state != SCHED_DECODE) {
        const int32_t before = fake_of(&f, a)->r->count;
        assert_true(fake_step(&f));
        assert_int_equal(fake_of(&f, a)->r->count, before + 6); /* five drafts and one more */
    }
    assert_int_equal(fake_of(&f, b)->r->drafts, 5);
    assert_int_equal(fake_of(&f, b)->r->next, 300); /* nothing was taken back */
    fake_run(&f);
    assert_int_equal(fake_of(&f, b)->finish, FINISH_STOP);
    fake_close(&f);
}

static int32_t victim, verify_steps;
static bool cancels;

/* Every third verify step of the victim loses it between its rows and their verdict. */
static void interrupt(struct fake *fake, const struct batch *batch)
{
    for (int32_t b = 0; b < batch->count; b++) {
        struct sched_request *r = sched_span_request(fake->sched, b);
        if (!r || r != fake_of(fake, victim)->r || batch->spans[b].drafts == 0 || ++verify_steps % 3 != 0)
            continue;
        if (cancels)
            fake_cancel(fake, victim);
        else
            sched_preempt(fake->sched, r);
    }
}

/* Its verdict is dropped, whatever it says, and its drafts with it; the one beside it takes its rows. */
static void a_request_may_go_between_its_rows_and_their_verdict(void **state)
{
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        open(4, turn < 2 ? 100 : 60, false);
        f.between = interrupt;
        verify_steps = 0;
        cancels = turn % 2;
        const int32_t survivor = fake_prompt(&f, 1, 64, 80, 60);
        victim = fake_prompt(&f, 1, 64, 90, 60);
        fake_run(&f);
        assert_int_equal(fake_of(&f, survivor)->finish, FINISH_STOP);
        assert_int_equal(fake_of(&f, victim)->finish, cancels ? FINISH_CANCELLED : FINISH_STOP);
        assert_true(cancels || fake_of(&f, victim)->preemptions > 2);
        assert_true(f.dropped > 0);
        f.between = NULL;
        const int32_t after = fake_prompt(&f, 2, 0, 70, 40); /* in a slot that a rejected block was left in */
        fake_run(&f);
        assert_int_equal(fake_of(&f, after)->finish, FINISH_STOP);
        fake_close(&f);
    }
}

/* The first row that the drafter may read is the first that was written for it, or that an image brought. */
static void a_drafter_reads_from_the_first_row_that_is_its_requests(void **state)
{
    (void)state;
    open(5, 50, false);
    const int32_t window = f.geometry.window, a = fake_prompt(&f, 1, 96, 100, 30);
    fake_run_to(&f, a, 105);
    assert_int_equal(fake_of(&f, a)->r->draft_from, 96 - (window - 1)); /* for the image of its last boundary */
    fake_run(&f);
    const int32_t b = fake_prompt(&f, 1, 96, 98, 30);
    fake_run_to(&f, b, 99);
    assert_int_equal(fake_of(&f, b)->r->cached_tokens, 96);
    assert_int_equal(fake_of(&f, b)->r->draft_from, 96 - window);
    fake_run(&f);
    fake_close(&f);
}

/* A drafter that leaves out rows, at any time, reads none of them later, nor one that an image lacks. */
static void rows_that_are_left_out_for_the_drafter_are_never_read(void **state)
{
    (void)state;
    for (int v4 = 0; v4 < 2; v4++)
        for (uint32_t seed = 1; seed <= 12; seed++) {
            const int32_t block = v4 ? 128 : 32, own = v4 ? 300 : 60;
            const struct fake_options o = {.config = v4 ? TINY_V4 : SPEC_V41,
                                           .block = block,
                                           .blocks = 80,
                                           .slots = 3,
                                           .seed = seed,
                                           .draft_width = v4 ? 1 : 5,
                                           .accept_percent = 50,
                                           .rest_percent = v4 ? 1 : 8,
                                           .sched = {.max_prefill_rows = -1,
                                                     .prefix_cache = true,
                                                     .images = true,
                                                     .encoder_replay = seed % 2 ? REPLAY_OFF : REPLAY_EXACT}};
            fake_open(&f, &o);
            for (int i = 0; i < 6; i++)
                fake_prompt(&f, 1, 2 * block, 2 * block + 1 + 7 * i, own);
            fake_run(&f);
            for (int i = 0; i < 4; i++)
                go_on(i, 1 + i);
            assert_true(f.verified > 0);
            fake_close(&f);
        }
}

/* A bounded decoder goes back for its tail, below what an image brought, and the drafter's rows come from there too. */
static void a_bounded_prompt_that_goes_back_fills_the_drafters_window(void **state)
{
    (void)state;
    open_with(5, 50, false, REPLAY_BOUNDED, REPLAY_OFF);
    for (int i = 0; i < 3; i++)
        fake_prompt(&f, 1, 96, 110 + i, 4), fake_run(&f);
    for (int32_t more = 1; more < 10; more++) {
        const int32_t a = fake_prompt(&f, 1, 96, 96 + more, 12);
        fake_run(&f);
        assert_int_equal(fake_of(&f, a)->cached, 96);
    }
    assert_true(sched_metrics(f.sched).rows_backed_off > 0);
    fake_close(&f);
}

/* An image from inside a prompt lacks the rings of the last layers. It serves a start as long as the prompt's end reads nothing
 * below it; an image of a later boundary, whose rings would have to be complete, cannot be had from it. */
static void an_image_without_the_last_rings_gives_none_with_them(void **state)
{
    (void)state;
    for (int32_t drafts = 0; drafts < 2; drafts++)
        for (int32_t prompt = 257; prompt < 520; prompt += 13)
            for (int32_t stop = 128; stop < prompt; stop += 128) {
                const struct fake_options o = {.config = TINY_V4, .block = 128, .draft_width = drafts, .drafts = drafts,
                                               .accept_percent = 50, .blocks = 40, .slots = 2, .seed = 5,
                                               .sched = {.max_prefill_rows = -1, .max_rows = 200, .prefix_cache = true,
                                                         .images = true, .image_interval = 128}};
                fake_open(&f, &o);
                const int32_t a = fake_prompt(&f, 1, 300, prompt, 20);
                fake_run_to(&f, a, stop);
                sched_preempt(f.sched, fake_of(&f, a)->r); /* before the image of where it stands is taken */
                fake_run(&f);
                assert_int_equal(fake_of(&f, a)->finish, FINISH_STOP);
                const int32_t b = fake_prompt(&f, 1, 300, 400, 20);
                fake_run(&f);
                assert_int_equal(fake_of(&f, b)->finish, FINISH_STOP);
                fake_close(&f);
            }
}

/* Rows of image-span tokens are computed in a way of their own: a draft that is such a token is marked as one, as the token
 * that it becomes when it is right will be. The executor holds every row to its mark. */
static void a_draft_is_marked_as_the_token_that_it_is(void **state)
{
    (void)state;
    enum { IMAGE = 7, DRAFTS = 3 };
    static const int32_t drafts[DRAFTS] = {IMAGE, 20, IMAGE};
    int32_t tokens[60], marked = 0;
    struct fake_options o = {.config = SPEC_V41, .draft_width = DRAFTS, .drafts = DRAFTS, .blocks = 40, .slots = 2,
                             .sched = {.max_prefill_rows = -1, .prefix_cache = true, .image_token = IMAGE}};
    fake_open(&f, &o);
    for (int32_t i = 0; i < 60; i++)
        tokens[i] = i % 9;
    struct fake_given g = FAKE_GIVEN;
    g.tokens = tokens;
    g.count = 60;
    g.answer = 40;
    g.room = 8;
    const int32_t a = fake_submit(&f, &g);
    while (fake_step(&f)) {
        struct fake_request *q = fake_of(&f, a);
        if (!q->r || q->r->state != SCHED_DECODE)
            continue;
        memcpy(q->draft, drafts, sizeof drafts);
        sched_draft(f.sched, q->r, drafts, DRAFTS);
        marked++;
    }
    assert_int_equal(fake_of(&f, a)->finish, FINISH_STOP);
    assert_true(marked > 20);
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_without_the_last_rings_gives_none_with_them),
        cmocka_unit_test(a_draft_is_marked_as_the_token_that_it_is),
        cmocka_unit_test(an_answer_with_drafts_leaves_an_image_at_its_last_boundary),
        cmocka_unit_test(images_of_requests_that_draft_are_used_by_others_at_once),
        cmocka_unit_test(a_request_may_go_between_its_rows_and_their_verdict),
        cmocka_unit_test(a_drafter_reads_from_the_first_row_that_is_its_requests),
        cmocka_unit_test(rows_that_are_left_out_for_the_drafter_are_never_read),
        cmocka_unit_test(a_bounded_prompt_that_goes_back_fills_the_drafters_window),
        cmocka_unit_test(prompts_beside_verify_rows_lose_no_row_and_draft_behind_their_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
