/* Memory: a step allocates nothing, and opening a runner survives every allocation that fails. */
#include "support/support.h"

#include <string.h>

#include "base/alloc.h"
#include "support/rig.h"

#define MODEL "tests/golden/v41/spec-13.1/model"

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[40], counts[] = {30, 1, 9};
    rig_open(&r, &(struct rig_options){.model = MODEL, .threads = 2});
    rig_tokens(&r, 1, tokens, 40);
    struct rig_request q = rig_request(&r, tokens, 40, 0, 1, 1);
    int64_t before = alloc_count();
    for (int i = 0; i < 3; i++)
        rig_step(&r, (struct rig_request *[]){&q}, &counts[i], 1);
    assert_int_equal(alloc_count(), before);
    rig_request_free(&q);
    rig_close(&r);
}

static void every_failing_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    struct rig r;
    if (!alloc_fault_supported())
        skip();
    rig_open(&r, &(struct rig_options){.model = MODEL});
    runner_close(r.runner);
    r.runner = NULL;

    const struct runner_options options = {
        .blocks = 4, .slots = 1, .model = {.max_rows = 8, .max_requests = 1, .max_logits = 1, .max_positions = 64}};
    int64_t live = alloc_live(), refused = 0;
    for (int64_t n = 1;; n++) {
        struct backend *backend;
        struct runner *runner = NULL;
        qr_error err = {0};
        assert_int_equal(backend_cpu_open("reference", 1, NULL, &backend, &err), QR_OK);
        alloc_fault_at(n, 0);
        qr_status st = runner_open(r.checkpoint, &r.plan, &r.geometry, backend, &r.map, &options, &runner, &err);
        alloc_fault_at(0, 0);
        runner_close(runner);
        backend->close(backend);
        assert_int_equal(alloc_live(), live);
        if (st == QR_OK)
            break;
        assert_int_equal(st, QR_NO_MEMORY);
        assert_true(strlen(err.message) > 0);
        assert_null(runner);
        refused++;
    }
    assert_true(refused > 20);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(every_failing_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
