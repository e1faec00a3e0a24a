/* label: full once */
/* test_draft_starts with every number of tokens from 0 to 300 behind a hit (speculation.md 12: T12), and with the trained
 * models' drafters. */
#include "support/draft_starts.h"

#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

enum { SUFFIXES = 301 };
static int32_t suffixes[SUFFIXES];

static void hold(struct draft_starts_world w, int32_t step)
{
    struct draft_starts_counts c;
    int32_t count = 0;
    for (int32_t i = 0; i < SUFFIXES; i += step)
        suffixes[count++] = i;
    draft_starts(&w, suffixes, count, &c);
    print_message("%s, decoder %s, encoder %s, %d shared: %d prompts, %d draft passes\n", w.model, w.decoder, w.encoder,
                  (int)w.hit, (int)c.prompts, (int)c.drafts);
    assert_true(c.hits >= c.prompts - 1); /* the first leaves the image */
}

static const char *const modes[] = {"exact", "off", "bounded"};

static void a_v41_drafts_the_same_behind_any_hit(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int e = 0; e < 3; e++)
            hold((struct draft_starts_world){.model = "tests/golden/v41/spec-13.1/model",
                                             .method = "dspark",
                                             .decoder = modes[d],
                                             .encoder = modes[e],
                                             .hit = 128,
                                             .block = 32},
                 1);
}

static void trained_models_draft_the_same_behind_any_hit(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int e = 0; e < 2; e++)
            hold((struct draft_starts_world){.model = m ? "models/tiny-v4" : "models/tiny-v41",
                                             .method = m ? "mtp" : "dspark",
                                             .decoder = modes[m ? 0 : e],
                                             .encoder = modes[e],
                                             .hit = 256,
                                             .block = 128},
                 19);
}

static void a_v4_with_dspark_drafts_the_same_behind_any_hit(void **state)
{
    (void)state;
    char *folder = small_folder_of("tests/data/config/v4-tiny-dspark.json");
    hold((struct draft_starts_world){
             .model = folder, .method = "dspark", .decoder = "exact", .encoder = "exact", .hit = 256},
         17);
    draft_turns(folder, "dspark", 128, 120, 5, 14);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_v41_drafts_the_same_behind_any_hit),
        cmocka_unit_test(a_v4_with_dspark_drafts_the_same_behind_any_hit),
        cmocka_unit_test(trained_models_draft_the_same_behind_any_hit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
