/* label: release */
/* quire verify, the machine: a sound backend passes, and one whose operators are broken, each in turn, is found out. The files
 * are test_verify_files.py's. */
#include "ops/device.h"
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "tools/verify_choices.h"
#include "tools/verify_machine.h"
#include "tools/verify_twin.h"

static const char *const models[] = {"tests/golden/v41/spec-13.1/model", "tests/golden/v4/tiny/model"};
enum { MODELS = sizeof models / sizeof *models };

/* A model, a device that may be broken, the reference, and what was found. */
struct bench {
    struct machine machine;
    struct backend *device, *reference;
    struct verify_table table;
    struct findings findings;
    struct tokens_report tokens;
};

static struct backend *backend(const char *device)
{
    struct backend *b;
    qr_error err = {0};
    if (backend_open(device, 1, NULL, &b, &err) != QR_OK)
        fail_msg("%s", err.message);
    return b;
}

static void open_bench(struct bench *b, const char *model, const char *profile)
{
    qr_error err = {0};
    memset(b, 0, sizeof *b);
    arena_init(&b->table.arena, 0);
    arena_init(&b->findings.arena, 0);
    if (machine_open(source_path(model), profile, NULL, &b->machine, &err) != QR_OK)
        fail_msg("%s", err.message);
    b->device = backend("cpu");
    b->reference = backend("cpu-reference");
}

static void close_bench(struct bench *b)
{
    machine_close(&b->machine);
    b->device->close(b->device);
    b->reference->close(b->reference);
    verify_table_free(&b->table);
    findings_free(&b->findings);
}

static void run_operators(struct bench *b)
{
    qr_error err = {0};
    if (machine_operators(&b->machine, b->device, b->reference, &b->table, &b->findings, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void run_tokens(struct bench *b)
{
    qr_error err = {0};
    if (machine_tokens(&b->machine, b->device, b->reference, &b->tokens, &b->findings, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static bool found(const struct bench *b, const char *words)
{
    for (size_t i = 0; i < b->findings.count; i++)
        if (strstr(b->findings.items[i], words))
            return true;
    return false;
}

/* Whether the table has a row of that operator, whatever its form. */
static bool has_rows(const struct bench *b, const char *op)
{
    size_t n = strlen(op);
    for (size_t i = 0; i < b->table.count; i++)
        if (strncmp(b->table.rows[i]->op, op, n) == 0 && (!b->table.rows[i]->op[n] || b->table.rows[i]->op[n] == ' '))
            return true;
    return false;
}

/* ---- sound ---- */

static void every_operator_that_a_plan_uses_stands_in_the_table(void **state)
{
    (void)state;
    static const char *const both[] = {"embed", "mhc_mix", "collapse", "expand", "norm", "quantize", "linear", "query", "window_key",
                                       "window_write", "compress", "tail_write", "row_write main", "row_write index", "index_query",
                                       "index_select", "attend", "unrotate", "route", "expert fp4 routed", "expert fp8 shared", "combine",
                                       "gather"};
    static const char *const own[MODELS][4] = {{"engram", "stream_mean", NULL},
                                               {"position_bias", "stream_add", "linear fp8 parts", "route hash"}};
    for (int m = 0; m < MODELS; m++) {
        struct bench b;
        open_bench(&b, models[m], NULL);
        run_operators(&b);
        if (b.findings.count)
            fail_msg("%s: %s", models[m], b.findings.items[0]);
        for (size_t i = 0; i < sizeof both / sizeof *both; i++)
            if (!has_rows(&b, both[i]))
                fail_msg("%s: no row of %s", models[m], both[i]);
        for (int i = 0; i < 4 && own[m][i]; i++)
            if (!has_rows(&b, own[m][i]))
                fail_msg("%s: no row of %s", models[m], own[m][i]);
        for (size_t i = 0; i < b.table.count; i++)
            assert_true(b.table.rows[i]->points > 0 && !b.table.rows[i]->failed);
        close_bench(&b);
    }
}

static void the_w8a8_profile_and_tokens_pass(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct bench b;
        open_bench(&b, models[m], m ? "w8a8" : NULL);
        run_operators(&b);
        run_tokens(&b);
        if (b.findings.count)
            fail_msg("%s: %s", models[m], b.findings.items[0]);
        assert_int_equal(b.tokens.tokens, 64);
        assert_true(b.tokens.layers == b.machine.config.num_hidden_layers && b.tokens.mean < 1e-2);
        close_bench(&b);
    }
}

/* ---- broken ---- */

/* An operator that does nothing. */
#define IDLE(NAME)                                                                                                     \
    static qr_status idle_##NAME(struct backend *b, const struct op_##NAME *op, qr_error *err)                         \
    {                                                                                                                  \
        (void)b, (void)op, (void)err;                                                                                  \
        return QR_OK;                                                                                                  \
    }
QR_OPERATORS(IDLE)

/* False where the model does not use the operator. */
static bool idle_is_found(struct bench *b, const char *model, const char *op)
{
    char words[64];
    snprintf(words, sizeof words, "operator %s", op);
    run_operators(b);
    const bool used = has_rows(b, op);
    if (used && !found(b, words))
        fail_msg("%s: nobody saw that %s does nothing", model, op);
    close_bench(b);
    return used;
}

/* Each in one model that uses it: the models take turns. */
static void an_operator_that_does_nothing_is_found(void **state)
{
    (void)state;
    struct bench b;
    int turn = 0, tries;
#define TRY_IDLE(NAME)                                                                                                 \
    for (tries = 0; tries < MODELS; tries++, turn++) {                                                                 \
        open_bench(&b, models[turn % MODELS], NULL);                                                                   \
        b.device->NAME = idle_##NAME;                                                                                  \
        if (idle_is_found(&b, models[turn % MODELS], #NAME))                                                           \
            break;                                                                                                     \
    }                                                                                                                  \
    assert_true(tries < MODELS);                                                                                       \
    turn++;
    QR_OPERATORS(TRY_IDLE)
}

static qr_status (*sound_linear)(struct backend *b, const struct op_linear *op, qr_error *err);

/* Two rows' first columns are four bf16 steps off. */
static qr_status inexact_linear(struct backend *b, const struct op_linear *op, qr_error *err)
{
    TRY(sound_linear(b, op, err));
    uint16_t *out = op->out.codes;
    for (int32_t i = 0; op->out.format == ACT_BF16 && i < op->rows.count && i < 2; i++)
        for (int32_t c = 0; c < 4; c++)
            out[(int64_t)(op->rows.index ? op->rows.index[i] : i) * op->out.cols + c] += 4;
    return QR_OK;
}

/* Every value is one step of bf16 off, which the tolerance allows. */
static qr_status allowed_linear(struct backend *b, const struct op_linear *op, qr_error *err)
{
    TRY(sound_linear(b, op, err));
    uint16_t *out = op->out.codes;
    for (int32_t i = 0; op->out.format == ACT_BF16 && i < op->rows.count; i++)
        for (int32_t c = 0; c < op->out.cols; c++)
            out[(int64_t)(op->rows.index ? op->rows.index[i] : i) * op->out.cols + c] ^= 1;
    return QR_OK;
}

static void a_device_that_is_off_within_the_tolerance_passes_and_errors_do_not_add_up(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct bench b;
        open_bench(&b, models[m], NULL);
        sound_linear = b.device->linear;
        b.device->linear = allowed_linear;
        run_operators(&b);
        if (b.findings.count)
            fail_msg("%s: %s", models[m], b.findings.items[0]);
        close_bench(&b);
    }
}

/* Leaves a mark in a row that is not its own. */
static qr_status stray_linear(struct backend *b, const struct op_linear *op, qr_error *err)
{
    TRY(sound_linear(b, op, err));
    if (op->out.format == ACT_BF16 && op->rows.count == 1)
        ((uint16_t *)op->out.codes)[((op->rows.index ? op->rows.index[0] : 0) + 1) * (int64_t)op->out.cols]++;
    return QR_OK;
}

static void small_errors_and_stray_writes_are_found(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct bench b;
        open_bench(&b, models[m], NULL);
        sound_linear = b.device->linear;
        b.device->linear = inexact_linear;
        run_operators(&b);
        assert_true(found(&b, "operator linear fp8: out: "));
        assert_true(found(&b, "are outside RA(1/128)"));
        close_bench(&b);

        open_bench(&b, models[m], NULL);
        b.device->linear = stray_linear;
        run_operators(&b);
        assert_true(found(&b, "one wrote where it should not"));
        close_bench(&b);
    }
}

/* Keeps the window keys of a prompt, and not those of single tokens. */
static qr_status (*sound_write)(struct backend *b, const struct op_window_write *op, qr_error *err);
static qr_status forgetful_write(struct backend *b, const struct op_window_write *op, qr_error *err)
{
    return op->rows.count == 1 ? QR_OK : sound_write(b, op, err);
}

static void a_layer_that_goes_astray_is_found_by_the_tokens(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct bench b;
        open_bench(&b, models[m], NULL);
        b.device->expert = idle_expert;
        run_tokens(&b);
        assert_true(found(&b, "equal input"));
        close_bench(&b);

        open_bench(&b, models[m], NULL);
        sound_write = b.device->window_write;
        b.device->window_write = forgetful_write;
        run_tokens(&b);
        assert_true(found(&b, "equal input"));
        close_bench(&b);

        open_bench(&b, models[m], NULL);
        b.device->gather = idle_gather; /* the head's input */
        run_tokens(&b);
        assert_true(found(&b, "of 64 choices") || found(&b, "which leads by"));
        assert_true(b.tokens.failed);
        close_bench(&b);
    }
}

/* One step in which the head reads the rows of the step before. */
static int gathers, broken_gather;
static qr_status (*sound_gather)(struct backend *b, const struct op_gather *op, qr_error *err);
static qr_status late_gather(struct backend *b, const struct op_gather *op, qr_error *err)
{
    return ++gathers == broken_gather ? QR_OK : sound_gather(b, op, err);
}

static void one_wrong_token_is_found_where_the_reference_is_sure(void **state)
{
    (void)state;
    bool sure = false;
    for (broken_gather = 2; !sure && broken_gather < 20; broken_gather++) {
        struct bench b;
        open_bench(&b, models[0], NULL);
        gathers = 0;
        sound_gather = b.device->gather;
        b.device->gather = late_gather;
        run_tokens(&b);
        assert_false(found(&b, "of 64 choices"));
        sure = found(&b, "which leads by");
        assert_int_equal(b.tokens.failed, sure);
        close_bench(&b);
    }
    assert_true(sure);
}

/* ---- choices ---- */

static void choices_may_differ_only_where_values_nearly_tie(void **state)
{
    (void)state;
    static const float values[] = {5, 4.00005f, 4, 3, 3.99f};
    struct choice c = {.found = (int32_t[]){0, 1}, .want = (int32_t[]){0, 1}, .found_count = 2, .want_count = 2, .values = values, .n = 5,
                       .slack = 1e-4, .order = CHOICE_BY_VALUE};
    bool differs;
    assert_null(choice_fault(&c, &differs));
    assert_false(differs);
    c.found = (int32_t[]){0, 2}; /* a near tie with the last one */
    assert_null(choice_fault(&c, &differs));
    assert_true(differs);
    c.found = (int32_t[]){0, 4};
    assert_non_null(choice_fault(&c, &differs));
    c.found = (int32_t[]){2, 1}; /* the best is not there */
    assert_non_null(choice_fault(&c, &differs));
    c.found = (int32_t[]){1, 0}; /* the right ones, the wrong order */
    assert_non_null(choice_fault(&c, &differs));
    c.order = CHOICE_SET;
    assert_null(choice_fault(&c, &differs));
    c.found = (int32_t[]){0, 4};
    assert_non_null(choice_fault(&c, &differs));
    c.found = (int32_t[]){2, 1};
    assert_non_null(choice_fault(&c, &differs));
    c.found = (int32_t[]){0, 0};
    assert_non_null(choice_fault(&c, &differs));
    c.found = (int32_t[]){0, 5};
    assert_non_null(choice_fault(&c, &differs));
    c.found_count = 1;
    assert_non_null(choice_fault(&c, &differs));
    c = (struct choice){.found = (int32_t[]){1, 0}, .want = (int32_t[]){0, 1}, .found_count = 2, .want_count = 2, .values = values, .n = 5,
                        .order = CHOICE_ASCENDING};
    assert_non_null(choice_fault(&c, &differs));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_that_a_plan_uses_stands_in_the_table),
        cmocka_unit_test(the_w8a8_profile_and_tokens_pass),
        cmocka_unit_test(an_operator_that_does_nothing_is_found),
        cmocka_unit_test(a_device_that_is_off_within_the_tolerance_passes_and_errors_do_not_add_up),
        cmocka_unit_test(small_errors_and_stray_writes_are_found),
        cmocka_unit_test(a_layer_that_goes_astray_is_found_by_the_tokens),
        cmocka_unit_test(one_wrong_token_is_found_where_the_reference_is_sure),
        cmocka_unit_test(choices_may_differ_only_where_values_nearly_tie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
