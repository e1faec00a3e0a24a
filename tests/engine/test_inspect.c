#define _GNU_SOURCE
#include "support/support.h"
#include "support/scratch.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "quire.h"

/* The JSON description of a folder; free with json_close. */
static struct json_document *described(const char *dir, const qr_model_options *model, const qr_engine_options *engine)
{
    struct json_document *doc;
    qr_text text;
    qr_error err = {0};
    if (qr_inspect(dir, model, engine, true, &text, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_int_equal(strlen(text.data), text.length);
    assert_int_equal(json_parse(text.data, text.length, "inspect", true, &doc, NULL), QR_OK);
    qr_text_free(&text);
    return doc;
}

/* The integer at a path such as "tensors.count" or "layers.2.ratio". */
static int64_t at(const struct json_document *doc, const char *path)
{
    const struct json *v = json_root(doc);
    char key[64];
    int64_t out = 0;
    for (const char *p = path; *p; p += strcspn(p, ".") + (p[strcspn(p, ".")] == '.')) {
        snprintf(key, sizeof key, "%.*s", (int)strcspn(p, "."), p);
        v = v && v->kind == JSON_ARRAY ? json_at(v, (size_t)atoi(key)) : json_get(v, key);
    }
    if (!json_int64(v, &out))
        fail_msg("no integer at %s", path);
    return out;
}

static void the_bundled_model_is_described_as_it_is(void **state)
{
    (void)state;
    qr_engine_options engine = QR_ENGINE_OPTIONS;
    engine.kv_ram_bytes = 64 << 20;
    struct json_document *doc = described(source_path("models/tiny-v41"), NULL, &engine);
    assert_true(json_equals(json_get(json_root(doc), "family"), "DeepSeek-V4.1"));
    assert_int_equal(at(doc, "tensors.count"), 1568);
    assert_int_equal(at(doc, "tensors.bytes"), 17732968);
    assert_int_equal(at(doc, "tensors.files"), 3);
    assert_int_equal(at(doc, "tensors.missing.count"), 0);
    assert_int_equal(at(doc, "tensors.unexpected.count"), 0);
    assert_int_equal(json_get(json_root(doc), "layers")->count, 13);
    assert_int_equal(at(doc, "layers.8.rows_of"), 6);
    assert_int_equal(at(doc, "layers.8.selection_of"), 8);
    assert_int_equal(at(doc, "bytes.weights.total") + at(doc, "bytes.tables.total"), 17732968);
    assert_int_equal(at(doc, "cache.bytes"), 64 << 20);
    int64_t cache = at(doc, "bytes.pages.total") + at(doc, "bytes.states.total");
    assert_true(cache > 0 && cache <= 64 << 20);
    assert_int_equal(at(doc, "cache.max_model_len"), 65536);
    json_close(doc);
}

static void text_has_a_line_for_each_layer(void **state)
{
    (void)state;
    qr_text text;
    assert_int_equal(qr_inspect(source_path("models/tiny-v4"), NULL, NULL, false, &text, NULL), QR_OK);
    assert_non_null(strstr(text.data, "DeepSeek-V4 "));
    assert_non_null(strstr(text.data, "\n        3  hca        128        3             -  -           compress  score 2 of 8"));
    assert_non_null(strstr(text.data, "\n  draft 0  window"));
    assert_non_null(strstr(text.data, "  missing: none\n"));
    qr_text_free(&text);
}

static void an_int8_profile_counts_the_weights_it_derives(void **state)
{
    (void)state;
    qr_model_options model = QR_MODEL_OPTIONS;
    model.profile = "w8a8";
    struct json_document *doc = described(source_path("models/tiny-v4"), &model, NULL);
    assert_true(at(doc, "bytes.prepared.total") > 0);
    assert_true(json_equals(json_get(json_get(json_root(doc), "cache"), "index_cache_dtype"), "int8"));
    json_close(doc);
    qr_error err = {0};
    qr_text text;
    assert_int_equal(qr_inspect(source_path("models/tiny-v41"), &model, NULL, true, &text, &err), QR_BAD_ARGUMENT);
    model.profile = "int4";
    assert_int_equal(qr_inspect(source_path("models/tiny-v4"), &model, NULL, true, &text, &err), QR_BAD_ARGUMENT);
}

/* ---- a folder that is not what its config says ---- */

static void link_all(const char *from, const char *to)
{
    char a[4096], b[4096];
    DIR *d = opendir(from);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "config.json"))
            continue;
        snprintf(a, sizeof a, "%s/%s", from, e->d_name);
        snprintf(b, sizeof b, "%s/%s", to, e->d_name);
        assert_int_equal(symlink(a, b), 0);
    }
    closedir(d);
}

static void what_is_missing_or_unexpected_is_named(void **state)
{
    (void)state;
    char *dir = scratch_make(), path[4200], from[4096], *text, *at_experts;
    size_t size;
    assert_non_null(realpath(source_path("tests/golden/v4/tiny/model"), from));
    link_all(from, dir);
    assert_int_equal(file_read(source_path("tests/golden/v4/tiny/model/config.json"), 1 << 20, &text, &size, NULL), QR_OK);
    at_experts = strstr(text, "\"n_routed_experts\": 4");
    assert_non_null(at_experts);
    at_experts[strlen("\"n_routed_experts\": ")] = '5';
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(file_write_atomic(path, text, size, NULL), QR_OK);

    struct json_document *doc = described(dir, NULL, NULL);
    assert_int_equal(at(doc, "tensors.missing.count"), 5 * 6); /* expert 4 of five layers */
    assert_int_equal(at(doc, "tensors.wrong_shape.count"), 5 + 4);
    assert_int_equal(json_get(json_get(json_get(json_root(doc), "tensors"), "missing"), "names")->count, 20);
    json_close(doc);
    qr_text out;
    assert_int_equal(qr_inspect(dir, NULL, NULL, false, &out, NULL), QR_OK);
    assert_non_null(strstr(out.data, "  missing: 30\n    layers.0.ffn.experts.4.w1.weight\n"));
    assert_non_null(strstr(out.data, "    and 10 more\n"));
    assert_non_null(strstr(out.data, "layers.0.ffn.gate.weight: BF16 [4, 128], wanted BF16 [5, 128]"));
    qr_text_free(&out);

    at_experts[strlen("\"n_routed_experts\": ")] = '3';
    assert_int_equal(file_write_atomic(path, text, size, NULL), QR_OK);
    doc = described(dir, NULL, NULL);
    assert_int_equal(at(doc, "tensors.unexpected.count"), 5 * 6);
    json_close(doc);
    qr_free(text);
    scratch_remove(dir);
}

static void what_does_not_fit_is_said_and_not_a_failure(void **state)
{
    (void)state;
    qr_engine_options engine = QR_ENGINE_OPTIONS;
    qr_text text;
    engine.kv_ram_bytes = 1000;
    assert_int_equal(qr_inspect(source_path("models/tiny-v41"), NULL, &engine, false, &text, NULL), QR_OK);
    assert_non_null(strstr(text.data, "does not fit: E31 "));
    qr_text_free(&text);
}

static void options_out_of_rule_are_refused(void **state)
{
    (void)state;
    qr_engine_options engine = QR_ENGINE_OPTIONS;
    qr_error err = {0};
    qr_text text;
    const char *dir = source_path("models/tiny-v41");
    engine.block_size = 33;
    assert_int_equal(qr_inspect(dir, NULL, &engine, false, &text, &err), QR_REFUSED);
    assert_non_null(strstr(err.message, "E02"));
    assert_non_null(strstr(err.message, "E03"));
    engine.block_size = 0;
    engine.kv_cache_dtype = "int3";
    assert_int_equal(qr_inspect(dir, NULL, &engine, false, &text, &err), QR_REFUSED);
    engine.kv_cache_dtype = NULL;
    engine.index_cache_dtype = "int8";
    assert_int_equal(qr_inspect(dir, NULL, &engine, false, &text, &err), QR_REFUSED);
    assert_non_null(strstr(err.message, "E05"));
    engine.index_cache_dtype = NULL;
    engine.max_num_seqs = -1;
    assert_int_equal(qr_inspect(dir, NULL, &engine, false, &text, &err), QR_BAD_ARGUMENT);
    engine = (qr_engine_options)QR_ENGINE_OPTIONS;
    engine.size = sizeof engine + 1;
    assert_int_equal(qr_inspect(dir, NULL, &engine, false, &text, &err), QR_BAD_ARGUMENT);
    assert_int_equal(qr_inspect(NULL, NULL, NULL, false, &text, &err), QR_BAD_ARGUMENT);
    assert_int_equal(qr_inspect(source_path("tests"), NULL, NULL, false, &text, &err), QR_BAD_FILE);
}

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    int64_t live = alloc_live();
    for (int64_t n = 1;; n++) {
        qr_text text;
        alloc_fault_at(n, 0);
        qr_status st = qr_inspect(source_path("tests/golden/v4/wide/model"), NULL, NULL, n % 2, &text, NULL);
        alloc_fault_at(0, 0);
        if (st == QR_OK) {
            qr_text_free(&text);
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
        cmocka_unit_test(the_bundled_model_is_described_as_it_is),
        cmocka_unit_test(text_has_a_line_for_each_layer),
        cmocka_unit_test(an_int8_profile_counts_the_weights_it_derives),
        cmocka_unit_test(what_is_missing_or_unexpected_is_named),
        cmocka_unit_test(what_does_not_fit_is_said_and_not_a_failure),
        cmocka_unit_test(options_out_of_rule_are_refused),
        fault_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
