/* Which tensors become weights, in which form, and what a folder that is not the config's says. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/commands.h"
#include "model/weights.h"
#include "plan/settle.h"
#include "support/host_backend.h"
#include "support/models.h"
#include "support/scratch.h"

/* Wide enough along K for row-parallel weights to be split. */
#define WIDE_K "tests/data/config/v41-wide-k.json"

struct weight {
    struct weight_spec spec;
};

static qr_status prepare(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    (void)b;
    *out = qr_calloc(1, sizeof **out);
    if (!*out)
        return qr_fail(err, QR_NO_MEMORY, "weight");
    (*out)->spec = *spec;
    return QR_OK;
}

static void drop(struct backend *b, struct weight *w)
{
    (void)b;
    qr_free(w);
}

static struct backend recording_backend(void)
{
    struct backend b = host_backend();
    b.prepare_weight = prepare;
    b.release_weight = drop;
    return b;
}

static void assert_weight(const struct weight *w, const char *name, enum weight_format format, int32_t n, int32_t k,
                          int32_t splits)
{
    assert_non_null(w);
    assert_string_equal(w->spec.name, name);
    assert_int_equal(w->spec.format, format);
    assert_int_equal(w->spec.n, n);
    assert_int_equal(w->spec.k, k);
    assert_int_equal(w->spec.k_splits, splits);
    assert_int_equal(w->spec.scales != NULL, format == WEIGHT_FP8 || format == WEIGHT_FP4);
}

static void open_weights(const char *folder, struct backend *b, struct checkpoint **ck, struct model_plan *plan,
                         struct weights *w)
{
    struct qr_config config;
    qr_error err = {0};
    if (model_folder_open(folder, &config, ck, &err) != QR_OK ||
        plan_make(&config, QR_PROFILE_REFERENCE, plan, &err) != QR_OK ||
        weights_open(*ck, plan, WEIGHTS_BACKBONE, b, NULL, w, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void row_parallel_weights_are_split_where_k_is_long_enough(void **state)
{
    (void)state;
    struct backend b = recording_backend();
    struct checkpoint *ck;
    struct model_plan plan;
    struct weights w;
    const char *folder = scratch_path(scratch, "wide-k");
    char *argv[] = {
        "synth", "--quiet", "--config", (char *)(uintptr_t)source_path(WIDE_K), "--out", (char *)(uintptr_t)folder};
    assert_int_equal(tool_synth(6, argv), 0);
    open_weights(folder, &b, &ck, &plan, &w);

    const struct layer_weights *l = &w.layer[1];
    assert_weight(l->wo_b, "layers.1.attn.wo_b.weight", WEIGHT_FP8, 64, 288, 8);
    assert_weight(l->wo_a, "layers.1.attn.wo_a.weight", WEIGHT_FP8, 288, 128, 1);
    assert_weight(l->wq_b, "layers.1.attn.wq_b.weight", WEIGHT_FP8, 256, 32, 1);
    assert_weight(l->routed.w2[3], "layers.1.ffn.experts.3.w2.weight", WEIGHT_FP4, 64, 256, 8);
    assert_weight(l->routed.w1[3], "layers.1.ffn.experts.3.w1.weight", WEIGHT_FP4, 256, 64, 1);
    assert_weight(l->shared.w2[0], "layers.1.ffn.shared_experts.w2.weight", WEIGHT_FP8, 64, 256, 8);
    assert_weight(l->gate, "layers.1.ffn.gate.weight", WEIGHT_BF16, 4, 64, 1);
    assert_weight(l->attn_mix.fn, "layers.1.hc_attn_fn", WEIGHT_F32, 24, 256, 1);
    assert_weight(w.head, "head.weight", WEIGHT_BF16, 320, 64, 1);
    weights_close(&w);
    checkpoint_close(ck);
}

static void short_k_is_left_whole_and_every_part_is_there(void **state)
{
    (void)state;
    struct backend b = recording_backend();
    struct checkpoint *ck;
    struct model_plan plan;
    struct weights w;
    open_weights(source_path("tests/golden/v41/spec-13.1/model"), &b, &ck, &plan, &w);
    for (int32_t i = 0; i < plan.layers; i++) {
        const struct layer_weights *l = &w.layer[i];
        assert_int_equal(l->wo_b->spec.k_splits, 1);
        assert_int_equal(l->routed.count, 8);
        assert_int_equal(l->compressor.wkv != NULL, i == 2 || i == 4 || i == 5);
        assert_int_equal(l->compressor.wgate != NULL, i == 2 || i == 4);
        assert_int_equal(l->indexer.wk != NULL, i == 2 || i == 4 || i == 5);
        assert_int_equal(l->indexer.wq_b != NULL, i == 2 || i == 4 || i == 5 || i == 6);
        assert_int_equal(l->engram.wkv != NULL, i == 1 || i == 4);
        assert_non_null(l->sinks);
    }
    /* Vectors lie in backend memory as the file has them. */
    const struct tensor_view *sinks = checkpoint_find(ck, "layers.3.attn.attn_sink");
    assert_memory_equal(w.layer[3].sinks, sinks->data, sinks->bytes);
    weights_close(&w);
    checkpoint_close(ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_parallel_weights_are_split_where_k_is_long_enough),
        cmocka_unit_test(short_k_is_left_whole_and_every_part_is_there),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
