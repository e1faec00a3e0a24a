/* label: faults release */
/* Allocations of each composition of quire op fail in turn: a status, nothing left behind. Files are made of a golden model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_write.h"
#include "cli/commands.h"
#include "support/scratch.h"
#include "support/support.h"
#include "tools/op_harness.h"
#include "tools/op_run.h"

#define MODEL "tests/golden/v4/tiny/model"
#define BLOCKS "tests/data/config/v4-tiny-dspark-point.json" /* of the same widths, with a block drafter */
/* Of that model: its widths, and how many layers of each kind. */
enum { HIDDEN = 128, STREAMS = 4, HEAD_DIM = 128, INDEX_DIM = 128, LAYERS = 4, CSA_LAYERS = 2 };
enum { PAGE = 128, DECODE_ROWS = 2, PROMPT_ROWS = 5 };

/* The arrays of a file that is being made. */
struct arrays {
    struct tensor_view views[512];
    int64_t shapes[512][5];
    char names[512][96];
    int64_t count;
};

static void add(struct arrays *a, const char *name, enum dtype dtype, int32_t rank, const int64_t *shape, const void *data)
{
    int64_t i = a->count++;
    assert_true(i < 512);
    snprintf(a->names[i], sizeof a->names[i], "in.%s", name);
    memcpy(a->shapes[i], shape, (size_t)rank * sizeof *shape);
    a->views[i] = (struct tensor_view){.name = a->names[i], .dtype = dtype, .rank = rank, .shape = a->shapes[i], .data = data,
                                       .bytes = (uint64_t)(tensor_elements(rank, shape) * (int64_t)dtype_size(dtype))};
}

#define SHAPE(...) (int32_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__}
#define INTS(a, name, data, ...) add(a, name, DTYPE_I32, SHAPE(__VA_ARGS__), data)

/* A composition and its file: the weights of the golden model, and caches that hold zeros. */
struct composition {
    const char *op;
    bool w8a8;
    int32_t layer, ratio; /* of a harness of one layer */
    void (*fill)(struct arrays *a, const struct composition *c, const struct checkpoint *ck);
};

static const uint8_t zeros[1 << 20];
static const int32_t none[PAGE], ascending[8] = {0, 1, 2, 3, 4, 5, 6};
static const int32_t four_and_five[2] = {4, 5}, two_and_one[2] = {2, 1};

/* ---- weights ---- */

/* Tensors whose names begin with `prefix`, without it. */
static void add_tensors(struct arrays *a, const struct checkpoint *ck, const char *prefix)
{
    for (int64_t i = 0; i < checkpoint_count(ck); i++) {
        const struct tensor_view *v = checkpoint_at(ck, i);
        if (strncmp(v->name, prefix, strlen(prefix)) == 0)
            add(a, v->name + strlen(prefix), v->dtype, v->rank, v->shape, v->data);
    }
}

static void add_layer(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    char prefix[16];
    snprintf(prefix, sizeof prefix, "layers.%d.", c->layer);
    add_tensors(a, ck, prefix);
}

/* Member `index` of a stack, under another name. */
static void add_member(struct arrays *a, const struct checkpoint *ck, const char *stack, int32_t index, const char *name)
{
    const struct tensor_view *v = checkpoint_find(ck, stack);
    assert_non_null(v);
    int64_t bytes = (int64_t)v->bytes / v->shape[0];
    add(a, name, v->dtype, v->rank - 1, v->shape + 1, (const uint8_t *)v->data + index * bytes);
}

/* ---- caches ---- */

/* A state: two pages of it are enough for positions up to 2 * 4 - 1, and zeros are as good as any rows. */
static void add_states(struct arrays *a, const char *name, int64_t layers, int64_t rows, int64_t width)
{
    add(a, name, DTYPE_F32, SHAPE(3 * layers, rows, width), zeros);
}

static void add_caches(struct arrays *a, const struct composition *c, bool decode)
{
    int32_t pages = decode ? 2 : 1;
    const int64_t one[2] = {1, 1}, three[2] = {1, 3}, *page = one + 2 - pages, *states = three + 2 - pages;
    add(a, "kv_cache", DTYPE_BF16, SHAPE(1, PAGE, 1, HEAD_DIM), zeros);
    add(a, "block_table", DTYPE_I32, pages, page, none);
    if (!c->ratio)
        return;
    add(a, "cmp_kv", DTYPE_BF16, SHAPE(1, PAGE / c->ratio, 1, HEAD_DIM), zeros);
    add(a, "cmp_table", DTYPE_I32, pages, page, none);
    add_states(a, "state", 1, c->ratio == 4 ? 4 : 8, (c->ratio == 4 ? 4 : 2) * HEAD_DIM);
    add(a, "state_table", DTYPE_I32, pages, states, ascending);
    if (c->ratio != 4)
        return;
    add(a, "idx_kv_cache", DTYPE_BF16, SHAPE(1, PAGE / 4, 1, INDEX_DIM), zeros);
    add(a, "idx_table", DTYPE_I32, pages, page, none);
    add_states(a, "inner_state", 1, 4, 4 * INDEX_DIM);
    add(a, "inner_state_table", DTYPE_I32, pages, states, ascending);
}

static void add_pools(struct arrays *a, bool w8a8, bool decode)
{
    int32_t pages = decode ? 2 : 1;
    const int64_t one[2] = {1, 1}, three[2] = {1, 3}, *page = one + 2 - pages, *states = three + 2 - pages;
    add(a, "kv_cache", DTYPE_BF16, SHAPE(LAYERS, PAGE, 1, HEAD_DIM), zeros);
    add(a, "hca_cmp_kv", DTYPE_BF16, SHAPE(1, 1, 1, HEAD_DIM), zeros);
    add(a, "csa_cmp_kv", DTYPE_BF16, SHAPE(CSA_LAYERS, PAGE / 4, 1, HEAD_DIM), zeros);
    add(a, "idx_kv_cache", w8a8 ? DTYPE_I8 : DTYPE_BF16, SHAPE(CSA_LAYERS, PAGE / 4, 1, INDEX_DIM), zeros);
    if (w8a8)
        add(a, "idx_kv_scale", DTYPE_F32, SHAPE(CSA_LAYERS, PAGE / 4, 1, 1), zeros);
    add_states(a, "hca_compress_state", 1, 8, 2 * HEAD_DIM);
    add_states(a, "csa_compress_state", CSA_LAYERS, 4, 4 * HEAD_DIM);
    add_states(a, "csa_inner_compress_state", CSA_LAYERS, 4, 4 * INDEX_DIM);
    add(a, "block_table", DTYPE_I32, pages, page, none);
    add(a, "hca_state_table", DTYPE_I32, pages, states, ascending);
    add(a, "csa_state_table", DTYPE_I32, pages, states, ascending);
    add(a, "csa_inner_state_table", DTYPE_I32, pages, states, ascending);
}

/* ---- the files ---- */

static void decode_layer(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    add_layer(a, c, ck);
    add_caches(a, c, true);
    add(a, "x_hc", DTYPE_BF16, SHAPE(DECODE_ROWS, STREAMS, HIDDEN), zeros);
    INTS(a, "position_ids", four_and_five, 1, 2);
    INTS(a, "input_ids", ascending, DECODE_ROWS);
}

static void prefill_layer(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    add_layer(a, c, ck);
    add_caches(a, c, false);
    add(a, "x_hc", DTYPE_BF16, SHAPE(PROMPT_ROWS, STREAMS, HIDDEN), zeros);
    INTS(a, "position_ids", ascending, PROMPT_ROWS);
    INTS(a, "input_ids", ascending, PROMPT_ROWS);
}

/* Two ranks of a layer of experts. */
static void experts(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    static const char *const stacks[][2] = {
        {"hc_ffn_fn", "hc_fn"},          {"hc_ffn_scale", "hc_scale"}, {"hc_ffn_base", "hc_base"}, {"norm_w", "norm_w"},
        {"gate_w", "gate_w"},            {"gate_bias", "gate_bias"},   {"tid2eid", "tid2eid"},     {"shared_w1", "shared_w1"},
        {"shared_w2", "shared_w2"},      {"shared_w3", "shared_w3"},   {"routed_w1", "routed_w1"}, {"routed_w2", "routed_w2"},
        {"routed_w3", "routed_w3"},      {"shared_w1_scale", "shared_w1_scale"},                   {"shared_w2_scale", "shared_w2_scale"},
        {"shared_w3_scale", "shared_w3_scale"},                        {"routed_w1_scale", "routed_w1_scale"},
        {"routed_w2_scale", "routed_w2_scale"},                        {"routed_w3_scale", "routed_w3_scale"}};
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        add_member(a, ck, stacks[i][0], c->layer, stacks[i][1]);
    add(a, "x_hc", DTYPE_F32, SHAPE(2, DECODE_ROWS, STREAMS, HIDDEN), zeros);
    INTS(a, "input_ids", ascending, 2, DECODE_ROWS);
    INTS(a, "num_tokens", two_and_one, 2);
}

static void drafter_of(struct arrays *a, const struct checkpoint *ck, int64_t rows)
{
    add_tensors(a, ck, "mtp.0.");
    add_tensors(a, ck, "head."); /* "weight" */
    add(a, "hidden", DTYPE_BF16, SHAPE(rows, HIDDEN), zeros);
    add(a, "prev", DTYPE_BF16, SHAPE(rows, STREAMS, HIDDEN), zeros);
    add(a, "kv_cache", DTYPE_BF16, SHAPE(1, PAGE, 1, HEAD_DIM), zeros);
}

static void decode_drafter(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    (void)c;
    drafter_of(a, ck, DECODE_ROWS);
    INTS(a, "block_table", none, 1, 1);
    INTS(a, "position_ids", four_and_five, 1, 2);
}

static void prefill_drafter(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    (void)c;
    drafter_of(a, ck, PROMPT_ROWS);
    INTS(a, "block_table", none, 1);
    INTS(a, "position_ids", ascending, PROMPT_ROWS);
}

static void decode_forward(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    add_tensors(a, ck, "");
    add_pools(a, c->w8a8, true);
    INTS(a, "input_ids", ascending, DECODE_ROWS);
    INTS(a, "position_ids", four_and_five, 1, 2);
}

static void prefill_forward(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    add_tensors(a, ck, "");
    add_pools(a, c->w8a8, false);
    INTS(a, "input_ids", ascending, PROMPT_ROWS);
    INTS(a, "position_ids", ascending, PROMPT_ROWS);
}

static void drafting_forward(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    static const uint8_t valid[1] = {1};
    add_tensors(a, ck, "");
    add_pools(a, c->w8a8, true);
    INTS(a, "slot_ids", none, 1);
    INTS(a, "request_generation", none, 1);
    add(a, "slot_valid", DTYPE_U8, SHAPE(1), valid);
    INTS(a, "slot_generation", none, 1);
    INTS(a, "slot_tail", four_and_five, 1);
    INTS(a, "slot_draft", four_and_five, 1);
    INTS(a, "slot_tail_pos", two_and_one, 1);
    INTS(a, "slot_committed", none, 1);
    add(a, "slot_pool", c->w8a8 ? DTYPE_F32 : DTYPE_BF16, SHAPE(1, STREAMS, HIDDEN), zeros);
    add(a, "mtp_kv_cache", DTYPE_BF16, SHAPE(1, PAGE, 1, HEAD_DIM), zeros);
}

static void stage_attention(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    (void)c;
    add_tensors(a, ck, "mtp.1.");
    add(a, "x_hc", DTYPE_BF16, SHAPE(2, STREAMS, HIDDEN), zeros);
    INTS(a, "position_ids", four_and_five, 1);
    add(a, "kv_cache", DTYPE_BF16, SHAPE(1, PAGE, 1, HEAD_DIM), zeros);
    INTS(a, "block_table", none, 1, 1);
}

static void block_drafter(struct arrays *a, const struct composition *c, const struct checkpoint *ck)
{
    (void)c;
    add_tensors(a, ck, "");
    add(a, "taps", DTYPE_BF16, SHAPE(1, 1, 3 * HIDDEN), zeros);
    INTS(a, "position_ids", none, 1, 1);
    INTS(a, "anchors", none, 1);
    add(a, "kv_cache", DTYPE_BF16, SHAPE(3, 1, PAGE, 1, HEAD_DIM), zeros);
    INTS(a, "block_table", none, 1, 1);
}

/* ---- the runs ---- */

/* The config, of the layer whose arrays these are. */
static const char *params_of(const struct composition *c)
{
    static char text[8192];
    int begins = snprintf(text, sizeof text, "{\"ratio\": %d, \"layer_id\": %d, \"draft_width\": 2, ", c->ratio, c->layer);
    FILE *f = fopen(source_path(strncmp(c->op, "dspark", 6) == 0 ? BLOCKS : MODEL "/config.json"), "rb");
    assert_non_null(f);
    fseek(f, 1, SEEK_SET); /* behind its brace */
    text[begins + (int)fread(text + begins, 1, sizeof text - (size_t)begins - 1, f)] = 0;
    fclose(f);
    return text;
}

static const char *save(const struct composition *c, const struct checkpoint *ck)
{
    static char path[4096];
    qr_error err = {0};
    const char *metadata[3][2] = {{"op", c->op}, {"profile", c->w8a8 ? "w8a8" : "ref"}, {"params", params_of(c)}};
    struct arrays *a = calloc(1, sizeof *a);
    assert_non_null(a);
    c->fill(a, c, ck);
    snprintf(path, sizeof path, "%s", scratch_path(scratch, c->op));
    if (safetensors_save(path, a->views, a->count, (const char *const(*)[2])metadata, 3, &err) != QR_OK)
        fail_msg("%s", err.message);
    free(a);
    return path;
}

static qr_status run_file(const char *path, struct backend *b, qr_error *err)
{
    struct op_file *file = NULL;
    struct op_run *run = NULL;
    qr_status st = op_file_open(path, &file, err);
    if (st == QR_OK)
        st = op_run_open(file, op_harness_find(op_file_metadata(file, "op")), b, 0, &run, err);
    if (st == QR_OK)
        st = op_run_execute(run, err);
    op_run_close(run);
    op_file_close(file);
    return st;
}

static void fail_in_turn(const char *path, const struct composition *c)
{
    int64_t live = alloc_live();
    struct backend *b;
    assert_int_equal(backend_cpu_open("portable", 1, NULL, &b, NULL), QR_OK);
    for (int64_t n = 1;; n++) {
        qr_error err = {0};
        alloc_fault_at(n, 0);
        qr_status st = run_file(path, b, &err);
        alloc_fault_at(0, 0);
        if (st == QR_OK) {
            assert_true(n > 50);
            break;
        }
        if (st != QR_NO_MEMORY || !err.message[0])
            fail_msg("%s: allocation %lld failing: status %d, \"%s\"", c->op, (long long)n, st, err.message);
    }
    b->close(b); /* its scratch room stays until here */
    assert_int_equal(alloc_live(), live);
}

static void fail_each(const char *model, const struct composition *compositions, size_t count)
{
    struct checkpoint *ck;
    assert_int_equal(checkpoint_open(model, &ck, NULL), QR_OK);
    for (size_t i = 0; i < count; i++)
        fail_in_turn(save(&compositions[i], ck), &compositions[i]);
    checkpoint_close(ck);
    assert_int_equal(alloc_live(), 0);
}

static void allocations_of_the_reference_may_fail(void **state)
{
    (void)state;
    static const struct composition of[] = {
        {"decode_swa", false, 0, 0, decode_layer},         {"decode_csa", false, 1, 4, decode_layer},
        {"decode_hca", false, 2, 128, decode_layer},       {"decode_layer", false, 1, 4, decode_layer},
        {"prefill_swa", false, 0, 0, prefill_layer},       {"prefill_csa", false, 1, 4, prefill_layer},
        {"prefill_hca", false, 2, 128, prefill_layer},     {"prefill_layer", false, 0, 0, prefill_layer},
        {"decode_mtp", false, 0, 0, decode_drafter},       {"prefill_mtp", false, 0, 0, prefill_drafter},
        {"decode_fwd", false, 0, 0, decode_forward},       {"prefill_fwd", false, 1, 0, prefill_forward},
        {"decode_fwd_mtp", false, 2, 0, drafting_forward},
    };
    fail_each(source_path(MODEL), of, sizeof of / sizeof *of);
}

static void allocations_of_the_deployment_may_fail(void **state)
{
    (void)state;
    char model[4096];
    snprintf(model, sizeof model, "%s", scratch_path(scratch, "w8a8"));
    char *line[] = {"quantize", "--w8a8", "--model", (char *)(uintptr_t)source_path(MODEL), "--out", model, "--quiet", NULL};
    assert_int_equal(tool_quantize(7, line), 0);
    static const struct composition of[] = {
        {"decode_moe", true, 1, 4, experts},        {"prefill_moe", true, 0, 0, experts},
        {"decode_fwd", true, 0, 0, decode_forward}, {"prefill_fwd", true, 1, 0, prefill_forward},
        {"decode_fwd_mtp", true, 2, 0, drafting_forward},
    };
    fail_each(model, of, sizeof of / sizeof *of);
}

static void allocations_of_the_block_drafter_may_fail(void **state)
{
    (void)state;
    char model[4096];
    snprintf(model, sizeof model, "%s", scratch_path(scratch, "blocks"));
    char *line[] = {"synth", "--quiet", "--config", (char *)(uintptr_t)source_path(BLOCKS), "--out", model, NULL};
    assert_int_equal(tool_synth(6, line), 0);
    static const struct composition of[] = {{"dspark_attention", false, 0, 0, stage_attention},
                                            {"dspark_drafter", false, 0, 0, block_drafter}};
    fail_each(model, of, sizeof of / sizeof *of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(allocations_of_the_reference_may_fail),
                                       cmocka_unit_test(allocations_of_the_deployment_may_fail),
                                       cmocka_unit_test(allocations_of_the_block_drafter_may_fail)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
