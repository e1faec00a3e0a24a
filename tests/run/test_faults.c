/* Memory: a step allocates nothing, and opening a runner survives every allocation that fails. */
#include "support/support.h"

#include <string.h>

#include "base/alloc.h"
#include "support/rig.h"

/* One of each family; V4 converts its weights to INT8 and opens the MTP layer. */
static const struct rig_options models[] = {
    {.model = "tests/golden/v41/spec-13.1/model"},
    {.model = "tests/golden/v4/wide/model", .profile = QR_PROFILE_W8A8, .draft_width = 1, .draft_rows = 8}};
enum { MODELS = sizeof models / sizeof *models };

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct rig r;
        struct rig_options o = models[m];
        int32_t tokens[40], counts[] = {30, 1, 9}, sources[2] = {-1, 0};
        const struct draft_span span = {.first_position = 38, .count = 2, .tokens = tokens, .sources = sources};
        o.threads = 2;
        rig_open(&r, &o);
        rig_tokens(&r, 1, tokens, 40);
        struct rig_request q = rig_request(&r, tokens, 40, 0, 1, 1);
        int64_t before = alloc_count();
        for (int i = 0; i < 3; i++)
            rig_step(&r, (struct rig_request *[]){&q}, &counts[i], 1);
        if (o.draft_rows) {
            assert_int_equal(runner_keep_streams(r.runner, 0, 8, NULL), QR_OK);
            assert_int_equal(runner_draft(r.runner, &span, 1, NULL, NULL), QR_OK);
        }
        assert_int_equal(alloc_count(), before);
        rig_request_free(&q);
        rig_close(&r);
    }
}

static void fail_each(const struct rig_options *o)
{
    struct rig r;
    rig_open(&r, o);
    runner_close(r.runner);
    r.runner = NULL;

    const struct runner_options options = {
        .blocks = 4,
        .slots = 1,
        .model = {
            .max_rows = 8, .max_requests = 1, .max_logits = 1, .max_positions = 64, .max_draft_rows = o->draft_rows}};
    int64_t live = alloc_live(), refused = 0;
    for (int64_t n = 1;; n++) {
        struct backend *backend;
        struct runner *runner = NULL;
        qr_error err = {0};
        assert_int_equal(backend_cpu_open("reference", 1, NULL, &backend, &err), QR_OK);
        alloc_fault_at(n, 0);
        qr_status st = runner_open(r.checkpoint, &r.plan, &r.geometry, backend, r.config.n_engram > 0 ? &r.map : NULL,
                                   &options, &runner, &err);
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

static void every_failing_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        fail_each(&models[m]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
        fault_test(every_failing_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
