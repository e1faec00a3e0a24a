#include "support/models.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "checkpoint/checkpoint_check.h"
#include "plan/schema.h"
#include "plan/settle.h"

static struct schema *schema_of(const struct qr_config *c)
{
    struct schema *s;
    qr_error err = {0};
    if (schema_make(c, &s, &err) != QR_OK)
        fail_msg("%s", err.message);
    return s;
}

struct census {
    int64_t tensors, bytes, by_dtype[DTYPE_COUNT];
};

static struct census count_all(const struct schema *s)
{
    struct census n = {.tensors = schema_count(s)};
    for (int64_t i = 0; i < n.tensors; i++) {
        n.bytes += schema_tensor_bytes(&schema_tensors(s)[i]);
        n.by_dtype[schema_tensors(s)[i].dtype]++;
    }
    return n;
}

static struct census census_of(const char *relative)
{
    struct qr_config c = config_of(relative);
    struct schema *s = schema_of(&c);
    struct census n = count_all(s);
    schema_free(s);
    return n;
}

static void released_totals_are_those_of_the_published_headers(void **state)
{
    (void)state;
    struct census n = census_of(V41_FLASH);
    assert_int_equal(n.tensors, 96085);
    assert_int_equal(n.bytes, 510286023000);
    n = census_of(V4_FLASH);
    assert_int_equal(n.tensors, 69187);
    assert_int_equal(n.bytes, 159609485896);
    assert_int_equal(n.by_dtype[DTYPE_BF16], 433);
    assert_int_equal(n.by_dtype[DTYPE_F32], 417);
    assert_int_equal(n.by_dtype[DTYPE_F8_E4M3], 375);
    assert_int_equal(n.by_dtype[DTYPE_F8_E8M0], 34167);
    assert_int_equal(n.by_dtype[DTYPE_I64], 3);
    assert_int_equal(n.by_dtype[DTYPE_I8], 33792);
    n = census_of(V4_PRO);
    assert_int_equal(n.tensors, 145116);
    assert_int_equal(n.bytes, 864704792696);
}

static void released_shards_are_those_of_the_published_folder(void **state)
{
    (void)state;
    struct qr_config c = config_of(V41_FLASH);
    struct schema *s = schema_of(&c);
    int64_t per_shard[48] = {0};
    assert_int_equal(schema_shards(s), 48);
    for (int64_t i = 0; i < schema_count(s); i++)
        per_shard[schema_shard(s, i)]++;
    assert_int_equal(per_shard[0], 263); /* vision and aligner: 266 with the three image vectors */
    assert_int_equal(per_shard[1], 4);
    for (int32_t layer = 0; layer < 40; layer++) {
        bool reindex = layer > 20 && layer % 4 == 0, full = layer == 2 || layer == 8 || layer == 14;
        assert_int_equal(per_shard[2 + layer], layer == 20 ? 2341 : full ? 2342 : reindex ? 2337 : 2334);
    }
    assert_int_equal(per_shard[42], 2);
    assert_int_equal(per_shard[43] + per_shard[44] + per_shard[45], 2401);
    assert_int_equal(per_shard[46], 6);
    assert_int_equal(per_shard[47], 6);
    schema_free(s);
    c = config_of(V4_FLASH);
    s = schema_of(&c);
    assert_int_equal(schema_shards(s), 46);
    schema_free(s);
    c = config_of(V4_PRO);
    s = schema_of(&c);
    assert_int_equal(schema_shards(s), 64);
    schema_free(s);
}

static const struct tensor_spec *find(const struct schema *s, const char *name)
{
    for (int64_t i = 0; i < schema_count(s); i++)
        if (!strcmp(schema_tensors(s)[i].name, name))
            return &schema_tensors(s)[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void expect(const struct schema *s, const char *name, enum dtype dtype, int64_t rows, int64_t cols)
{
    const struct tensor_spec *t = find(s, name);
    if (t->dtype != dtype || t->shape[0] != rows || (cols ? t->rank != 2 || t->shape[1] != cols : t->rank != 1))
        fail_msg("%s is %s [%lld, %lld]", name, dtype_name(t->dtype), (long long)t->shape[0], (long long)t->shape[1]);
}

/* Rows of the two tables, one of each kind. */
static void shapes_are_those_of_the_tables(void **state)
{
    (void)state;
    struct qr_config c = config_of(V41_FLASH);
    struct schema *s = schema_of(&c);
    expect(s, "layers.0.hc_attn_fn", DTYPE_F32, 24, 20480);
    expect(s, "layers.39.attn.wo_a.scale", DTYPE_F8_E8M0, 256, 128);
    expect(s, "layers.5.ffn.experts.383.w2.weight", DTYPE_I8, 5120, 1152);
    expect(s, "layers.5.ffn.experts.383.w2.scale", DTYPE_F8_E8M0, 5120, 72);
    expect(s, "layers.20.attn.indexer.wk.weight", DTYPE_BF16, 128, 512);
    expect(s, "layers.24.attn.indexer.wq_b.scale", DTYPE_F8_E8M0, 128, 40);
    expect(s, "layers.14.engram.embed.weight", DTYPE_F8_E4M3, 384016682, 256);
    expect(s, "layers.14.engram.wkv.scale", DTYPE_F8_E8M0, 800, 192);
    expect(s, "mtp.0.main_proj.scale", DTYPE_F8_E8M0, 160, 480);
    expect(s, "mtp.2.confidence_head.proj.weight", DTYPE_BF16, 1, 5376);
    expect(s, "mtp.1.ffn.gate.bias_vl", DTYPE_F32, 128, 0);
    expect(s, "aligner.w1.weight", DTYPE_BF16, 5120, 9216);
    expect(s, "vision.patch_embed.proj.weight", DTYPE_BF16, 1024, 588);
    expect(s, "image_newline", DTYPE_BF16, 5120, 0);
    schema_free(s);
    c = config_of(V4_PRO);
    s = schema_of(&c);
    expect(s, "layers.60.attn.wo_b.scale", DTYPE_F8_E8M0, 56, 128);
    expect(s, "layers.2.attn.indexer.wq_b.weight", DTYPE_F8_E4M3, 8192, 1536);
    expect(s, "layers.2.attn.compressor.ape", DTYPE_F32, 4, 1024);
    expect(s, "layers.3.attn.compressor.wkv.weight", DTYPE_BF16, 512, 7168);
    expect(s, "hc_head_fn", DTYPE_F32, 4, 28672);
    schema_free(s);
}

static void other_v4_releases_have_their_own_tensors(void **state)
{
    (void)state;
    struct qr_config c = config_of(V4_FLASH_DSPARK);
    struct schema *s = schema_of(&c);
    expect(s, "mtp.0.main_proj.weight", DTYPE_F8_E4M3, 4096, 12288);
    expect(s, "mtp.0.main_proj.scale", DTYPE_F8_E8M0, 32, 96);
    expect(s, "mtp.1.ffn.experts.255.w1.weight", DTYPE_I8, 2048, 2048);
    expect(s, "mtp.2.markov_head.markov_w2.weight", DTYPE_BF16, 129280, 256);
    expect(s, "mtp.2.confidence_head.proj.weight", DTYPE_BF16, 1, 4352);
    expect(s, "mtp.2.hc_head_fn", DTYPE_F32, 4, 16384);
    struct census n = count_all(s);
    int64_t stages = 3 * (29 + 6 * 256) + 3 + 1 + 3 + 3; /* layers, main_*, norm and head mix, heads */
    assert_int_equal(n.tensors, 69187 - (39 + 6 * 256) + stages);
    schema_free(s);
    c = config_of(V4_FLASH_BASE);
    s = schema_of(&c);
    expect(s, "layers.0.ffn.experts.0.w1.weight", DTYPE_F8_E4M3, 2048, 4096);
    expect(s, "layers.0.ffn.experts.0.w1.scale", DTYPE_F8_E8M0, 16, 32);
    schema_free(s);
}

/* The shape for tests of v4-model.md 13. */
static void the_section_13_model_has_its_census(void **state)
{
    (void)state;
    struct qr_config c = config_of("tests/golden/v4/tiny/model/config.json");
    c.hidden_size = 256;
    c.n_routed_experts = 8;
    c.o_lora_rank = 128;
    c.vocab_size = 512;
    struct schema *s = schema_of(&c);
    struct census n = count_all(s);
    assert_int_equal(n.tensors, 427);
    assert_int_equal(n.bytes, 7000238);
    schema_free(s);
}

static void bundled_folders_hold_exactly_their_schema(void **state)
{
    (void)state;
    static const char *const folders[] = {"tests/golden/v41/pad/model",   "tests/golden/v41/spec-13.1/model",
                                          "tests/golden/v41/wide/model",  "tests/golden/v4/tiny/model",
                                          "tests/golden/v4/fp8exp/model", "tests/golden/v4/wide/model",
                                          "models/tiny-v41",              "models/tiny-v4"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct qr_config c;
        struct checkpoint *ck;
        qr_error err = {0};
        if (model_folder_open(source_path(folders[i]), &c, &ck, &err) != QR_OK)
            fail_msg("%s", err.message);
        struct schema *s = schema_of(&c);
        if (checkpoint_expect(ck, schema_tensors(s), schema_count(s), &err) != QR_OK)
            fail_msg("%s", err.message);
        assert_int_equal(schema_count(s), checkpoint_count(ck));
        assert_int_equal(count_all(s).bytes, checkpoint_bytes(ck));
        schema_free(s);
        checkpoint_close(ck);
    }
}

/* Names of the INT8 folder, from the hashes of the golden; the RoPE tables are not hashed. */
static void the_int8_folder_has_the_tensors_of_the_golden(void **state)
{
    (void)state;
    struct qr_config c = config_of("tests/golden/v4/tiny/model/config.json");
    c.stored_w8a8 = true;
    struct schema *s = schema_of(&c);
    assert_int_equal(schema_count(s), 99 + 2);
    const struct tensor_spec *t = find(s, "wo_a");
    assert_int_equal(t->rank, 4);
    assert_int_equal(t->shape[0], 4);
    assert_int_equal(t->shape[1], 2);
    assert_int_equal(t->shape[2], 64);
    assert_int_equal(t->shape[3], 256);
    t = find(s, "csa_idx_wq_b_scale");
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 512);
    t = find(s, "mtp_routed_w2");
    assert_int_equal(t->rank, 4);
    assert_int_equal(t->shape[0], 1);
    find(s, "mtp_e_proj_smooth");
    find(s, "mtp_h_proj_scale");
    assert_true(find(s, "freqs_cos")->optional);
    schema_free(s);
    c = config_of("tests/golden/v4/wide/model/config.json");
    c.stored_w8a8 = true;
    s = schema_of(&c);
    assert_int_equal(schema_count(s), 95 + 2); /* no HCA layer: no hca_* */
    schema_free(s);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor_spec *)a)->name, ((const struct tensor_spec *)b)->name);
}

static void no_name_occurs_twice(void **state)
{
    (void)state;
    static const char *const files[] = {V41_FLASH, V4_FLASH, V4_FLASH_DSPARK};
    for (size_t f = 0; f < 3; f++) {
        struct qr_config c = config_of(files[f]);
        struct schema *s = schema_of(&c);
        size_t n = (size_t)schema_count(s);
        struct tensor_spec *copy = malloc(n * sizeof *copy);
        memcpy(copy, schema_tensors(s), n * sizeof *copy);
        qsort(copy, n, sizeof *copy, by_name);
        for (size_t i = 1; i < n; i++)
            assert_string_not_equal(copy[i].name, copy[i - 1].name);
        free(copy);
        schema_free(s);
    }
}

static void failed_allocations_are_statuses_without_leaks(void **state)
{
    (void)state;
    struct qr_config c = config_of("tests/golden/v41/pad/model/config.json");
    int64_t live = alloc_live();
    for (int64_t n = 1;; n++) {
        struct schema *s;
        alloc_fault_at(n, 0);
        qr_status st = schema_make(&c, &s, NULL);
        alloc_fault_at(0, 0);
        if (st == QR_OK) {
            schema_free(s);
            break;
        }
        assert_int_equal(st, QR_NO_MEMORY);
        assert_int_equal(alloc_live(), live);
    }
    for (int64_t n = 1;; n++) {
        struct checkpoint *ck;
        alloc_fault_at(n, 0);
        qr_status st = model_folder_open(source_path("tests/golden/v4/tiny/model"), &c, &ck, NULL);
        alloc_fault_at(0, 0);
        if (st == QR_OK) {
            checkpoint_close(ck);
            break;
        }
        assert_int_equal(st, QR_NO_MEMORY);
        assert_int_equal(alloc_live(), live);
    }
    assert_int_equal(alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_totals_are_those_of_the_published_headers),
        cmocka_unit_test(released_shards_are_those_of_the_published_folder),
        cmocka_unit_test(shapes_are_those_of_the_tables),
        cmocka_unit_test(other_v4_releases_have_their_own_tensors),
        cmocka_unit_test(the_section_13_model_has_its_census),
        cmocka_unit_test(bundled_folders_hold_exactly_their_schema),
        cmocka_unit_test(the_int8_folder_has_the_tensors_of_the_golden),
        cmocka_unit_test(no_name_occurs_twice),
        fault_test(failed_allocations_are_statuses_without_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
