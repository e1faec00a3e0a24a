/* Which drafter a folder holds, from its config and the names in its shards (speculation.md 1): never one for the other, and
 * nothing of it left over. */
#include "support/engines.h"
#include "support/models.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint_check.h"
#include "plan/schema.h"
#include "plan/settle.h"

#define DSPARK "tests/data/config/v4-tiny-dspark.json"
#define SERIAL "tests/golden/v4/tiny/model/config.json"

/* A folder that holds the tensors of a config, by name, shape and type. */
struct folder {
    struct qr_config config;
    struct schema *schema;
    struct tensor_view *views;
    int64_t count;
    struct checkpoint *ck;
};

static struct folder folder_of(const char *relative)
{
    struct folder f = {.config = config_of(relative)};
    qr_error err = {0};
    if (schema_make(&f.config, &f.schema, &err) != QR_OK)
        fail_msg("%s", err.message);
    const struct tensor_spec *specs = schema_tensors(f.schema);
    f.count = schema_count(f.schema);
    f.views = calloc((size_t)f.count + 1, sizeof *f.views);
    for (int64_t i = 0; i < f.count; i++)
        f.views[i] = (struct tensor_view){
            .name = specs[i].name, .dtype = specs[i].dtype, .rank = specs[i].rank, .shape = specs[i].shape};
    return f;
}

static void folder_free(struct folder *f)
{
    checkpoint_close(f->ck);
    schema_free(f->schema);
    free(f->views);
}

/* Leaves every tensor out whose name begins so. */
static void without(struct folder *f, const char *prefix)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < f->count; i++)
        if (strncmp(f->views[i].name, prefix, strlen(prefix)) != 0)
            f->views[kept++] = f->views[i];
    assert_true(kept < f->count);
    f->count = kept;
}

/* One more, of the shape of the first. */
static void with(struct folder *f, const char *name)
{
    f->views[f->count] = f->views[0];
    f->views[f->count++].name = name;
}

static qr_status settle(struct folder *f, qr_error *err)
{
    assert_int_equal(checkpoint_over("folder", f->views, f->count, &f->ck, err), QR_OK);
    return config_settle(f->ck, &f->config, err);
}

/* As an opened folder is compared with the tensors of its settled config. */
static qr_status expect(struct folder *f, qr_error *err)
{
    struct schema *wanted;
    assert_int_equal(schema_make(&f->config, &wanted, err), QR_OK);
    qr_status st = checkpoint_expect(f->ck, schema_tensors(wanted), schema_count(wanted), err);
    schema_free(wanted);
    return st;
}

static void a_block_drafter_is_one_by_its_config_and_its_projection(void **state)
{
    (void)state;
    qr_error err = {0};
    struct folder f = folder_of(DSPARK);
    assert_int_equal(settle(&f, &err), QR_OK);
    assert_int_equal(f.config.drafter, QR_DRAFTER_DSPARK);
    assert_int_equal(expect(&f, &err), QR_OK);
    folder_free(&f);
}

static void the_serial_layer_is_one_by_its_projection(void **state)
{
    (void)state;
    qr_error err = {0};
    struct folder f = folder_of(SERIAL);
    assert_int_equal(settle(&f, &err), QR_OK);
    assert_int_equal(f.config.drafter, QR_DRAFTER_MTP);
    assert_int_equal(expect(&f, &err), QR_OK);
    folder_free(&f);
}

static void neither_drafter_stands_in_for_the_other(void **state)
{
    (void)state;
    qr_error err = {0};
    struct folder f = folder_of(DSPARK);
    f.config.drafter = QR_DRAFTER_MTP; /* its dspark_* fields are gone */
    assert_refused(settle(&f, &err), &err, QR_BAD_FILE, "mtp.0.main_proj.weight belongs to a DSpark drafter");
    folder_free(&f);

    f = folder_of(SERIAL);
    f.config.drafter = QR_DRAFTER_DSPARK;
    assert_refused(settle(&f, &err), &err, QR_BAD_FILE, "mtp.0.e_proj.weight belongs to the MTP layer");
    folder_free(&f);
}

static void a_projection_that_is_missing_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config, *prefix, *says;
    } cases[] = {{DSPARK, "mtp.0.main_proj.", "tensor mtp.0.main_proj.weight is missing"},
                 {SERIAL, "mtp.0.e_proj.", "tensor mtp.0.e_proj.weight is missing"},
                 {DSPARK, "mtp.", "is missing"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qr_error err = {0};
        struct folder f = folder_of(cases[i].config);
        without(&f, cases[i].prefix);
        assert_int_equal(settle(&f, &err), QR_OK);
        assert_refused(expect(&f, &err), &err, QR_BAD_FILE, cases[i].says);
        folder_free(&f);
    }
}

/* The released config states one predicted layer, and three stages are stored. */
static void stages_are_counted_in_the_shards(void **state)
{
    (void)state;
    for (int32_t stated = 1; stated <= 5; stated++) {
        qr_error err = {0};
        struct folder f = folder_of(DSPARK);
        f.config.num_draft_layers = stated;
        assert_int_equal(settle(&f, &err), QR_OK);
        assert_int_equal(f.config.num_draft_layers, 3);
        assert_int_equal(expect(&f, &err), QR_OK);
        folder_free(&f);
    }
}

/* A stage behind a gap is none, so that its tensors are left over. */
static void a_stage_without_its_norm_ends_the_count(void **state)
{
    (void)state;
    qr_error err = {0};
    struct folder f = folder_of(DSPARK);
    without(&f, "mtp.1.attn_norm.");
    assert_int_equal(settle(&f, &err), QR_OK);
    assert_int_equal(f.config.num_draft_layers, 1);
    assert_refused(expect(&f, &err), &err, QR_BAD_FILE, "tensor mtp.1.");
    folder_free(&f);
}

static void a_tensor_of_the_drafter_that_nobody_claims_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config, *name;
    } cases[] = {{DSPARK, "mtp.1.ffn.shared_experts.w4.weight"}, {DSPARK, "mtp.0.e_proj.weight"},
                 {DSPARK, "mtp.3.attn.wkv.weight"},              {DSPARK, "mtp.2.markov_head.embed.weight"},
                 {SERIAL, "mtp.0.main_proj.weight"},             {SERIAL, "mtp.1.attn.wkv.weight"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qr_error err = {0};
        char says[128];
        struct folder f = folder_of(cases[i].config);
        with(&f, cases[i].name);
        snprintf(says, sizeof says, "tensor %s is not expected", cases[i].name);
        assert_int_equal(settle(&f, &err), QR_OK);
        assert_refused(expect(&f, &err), &err, QR_BAD_FILE, says);
        folder_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_drafter_is_one_by_its_config_and_its_projection),
        cmocka_unit_test(the_serial_layer_is_one_by_its_projection),
        cmocka_unit_test(neither_drafter_stands_in_for_the_other),
        cmocka_unit_test(a_projection_that_is_missing_is_refused),
        cmocka_unit_test(stages_are_counted_in_the_shards),
        cmocka_unit_test(a_stage_without_its_norm_ends_the_count),
        cmocka_unit_test(a_tensor_of_the_drafter_that_nobody_claims_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
