/* label: release */
/* The keys of the indexer are the same bits in front of the quantizer whichever plane they go to, and every plane holds
 * what the model's quantizer makes of them (v41-model.md 5.2, runtime.md 2.1). */
#include "support/support.h"

#include <string.h>

#include "base/alloc.h"
#include "number/bf16.h"
#include "number/quantize.h"
#include "support/rig.h"
#include "support/shared_memory.h"

enum { TOKENS = 96, BLOCKS = 64, MOST_WRITES = 64 };

/* Every index key that a pass writes. `keys`, of all writes one behind another, are bf16 [TOKENS][dim]; rows that end no
 * group stay 0. */
struct written {
    qr_status (*row_write)(struct backend *, const struct op_row_write *, qr_error *);
    uint16_t *keys, *held; /* in front of the grid; as the plane holds them */
    uint16_t *rows, *nowhere; /* backend memory: [TOKENS][dim], a plane that nobody reads */
    int32_t dim, writes;
};
static struct written *watched; /* an operator is told of its backend alone */

static int64_t row_bytes(const struct written *w) { return (int64_t)TOKENS * w->dim * 2; }

/* Calls the operator and brings its values of each row. */
static void write_and_read(struct backend *b, struct op_row_write op, uint16_t *out)
{
    qr_error err = {0};
    memset(out, 0, (size_t)row_bytes(watched));
    op.values_out = watched->rows;
    must(b->upload(b, watched->rows, out, row_bytes(watched), &err), &err);
    must(watched->row_write(b, &op, &err), &err);
    must(b->download(b, out, watched->rows, row_bytes(watched), &err), &err);
    must(b->fence(b, &err), &err);
}

static qr_status watch_row_write(struct backend *b, const struct op_row_write *op, qr_error *err)
{
    const enum row_format format = op->plane.format;
    if (format != ROW_INDEX_FP4 && format != ROW_INDEX_FP8)
        return watched->row_write(b, op, err);
    assert_true(watched->writes < MOST_WRITES);
    const int64_t at = watched->writes++ * row_bytes(watched) / 2, bytes = 2 * watched->dim;
    struct op_row_write plain = *op;
    plain.grid = GRID_NONE;
    plain.plane = (struct row_plane){.format = ROW_BF16,
                                     .rows_per_block = op->plane.rows_per_block,
                                     .tile_rows = op->plane.rows_per_block,
                                     .values = (uint8_t *)watched->nowhere,
                                     .value_block_stride = op->plane.rows_per_block * bytes,
                                     .value_tile_stride = op->plane.rows_per_block * bytes,
                                     .value_row_stride = bytes};
    write_and_read(b, plain, watched->keys + at);
    write_and_read(b, *op, watched->held + at);
    return QR_OK;
}

/* One pass over the tokens, its index planes in `format`. */
static void run_watched(const char *model, const char *device, enum row_format format, struct written *out)
{
    const struct rig_options options = {.model = model, .device = device, .formats = true, .main_format = ROW_FP4_E4M3,
                                        .index_format = format, .blocks = BLOCKS};
    struct rig r;
    int32_t tokens[TOKENS];
    qr_error err = {0};
    rig_open(&r, &options);
    rig_tokens(&r, 23, tokens, TOKENS);
    *out = (struct written){.row_write = r.backend->row_write, .dim = r.config.index_head_dim};
    out->keys = qr_calloc(MOST_WRITES, (size_t)row_bytes(out));
    out->held = qr_calloc(MOST_WRITES, (size_t)row_bytes(out));
    void *rows, *nowhere;
    must(r.backend->allocate(r.backend, row_bytes(out), &rows, &err), &err);
    must(r.backend->allocate(r.backend, (int64_t)BLOCKS * r.geometry.options.block_tokens * out->dim * 2, &nowhere, &err), &err);
    out->rows = rows;
    out->nowhere = nowhere;

    watched = out;
    r.backend->row_write = watch_row_write;
    struct rig_request q = rig_request(&r, tokens, TOKENS, 0, 1, 1);
    rig_run(&r, &q, NULL);
    r.backend->row_write = out->row_write;
    watched = NULL;
    rig_request_free(&q);
    r.backend->release(r.backend, rows);
    r.backend->release(r.backend, nowhere);
    rig_close(&r);
}

static void free_written(struct written *w)
{
    qr_free(w->keys);
    qr_free(w->held);
}

/* As numbers: a zero of the fp8 plane has no sign of its own. */
static void assert_same_numbers(const uint16_t *a, const uint16_t *b, int64_t count, const char *what)
{
    for (int64_t i = 0; i < count; i++)
        if (bf16_decode(a[i]) != bf16_decode(b[i]))
            fail_msg("%s: value %lld is %g, wanted %g", what, (long long)i, (double)bf16_decode(a[i]),
                     (double)bf16_decode(b[i]));
}

static void both_index_formats_get_the_same_bits_before_quantization(void **state)
{
    (void)state;
    static const char *const models[] = {"tests/golden/v41/spec-13.1/model", "tests/golden/v41/wide/model",
                                         "tests/golden/v41/pad/model", "models/tiny-v41"};
    for (int i = 0; i < 8; i++) {
        struct written fp4, fp8;
        const char *model = models[i / 2], *device = i % 2 ? fast_device() : "cpu-reference";
        run_watched(model, device, ROW_INDEX_FP4, &fp4);
        run_watched(model, device, ROW_INDEX_FP8, &fp8);
        const int64_t count = fp4.writes * row_bytes(&fp4) / 2;
        assert_true(fp4.writes > 0);
        assert_int_equal(fp4.writes, fp8.writes);
        assert_memory_equal(fp4.keys, fp8.keys, (size_t)count * 2);

        /* What the planes hold comes from those bits and no others: their rounding to the model's grid, which moves them. */
        assert_memory_not_equal(fp4.keys, fp4.held, (size_t)count * 2);
        q4_e8m0_round(fp4.keys, count);
        assert_same_numbers(fp4.held, fp4.keys, count, "fp4 plane");
        assert_same_numbers(fp8.held, fp4.keys, count, "fp8 plane");
        free_written(&fp4);
        free_written(&fp8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_index_formats_get_the_same_bits_before_quantization),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
