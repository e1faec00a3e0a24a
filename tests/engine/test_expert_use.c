/* The file that keeps how often experts were used (engine/expert_use.h): from run to run, and when it is none. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/expert_use.h"
#include "support/scratch.h"
#include "support/support.h"

enum { LAYERS = 3, EXPERTS = 4, ALL = LAYERS * EXPERTS };

static int warnings;
static void count_warning(void *user, enum qr_log_level level, const char *line)
{
    (void)user, (void)line;
    warnings += level == QR_LOG_WARN;
}
static const struct qr_log counting = {.write = count_warning, .level = QR_LOG_DEBUG};

static struct model_plan plan_with(int32_t layers, int32_t experts)
{
    return (struct model_plan){.layers = layers, .config = {.n_routed_experts = experts}};
}

static struct expert_use open_use(const char *path, int32_t layers, int32_t experts)
{
    const struct model_plan plan = plan_with(layers, experts);
    struct expert_use u;
    qr_error err = {0};
    must(expert_use_open(path, &plan, &counting, &u, &err), &err);
    return u;
}

static void keep(const char *path, uint64_t factor)
{
    struct expert_use u = open_use(path, LAYERS, EXPERTS);
    uint64_t visits[ALL];
    qr_error err = {0};
    for (uint64_t i = 0; i < ALL; i++)
        visits[i] = i * factor;
    must(expert_use_keep(&u, visits, &err), &err);
    expert_use_close(&u);
}

static void visits_add_up_from_run_to_run(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch, "use.json");
    warnings = 0;
    struct expert_use u = open_use(path, LAYERS, EXPERTS);
    assert_false(expert_use_is_known(&u));
    expert_use_close(&u);
    keep(path, 3);
    keep(path, 4);
    u = open_use(path, LAYERS, EXPERTS);
    for (uint64_t i = 0; i < ALL; i++)
        assert_int_equal(u.visits[i], 7 * i);
    assert_true(expert_use_is_known(&u));
    assert_int_equal(warnings, 0);
    expert_use_close(&u);
}

static void large_numbers_are_halved_together(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch, "large.json");
    const uint64_t most = (uint64_t)1 << 40;
    uint64_t visits[ALL] = {most, most / 4, UINT64_MAX};
    qr_error err = {0};
    for (int run = 0; run < 3; run++) {
        struct expert_use u = open_use(path, LAYERS, EXPERTS);
        must(expert_use_keep(&u, visits, &err), &err);
        assert_true(u.visits[0] <= most && u.visits[0] >= most / 2);
        assert_int_equal(u.visits[0], 4 * u.visits[1]);
        assert_int_equal(u.visits[2], u.visits[0]);
        expert_use_close(&u);
    }
}

/* What is no file of this model is said, and nothing of it is believed or lost. */
static void what_is_no_such_file_is_left_as_it_is(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", "{", "[]", "{\"format\": 1}", "\xff\xfe", "{\"format\": 2, \"layers\": 3, \"experts\": 4, \"visits\": []}",
        "{\"format\": 1, \"layers\": 4, \"experts\": 4, \"visits\": [[1,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1]]}",
        "{\"format\": 1, \"layers\": 3, \"experts\": 4, \"visits\": [[1,1,1,1],[1,1,1,1],[1,1,1]]}",
        "{\"format\": 1, \"layers\": 3, \"experts\": 4, \"visits\": [[1,1,1,1],[1,-1,1,1],[1,1,1,1]]}",
        "{\"format\": 1, \"layers\": 3, \"experts\": 4, \"visits\": [[1,1,1,1],[1,1.5,1,1],[1,1,1,1]]}",
        "{\"format\": 1, \"layers\": 3, \"experts\": 4, \"visits\": [[1,1,1,1],[1,1,1,1],{}]}",
        "{\"format\": 1, \"layers\": 3, \"experts\": 4, \"visits\": [[9e99,1,1,1],[1,1,1,1],[1,1,1,1]]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = scratch_path(scratch, "bad.json");
        char *text;
        size_t length;
        qr_error err = {0};
        scratch_write(path, bad[i], strlen(bad[i]));
        warnings = 0;
        struct expert_use u = open_use(path, LAYERS, EXPERTS);
        if (warnings != 1 || expert_use_is_known(&u))
            fail_msg("file %zu: %d warnings", i, warnings);
        expert_use_close(&u);
        keep(path, 5);
        must(file_read(path, 1 << 20, &text, &length, &err), &err);
        assert_int_equal(length, strlen(bad[i]));
        assert_memory_equal(text, bad[i], length);
        qr_free(text);
    }
}

static void a_run_without_visits_writes_nothing(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch, "none.json");
    keep(path, 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void without_a_path_nothing_is_kept(void **state)
{
    (void)state;
    const uint64_t visits[ALL] = {1};
    struct expert_use u = open_use(NULL, LAYERS, EXPERTS);
    assert_int_equal(expert_use_keep(&u, visits, NULL), QR_OK);
    assert_false(expert_use_is_known(&u));
    expert_use_close(&u);
}

static void want_of_memory_is_a_status_and_loses_nothing(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch, "faults.json");
    const struct model_plan plan = plan_with(LAYERS, EXPERTS);
    const uint64_t visits[ALL] = {1, 2, 3};
    qr_status st = QR_NO_MEMORY;
    if (!alloc_fault_supported())
        skip();
    keep(path, 1);
    const int64_t before = alloc_live();
    for (int64_t n = 1; st != QR_OK; n++) {
        struct expert_use u;
        alloc_fault_at(n, 0);
        st = expert_use_open(path, &plan, &counting, &u, NULL);
        if (st == QR_OK)
            st = expert_use_keep(&u, visits, NULL);
        alloc_fault_at(0, 0);
        assert_true(st == QR_OK || st == QR_NO_MEMORY);
        expert_use_close(&u);
        assert_int_equal(alloc_live(), before);
    }
    struct expert_use u = open_use(path, LAYERS, EXPERTS);
    for (uint64_t i = 0; i < ALL; i++)
        assert_int_equal(u.visits[i], i + visits[i]);
    expert_use_close(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visits_add_up_from_run_to_run),
        cmocka_unit_test(large_numbers_are_halved_together),
        cmocka_unit_test(what_is_no_such_file_is_left_as_it_is),
        cmocka_unit_test(a_run_without_visits_writes_nothing),
        cmocka_unit_test(without_a_path_nothing_is_kept),
        cmocka_unit_test(want_of_memory_is_a_status_and_loses_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
