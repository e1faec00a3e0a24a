/* label: release */
/* quire synth: folders that are what an official one is, in every header, and lively where they have values. */
#define _GNU_SOURCE
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "checkpoint/checkpoint_check.h"
#include "cli/commands.h"
#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "plan/schema.h"
#include "support/models.h"
#include "support/scratch.h"
#include "support/support.h"

#define TINY_V41 "tests/golden/v41/spec-13.1/model/config.json"
#define TINY_V4 "tests/golden/v4/tiny/model/config.json"

/* Runs `quire synth --config CONFIG --out NAME ARGUMENTS...` and returns its exit status. */
static int synth(const char *config, const char *name, const char *arguments)
{
    char words[300], out[300], path[600];
    char *argv[24] = {"synth", "--quiet", "--config", path, "--out", out};
    int argc = 6;
    snprintf(path, sizeof path, "%s", source_path(config));
    snprintf(out, sizeof out, "%s", scratch_path(scratch, name));
    snprintf(words, sizeof words, "%s", arguments);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return tool_synth(argc, argv);
}

/* Opens a folder made by synth and checks it against the schema of its own config. */
static struct checkpoint *opened(const char *name, struct qr_config *config)
{
    struct checkpoint *ck;
    struct schema *schema;
    qr_error err = {0};
    const char *folder = scratch_path(scratch, name);
    if (config_read(scratch_path(folder, "config.json"), config, &err) != QR_OK ||
        checkpoint_open(folder, &ck, &err) != QR_OK || schema_make(config, &schema, &err) != QR_OK ||
        checkpoint_expect(ck, schema_tensors(schema), schema_count(schema), &err) != QR_OK)
        fail_msg("%s", err.message);
    schema_free(schema);
    return ck;
}

static void released_sizes_come_out_exactly(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int64_t tensors, bytes, shards;
    } models[] = {{V41_FLASH, 96085, 510286023000, 48}, {V4_FLASH, 69187, 159609485896, 46}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char name[40];
        struct qr_config config;
        snprintf(name, sizeof name, "released%zu", i);
        assert_int_equal(synth(models[i].config, name, ""), 0);
        struct checkpoint *ck = opened(name, &config);
        assert_int_equal(checkpoint_count(ck), models[i].tensors);
        assert_int_equal(checkpoint_bytes(ck), models[i].bytes);
        assert_int_equal(checkpoint_shards(ck), models[i].shards);
        checkpoint_close(ck);
    }
}

#ifndef __SANITIZE_ADDRESS__
static size_t heap(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void opening_the_released_folder_takes_less_than_16_million_bytes(void **state)
{
    (void)state;
    struct checkpoint *ck;
    qr_error err = {0};
    size_t before = heap();
    assert_int_equal(checkpoint_open(scratch_path(scratch, "released0"), &ck, &err), QR_OK);
    assert_true(heap() - before < 16000000);
    checkpoint_close(ck);
}
#endif

static void any_number_of_layers_makes_a_valid_folder(void **state)
{
    (void)state;
    static const char *const configs[] = {TINY_V41, TINY_V4, V41_FLASH, V4_FLASH, V4_FLASH_DSPARK};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct qr_config whole = config_of(configs[i]), cut;
        for (int layers = 1; layers <= whole.num_hidden_layers; layers += layers < 8 ? 1 + i / 2 : 15) {
            char name[60], arguments[60];
            snprintf(name, sizeof name, "cut%zu-%d", i, layers);
            snprintf(arguments, sizeof arguments, "--values none --layers %d", layers);
            assert_int_equal(synth(configs[i], name, arguments), 0);
            struct checkpoint *ck = opened(name, &cut);
            assert_int_equal(cut.num_hidden_layers, layers);
            assert_int_equal(cut.num_draft_layers, whole.num_draft_layers);
            for (int l = 0; l < layers; l++)
                assert_int_equal(cut.compress_ratios[l], whole.compress_ratios[l]);
            checkpoint_close(ck);
        }
    }
}

/* Root mean square of a quantized weight times the root of its columns: about one. */
static double liveliness(const struct tensor_view *weight, const struct tensor_view *scale, int side)
{
    bool fp4 = weight->dtype == DTYPE_I8;
    int64_t columns = weight->shape[1] * (fp4 ? 2 : 1), rows = weight->shape[0];
    const uint8_t *codes = weight->data, *scales = scale->data;
    double sum = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            double value = fp4 ? e2m1_decode(e2m1_at(codes + r * columns / 2, c)) : e4m3_decode(codes[r * columns + c]);
            double s = e8m0_decode(scales[(fp4 ? r : r / side) * scale->shape[1] + c / (fp4 ? 32 : side)]);
            sum += value * s * value * s;
        }
    return sqrt(sum / (double)rows);
}

static void values_are_lively_and_finite(void **state)
{
    (void)state;
    static const char *const configs[] = {TINY_V41, TINY_V4};
    for (int i = 0; i < 2; i++) {
        char name[40];
        struct qr_config config;
        int scaled = 0;
        snprintf(name, sizeof name, "lively%d", i);
        assert_int_equal(synth(configs[i], name, "--seed 7"), 0);
        struct checkpoint *ck = opened(name, &config);
        for (int64_t t = 0; t < checkpoint_count(ck); t++) {
            const struct tensor_view *view = checkpoint_at(ck, t);
            qr_error err = {0};
            char weight[200];
            if (tensor_check_values("folder", view, 0, tensor_elements(view->rank, view->shape), &err) != QR_OK)
                fail_msg("%s", err.message);
            if (view->dtype != DTYPE_F8_E8M0 || strstr(view->name, "engram.embed"))
                continue;
            snprintf(weight, sizeof weight, "%.*sweight", (int)(strlen(view->name) - 5), view->name);
            double size = liveliness(checkpoint_find(ck, weight), view, config.fp8_block);
            if (size < 0.4 || size > 2.1) /* one scale may be a factor of two off */
                fail_msg("%s has root mean square %g times that wanted", weight, size);
            scaled++;
        }
        assert_true(scaled > 50);
        checkpoint_close(ck);
    }
}

static void hash_routed_rows_name_distinct_experts(void **state)
{
    (void)state;
    struct qr_config config;
    assert_int_equal(synth(TINY_V4, "hash", ""), 0);
    struct checkpoint *ck = opened("hash", &config);
    const struct tensor_view *view = checkpoint_find(ck, "layers.0.ffn.gate.tid2eid");
    assert_non_null(view);
    const int64_t *ids = view->data;
    for (int64_t r = 0; r < view->shape[0]; r++)
        for (int64_t a = 0; a < view->shape[1]; a++) {
            int64_t id = ids[r * view->shape[1] + a];
            assert_true(id >= 0 && id < config.n_routed_experts);
            for (int64_t b = 0; b < a; b++)
                assert_int_not_equal(id, ids[r * view->shape[1] + b]);
        }
    checkpoint_close(ck);
}

/* Tensors of equal bytes in two folders of one config. */
static int64_t equal_tensors(const char *one, const char *other)
{
    struct qr_config config;
    struct checkpoint *a = opened(one, &config), *b = opened(other, &config);
    int64_t equal = 0;
    for (int64_t t = 0; t < checkpoint_count(a); t++) {
        const struct tensor_view *x = checkpoint_at(a, t), *y = checkpoint_find(b, x->name);
        equal += memcmp(x->data, y->data, x->bytes) == 0;
    }
    checkpoint_close(a);
    checkpoint_close(b);
    return equal;
}

static void the_seed_decides_every_value(void **state)
{
    (void)state;
    assert_int_equal(synth(TINY_V41, "seed1", "--seed 1"), 0);
    assert_int_equal(synth(TINY_V41, "seed1b", "--seed 1 --values all"), 0);
    assert_int_equal(synth(TINY_V41, "seed2", "--seed 2"), 0);
    assert_int_equal(synth(TINY_V41, "tables", "--seed 1 --values no-tables"), 0);
    struct qr_config config;
    struct checkpoint *ck = opened("seed1", &config);
    int64_t count = checkpoint_count(ck), tiny = 0;
    for (int64_t t = 0; t < count; t++) /* a scale of a few bytes may agree by chance */
        tiny += checkpoint_at(ck, t)->bytes <= 64;
    checkpoint_close(ck);
    assert_int_equal(equal_tensors("seed1", "seed1b"), count);
    assert_true(equal_tensors("seed1", "seed2") <= tiny);
    assert_int_equal(equal_tensors("seed1", "tables"), count - 2 * config.n_engram);
}

static void what_cannot_be_made_is_refused(void **state)
{
    (void)state;
    assert_int_equal(synth(TINY_V41, "made", "--values none"), 0);
    assert_int_equal(synth(TINY_V41, "made", "--values none"), 1); /* not empty */
    assert_int_equal(synth(TINY_V41, "other", "--layers 9"), 2);   /* there are 8 */
    assert_int_equal(synth(TINY_V41, "other", "--layers 0"), 2);
    assert_int_equal(synth("tests/golden/v41/README.md", "other", ""), 1);
    assert_int_equal(synth("tests/absent.json", "other", ""), 1);
    char *argv[] = {"synth", "--out", "x", NULL};
    assert_int_equal(tool_synth(3, argv), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_sizes_come_out_exactly),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(opening_the_released_folder_takes_less_than_16_million_bytes),
#endif
        cmocka_unit_test(any_number_of_layers_makes_a_valid_folder),
        cmocka_unit_test(values_are_lively_and_finite),
        cmocka_unit_test(hash_routed_rows_name_distinct_experts),
        cmocka_unit_test(the_seed_decides_every_value),
        cmocka_unit_test(what_cannot_be_made_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
