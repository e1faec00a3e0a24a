/* The progress of opening a model and creating an engine: it is told along the way, and can stop it at every step. */
#include "support/engines.h"

#include <string.h>

#include "support/scratch.h"
#include "support/support.h"

static char *dir;

struct told {
    int calls, weights;       /* in all, and in the phase of the weights */
    int stop_at;              /* the call that answers no; 0: none */
    qr_phase phase;
    uint64_t done, total;
    bool in_order;
};

static bool tell(void *user, qr_phase phase, uint64_t done, uint64_t total)
{
    struct told *t = user;
    t->calls++;
    t->weights += phase == QR_PHASE_WEIGHTS;
    t->in_order = t->in_order && done <= total &&
                  (phase > t->phase ? done == 0 : phase == t->phase && done >= t->done && (total == t->total || t->total == 0));
    t->phase = phase;
    t->done = done;
    t->total = total;
    return t->calls != t->stop_at;
}

/* Opens a model and an engine, and closes both; the status of what failed, or QR_OK. */
static qr_status open_both(struct told *t, qr_error *err)
{
    qr_model_options model_options = QR_MODEL_OPTIONS;
    qr_engine_options engine_options = QR_ENGINE_OPTIONS;
    qr_model *model = (qr_model *)t;
    qr_engine *engine = (qr_engine *)t;
    model_options.progress = tell;
    model_options.user = t;
    model_options.threads = 1;
    engine_options.kv_ram_bytes = 1 << 20;
    t->in_order = true;
    qr_status st = qr_model_open(dir, &model_options, &model, err);
    if (st != QR_OK) {
        assert_null(model);
        return st;
    }
    st = qr_engine_create(model, &engine_options, &engine, err);
    if (st != QR_OK)
        assert_null(engine);
    else
        qr_engine_destroy(engine);
    qr_model_close(model);
    return st;
}

static void every_phase_is_told_from_its_beginning_to_its_end(void **state)
{
    (void)state;
    struct told t = {0};
    qr_error err = {0};
    assert_int_equal(open_both(&t, &err), QR_OK);
    assert_true(t.in_order);
    assert_int_equal(t.phase, QR_PHASE_WEIGHTS);
    assert_true(t.done == t.total && t.total > 0);
    assert_true(t.weights > 100); /* a call for each tensor of the small model */
}

static void saying_no_at_any_call_stops_there_and_leaves_nothing(void **state)
{
    (void)state;
    struct told whole = {0};
    qr_error err = {0};
    assert_int_equal(open_both(&whole, &err), QR_OK);
    for (int at = 1; at <= whole.calls; at += at < 8 || at + 8 > whole.calls ? 1 : whole.calls / 16) {
        struct told t = {.stop_at = at};
        err = (qr_error){0};
        assert_int_equal(open_both(&t, &err), QR_CANCELLED);
        assert_int_equal(t.calls, at);
        assert_non_null(strstr(err.message, "cancelled"));
    }
    struct told again = {0};
    assert_int_equal(open_both(&again, &err), QR_OK);
    assert_int_equal(again.calls, whole.calls);
}

static void sizes_alone_tell_nothing(void **state)
{
    (void)state;
    struct told t = {0};
    qr_model_options options = QR_MODEL_OPTIONS;
    qr_plan_bytes plan;
    qr_error err = {0};
    options.progress = tell;
    options.user = &t;
    assert_int_equal(qr_plan(dir, &options, NULL, &plan, &err), QR_OK);
    assert_int_equal(t.calls, 0);
}

static void phases_have_names(void **state)
{
    (void)state;
    assert_string_equal(qr_phase_name(QR_PHASE_FILES), "files");
    assert_string_equal(qr_phase_name(QR_PHASE_TEXT), "text");
    assert_string_equal(qr_phase_name(QR_PHASE_WEIGHTS), "weights");
    assert_string_equal(qr_phase_name((qr_phase)7), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_phase_is_told_from_its_beginning_to_its_end),
        cmocka_unit_test(saying_no_at_any_call_stops_there_and_leaves_nothing),
        cmocka_unit_test(sizes_alone_tell_nothing),
        cmocka_unit_test(phases_have_names),
    };
    dir = small_model_folder();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(dir);
    return failed;
}
