#define _GNU_SOURCE
/* quire trace: ragged batches, forcing with a run's own streams, and what it refuses. The goldens are golden/v41's. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "checkpoint/safetensors.h"
#include "cli/commands.h"
#include "support/program.h"
#include "support/scratch.h"
#include "tools/trace_input.h"

#define MODEL "tests/golden/v41/pad/model"
#define ALL "logits,streams,selection,caches,routes,engram"

static const char *write_tokens(const char *name, const char *text)
{
    const char *path = scratch_path(scratch, name);
    scratch_write(path, text, strlen(text));
    return path;
}

/* Runs the tool on MODEL; further arguments end with NULL. */
static int trace(const char *tokens, const char *out, const char *want, const char *const *extra)
{
    char *argv[32] = {"trace",    "--quiet",
                      "--device", "cpu-reference",
                      "--model",  (char *)(uintptr_t)source_path(MODEL),
                      "--tokens", (char *)(uintptr_t)tokens,
                      "--out",    (char *)(uintptr_t)out,
                      "--want",   (char *)(uintptr_t)want};
    int argc = 12;
    while (extra && *extra)
        argv[argc++] = (char *)(uintptr_t)*extra++;
    return tool_trace(argc, argv);
}

static struct safetensors *open_out(const char *path)
{
    struct safetensors *file;
    qr_error err = {0};
    if (safetensors_open(path, &file, &err) != QR_OK)
        fail_msg("%s", err.message);
    return file;
}

/* Every array of `part` stands in `all` under the prefix, with the same bytes. */
static void assert_contained(const struct safetensors *all, const char *prefix, const struct safetensors *part)
{
    assert_true(safetensors_count(part) > 30);
    for (int64_t i = 0; i < safetensors_count(part); i++) {
        const struct tensor_view *a = safetensors_at(part, i);
        char name[128];
        snprintf(name, sizeof name, "%s%s", prefix, a->name);
        const struct tensor_view *b = safetensors_find(all, name);
        if (!b || b->bytes != a->bytes || memcmp(a->data, b->data, a->bytes) != 0)
            fail_msg("%s is not %s of the sequence alone", name, a->name);
    }
}

static const char *const lists[] = {"{\"tokens\":[7,8,318,318,9,250,3,4,5,6,11,12,13]}", "{\"tokens\":[9]}",
                                    "{\"tokens\":[300,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5]}"};

static void a_list_is_a_ragged_batch_with_the_arrays_of_each_alone(void **state)
{
    (void)state;
    char list[512], *out = NULL;
    snprintf(list, sizeof list, "[%s,%s,%s]", lists[0], lists[1], lists[2]);
    assert_true(asprintf(&out, "%s/all.safetensors", scratch) > 0);
    assert_int_equal(trace(write_tokens("list.json", list), out, ALL, (const char *[]){"--chunks", "5,2", NULL}), 0);
    struct safetensors *all = open_out(out);
    for (int i = 0; i < 3; i++) {
        char prefix[16];
        const char *one = scratch_path(scratch, "one.safetensors");
        snprintf(prefix, sizeof prefix, "seq%d.", i);
        assert_int_equal(trace(write_tokens("one.json", lists[i]), one, ALL, NULL), 0);
        struct safetensors *alone = open_out(one);
        assert_contained(all, prefix, alone);
        safetensors_close(alone);
    }

    /* Forced with what it would compute anyway, a pass stays the same. */
    const char *forced = scratch_path(scratch, "forced.safetensors");
    assert_int_equal(trace(scratch_path(scratch, "list.json"), forced, ALL, (const char *[]){"--force", out, NULL}), 0);
    struct safetensors *again = open_out(forced);
    assert_contained(all, "", again);
    safetensors_close(again);
    safetensors_close(all);
    free(out);
}

static void only_the_groups_asked_for_are_written(void **state)
{
    (void)state;
    const char *out = scratch_path(scratch, "few.safetensors");
    assert_int_equal(trace(write_tokens("few.json", lists[1]), out, "routes", NULL), 0);
    struct safetensors *file = open_out(out);
    assert_int_equal(safetensors_count(file), 2);
    assert_non_null(safetensors_find(file, "router.idx"));
    assert_non_null(safetensors_find(file, "router.weight"));
    safetensors_close(file);
    /* Groups that are not built are left out, the rest is written. */
    assert_int_equal(trace(scratch_path(scratch, "few.json"), out, "logits,mtp", NULL), 0);
    file = open_out(out);
    assert_int_equal(safetensors_count(file), 1);
    safetensors_close(file);
}

static void groups_that_are_left_out_are_warned_about(void **state)
{
    (void)state;
    const char *tokens = write_tokens("warn.json", lists[1]), *out = scratch_path(scratch, "warn.safetensors");
    static const struct {
        const char *model, *want, *says;
    } cases[] = {{MODEL, "all", ""},
                 {MODEL, "logits,mtp", "group mtp is left out"},
                 {"models/tiny-v4", "logits,draft", "group draft is left out"},
                 {"models/tiny-v4", "all", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ran r = QUIRE("trace", "--model", source_path(cases[i].model), "--tokens", tokens, "--out", out, "--want",
                             cases[i].want);
        assert_status(&r, 0);
        if (*cases[i].says)
            assert_says(r.err, cases[i].says);
        else
            assert_string_equal(r.err, "");
        ran_free(&r);
    }
}

/* Rows of `part` are those of `all` at the positions. `outer`: what stands in front of them, each of `length` positions. */
static void assert_rows_of(const struct safetensors *all, const struct safetensors *part, const char *name, int64_t outer,
                           int64_t length, const int32_t *positions, int64_t count)
{
    const struct tensor_view *a = safetensors_find(all, name), *b = safetensors_find(part, name);
    const uint64_t row = a->bytes / (uint64_t)(outer * length);
    assert_int_equal(b->bytes, row * (uint64_t)(outer * count));
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < count; i++)
            assert_memory_equal((const uint8_t *)b->data + (uint64_t)(o * count + i) * row,
                                (const uint8_t *)a->data + (uint64_t)(o * length + positions[i]) * row, row);
}

static void rows_and_picks_say_which_logits_and_streams_are_written(void **state)
{
    (void)state;
    static const int32_t rows[] = {4, 5, 6, 2, 12, 4}, picks[] = {0, 11, 12};
    const char *tokens = write_tokens("rows.json", "{\"tokens\":[7,8,318,318,9,250,3,4,5,6,11,12,13],"
                                                   "\"rows\":[4,5,6,2,12,4],\"picks\":[0,11,12]}");
    const char *whole = scratch_path(scratch, "whole.safetensors"), *out = scratch_path(scratch, "rows.safetensors");
    assert_int_equal(trace(write_tokens("whole.json", lists[0]), whole, ALL, NULL), 0);
    assert_int_equal(trace(tokens, out, ALL, (const char *[]){"--chunks", "5,2", NULL}), 0);
    struct safetensors *all = open_out(whole), *part = open_out(out);
    const int64_t layers = safetensors_find(all, "streams")->shape[0];
    assert_rows_of(all, part, "logits", 1, 13, rows, 6);
    assert_rows_of(all, part, "streams", layers, 13, picks, 3);
    assert_int_equal(safetensors_find(part, "final")->shape[0], 13);
    safetensors_close(part);
    safetensors_close(all);
}

static void wrong_lines_exit_with_two_and_wrong_files_with_one(void **state)
{
    (void)state;
    static const char *const broken[] = {"{}",
                                         "[]",
                                         "{\"tokens\":[]}",
                                         "{\"tokens\":[320]}",
                                         "{\"tokens\":[-1]}",
                                         "{\"tokens\":[1.5]}",
                                         "{\"tokens\":7}",
                                         "[{\"tokens\":[1]},3]",
                                         "{\"tokens\":[1,2],\"draft_prefixes\":[3]}",
                                         "{"};
    const char *out = scratch_path(scratch, "none.safetensors");
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_int_equal(trace(write_tokens("broken.json", broken[i]), out, "logits", NULL), 1);
    const char *good = write_tokens("good.json", lists[1]);
    assert_int_equal(trace(good, out, "logit", NULL), 2);
    assert_int_equal(trace(good, out, "", NULL), 2);
    assert_int_equal(trace(good, out, "logits", (const char *[]){"--chunks", "3,0", NULL}), 2);
    assert_int_equal(trace(good, out, "logits", (const char *[]){"--chunks", "3,", NULL}), 2);
    assert_int_equal(trace(good, out, "logits", (const char *[]){"--device", "cuda:9", NULL}), 1);
    assert_int_equal(trace(good, out, "logits", (const char *[]){"--force", good, NULL}), 1);
    assert_int_equal(trace(good, out, "logits", (const char *[]){"--block-size", "48", NULL}), 3);
    assert_int_equal(tool_trace(3, (char *[]){"trace", "--model", "x", NULL}), 2);
}

static void values_out_of_range_are_refused_with_the_range(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *option, *value;
        int status;
        const char *says;
    } cases[] = {
        {"{\"tokens\":[1,2,320]}", NULL, NULL, 1, "tokens[2] is 320, wanted 0 to 319"},
        {"{\"tokens\":[1,2],\"next_token\":320}", NULL, NULL, 1, "next_token is 320, wanted 0 to 319"},
        {"{\"tokens\":[1,2],\"next_token\":-1}", NULL, NULL, 1, "next_token is -1, wanted 0 to 319"},
        {"{\"tokens\":[1,2],\"next_token\":\"x\"}", NULL, NULL, 1, "next_token is x, wanted 0 to 319"},
        {"{\"tokens\":[1,2],\"rows\":[0,2]}", NULL, NULL, 1, "rows[1] is 2, wanted 0 to 1"},
        {"{\"tokens\":[1,2],\"picks\":[-1]}", NULL, NULL, 1, "picks[0] is -1, wanted 0 to 1"},
        {"{\"tokens\":[1,2],\"draft_prefixes\":[0]}", NULL, NULL, 1, "draft_prefixes[0] is 0, wanted 1 to 2"},
        {"{\"tokens\":[1,2]}", "--decode-from", "4096", 1, "--decode-from is 4096, wanted 0 to 4095"},
        {"{\"tokens\":[1,2]}", "--max-model-len", "1", 1, "a request of 2 tokens, wanted at most --max-model-len 1"},
        {"{\"tokens\":[1,2]}", "--max-model-len", "4097", 3, "wanted at most max_position_embeddings 4096"},
        {"{\"tokens\":[1,2]}", "--decode-from", "4095", 0, ""},
        {"{\"tokens\":[1,2],\"next_token\":319}", "--max-model-len", "2", 0, ""},
    };
    const char *out = scratch_path(scratch, "range.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ran r = QUIRE("trace", "--model", source_path(MODEL), "--tokens", write_tokens("range.json", cases[i].text),
                             "--out", out, cases[i].option, cases[i].value);
        assert_status(&r, cases[i].status);
        assert_says(r.err, cases[i].says);
        ran_free(&r);
    }
}

/* The folder holds a config alone: what opens a shard fails in another way. */
static void what_does_not_fit_is_refused_before_a_shard_is_opened(void **state)
{
    (void)state;
    const char *config = scratch_path(scratch, "config.json"), *tokens = write_tokens("fit.json", lists[0]);
    const char *out = scratch_path(scratch, "fit.safetensors");
    assert_int_equal(symlink(source_path(MODEL "/config.json"), config), 0);
    struct ran r = QUIRE("trace", "--model", scratch, "--tokens", tokens, "--out", out, "--kv-ram-bytes", "1000");
    assert_status(&r, 3);
    assert_says(r.err, "E31 ");
    const char *fits = strstr(r.err, "--kv-ram-bytes ");
    assert_non_null(fits);
    const long long enough = atoll(fits + strlen("--kv-ram-bytes "));
    ran_free(&r);

    /* What the refusal names does fit, a byte less does not. */
    for (int less = 0; less < 2; less++) {
        char bytes[32];
        snprintf(bytes, sizeof bytes, "%lld", enough - less);
        r = QUIRE("trace", "--model", source_path(MODEL), "--tokens", tokens, "--out", out, "--kv-ram-bytes", bytes,
                  "--log-level", "info");
        assert_status(&r, less ? 3 : 0);
        if (!less)
            assert_says(r.err, "quire: info: plan: PAGE pool");
        ran_free(&r);
    }
}

static void cuts_repeat_their_last_number_and_stop_where_decoding_starts(void **state)
{
    (void)state;
    int32_t *numbers, count;
    assert_true(trace_read_chunks("3,1,129", &numbers, &count));
    assert_int_equal(count, 3);
    struct trace_cut cut = {.chunks = numbers, .count = 3, .decode_from = 10};
    static const int32_t wanted[] = {3, 1, 6, 1, 1, 1};
    int32_t position = 0;
    for (int32_t step = 0; step < 6; step++) {
        assert_int_equal(trace_next_chunk(&cut, step, position, 13), wanted[step]);
        position += wanted[step];
    }
    assert_int_equal(position, 13);
    qr_free(numbers);
    cut = (struct trace_cut){.decode_from = -1};
    assert_int_equal(trace_next_chunk(&cut, 0, 0, 500), 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_a_ragged_batch_with_the_arrays_of_each_alone),
        cmocka_unit_test(only_the_groups_asked_for_are_written),
        cmocka_unit_test(groups_that_are_left_out_are_warned_about),
        cmocka_unit_test(rows_and_picks_say_which_logits_and_streams_are_written),
        cmocka_unit_test(wrong_lines_exit_with_two_and_wrong_files_with_one),
        cmocka_unit_test(values_out_of_range_are_refused_with_the_range),
        cmocka_unit_test(what_does_not_fit_is_refused_before_a_shard_is_opened),
        cmocka_unit_test(cuts_repeat_their_last_number_and_stop_where_decoding_starts),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
