/* label: release A16 A09 */
/* A prompt that starts from cached pages, from an image or in parts, whatever is trimmed, drafts what it drafts cold: the
 * drafter's rings hold the same rows, bit for bit (speculation.md 3, 12: T12, T13). Known failure 8 (runtime.md 15): steps of
 * nothing but chunks from the middle of a prompt passed the drafter by. */
#include "support/draft_starts.h"

#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model"
#define TINY_V4 "tests/golden/v4/tiny/model"

static const int32_t suffixes[] = {1, 8, 127, 129};

static void hold(struct draft_starts_world w, int32_t from, int32_t count)
{
    struct draft_starts_counts c;
    draft_starts(&w, suffixes + from, count, &c);
    print_message("%s, decoder %s, encoder %s, %d shared: %d prompts, %d hits, %d draft passes\n", w.model, w.decoder,
                  w.encoder, (int)w.hit, (int)c.prompts, (int)c.hits, (int)c.drafts);
    assert_true(w.hit == 0 || c.hits == c.prompts);
    assert_true(!w.disturbed || c.preemptions > 0);
}

static void a_v41_drafts_the_same_behind_any_hit(void **state)
{
    (void)state;
    hold((struct draft_starts_world){
             .model = SPEC_V41, .method = "dspark", .decoder = "exact", .encoder = "exact", .hit = 128},
         0, 4);
    hold((struct draft_starts_world){.model = SPEC_V41, .method = "dspark", .decoder = "exact", .encoder = "off", .hit = 128},
         0, 2);
}

static void bounded_replay_of_a_v41_says_with_drafts_what_it_says_without(void **state)
{
    (void)state;
    hold((struct draft_starts_world){
             .model = SPEC_V41, .method = "dspark", .decoder = "bounded", .encoder = "bounded", .hit = 128},
         0, 2);
    hold((struct draft_starts_world){
             .model = SPEC_V41, .method = "dspark", .decoder = "bounded", .encoder = "off", .hit = 128},
         0, 3);
}

/* The last row of MTP before an image's boundary holds the token behind it, which is not that of whoever left the image. */
static void a_v4_with_mtp_drafts_the_same_behind_an_image(void **state)
{
    (void)state;
    struct draft_starts_counts c;
    draft_starts(&(struct draft_starts_world){.model = TINY_V4,
                                              .method = "mtp",
                                              .decoder = "exact",
                                              .encoder = "off",
                                              .hit = 256,
                                              .block = 128},
                 suffixes, 2, &c);
    assert_true(c.hits > 0);
}

/* Chunks that are shorter than the window, and others; MTP's rows of the first ones are made in steps of which none draws. */
static void a_prompt_in_chunks_drafts_what_a_whole_one_drafts(void **state)
{
    (void)state;
    for (int32_t rows = 5; rows < 20; rows += 12)
        hold((struct draft_starts_world){
                 .model = SPEC_V41, .method = "dspark", .decoder = "exact", .encoder = "exact", .rows = rows},
             2, 1);
    hold((struct draft_starts_world){
             .model = TINY_V4, .method = "mtp", .decoder = "exact", .encoder = "exact", .rows = 50},
         3, 1);
}

static void a_request_that_is_preempted_or_moved_drafts_as_if_it_were_not(void **state)
{
    (void)state;
    hold((struct draft_starts_world){
             .model = SPEC_V41, .method = "dspark", .decoder = "exact", .encoder = "exact", .disturbed = true},
         1, 2);
    hold((struct draft_starts_world){
             .model = TINY_V4, .method = "mtp", .decoder = "exact", .encoder = "exact", .disturbed = true},
         3, 1);
}

static void the_next_turn_starts_from_the_image_of_an_answer_and_drafts_the_same(void **state)
{
    (void)state;
    draft_turns(SPEC_V41, "dspark", 32, 50, 14, 19); /* ends about row 64 */
    draft_turns(TINY_V4, "mtp", 128, 120, 8, 11);    /* about 128 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_v41_drafts_the_same_behind_any_hit),
        cmocka_unit_test(bounded_replay_of_a_v41_says_with_drafts_what_it_says_without),
        cmocka_unit_test(a_v4_with_mtp_drafts_the_same_behind_an_image),
        cmocka_unit_test(a_prompt_in_chunks_drafts_what_a_whole_one_drafts),
        cmocka_unit_test(a_request_that_is_preempted_or_moved_drafts_as_if_it_were_not),
        cmocka_unit_test(the_next_turn_starts_from_the_image_of_an_answer_and_drafts_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
