#define _GNU_SOURCE
/* Folders of V4 that hold what no model may have (v4-model.md 9.5, Appendix C) are refused, naming the tensor and the
 * value, by the forward pass and by the conversion to INT8. */
#include "ops/device.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "model/route_table.h"
#include "model/model.h"
#include "plan/settle.h"
#include "support/rig.h"
#include "support/scratch.h"
#include "support/v4_case.h"

static void copy(const char *from, const char *to, const char *name)
{
    char source[512], target[512], *text;
    size_t size;
    snprintf(source, sizeof source, "%s/%s", from, name);
    snprintf(target, sizeof target, "%s/%s", to, name);
    assert_int_equal(file_read(source, 1 << 26, &text, &size, NULL), QR_OK);
    scratch_write(target, text, size);
    qr_free(text);
}

/* Byte of the file where the tensor stands: payloads begin behind the header and its length. */
static int64_t place_of(const struct safetensors *file, const struct tensor_view *v, const char *text)
{
    const uint8_t *first = v->data;
    uint64_t header;
    for (int64_t i = 0; i < safetensors_count(file); i++)
        if ((const uint8_t *)safetensors_at(file, i)->data < first)
            first = safetensors_at(file, i)->data;
    memcpy(&header, text, sizeof header);
    return (int64_t)(sizeof header + header) + ((const uint8_t *)v->data - first);
}

/* Writes `size` bytes over the tensor of that name, from byte `at` of it on; false when this file does not hold it. */
static bool overwrite(const char *folder, const char *file, const char *tensor, int64_t at, const void *bytes,
                      size_t size)
{
    struct safetensors *mapped;
    char path[512], *text;
    size_t length;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    assert_int_equal(safetensors_open(path, &mapped, NULL), QR_OK);
    const struct tensor_view *v = safetensors_find(mapped, tensor);
    if (v) {
        assert_int_equal(file_read(path, 1 << 26, &text, &length, NULL), QR_OK);
        memcpy(text + place_of(mapped, v, text) + at, bytes, size);
        scratch_write(path, text, length);
        qr_free(text);
    }
    safetensors_close(mapped);
    return v != NULL;
}

/* A copy of golden/v4's tiny model with one tensor spoilt. */
static const char *spoilt(const char *tensor, int64_t at, const void *bytes, size_t size)
{
    static char folders[32][512];
    char model[256], file[64];
    static int turn;
    char *folder = folders[turn % 32];
    bool found = false;
    snprintf(model, sizeof model, "%s/tiny/model", source_path("tests/golden/v4"));
    snprintf(folder, sizeof folders[0], "%s/spoilt%d", scratch, turn++);
    assert_int_equal(mkdir(folder, 0755), 0);
    copy(model, folder, "config.json");
    copy(model, folder, "model.safetensors.index.json");
    for (int i = 1; i <= 3; i++) {
        snprintf(file, sizeof file, "model-%05d-of-00003.safetensors", i);
        copy(model, folder, file);
        found |= overwrite(folder, file, tensor, at, bytes, size);
    }
    assert_true(found);
    return folder;
}

static void assert_refused(const char *folder, enum qr_profile profile, const char *what)
{
    struct qr_config config;
    struct checkpoint *ck;
    struct model_plan plan;
    struct backend *b;
    struct model *m = NULL;
    qr_error err = {0};
    const struct model_limits limits = {
        .max_rows = 4, .max_requests = 1, .max_logits = 4, .max_positions = 16, .max_draft_rows = 4};
    assert_int_equal(model_folder_open(folder, &config, &ck, &err), QR_OK);
    assert_int_equal(plan_make(&config, profile, &plan, &err), QR_OK);
    assert_int_equal(backend_open("cpu-reference", 1, NULL, &b, &err), QR_OK);
    assert_int_not_equal(model_open(ck, &plan, b, &limits, NULL, &m, &err), QR_OK);
    if (!strstr(err.message, what))
        fail_msg("\"%s\" does not say \"%s\"", err.message, what);
    b->close(b);
    checkpoint_close(ck);
}

static void hash_tables_with_strangers_or_twins_are_refused(void **state)
{
    (void)state;
    const int64_t stranger[1] = {4}, below[1] = {-1}, twins[2] = {2, 2};
    for (int profile = 0; profile < 2; profile++) {
        assert_refused(spoilt("layers.0.ffn.gate.tid2eid", 5 * 16, stranger, 8), (enum qr_profile)profile,
                       "layers.0.ffn.gate.tid2eid: token 5 goes to expert 4, wanted 0 to 3");
        assert_refused(spoilt("layers.0.ffn.gate.tid2eid", 8, below, 8), (enum qr_profile)profile,
                       "layers.0.ffn.gate.tid2eid: token 0 goes to expert -1");
        assert_refused(spoilt("layers.0.ffn.gate.tid2eid", 7 * 16, twins, 16), (enum qr_profile)profile,
                       "layers.0.ffn.gate.tid2eid: token 7 goes to expert 2 twice");
    }
}

static void scales_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
    const uint8_t nan[1] = {255};
    for (int profile = 0; profile < 2; profile++) {
        assert_refused(spoilt("layers.1.attn.wq_b.scale", 0, nan, 1), (enum qr_profile)profile, "layers.1.attn.wq_b");
        assert_refused(spoilt("layers.2.ffn.experts.3.w2.scale", 9, nan, 1), (enum qr_profile)profile,
                       "layers.2.ffn.experts.3.w2");
        assert_refused(spoilt("mtp.0.e_proj.scale", 0, nan, 1), (enum qr_profile)profile, "mtp.0.e_proj");
    }
}

/* A conversion reads every weight, so it finds codes that a mapping would leave to `quire verify`. */
static void codes_that_are_no_numbers_are_refused_by_a_conversion(void **state)
{
    (void)state;
    const uint8_t nan[1] = {0x7F};
    const uint16_t infinity[1] = {0x7F80};
    assert_refused(spoilt("layers.3.attn.wkv.weight", 77, nan, 1), QR_PROFILE_W8A8, "layers.3.attn.wkv.weight");
    assert_refused(spoilt("layers.1.ffn.gate.weight", 6, infinity, 2), QR_PROFILE_W8A8, "layers.1.ffn.gate.weight");
}

/* Weights that stay in the mapping are not read while loading: what is no number there must be none in the end either,
 * where sampling refuses it. */
static void what_is_no_number_in_a_weight_reaches_the_logits_on_every_path(void **state)
{
    (void)state;
    const uint8_t code[1] = {0xFF};
    const uint16_t wide[1] = {0x7FC0};
    const float sink[1] = {NAN};
    const char *const folders[] = {"", spoilt("layers.3.attn.wkv.weight", 77, code, 1),
                                   spoilt("layers.1.attn.kv_norm.weight", 6, wide, 2),
                                   spoilt("layers.2.attn.attn_sink", 0, sink, 4),
                                   spoilt("layers.2.ffn.shared_experts.w1.weight", 5, code, 1)};
    const char *const devices[] = {"cpu-reference", "cpu", "cpu-portable"};
    for (int d = 0; d < 3; d++)
        for (int f = 0; f < 5; f++) {
            struct rig r;
            int32_t tokens[40];
            rig_open(&r, &(struct rig_options){.model = f ? folders[f] : "tests/golden/v4/tiny/model", .device = devices[d]});
            rig_tokens(&r, 5, tokens, 40);
            struct rig_request q = rig_request(&r, tokens, 40, 0, 1, 1);
            rig_run(&r, &q, NULL);
            const float *last = q.logits + 39 * (int64_t)r.config.vocab_size;
            for (int32_t v = 0; v < r.config.vocab_size; v++)
                assert_true((isfinite(last[v]) != 0) == (f == 0));
            rig_request_free(&q);
            rig_close(&r);
        }
}

static void tables_are_read_from_either_integer(void **state)
{
    (void)state;
    const int64_t wide[4] = {0, 1, 3, 2};
    const int32_t narrow[4] = {0, 1, 3, 2};
    int32_t out[4];
    qr_error err = {0};
    assert_int_equal(route_table_read("dir", "t", DTYPE_I64, wide, 2, 2, 4, out, &err), QR_OK);
    assert_memory_equal(out, narrow, sizeof narrow);
    memset(out, 0, sizeof out);
    assert_int_equal(route_table_read("dir", "t", DTYPE_I32, narrow, 2, 2, 4, out, &err), QR_OK);
    assert_memory_equal(out, narrow, sizeof narrow);
    assert_int_equal(route_table_read("dir", "t", DTYPE_I32, narrow, 2, 2, 3, out, &err), QR_BAD_FILE);
    assert_string_equal(err.message, "dir: t: token 1 goes to expert 3, wanted 0 to 2");
    assert_int_equal(route_table_read("dir", "t", DTYPE_F32, narrow, 2, 2, 4, out, &err), QR_BAD_FILE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_tables_with_strangers_or_twins_are_refused),
        cmocka_unit_test(scales_that_are_no_numbers_are_refused),
        cmocka_unit_test(codes_that_are_no_numbers_are_refused_by_a_conversion),
        cmocka_unit_test(what_is_no_number_in_a_weight_reaches_the_logits_on_every_path),
        cmocka_unit_test(tables_are_read_from_either_integer),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
