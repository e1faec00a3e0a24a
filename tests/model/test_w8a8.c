#define _GNU_SOURCE
/* The INT8 deployment (v4-model.md 7): derived in memory and written by quire quantize, its tensors are those of the
 * goldens, and both folders compute the same bits. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sha256.h"
#include "checkpoint/safetensors.h"
#include "cli/commands.h"
#include "model/w8a8.h"
#include "plan/schema.h"
#include "plan/settle.h"
#include "support/engines.h"
#include "support/scratch.h"
#include "support/v4_case.h"

static const char *const folders[] = {"tiny", "fp8exp", "wide"};
enum { FOLDERS = sizeof folders / sizeof *folders };

/* The hash that cases.json has for a tensor. */
static void assert_hash(const struct v4_folder *f, const char *name, const char *found)
{
    const struct json *want = json_get(json_get(json_root(f->document), "w8a8_sha256"), name);
    if (!want || !json_equals(want, found))
        fail_msg("%s: %s hashes to %s, wanted %.*s", f->name, name, found, want ? (int)want->length : 4,
                 want ? want->text : "none");
}

static size_t hashes_wanted(const struct v4_folder *f)
{
    return json_get(json_root(f->document), "w8a8_sha256")->count;
}

struct opened_w8a8 {
    struct qr_config config;
    struct model_plan plan;
    struct checkpoint *ck;
    struct w8a8 *w;
};

static void open_w8a8(struct opened_w8a8 *o, const char *folder, struct worker_pool *pool)
{
    qr_error err = {0};
    must(model_folder_open(folder, &o->config, &o->ck, &err), &err);
    must(plan_make(&o->config, QR_PROFILE_W8A8, &o->plan, &err), &err);
    must(w8a8_open(o->ck, &o->plan, pool, &o->w, &err), &err);
}

static void close_w8a8(struct opened_w8a8 *o)
{
    w8a8_close(o->w);
    checkpoint_close(o->ck);
}

static int64_t bytes_of(const struct schema *schema, const char *name)
{
    for (int64_t i = 0; i < schema_count(schema); i++)
        if (strcmp(schema_tensors(schema)[i].name, name) == 0)
            return schema_tensor_bytes(&schema_tensors(schema)[i]);
    fail_msg("%s is not in the list", name);
    return 0;
}

/* Hashes one tensor (and its scales) member by member. */
static void check_output(const struct v4_folder *f, struct opened_w8a8 *o, const struct w8a8_output *out,
                         const struct schema *schema)
{
    struct sha256 values, scales;
    char hex[SHA256_HEX];
    qr_error err = {0};
    size_t bytes = (size_t)(bytes_of(schema, out->name) / out->members);
    size_t scale_bytes = out->scale_name[0] ? (size_t)(bytes_of(schema, out->scale_name) / out->members) : 0;
    uint8_t *room = malloc(bytes);
    float *scale_room = malloc(scale_bytes + 1);
    assert_true(room && scale_room);
    sha256_start(&values);
    sha256_start(&scales);
    for (int64_t member = 0; member < out->members; member++) {
        must(w8a8_make(o->w, out, member, room, scale_room, &err), &err);
        const struct tensor_view *same = w8a8_unchanged(o->w, out, member);
        if (same)
            assert_memory_equal(same->data, room, bytes);
        sha256_add(&values, room, bytes);
        sha256_add(&scales, scale_room, scale_bytes);
    }
    sha256_end(&values, hex);
    assert_hash(f, out->name, hex);
    sha256_end(&scales, hex);
    if (scale_bytes)
        assert_hash(f, out->scale_name, hex);
    free(room);
    free(scale_room);
}

static void tensors_derived_in_memory_hash_as_the_goldens_with_any_number_of_threads(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++) {
        struct v4_folder f;
        struct opened_w8a8 o;
        struct schema *schema;
        struct worker_pool *pool = NULL;
        struct w8a8_output out;
        size_t checked = 0;
        qr_error err = {0};
        v4_folder_open(&f, folders[i]);
        if (i != 1)
            must(pool_open(3, &pool, &err), &err);
        open_w8a8(&o, f.model, pool);
        struct qr_config stored = o.config;
        stored.stored_w8a8 = true;
        must(schema_make(&stored, &schema, &err), &err);
        for (int32_t k = 0; w8a8_output(&o.plan, k, &out); k++) {
            check_output(&f, &o, &out, schema);
            checked += out.scale_name[0] ? 2 : 1;
        }
        assert_int_equal(checked, hashes_wanted(&f));
        schema_free(schema);
        close_w8a8(&o);
        pool_close(pool);
        v4_folder_close(&f);
    }
}

/* ---- the folder ---- */

static const char *quantize(const char *model, const char *name)
{
    const char *out = scratch_path(scratch, name);
    char *argv[] = {
        "quantize", "--quiet", "--w8a8", "--model", (char *)(uintptr_t)model, "--out", (char *)(uintptr_t)out};
    assert_int_equal(tool_quantize(7, argv), 0);
    return out;
}

/* The tables of 7.4: bf16 cosines and sines, both halves alike, row 0 of angle 0. */
static void check_tables(const struct safetensors *file, const struct qr_config *c)
{
    const struct tensor_view *cosines = safetensors_find(file, "freqs_cos"),
                             *sines = safetensors_find(file, "freqs_sin");
    int64_t width = c->rope_head_dim, rows = c->max_position_embeddings;
    assert_true(cosines && sines && cosines->rank == 3 && cosines->shape[0] == 2 && cosines->shape[2] == width);
    assert_int_equal(cosines->shape[1], rows);
    const uint16_t *x = cosines->data, *y = sines->data;
    for (int64_t i = 0; i < width; i++) {
        assert_int_equal(x[i], 0x3F80);
        assert_int_equal(y[i], 0);
    }
    for (int64_t row = 0; row < 2 * rows; row++)
        for (int64_t i = 0; i < width / 2; i++) {
            assert_int_equal(x[row * width + i], x[row * width + width / 2 + i]);
            assert_int_equal(y[row * width + i], y[row * width + width / 2 + i]);
        }
}

static void check_hash_list(const struct v4_folder *f, const char *folder)
{
    struct json_document *doc;
    char path[512], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/w8a8_sha256.json", folder);
    assert_int_equal(file_read(path, 1 << 20, &text, &size, NULL), QR_OK);
    assert_int_equal(json_parse(text, size, path, true, &doc, NULL), QR_OK);
    assert_int_equal(json_root(doc)->count, hashes_wanted(f));
    for (const struct json *e = json_root(doc)->child; e; e = e->next)
        assert_hash(f, e->key, e->text);
    json_close(doc);
    qr_free(text);
}

static void assert_same_arrays(const char *a, struct golden *x, struct golden *y)
{
    static const char *const names[] = {"logits", "mtp_logits", "mtp.out"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct tensor_view *v = golden_view(x, names[i]), *w = golden_view(y, names[i]);
        if (v->bytes != w->bytes || memcmp(v->data, w->data, v->bytes) != 0)
            fail_msg("%s: %s differs between the two folders", a, names[i]);
    }
}

/* The written tensors hash as the goldens, and computing on either folder gives the same bits. */
static void a_quantized_folder_holds_the_same_tensors_and_computes_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++) {
        struct v4_folder f;
        struct safetensors *file;
        char path[512], hex[SHA256_HEX];
        qr_error err = {0};
        v4_folder_open(&f, folders[i]);
        const char *folder = quantize(f.model, folders[i]);
        snprintf(path, sizeof path, "%s/w8a8.safetensors", folder);
        must(safetensors_open(path, &file, &err), &err);
        assert_int_equal(safetensors_count(file), hashes_wanted(&f) + 2);
        for (int64_t k = 0; k < safetensors_count(file); k++) {
            const struct tensor_view *v = safetensors_at(file, k);
            sha256_hex(v->data, v->bytes, hex);
            if (strncmp(v->name, "freqs_", 6) != 0)
                assert_hash(&f, v->name, hex);
        }
        check_tables(file, &f.config);
        safetensors_close(file);
        check_hash_list(&f, folder);

        const struct v4_case *c = &f.cases[f.count > 1 ? 1 : 0];
        struct golden *derived = v4_trace(scratch, f.model, c->ids, c->count, "cpu", &v4_profiles[1], NULL);
        struct golden *stored = v4_trace(scratch, folder, c->ids, c->count, "cpu", &v4_profiles[1], NULL);
        assert_same_arrays(f.name, derived, stored);
        golden_close(derived);
        golden_close(stored);
        v4_folder_close(&f);
    }
}

/* ---- sizes ---- */

/* Asks for everything that a forward pass asks for, once. */
static void get_all(struct opened_w8a8 *o, bool drafter)
{
    struct schema *schema;
    struct qr_config official = o->config;
    struct w8a8_tensor tensor;
    qr_error err = {0};
    official.stored_w8a8 = false;
    must(schema_make(&official, &schema, &err), &err);
    for (int64_t i = 0; i < schema_count(schema); i++) {
        const char *name = schema_tensors(schema)[i].name, *end = strrchr(name, '.');
        if ((end && strcmp(end, ".scale") == 0) || (!drafter && strncmp(name, "mtp.", 4) == 0))
            continue;
        must(w8a8_get(o->w, name, &tensor, &err), &err);
        assert_non_null(tensor.values);
        assert_int_equal(tensor.scales != NULL, tensor.dtype == DTYPE_I8);
    }
    const bool serial = drafter && o->config.drafter == QR_DRAFTER_MTP;
    for (int i = 0; serial && i < 2; i++) {
        must(w8a8_get(o->w, i ? "mtp.0.h_proj.smooth" : "mtp.0.e_proj.smooth", &tensor, &err), &err);
        assert_int_equal(tensor.cols, o->config.hidden_size);
        assert_true(((const float *)tensor.values)[tensor.cols - 1] == 1.0f);
    }
    schema_free(schema);
}

static void the_byte_plan_is_what_conversions_take(void **state)
{
    (void)state;
    struct v4_folder f;
    v4_folder_open(&f, "tiny");
    char *blocks = small_folder_of("tests/data/config/v4-tiny-dspark-point.json");
    const char *const models[4] = {f.model, quantize(f.model, "sizes"), blocks, quantize(blocks, "block_sizes")};
    for (int i = 0; i < 8; i++) {
        struct opened_w8a8 o;
        struct byte_plan plan = {.items = NULL};
        qr_error err = {0};
        bool drafter = i / 4;
        open_w8a8(&o, models[i % 4], NULL);
        must(w8a8_plan_bytes(&o.plan, drafter, &plan, &err), &err);
        get_all(&o, drafter);
        assert_true(w8a8_bytes(o.w) > 0);
        assert_int_equal(byte_plan_total(&plan, BYTES_PREPARED), w8a8_bytes(o.w));
        byte_plan_free(&plan);
        close_w8a8(&o);
    }
    scratch_remove(blocks);
    v4_folder_close(&f);
}

/* ---- refusals ---- */

static void quantizing_refuses_what_it_cannot_convert(void **state)
{
    (void)state;
    char again[512], full[512];
    struct v4_folder f;
    v4_folder_open(&f, "tiny");
    snprintf(again, sizeof again, "%s", quantize(f.model, "once"));
    snprintf(full, sizeof full, "%s/twice", scratch);
    char *twice[] = {"quantize", "--quiet", "--w8a8", "--model", again, "--out", full};
    assert_int_equal(tool_quantize(7, twice), 1);
    char *v41[] = {"quantize", "--quiet", "--w8a8", "--model", (char *)(uintptr_t)source_path("models/tiny-v41"),
                   "--out",    full};
    assert_int_equal(tool_quantize(7, v41), 2); /* --w8a8 asks for a profile that this family has not */
    char *into[] = {"quantize", "--quiet", "--w8a8", "--model", f.model, "--out", again};
    assert_int_equal(tool_quantize(7, into), 1);
    char *without[] = {"quantize", "--quiet", "--model", f.model, "--out", full};
    assert_int_equal(tool_quantize(6, without), 2);
    v4_folder_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_derived_in_memory_hash_as_the_goldens_with_any_number_of_threads),
        cmocka_unit_test(a_quantized_folder_holds_the_same_tensors_and_computes_the_same_bits),
        cmocka_unit_test(the_byte_plan_is_what_conversions_take),
        cmocka_unit_test(quantizing_refuses_what_it_cannot_convert),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
