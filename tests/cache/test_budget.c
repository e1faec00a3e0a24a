#include "support/models.h"
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "cache/budget.h"

static struct geometry geometry_of(const char *config)
{
    struct model_plan plan = plan_of(config);
    struct geometry_options o = geometry_defaults(&plan);
    struct geometry g;
    qr_error err = {0};
    if (geometry_make(&plan, &o, &g, &err) != QR_OK)
        fail_msg("%s", err.message);
    return g;
}

static void the_plan_of_the_pools_is_the_pools_size(void **state)
{
    (void)state;
    static const char *const configs[] = {V41_FLASH, V4_FLASH, V4_PRO, "models/tiny-v41/config.json",
                                          "tests/golden/v4/wide/model/config.json"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct geometry g = geometry_of(configs[i]);
        struct budget_request r = {(int64_t)8 << 30, 3, 0, 1 << 20};
        struct budget b;
        struct byte_plan plan = {0};
        assert_int_equal(budget_fit(&g, &r, &b, NULL), QR_OK);
        assert_true(b.pool.bytes <= r.bytes);
        budget_items(&g, &b, &plan);
        assert_int_equal(byte_plan_total(&plan, BYTES_PAGES) + byte_plan_total(&plan, BYTES_STATES), b.pool.bytes);
        byte_plan_free(&plan);
    }
}

static void without_a_length_one_request_gets_what_fits(void **state)
{
    (void)state;
    struct geometry g = geometry_of(V41_FLASH);
    struct budget_request r = {(int64_t)1 << 30, 1, 0, 1 << 20};
    struct budget b;
    assert_int_equal(budget_fit(&g, &r, &b, NULL), QR_OK);
    assert_int_equal(b.max_model_len, 1 << 20); /* 0.87 GiB */
    assert_int_equal(b.blocks, 8192 + 1);       /* no more than the one request can fill */
    r.bytes = (int64_t)100 << 20;
    assert_int_equal(budget_fit(&g, &r, &b, NULL), QR_OK);
    assert_int_equal(b.max_model_len, (b.blocks - 1) * 128);
    r.max_model_len = b.max_model_len;
    assert_int_equal(budget_fit(&g, &r, &b, NULL), QR_OK);
    r.max_model_len++;
    assert_int_equal(budget_fit(&g, &r, &b, NULL), QR_REFUSED);
}

static void what_does_not_fit_is_refused_with_the_bytes_missing(void **state)
{
    (void)state;
    struct geometry g = geometry_of(V41_FLASH);
    struct budget_request r = {1000000, 1, 0, 1 << 20};
    struct budget b;
    qr_error err = {0};
    assert_int_equal(budget_fit(&g, &r, &b, &err), QR_REFUSED);
    assert_non_null(strstr(err.message, "E31 1 STATE entries of 3105792 bytes"));
    struct pool_layout pool;
    char missing[64];
    assert_int_equal(geometry_pool(&g, 2, 1, &pool, NULL), QR_OK);
    snprintf(missing, sizeof missing, "%lld more", (long long)(pool.bytes - 1000000));
    assert_non_null(strstr(err.message, missing));
    r.bytes = pool.bytes;
    assert_int_equal(budget_fit(&g, &r, &b, &err), QR_OK);
    assert_int_equal(b.blocks, 2);
    r.max_model_len = (1 << 20) + 1;
    assert_int_equal(budget_fit(&g, &r, &b, &err), QR_REFUSED);
    assert_non_null(strstr(err.message, "max-model-len is 1048577"));
    r.slots = 0;
    assert_int_equal(budget_fit(&g, &r, &b, &err), QR_BAD_ARGUMENT);
}

/* The number of requests that would do is found at once, however many were asked for. */
static void a_number_of_requests_that_fits_is_named(void **state)
{
    (void)state;
    struct geometry g = geometry_of(V41_FLASH);
    struct pool_layout pool;
    struct budget b;
    qr_error err = {0};
    assert_int_equal(geometry_pool(&g, 2, 7, &pool, NULL), QR_OK);
    struct budget_request r = {pool.bytes + 1000, INT64_C(1) << 40, 0, 1 << 20};
    assert_int_equal(budget_fit(&g, &r, &b, &err), QR_REFUSED);
    assert_non_null(strstr(err.message, ", or --max-num-seqs 7"));
    r.slots = 7;
    assert_int_equal(budget_fit(&g, &r, &b, &err), QR_OK);
}

static void requests_are_bound_by_slots_or_by_blocks(void **state)
{
    (void)state;
    struct geometry g = geometry_of(V41_FLASH);
    struct budget_request r = {(int64_t)1 << 30, 8, 4096, 1 << 20};
    struct budget b;
    bool by_blocks;
    assert_int_equal(budget_fit(&g, &r, &b, NULL), QR_OK);
    assert_int_equal(budget_requests(&g, &b, 4096, &by_blocks), 8);
    assert_false(by_blocks);
    r.max_model_len = 1 << 19;
    assert_int_equal(budget_fit(&g, &r, &b, NULL), QR_OK);
    assert_int_equal(budget_requests(&g, &b, 1 << 19, &by_blocks), 2);
    assert_true(by_blocks);
}

static void the_default_is_half_of_what_the_weights_leave(void **state)
{
    (void)state;
    assert_int_equal(budget_default_bytes(1000, 200), 400);
    assert_int_equal(budget_default_bytes(1000, 2000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_of_the_pools_is_the_pools_size),
        cmocka_unit_test(without_a_length_one_request_gets_what_fits),
        cmocka_unit_test(what_does_not_fit_is_refused_with_the_bytes_missing),
        cmocka_unit_test(a_number_of_requests_that_fits_is_named),
        cmocka_unit_test(requests_are_bound_by_slots_or_by_blocks),
        cmocka_unit_test(the_default_is_half_of_what_the_weights_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
