/* label: release */
#define _GNU_SOURCE
/* Every pass line of golden/v41's README, for every file of every folder: `quire trace` beside the golden, layer by
 * layer and as a whole, on the reference path and on the fast one. Drafts have their own test. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/config.h"
#include "cli/commands.h"
#include "support/golden.h"
#include "support/models.h"
#include "support/scratch.h"
#include "support/shared_memory.h"

static const char *const folders[] = {"spec-13.1", "wide", "pad"};
enum { FOLDERS = sizeof folders / sizeof *folders, MAX_CASES = 8, MAX_TOKENS = 128 };
/* Choices closer than this may fall either way, unless they are exact ties. */
static const float close_margin = 1e-4f;

struct case_file {
    char name[32]; /* "t41" */
    char tokens[256];
    int32_t ids[MAX_TOKENS], count;
};

struct folder {
    const char *name;
    char model[256];
    struct qr_config config;
    struct case_file cases[MAX_CASES];
    int32_t count;
};


/* Writes each case of cases.json as a file of its own, as `quire trace` takes it. */
static void open_folder(struct folder *f, const char *name)
{
    struct json_document *document;
    char path[256], *text;
    size_t size;

    memset(f, 0, sizeof *f);
    f->name = name;
    snprintf(f->model, sizeof f->model, "%s/%s/model", source_path("tests/golden/v41"), name);
    snprintf(path, sizeof path, "tests/golden/v41/%s/model/config.json", name);
    f->config = config_of(path);
    snprintf(path, sizeof path, "%s/%s/cases.json", source_path("tests/golden/v41"), name);
    assert_int_equal(file_read(path, 1 << 24, &text, &size, NULL), QR_OK);
    assert_int_equal(json_parse(text, size, path, false, &document, NULL), QR_OK);

    for (const struct json *e = json_get(json_root(document), "cases")->child; e; e = e->next) {
        struct case_file *c = &f->cases[f->count++];
        const struct json *file = json_get(e, "file");
        char line[MAX_TOKENS * 8] = "{\"tokens\":[";
        size_t used = strlen(line);
        int stem = (int)(file->length - strlen(".safetensors"));
        snprintf(c->name, sizeof c->name, "%.*s", stem, file->text);
        for (const struct json *id = json_get(e, "tokens")->child; id; id = id->next) {
            int64_t value;
            assert_true(json_int64(id, &value) && c->count < MAX_TOKENS);
            c->ids[c->count] = (int32_t)value;
            used += (size_t)snprintf(line + used, sizeof line - used, "%s%d", c->count++ ? "," : "", (int)value);
        }
        used += (size_t)snprintf(line + used, sizeof line - used, "]}");
        snprintf(c->tokens, sizeof c->tokens, "%s/%s.%.*s.json", scratch, name, stem, file->text);
        scratch_write(c->tokens, line, used);
    }
    json_close(document);
    qr_free(text);
}

/* Runs the tool; `extra` are further arguments, ended by NULL. The file's path lives until the next call but three. */
static const char *trace(const struct folder *f, const struct case_file *c, const char *device,
                         const char *const *extra)
{
    static char outs[4][256];
    static int turn;
    char *out = outs[turn++ % 4];
    char *argv[32] = {"trace",    "--quiet",
                      "--model",  (char *)(uintptr_t)f->model,
                      "--tokens", (char *)(uintptr_t)c->tokens,
                      "--out",    out,
                      "--device", (char *)(uintptr_t)device,
                      "--want",   "logits,streams,selection,caches,routes,engram"};
    int argc = 12;
    while (*extra)
        argv[argc++] = (char *)(uintptr_t)*extra++;
    snprintf(out, 256, "%s/out%d.safetensors", scratch, turn % 4);
    assert_int_equal(tool_trace(argc, argv), 0);
    return out;
}

static struct golden *golden_of(const struct folder *f, const struct case_file *c)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/v41/%s/%s.safetensors", f->name, c->name);
    return golden_open(path);
}

/* ---- comparisons ---- */

struct share {
    int64_t good, all;
    double difference; /* summed */
};

static void assert_share(const struct share *s, double wanted, const char *what, const struct folder *f,
                         const struct case_file *c)
{
    if (s->all > 0 && (double)s->good < wanted * (double)s->all)
        fail_msg("%s %s: %s: %lld of %lld good, wanted %.1f %%", f->name, c ? c->name : "", what, (long long)s->good,
                 (long long)s->all, 100 * wanted);
}

/* Counts values that differ by at most `within`. */
static struct share values(struct golden *out, struct golden *want, const char *name, double within)
{
    int64_t n, m;
    const float *a = golden_f32(out, name, &n), *b = golden_f32(want, name, &m);
    struct share s = {.all = n};
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        s.good += difference <= within;
        s.difference += difference;
    }
    return s;
}

static struct share best_of_rows(struct golden *out, struct golden *want, int64_t vocab)
{
    int64_t n;
    const float *a = golden_f32(out, "logits", &n), *b = golden_f32(want, "logits", NULL);
    struct share s = {.all = n / vocab};
    for (int64_t row = 0; row < s.all; row++) {
        int64_t best_a = 0, best_b = 0;
        for (int64_t i = 1; i < vocab; i++) {
            best_a = a[row * vocab + i] > a[row * vocab + best_a] ? i : best_a;
            best_b = b[row * vocab + i] > b[row * vocab + best_b] ? i : best_b;
        }
        s.good += best_a == best_b;
    }
    return s;
}

static void check_codes(struct golden *out, struct golden *want, const char *name, const struct folder *f,
                        const struct case_file *c)
{
    int64_t n, m, different = 0;
    const uint8_t *a = golden_bytes(out, name, &n), *b = golden_bytes(want, name, &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        different += a[i] != b[i];
    if (different > 2 && (double)different > 0.015 * (double)n)
        fail_msg("%s %s: %s: %lld of %lld bytes differ", f->name, c->name, name, (long long)different, (long long)n);
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Two sets of numbers are equal; orders them. */
static bool same_set(const int32_t *a, int64_t n, const int32_t *b, int64_t m)
{
    int32_t x[256], y[256];
    assert_true(n <= 256 && m <= 256);
    if (n != m)
        return false;
    memcpy(x, a, (size_t)n * sizeof *x);
    memcpy(y, b, (size_t)m * sizeof *y);
    qsort(x, (size_t)n, sizeof *x, by_value);
    qsort(y, (size_t)m, sizeof *y, by_value);
    return memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

static bool is_close(float margin) { return margin > 0 && margin < close_margin; }

static void check_selection(struct golden *out, struct golden *want, int32_t layer, const struct folder *f,
                            const struct case_file *c)
{
    char ptr[32], rows[32], margins[32];
    snprintf(ptr, sizeof ptr, "sel.%d.ptr", layer);
    snprintf(rows, sizeof rows, "sel.%d.rows", layer);
    snprintf(margins, sizeof margins, "sel.%d.margin", layer);
    const int32_t *p = golden_i32(out, ptr, NULL), *q = golden_i32(want, ptr, NULL);
    const int32_t *a = golden_i32(out, rows, NULL), *b = golden_i32(want, rows, NULL);
    const float *margin = golden_f32(want, margins, NULL);

    for (int32_t t = 0; t < c->count; t++) {
        for (int32_t i = p[t] + 1; i < p[t + 1]; i++)
            assert_true(a[i] > a[i - 1]);
        if (!is_close(margin[t]) && !same_set(a + p[t], p[t + 1] - p[t], b + q[t], q[t + 1] - q[t]))
            fail_msg("%s %s: selection of layer %d at position %d differs", f->name, c->name, layer, t);
    }
}

static void check_candidates(struct golden *out, struct golden *want, const struct folder *f, const struct case_file *c)
{
    int64_t n;
    const uint8_t *a = golden_bytes(out, "cand.mask", &n), *b = golden_bytes(want, "cand.mask", NULL);
    const float *margin = golden_f32(want, "cand.margin", NULL);
    int32_t ratio = f->config.compress_ratios[f->config.candidate_source_layer], rows = (int32_t)(n / c->count);

    for (int32_t t = 0; t < c->count; t++)
        for (int32_t row = 0; row < (t + 1) / ratio && !is_close(margin[t]); row++)
            if (a[t * rows + row] != b[t * rows + row])
                fail_msg("%s %s: candidate %d at position %d differs", f->name, c->name, row, t);
}

static void check_routes(struct golden *out, struct golden *want, const struct folder *f, const struct case_file *c)
{
    const int32_t *a = golden_i32(out, "router.idx", NULL), *b = golden_i32(want, "router.idx", NULL);
    const float *margin = golden_f32(want, "router.margin", NULL);
    int32_t k = f->config.n_experts_per_tok;

    for (int32_t i = 0; i < f->config.num_hidden_layers * c->count; i++)
        if (!is_close(margin[i]) && !same_set(a + i * k, k, b + i * k, k))
            fail_msg("%s %s: experts of layer %d at position %d differ", f->name, c->name, i / c->count, i % c->count);
}

static void check_engram(struct golden *out, struct golden *want)
{
    int64_t n, m;
    const int32_t *a = golden_i32(out, "engram.rows", &n), *b = golden_i32(want, "engram.rows", &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
}

static bool has(const struct golden *g, const char *format, int32_t layer, char *name, size_t size)
{
    snprintf(name, size, format, layer);
    return golden_has(g, name);
}

/* One case, each layer fed with the golden's input; adds its `pre` to the folder's. */
static void check_layers(const struct folder *f, const struct case_file *c, const char *device, struct share *pre)
{
    static const char *const codes[] = {"win.%d.codes", "main.%d.codes", "ik.%d.codes"};
    static const char *const scales[] = {"win.%d.scales", "main.%d.scales", "ik.%d.scales"};
    char golden_path[256], name[64];
    snprintf(golden_path, sizeof golden_path, "%s/%s/%s.safetensors", source_path("tests/golden/v41"), f->name,
             c->name);
    struct golden *want = golden_of(f, c),
                  *out = golden_open(trace(f, c, device, (const char *[]){"--force", golden_path, NULL}));

    struct share streams = values(out, want, "streams", 0);
    assert_share(&streams, 0.99, "streams equal", f, c);
    if (streams.difference > 3e-4 * (double)streams.all)
        fail_msg("%s %s: streams differ by %g in the mean", f->name, c->name, streams.difference / (double)streams.all);
    struct share p = values(out, want, "pre", 5e-7);
    pre->good += p.good;
    pre->all += p.all;
    struct share taps = values(out, want, "taps", 0), final = values(out, want, "final", 0);
    assert_share(&taps, 0.97, "taps equal", f, c);
    assert_share(&final, 0.97, "final equal", f, c);
    struct share best = best_of_rows(out, want, f->config.vocab_size);
    assert_share(&best, 0.97, "top-1 of the logits", f, c);

    for (int32_t layer = 0; layer < f->config.num_hidden_layers; layer++) {
        for (int i = 0; i < 3; i++) {
            if (has(want, codes[i], layer, name, sizeof name))
                check_codes(out, want, name, f, c);
            if (has(want, scales[i], layer, name, sizeof name))
                check_codes(out, want, name, f, c);
        }
        if (has(want, "sel.%d.ptr", layer, name, sizeof name))
            check_selection(out, want, layer, f, c);
        if (has(want, "engram.gate.%d", layer, name, sizeof name)) {
            struct share gate = values(out, want, name, 1e-5);
            assert_share(&gate, 0.97, "Engram gates", f, c);
        }
    }
    if (golden_has(want, "cand.mask"))
        check_candidates(out, want, f, c);
    check_routes(out, want, f, c);
    if (golden_has(want, "engram.rows"))
        check_engram(out, want);
    golden_close(want);
    golden_close(out);
}

static void check_folder_layers(const char *name, const char *device)
{
    struct folder f;
    struct share pre = {0};
    open_folder(&f, name);
    assert_true(f.count > 0);
    for (int32_t i = 0; i < f.count; i++)
        check_layers(&f, &f.cases[i], device, &pre);
    assert_share(&pre, 0.97, "pre within 5e-7", &f, NULL);
}

static void layers_fed_with_the_golden_give_the_golden_on_the_reference_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder_layers(folders[i], "cpu-reference");
}

static void layers_fed_with_the_golden_give_the_golden_on_the_fast_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder_layers(folders[i], fast_device());
}

/* The whole passes of 41 tokens and more, all folders together. */
static void check_whole_passes(const char *device)
{
    struct share best = {0}, logits = {0};
    for (int i = 0; i < FOLDERS; i++) {
        struct folder f;
        open_folder(&f, folders[i]);
        for (int32_t k = 0; k < f.count; k++) {
            if (f.cases[k].count < 41)
                continue;
            struct golden *want = golden_of(&f, &f.cases[k]);
            struct golden *out = golden_open(trace(&f, &f.cases[k], device, (const char *[]){NULL}));
            struct share b = best_of_rows(out, want, f.config.vocab_size), v = values(out, want, "logits", 0);
            best.good += b.good;
            best.all += b.all;
            logits.difference += v.difference;
            logits.all += v.all;
            golden_close(want);
            golden_close(out);
        }
    }
    assert_true(best.all > 0);
    assert_true((double)best.good >= 0.75 * (double)best.all);
    assert_true(logits.difference <= 0.25 * (double)logits.all);
}

static void whole_passes_stay_near_the_golden(void **state)
{
    (void)state;
    check_whole_passes("cpu-reference");
    check_whole_passes(fast_device());
}

static void assert_same_file(const char *a, const char *b, const char *what)
{
    char *x, *y;
    size_t n, m;
    assert_int_equal(file_read(a, 1 << 28, &x, &n, NULL), QR_OK);
    assert_int_equal(file_read(b, 1 << 28, &y, &m, NULL), QR_OK);
    if (n != m || memcmp(x, y, n) != 0)
        fail_msg("%s changes bits", what);
    qr_free(x);
    qr_free(y);
}

static void chunks_decoding_and_formats_change_no_bit_of_any_array(void **state)
{
    (void)state;
    static const char *const ways[][5] = {{"--chunks", "3,1,129", NULL},
                                          {"--chunks", "7", "--decode-from", "20", NULL},
                                          {"--decode-from", "0", NULL},
                                          {"--block-size", "32", "--threads", "3", NULL}};
    for (int i = 0; i < FOLDERS; i++) {
        struct folder f;
        open_folder(&f, folders[i]);
        for (int32_t k = 0; k < f.count; k++) {
            const char *device = test_device_is_cuda() ? fast_device() : "cpu-reference";
            const char *whole = trace(&f, &f.cases[k], device, (const char *[]){NULL});
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
                assert_same_file(whole, trace(&f, &f.cases[k], device, ways[w]), ways[w][0]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_fed_with_the_golden_give_the_golden_on_the_reference_path),
        cmocka_unit_test(layers_fed_with_the_golden_give_the_golden_on_the_fast_path),
        cmocka_unit_test(whole_passes_stay_near_the_golden),
        cmocka_unit_test(chunks_decoding_and_formats_change_no_bit_of_any_array),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
