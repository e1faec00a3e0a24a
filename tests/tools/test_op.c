/* quire op: every file of golden/ops4 within its tolerance on both CPU devices; what 9.5 refuses, by name; ranks. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_write.h"
#include "support/support.h"
#include "support/scratch.h"
#include "tools/op_check.h"
#include "tools/op_cost.h"

static struct backend *open_path(const char *path)
{
    struct backend *b;
    qr_error err = {0};
    if (backend_cpu_open(path, 2, NULL, &b, &err) != QR_OK)
        fail_msg("%s", err.message);
    return b;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The operator files of the goldens, sorted; free each and the list. */
static char **golden_files(int *count)
{
    char folder[4096], **names = NULL;
    snprintf(folder, sizeof folder, "%s", source_path("tests/golden/ops4"));
    DIR *dir = opendir(folder);
    *count = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || !strstr(e->d_name, ".safetensors"))
            continue;
        names = realloc(names, (size_t)(*count + 1) * sizeof *names);
        names[(*count)++] = strdup(e->d_name);
    }
    closedir(dir);
    qsort(names, (size_t)*count, sizeof *names, by_name);
    return names;
}

static struct op_file *open_golden(const char *name)
{
    char path[4096];
    struct op_file *file;
    qr_error err = {0};
    snprintf(path, sizeof path, "%s", source_path("tests/golden/ops4"));
    snprintf(path + strlen(path), sizeof path - strlen(path), "/%s", name);
    if (op_file_open(path, &file, &err) != QR_OK)
        fail_msg("%s", err.message);
    return file;
}

/* Whether a file passes; says on standard output what does not. */
static bool check_file(const char *name, const char *path)
{
    struct op_file *file = open_golden(name);
    const char *op = op_file_metadata(file, "op");
    const struct op_harness *harness = op_harness_find(op);
    struct op_run *run = NULL;
    struct op_verdict verdicts[64];
    struct backend *b = open_path(path);
    qr_error err = {0};
    int64_t count = 0, bytes = 0;
    bool passed = false;
    if (!harness)
        print_message("%s: operator %s has no harness\n", name, op);
    else if (op_run_open(file, harness, b, 0, &run, &err) != QR_OK || op_run_execute(run, &err) != QR_OK ||
             op_check(run, verdicts, &count, &passed, &err) != QR_OK || op_run_bytes(run, &bytes, &err) != QR_OK)
        print_message("%s on %s: %s\n", name, b->name, err.message);
    for (int64_t i = 0; i < count; i++)
        if (!verdicts[i].result.passed)
            print_message("%s on %s: %s: %lld of %lld outside, %lld allowed; %s\n", name, b->name, verdicts[i].name,
                          (long long)verdicts[i].result.bad, (long long)verdicts[i].result.points,
                          (long long)verdicts[i].result.allowed, verdicts[i].why);
    op_run_close(run);
    op_file_close(file);
    b->close(b);
    return passed;
}

static void every_golden_file_is_within_its_tolerance(void **state)
{
    (void)state;
    static const char *const paths[] = {"reference", "auto", "portable"};
    int count, failed = 0;
    char **names = golden_files(&count);
    assert_true(count >= 80);
    for (int i = 0; i < count; i++) {
        bool passed = true;
        for (size_t p = 0; p < sizeof paths / sizeof *paths; p++)
            passed &= check_file(names[i], paths[p]);
        print_message("  %-60s %s\n", names[i], passed ? "ok" : "FAILED");
        failed += !passed;
        free(names[i]);
    }
    free(names);
    assert_int_equal(failed, 0);
}

/* ---- files with something changed ---- */

/* A golden file with its arrays copied into memory, where a test spoils one. */
struct changed {
    const char *name;
    struct op_file *golden;
    struct tensor_view views[512];
    int64_t shapes[512][8];
    int64_t count;
    char *folder, path[4096];
};

/* Everything in it under its own name, inputs of the weights file too, so that the copy stands alone. */
static void copy_in(struct changed *c, const char *name, const struct tensor_view *from)
{
    struct tensor_view *to = &c->views[c->count];
    void *data = malloc(from->bytes + 1);
    assert_true(c->count < 512);
    memcpy(data, from->data, from->bytes);
    memcpy(c->shapes[c->count], from->shape, (size_t)from->rank * sizeof(int64_t));
    *to = (struct tensor_view){.name = strdup(name), .dtype = from->dtype, .rank = from->rank, .shape = c->shapes[c->count],
                               .data = data, .bytes = from->bytes};
    c->count++;
}

static void changed_open(struct changed *c, const char *name)
{
    memset(c, 0, sizeof *c);
    c->name = name;
    c->golden = open_golden(name);
    c->folder = scratch_make();
    const struct op_harness *h = op_harness_find(op_file_metadata(c->golden, "op"));
    for (int64_t i = 0; i < op_file_count(c->golden); i++)
        copy_in(c, op_file_at(c->golden, i)->name, op_file_at(c->golden, i));
    for (const struct op_array *a = h->in; a->name; a++)
        for (int part = 0; part < 2; part++) {
            char full[128];
            const char *array = part ? a->scales : a->name;
            if (!array)
                continue;
            snprintf(full, sizeof full, "in.%s", array);
            bool there = false;
            for (int64_t i = 0; i < c->count; i++)
                there |= strcmp(c->views[i].name, full) == 0;
            if (!there && op_file_find(c->golden, full))
                copy_in(c, full, op_file_find(c->golden, full));
        }
}

static struct tensor_view *view_of(struct changed *c, const char *name)
{
    for (int64_t i = 0; i < c->count; i++)
        if (strcmp(c->views[i].name, name) == 0)
            return &c->views[i];
    fail_msg("%s: no array %s", c->name, name);
    return NULL;
}

static void *data_of(struct changed *c, const char *name) { return (void *)(uintptr_t)view_of(c, name)->data; }
static int32_t *ints_of(struct changed *c, const char *name) { return data_of(c, name); }

static void changed_close(struct changed *c)
{
    for (int64_t i = 0; i < c->count; i++) {
        free((void *)(uintptr_t)c->views[i].data);
        free((void *)(uintptr_t)c->views[i].name);
    }
    op_file_close(c->golden);
    scratch_remove(c->folder);
}

/* Runs what the arrays are now; the status, the message in err. `params`: NULL, or instead of the file's. */
static qr_status changed_run(struct changed *c, const char *params, int ranks, struct op_run **keep, struct op_file **keep_file,
                             struct backend **keep_backend, qr_error *err)
{
    const char *metadata[4][2] = {{"op", op_file_metadata(c->golden, "op")},
                                  {"profile", op_file_metadata(c->golden, "profile")},
                                  {"params", params ? params : op_file_metadata(c->golden, "params")},
                                  {"tolerance", op_file_metadata(c->golden, "tolerance")}};
    struct op_file *file;
    struct op_run *run = NULL;
    struct backend *b = open_path("reference");
    snprintf(c->path, sizeof c->path, "%s/changed-x.safetensors", c->folder);
    if (safetensors_save(c->path, c->views, c->count, (const char *const(*)[2])metadata, 4, err) != QR_OK ||
        op_file_open(c->path, &file, err) != QR_OK)
        fail_msg("%s", err->message);
    qr_status st = op_run_open(file, op_harness_find(metadata[0][1]), b, ranks, &run, err);
    if (st == QR_OK)
        st = op_run_execute(run, err);
    if (st == QR_OK && keep) {
        *keep = run;
        *keep_file = file;
        *keep_backend = b;
        return st;
    }
    op_run_close(run);
    op_file_close(file);
    b->close(b);
    return st;
}

static void assert_refused(struct changed *c, const char *params, int ranks, const char *class, const char *says)
{
    qr_error err = {0};
    qr_status st = changed_run(c, params, ranks, NULL, NULL, NULL, &err);
    if (st == QR_OK)
        fail_msg("%s was not refused (%s)", c->name, class);
    if (strncmp(err.message, class, strlen(class)) != 0 || !strstr(err.message, says))
        fail_msg("\"%s\": wanted %s with \"%s\"", err.message, class, says);
}

/* One number of a file set to a value; refused by that class, saying that. */
static void refuse_int(const char *file, const char *array, int64_t index, int32_t value, const char *class, const char *says)
{
    struct changed c;
    changed_open(&c, file);
    struct tensor_view *v = view_of(&c, array);
    if (v->dtype == DTYPE_I64)
        ((int64_t *)data_of(&c, array))[index] = value;
    else
        ints_of(&c, array)[index] = value;
    assert_refused(&c, NULL, 0, class, says);
    changed_close(&c);
}

static void tokens_out_of_range_are_refused(void **state)
{
    (void)state;
    refuse_int("01-lookup_embedding-both-a.safetensors", "in.input_ids", 3, 288, "bad token", "row 3 holds token 288");
    refuse_int("01-lookup_embedding-both-a.safetensors", "in.input_ids", 0, -1, "bad token", "row 0 holds token -1");
    refuse_int("17-gate_hash-ref-a.safetensors", "in.ids", 7, 300, "bad token", "300");
    refuse_int("17-gate_hash-w8a8-a.safetensors", "in.input_ids", 0, 288, "bad token", "288");
}

static void positions_out_of_range_or_order_are_refused(void **state)
{
    (void)state;
    refuse_int("06-qkv_proj_rope-ref-a.safetensors", "in.pos", 2, -1, "bad position", "row 2 stands at -1");
    refuse_int("06-qkv_proj_rope-ref-a.safetensors", "in.pos", 2, 1048576, "bad position", "1048576");
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.position_ids", 1, 9, "bad position", "wanted consecutive");
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.position_ids", 0, -2000000, "bad position", "-2000000");
    refuse_int("10-decode_indexer-w8a8-a.safetensors", "in.position_ids", 3, 37, "bad position", "wanted consecutive");
    refuse_int("11-decode_sparse_attn_swa-ref-a.safetensors", "in.position_ids", 0, 5, "bad position", "window keys at position 5");
    refuse_int("12-decode_sparse_attn_hca-w8a8-a.safetensors", "in.position_ids", 1, 128, "bad position", "wanted consecutive");
    refuse_int("35-decode_prepare-w8a8-a.safetensors", "in.position_ids", 0, 8191, "bad position", "wanted consecutive");
    refuse_int("36-rope-both-a.safetensors", "in.pos", 0, -5, "bad position", "-5");
}

static void tables_that_lead_nowhere_are_refused(void **state)
{
    (void)state;
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.state_table", 0, 12, "bad table", "state_table entry 0 is 12");
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.state_table", 0, -2, "bad table", "entry 0 is -2");
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.state_slot", 0, 13, "bad table", "state_slot of request 0");
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.cmp_slot", 0, 5, "bad table", "no group ends there");
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.cmp_slot", 1, 161, "bad table", "row 1 of its page");
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.cmp_slot", 1, 192, "bad table", "cmp_slot");
    refuse_int("07-decode_compressor_ratio4-w8a8-a.safetensors", "in.cmp_slot", 1, 96, "bad table", "both write page 3");
    refuse_int("10-decode_indexer-w8a8-a.safetensors", "in.idx_table", 6, -1, "bad table", "request 3 has no page 0");
    refuse_int("10-decode_indexer-w8a8-a.safetensors", "in.idx_table", 6, 8, "bad table", "entry 6 is 8");
    refuse_int("11-decode_sparse_attn_swa-w8a8-a.safetensors", "in.swa_indices", 5, 512, "bad table", "window slot 5 of row 0");
    refuse_int("11-decode_sparse_attn_swa-w8a8-a.safetensors", "in.swa_indices", 5, -1, "bad table", "behind the last key");
    refuse_int("11-decode_sparse_attn_swa-ref-a.safetensors", "in.list", 0, 162, "bad table", "window slot 0");
    refuse_int("12-decode_sparse_attn_hca-w8a8-a.safetensors", "in.cmp_table", 0, 2, "bad table", "cmp_table entry 0 is 2");
    refuse_int("12-decode_sparse_attn_hca-w8a8-a.safetensors", "in.cmp_table", 0, -1, "bad table", "has no page 0");
    refuse_int("12-decode_sparse_attn_hca-w8a8-a.safetensors", "in.cmp_indices", 0, -3, "bad table", "-3");
    refuse_int("13-decode_sparse_attn_csa-ref-a.safetensors", "in.list", 130, 144, "bad table", "compressed slot 2");
    refuse_int("28-prefill_sparse_attn_csa-w8a8-a.safetensors", "in.cmp_table", 8, 9, "bad table", "entry 8 is 9");
    refuse_int("35-decode_prepare-w8a8-a.safetensors", "in.table", 64, -1, "bad table", "has no page 64");
    refuse_int("35-decode_prepare-w8a8-a.safetensors", "in.table", 3, -2, "bad table", "entry 3 is -2");
    refuse_int("20-dispatch_combine-w8a8-a.safetensors", "in.indices", 0, 6, "bad table", "expert 6");
}

static void a_table_that_is_too_short_is_refused(void **state)
{
    (void)state;
    struct changed c;
    changed_open(&c, "35-decode_prepare-w8a8-a.safetensors");
    struct tensor_view *table = view_of(&c, "in.table");
    int32_t *entries = ints_of(&c, "in.table");
    for (int b = 0; b < 4; b++)
        memmove(entries + b * 64, entries + b * 66, 64 * 4);
    c.shapes[table - c.views][1] = 64;
    table->bytes = 4 * 64 * 4;
    assert_refused(&c, NULL, 0, "bad table", "has 64 entries");
    changed_close(&c);
}

static void shapes_and_counts_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct changed c;
    refuse_int("11-decode_sparse_attn_swa-w8a8-a.safetensors", "in.swa_lens", 1, 127, "bad shape", "swa_lens of row 1");
    refuse_int("19-expert_routed-w8a8-a.safetensors", "in.counts", 0, 6, "bad shape", "counts of expert 0 is 6");
    refuse_int("19-expert_routed-w8a8-a.safetensors", "in.counts", 1, -1, "bad shape", "-1");
    refuse_int("20-dispatch_combine-w8a8-a.safetensors", "in.active", 0, 9, "bad shape", "rank 0 has 9");
    refuse_int("21-lm_head-both-a.safetensors", "in.logit_row_indices", 0, 10, "bad shape", "entry 0 is 10");
    refuse_int("21-lm_head-both-a.safetensors", "in.logit_row_indices", 9, -2, "bad shape", "rank 1 entry 1 is -2");
    refuse_int("28-prefill_sparse_attn_swa-w8a8-a.safetensors", "in.num_tokens", 0, 129, "bad shape", "num_tokens is 129");
    refuse_int("28-prefill_sparse_attn_swa-w8a8-a.safetensors", "in.num_tokens", 0, -1, "bad shape", "num_tokens is -1");
    refuse_int("28-prefill_sparse_attn_hca-w8a8-a.safetensors", "in.cmp_storage_block_size", 0, 32, "bad shape", "32");

    changed_open(&c, "03-hc_pre-ref-a.safetensors"); /* one row less than the hidden size asks for */
    c.shapes[view_of(&c, "in.hc_base") - c.views][0] = 23;
    view_of(&c, "in.hc_base")->bytes = 23 * 4;
    assert_refused(&c, NULL, 0, "bad shape", "in.hc_base is [23], wanted [MIX] = [24]");
    changed_close(&c);

    changed_open(&c, "07-decode_compressor_ratio4-w8a8-a.safetensors"); /* three rows a request */
    c.shapes[view_of(&c, "in.x") - c.views][0] = 2;
    c.shapes[view_of(&c, "in.x") - c.views][1] = 3;
    assert_refused(&c, NULL, 0, "bad shape", "in.x is [2, 3, 128]");
    changed_close(&c);

    changed_open(&c, "02-rmsnorm-both-a.safetensors");
    ((char *)(uintptr_t)view_of(&c, "in.w")->name)[3] = 'v';
    qr_error err = {0};
    assert_int_equal(changed_run(&c, NULL, 0, NULL, NULL, NULL, &err), QR_BAD_REQUEST);
    assert_non_null(strstr(err.message, "no array in.w"));
    changed_close(&c);
}

static void tables_of_experts_out_of_range_or_twice_are_refused(void **state)
{
    (void)state;
    refuse_int("17-gate_hash-w8a8-a.safetensors", "in.tid2eid", 10, 6, "bad checkpoint", "in.tid2eid [5][0] is 6");
    refuse_int("17-gate_hash-ref-a.safetensors", "in.gate.tid2eid", 11, -1, "bad checkpoint", "is -1");
    struct changed c;
    changed_open(&c, "17-gate_hash-w8a8-a.safetensors");
    ints_of(&c, "in.tid2eid")[1] = ints_of(&c, "in.tid2eid")[0];
    assert_refused(&c, NULL, 0, "bad checkpoint", "twice");
    changed_close(&c);
}

static void worlds_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    struct changed c;
    changed_open(&c, "20-moe-ref-a.safetensors"); /* six experts */
    assert_refused(&c, NULL, 4, "bad world", "6 experts over 4 ranks");
    assert_refused(&c, NULL, 3, "bad world", "3 ranks");
    changed_close(&c);
    changed_open(&c, "21-lm_head-both-a.safetensors");
    assert_refused(&c, NULL, 3, "bad world", "3 vocabulary shards");
    assert_refused(&c, NULL, 4, "bad world", "2 ranks in groups of 4");
    changed_close(&c);
    changed_open(&c, "20-dispatch_combine-w8a8-a.safetensors");
    assert_refused(&c, NULL, 4, "bad world", "--ranks 4");
    changed_close(&c);
}

static void a_logit_that_is_no_number_names_its_row(void **state)
{
    (void)state;
    struct changed c;
    qr_error err = {0};
    changed_open(&c, "21-lm_head-both-a.safetensors");
    ((uint16_t *)data_of(&c, "in.hidden"))[10 * 128 + 4] = 0x7F80; /* rank 1, row 0 */
    int32_t *index = ints_of(&c, "in.logit_row_indices");
    index[8] = 0;
    assert_int_equal(changed_run(&c, NULL, 0, NULL, NULL, NULL, &err), QR_NUMERIC);
    assert_non_null(strstr(err.message, "numeric failure: logit 0 of rank 1 row 0"));
    changed_close(&c);
}

/* ---- laws ---- */

/* The output's bytes of a run of the file with that many ranks; free them. */
static void *output_of(struct changed *c, int ranks, const char *name, int64_t *bytes)
{
    struct op_run *run;
    struct op_file *file;
    struct backend *b;
    qr_error err = {0};
    if (changed_run(c, NULL, ranks, &run, &file, &b, &err) != QR_OK)
        fail_msg("%s", err.message);
    const struct op_slot *slot = op_run_output(run, name);
    void *copy = malloc((size_t)slot->bytes);
    memcpy(copy, slot->host, (size_t)slot->bytes);
    *bytes = slot->bytes;
    op_run_close(run);
    op_file_close(file);
    b->close(b);
    return copy;
}

static void assert_ranks_agree(const char *file, const char *output, int one, int other)
{
    struct changed c;
    int64_t a_bytes, b_bytes;
    changed_open(&c, file);
    void *a = output_of(&c, one, output, &a_bytes), *b = output_of(&c, other, output, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, (size_t)a_bytes);
    free(a);
    free(b);
    changed_close(&c);
}

static void any_number_of_ranks_gives_the_same_bits(void **state)
{
    (void)state;
    assert_ranks_agree("20-moe-ref-a.safetensors", "y", 1, 2);
    assert_ranks_agree("20-moe-ref-b.safetensors", "y", 1, 2);
    assert_ranks_agree("20-moe-ref-b.safetensors", "y", 1, 4);
    assert_ranks_agree("21-lm_head-both-a.safetensors", "logits", 1, 2);
    assert_ranks_agree("21-lm_head-both-b.safetensors", "sampled_ids", 1, 2);
}

/* (7 i + 3) mod n over the pages of a pool, contents and tables alike: the same outputs. */
static void permuted_pages_give_the_same_bits(void **state)
{
    (void)state;
    struct changed c;
    int64_t bytes, more;
    changed_open(&c, "13-decode_sparse_attn_csa_starts-w8a8-a.safetensors");
    void *plain = output_of(&c, 0, "attn_out", &bytes);
    struct tensor_view *pool = view_of(&c, "in.cmp_kv"), *table = view_of(&c, "in.cmp_table");
    int64_t pages = pool->shape[0], page = (int64_t)pool->bytes / pages;
    uint8_t *moved = malloc(pool->bytes), *from = data_of(&c, "in.cmp_kv");
    for (int64_t i = 0; i < pages; i++)
        memcpy(moved + (7 * i + 3) % pages * page, from + i * page, (size_t)page);
    memcpy(from, moved, pool->bytes);
    for (uint64_t i = 0; i < table->bytes / 4; i++)
        if (ints_of(&c, "in.cmp_table")[i] >= 0)
            ints_of(&c, "in.cmp_table")[i] = (int32_t)((7 * ints_of(&c, "in.cmp_table")[i] + 3) % pages);
    void *permuted = output_of(&c, 0, "attn_out", &more);
    assert_memory_equal(plain, permuted, (size_t)bytes);
    free(moved);
    free(plain);
    free(permuted);
    changed_close(&c);
}

/* The one compressed key of a row, moved to a slot that only holes lie before: the same outputs. */
static void a_list_may_have_holes(void **state)
{
    (void)state;
    struct changed c;
    int64_t bytes, more, moved = 0;
    changed_open(&c, "12-decode_sparse_attn_hca-ref-a.safetensors");
    void *plain = output_of(&c, 0, "attn_out", &bytes);
    const struct tensor_view *list = view_of(&c, "in.list");
    for (int64_t row = 0; row < list->shape[0]; row++) {
        int32_t *slots = ints_of(&c, "in.list") + row * list->shape[1] + 128;
        if (slots[0] < 0 || slots[1] >= 0)
            continue;
        slots[7] = slots[0];
        slots[0] = -1;
        moved++;
    }
    assert_true(moved > 0);
    void *holes = output_of(&c, 0, "attn_out", &more);
    assert_memory_equal(plain, holes, (size_t)bytes);
    free(plain);
    free(holes);
    changed_close(&c);
}

/* A row that is not kept: the group it ends is made of what the state holds already. */
static void a_state_row_may_be_left_out(void **state)
{
    (void)state;
    struct changed c;
    int64_t bytes;
    changed_open(&c, "07-decode_compressor_ratio4-w8a8-a.safetensors");
    const struct tensor_view *pool = view_of(&c, "in.state");
    int64_t row = (int64_t)pool->bytes / (pool->shape[0] * pool->shape[1]);
    int32_t slot = ints_of(&c, "in.state_slot")[0];
    uint8_t before[8192];
    assert_true(slot >= 0 && row <= (int64_t)sizeof before);
    memcpy(before, (uint8_t *)data_of(&c, "in.state") + slot * row, (size_t)row);
    ints_of(&c, "in.state_slot")[0] = -1;
    uint8_t *after = output_of(&c, 0, "state", &bytes);
    assert_memory_equal(after + slot * row, before, (size_t)row);
    free(after);
    changed_close(&c);
}

/* The reference's layer of experts with a table in the place of the bias: experts by token. */
static void experts_may_be_routed_by_token(void **state)
{
    (void)state;
    struct changed c;
    int64_t bytes;
    changed_open(&c, "20-moe-ref-a.safetensors");
    struct tensor_view *bias = view_of(&c, "in.gate.bias");
    int32_t *table = malloc(288 * 2 * sizeof *table);
    for (int32_t t = 0; t < 288; t++) {
        table[2 * t] = (t + 3) % 6;
        table[2 * t + 1] = t % 6;
    }
    free((void *)(uintptr_t)bias->data);
    free((void *)(uintptr_t)bias->name);
    c.shapes[bias - c.views][0] = 288;
    c.shapes[bias - c.views][1] = 2;
    *bias = (struct tensor_view){.name = strdup("in.gate.tid2eid"), .dtype = DTYPE_I32, .rank = 2, .shape = bias->shape,
                                 .data = table, .bytes = 288 * 2 * sizeof *table};
    int32_t *route = output_of(&c, 0, "route", &bytes);
    const int64_t *ids = data_of(&c, "in.ids");
    assert_int_equal(bytes, 8 * 2 * sizeof *route);
    for (int i = 0; i < 16; i++)
        assert_int_equal(route[i], table[2 * ids[i / 2] + i % 2]);
    free(route);
    table[5] = table[4];
    assert_refused(&c, NULL, 0, "bad checkpoint", "in.gate.tid2eid [2] holds expert 5 twice");
    free((void *)(uintptr_t)bias->name);
    bias->name = strdup("in.gate.other");
    assert_refused(&c, NULL, 0, "bad checkpoint", "found neither");
    changed_close(&c);
}

/* A check that cannot fail checks nothing: an output wrong in a high bit is found, whatever the comparator. */
static void a_spoiled_output_is_found(void **state)
{
    (void)state;
    static const char *const files[] = {"01-lookup_embedding-both-a.safetensors", "04-hc_post-w8a8-a.safetensors",
                                        "09-decode_indexer_compressor-w8a8-a.safetensors", "10-decode_indexer-w8a8-a.safetensors",
                                        "17-gate-w8a8-a.safetensors", "21-lm_head-both-a.safetensors",
                                        "35-decode_prepare-w8a8-b.safetensors", "36-quantizers-both-a.safetensors"};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        struct changed c;
        changed_open(&c, files[f]);
        for (int64_t i = 0; i < c.count; i++) {
            struct tensor_view *v = &c.views[i];
            struct op_run *run;
            struct op_file *file;
            struct backend *b;
            struct op_verdict verdicts[64];
            int64_t count;
            bool passed;
            qr_error err = {0};
            if (strncmp(v->name, "out.", 4) != 0 || strstr(v->name, "sampled_ids"))
                continue; /* sampled_ids is judged by the logits found */
            uint8_t *bytes = data_of(&c, v->name);
            size_t size = dtype_size(v->dtype);
            for (size_t at = size - 1; at < v->bytes; at += size)
                bytes[at] ^= 0x40;
            if (changed_run(&c, NULL, 0, &run, &file, &b, &err) != QR_OK || op_check(run, verdicts, &count, &passed, &err) != QR_OK)
                fail_msg("%s", err.message);
            if (passed)
                fail_msg("%s: %s spoiled was not found", files[f], v->name);
            op_run_close(run);
            op_file_close(file);
            b->close(b);
            for (size_t at = size - 1; at < v->bytes; at += size)
                bytes[at] ^= 0x40;
        }
        changed_close(&c);
    }
}

static void names_with_variants_find_their_harness(void **state)
{
    (void)state;
    assert_string_equal(op_harness_find("qkv_proj_rope_yarn")->name, "qkv_proj_rope");
    assert_string_equal(op_harness_find("gate_hash")->name, "gate_hash");
    assert_string_equal(op_harness_find("gate")->name, "gate");
    assert_string_equal(op_harness_find("prefill_sparse_attn_csa")->name, "prefill_sparse_attn");
    assert_string_equal(op_harness_find("decode_indexer")->name, "decode_indexer");
    assert_string_equal(op_harness_find("decode_indexer_compressor_starts")->name, "decode_indexer_compressor");
    assert_null(op_harness_find("gat"));
    assert_null(op_harness_find("gates"));
    int32_t count = 0;
    for (const struct op_harness *h, *before = NULL; (h = op_harness_at(count)); before = h, count++)
        assert_true(!before || before->number <= h->number);
    assert_true(count >= 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_file_is_within_its_tolerance),
        cmocka_unit_test(tokens_out_of_range_are_refused),
        cmocka_unit_test(positions_out_of_range_or_order_are_refused),
        cmocka_unit_test(tables_that_lead_nowhere_are_refused),
        cmocka_unit_test(a_table_that_is_too_short_is_refused),
        cmocka_unit_test(shapes_and_counts_that_do_not_fit_are_refused),
        cmocka_unit_test(tables_of_experts_out_of_range_or_twice_are_refused),
        cmocka_unit_test(worlds_that_do_not_divide_are_refused),
        cmocka_unit_test(a_logit_that_is_no_number_names_its_row),
        cmocka_unit_test(any_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(permuted_pages_give_the_same_bits),
        cmocka_unit_test(a_list_may_have_holes),
        cmocka_unit_test(a_state_row_may_be_left_out),
        cmocka_unit_test(experts_may_be_routed_by_token),
        cmocka_unit_test(a_spoiled_output_is_found),
        cmocka_unit_test(names_with_variants_find_their_harness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
