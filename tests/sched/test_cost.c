/* Which way of starting a prompt is taken, and when an image is worth its copy (runtime.md 5.5, 7.5). */
#include "plan/products.h"
#include "sched/cost.h"
#include "support/models.h"
#include "support/support.h"

static const struct sched_costs costs = {.row_layer = 1, .step = 10, .byte = 0.5};

static void a_way_costs_its_rows_its_steps_and_its_bytes(void **state)
{
    (void)state;
    const struct start_way way = {700, 21, 40};
    assert_true(cost_of_way(&costs, &way, 100) == 700 + 10 + 20);
    assert_true(cost_of_way(&costs, &way, 21) == 700 + 10 + 20);
    assert_true(cost_of_way(&costs, &way, 20) == 700 + 2 * 10 + 20);
}

/* Each kind of way is the cheapest once. */
static void the_cheapest_way_is_taken(void **state)
{
    (void)state;
    enum { COLD, RERUN, LOWER_IMAGE, IMAGE };
    struct start_way ways[] = {{5000, 100, 0}, {900, 60, 0}, {500, 30, 700}, {100, 10, 700}};
    assert_int_equal(cost_least(&costs, ways, 4, 1000), IMAGE);
    assert_int_equal(cost_least(&costs, ways, 3, 1000), LOWER_IMAGE); /* no image at the hit */
    ways[LOWER_IMAGE].bytes = ways[IMAGE].bytes = 2000;               /* a copy that costs more than the rows */
    assert_int_equal(cost_least(&costs, ways, 4, 1000), RERUN);
    ways[RERUN].rows = 2000; /* a rerun of many steps */
    ways[COLD].row_layers = 905;
    assert_int_equal(cost_least(&costs, ways, 4, 1000), COLD);
    ways[RERUN] = ways[COLD]; /* of equal ones the first */
    assert_int_equal(cost_least(&costs, ways, 2, 1000), COLD);
    assert_int_equal(cost_least(&costs, ways, 1, 1000), COLD);
}

static void an_image_pays_where_the_rerun_costs_more_than_the_copy(void **state)
{
    (void)state;
    assert_true(cost_image_pays(&costs, 21, 20, 1));
    assert_false(cost_image_pays(&costs, 20, 20, 1));
    assert_false(cost_image_pays(&costs, 21, 22, 1));
    assert_false(cost_image_pays(&costs, 21, 20, 2));
    assert_true(cost_image_pays(&costs, 1, 0, 0));
    assert_false(cost_image_pays(&costs, 0, 0, 0));
}

/* Rows times layers that a resume behind H runs below it. */
static int64_t rerun(const struct model_plan *p, int32_t hit)
{
    const struct rows_request r = {.cached = hit, .end = hit + 128, .boundary = -1, .first_logits = hit + 127};
    struct row_plan rows;
    int64_t total = 0;
    rows_exact(p, &r, &rows);
    for (int32_t l = 0; l < p->layers; l++)
        total += rows.layer[l].query < hit ? hit - rows.layer[l].query : 0;
    return total;
}

/* The released model: 40 rings of 128 rows of bf16 are 5.2 MB, a copy that both kinds of device make in no time beside the
 * rows; but a chunk cut for an image makes a step more, which reads all weights again. */
static void released_models_take_images_of_long_prompts(void **state)
{
    (void)state;
    const struct model_plan p = plan_of(V41_FLASH);
    const int64_t image = 40 * 128 * 1024, weights = (int64_t)150e9;
    const char *const devices[] = {"cpu", "cpu-avx2", "cpu-reference", "cuda:3"};
    for (int i = 0; i < 4; i++) {
        const struct sched_costs c = cost_of_model(cost_rates(devices[i]), &p, weights);
        assert_true(c.row_layer > 0 && c.step > 0 && c.byte > 0);
        assert_true(cost_image_pays(&c, rerun(&p, 8192), image, 1));
        assert_true((double)image * c.byte < c.step);
        assert_false(cost_image_pays(&c, 0, image, 1)); /* nothing is rerun below a hit of no tokens */
    }
}

static void rates_are_found_by_the_longest_name(void **state)
{
    (void)state;
    assert_string_equal(cost_rates("cpu-avx512")->device, "cpu");
    assert_string_equal(cost_rates("cpu-reference")->device, "cpu-reference");
    assert_string_equal(cost_rates("cuda:7")->device, "cuda");
    assert_string_equal(cost_rates("abacus")->device, "cpu");
}

/* A layer of V4.1-Flash by hand: wq_a, wq_b, wo_a (of each group its heads), wo_b, seven experts, the router. */
static void products_are_those_of_the_matrices(void **state)
{
    (void)state;
    const struct model_plan p = plan_of(V41_FLASH);
    const double heads = 64.0 * 512;
    const double layer = 5120.0 * 1280 + 1280 * heads + heads * 1024 + 8.0 * 1024 * 5120 + 3.0 * 5120 * 2304 * 7 + 5120.0 * 384;
    assert_true(products_of_row(&p.config, &p.layer[21]) == layer);
    assert_true(products_of_key(&p.config) == 5120.0 * 512);
    /* a window of 128 and 512 selected rows, keys and values */
    assert_true(products_at(&p.config, &p.layer[21], 100000) == 2 * heads * (128 + 512));
    assert_true(products_mean(&p) > layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_way_costs_its_rows_its_steps_and_its_bytes),
        cmocka_unit_test(the_cheapest_way_is_taken),
        cmocka_unit_test(an_image_pays_where_the_rerun_costs_more_than_the_copy),
        cmocka_unit_test(released_models_take_images_of_long_prompts),
        cmocka_unit_test(rates_are_found_by_the_longest_name),
        cmocka_unit_test(products_are_those_of_the_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
