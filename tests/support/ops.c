#include "support/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/rope.h"
#include "number/bf16.h"
#include "support/shared_memory.h"

/* Larger than any operator here: the plan of a model that does not exist. */
static void fill_plan(struct model_plan *p)
{
    memset(p, 0, sizeof *p);
    p->config.hidden_size = 512;
    p->config.hc_mult = 4;
    p->config.q_lora_rank = 512;
    p->config.num_attention_heads = 8;
    p->config.head_dim = 512;
    p->config.o_groups = 2;
    p->config.o_lora_rank = 512;
    p->config.moe_intermediate_size = 512;
    p->config.n_routed_experts = 512;
    p->config.index_n_heads = 8;
    p->config.index_head_dim = 128;
    p->config.index_topk = 4096;
    p->config.candidate_topk_blocks = 4096;
    p->max_ratio = 128;
}

void ops_open(struct ops *o, const char *path, int threads)
{
    qr_error err = {0};
    int64_t bytes;
    memset(o, 0, sizeof *o);
    fill_plan(&o->plan);
    if (strcmp(path, "reference") == 0 && getenv("QUIRE_TEST_PATH"))
        path = getenv("QUIRE_TEST_PATH"); /* the same test on another path of the CPU */
    if (strcmp(path, "reference") == 0 && test_device_is_cuda())
        path = "cuda";
    bool cuda = strcmp(path, "cuda") == 0;
    if ((cuda ? shared_cuda_open(&o->b, &err) : backend_cpu_open(path, threads, NULL, &o->b, &err)) != QR_OK)
        fail_msg("%s", err.message);
    struct op_limits limits = {&o->plan, 1024, 64, 4096};
    if (o->b->reserve(o->b, &limits, &bytes, &err) != QR_OK)
        fail_msg("%s", err.message);
}

void ops_close(struct ops *o)
{
    for (int i = 0; i < o->n_weights; i++)
        o->b->release_weight(o->b, o->weights[i]);
    o->b->close(o->b);
}

struct weight *ops_weight(struct ops *o, struct weight_spec spec)
{
    qr_error err = {0};
    struct weight *w;
    assert_true(o->n_weights < (int)(sizeof o->weights / sizeof *o->weights));
    if (!spec.name)
        spec.name = "test.weight";
    if (o->b->prepare_weight(o->b, &spec, &w, &err) != QR_OK)
        fail_msg("%s", err.message);
    return o->weights[o->n_weights++] = w;
}

struct weight *ops_bf16(struct ops *o, int32_t n, int32_t k, const void *values)
{
    return ops_weight(o, (struct weight_spec){.format = WEIGHT_BF16, .n = n, .k = k, .values = values});
}

struct weight *ops_f32(struct ops *o, int32_t n, int32_t k, const void *values)
{
    return ops_weight(o, (struct weight_spec){.format = WEIGHT_F32, .n = n, .k = k, .values = values});
}

struct weight *ops_fp8(struct ops *o, int32_t n, int32_t k, int32_t tile, const void *values, const void *scales)
{
    return ops_weight(o, (struct weight_spec){
                             .format = WEIGHT_FP8, .n = n, .k = k, .tile = tile, .values = values, .scales = scales});
}

struct weight *ops_fp4(struct ops *o, int32_t n, int32_t k, const void *values, const void *scales)
{
    return ops_weight(o,
                      (struct weight_spec){.format = WEIGHT_FP4, .n = n, .k = k, .values = values, .scales = scales});
}

struct weight *ops_int8(struct ops *o, int32_t n, int32_t k, const void *values, const void *scales)
{
    return ops_weight(o,
                      (struct weight_spec){.format = WEIGHT_INT8, .n = n, .k = k, .values = values, .scales = scales});
}

struct activation ops_rows(enum act_format format, int32_t rows, int32_t cols, int32_t block)
{
    size_t size = format == ACT_BF16 ? 2 : format == ACT_F32 ? 4 : 1;
    struct activation a = {.format = format, .cols = cols, .block = block};
    a.codes = calloc((size_t)rows * (size_t)cols, size);
    if (block)
        a.scales = calloc((size_t)rows * (size_t)(cols / block), format == ACT_Q8 ? 1 : 4);
    return a;
}

void ops_free_rows(struct activation *a)
{
    free(a->codes);
    free(a->scales);
}

float *ops_values(const struct activation *a, int32_t rows)
{
    int64_t n = (int64_t)rows * a->cols;
    float *out = malloc((size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        out[i] = a->format == ACT_BF16 ? bf16_decode(((uint16_t *)a->codes)[i]) : ((float *)a->codes)[i];
    return out;
}

void one_request_make(struct one_request *r, int32_t first_position, int32_t rows, int32_t pages)
{
    memset(r, 0, sizeof *r);
    r->positions = calloc((size_t)rows, sizeof(int32_t));
    r->batch_id = calloc((size_t)rows, sizeof(int32_t));
    r->tokens = calloc((size_t)rows, sizeof(int32_t));
    r->table = calloc((size_t)pages + 1, sizeof(int32_t));
    for (int32_t i = 0; i < rows; i++)
        r->positions[i] = first_position + i;
    for (int32_t i = 0; i < pages; i++)
        r->table[i] = i;
    r->first_row[1] = rows;
    r->first_position[0] = first_position;
    r->step = (struct step){.rows = rows,
                            .requests = 1,
                            .token_ids = r->tokens,
                            .positions = r->positions,
                            .batch_id = r->batch_id,
                            .first_row = r->first_row,
                            .first_position = r->first_position,
                            .slot = r->slot,
                            .block_table = r->table,
                            .block_stride = pages};
}

void one_request_free(struct one_request *r)
{
    free(r->positions);
    free(r->batch_id);
    free(r->tokens);
    free(r->table);
}

static int64_t value_bytes(enum row_format f, int64_t cols)
{
    return f == ROW_BF16 ? 2 * cols : f == ROW_FP4_E4M3 || f == ROW_INDEX_FP4 ? cols / 2 : cols;
}

static int64_t scale_bytes(enum row_format f, int64_t cols)
{
    return f == ROW_BF16 ? 0 : f == ROW_FP4_E4M3 ? cols / 16 : f == ROW_FP8_E8M0 || f == ROW_INDEX_FP4 ? cols / 32 : 4;
}

struct row_plane ops_plane(enum row_format format, int32_t cols, int32_t rows_per_block, int32_t blocks)
{
    int64_t v = value_bytes(format, cols), s = scale_bytes(format, cols);
    struct row_plane p = {.format = format, .rows_per_block = rows_per_block, .tile_rows = rows_per_block};
    p.value_row_stride = v;
    p.value_tile_stride = p.value_block_stride = v * rows_per_block;
    p.scale_row_stride = s;
    p.scale_tile_stride = p.scale_block_stride = s * rows_per_block;
    p.values = calloc((size_t)blocks, (size_t)p.value_block_stride);
    p.scales = s ? calloc((size_t)blocks, (size_t)p.scale_block_stride) : NULL;
    return p;
}

void ops_free_plane(struct row_plane *p)
{
    free(p->values);
    free(p->scales);
}

struct ring_plane ops_ring(enum row_format format, int32_t cols, int32_t rows, int32_t slots)
{
    int64_t v = value_bytes(format, cols), s = scale_bytes(format, cols);
    struct ring_plane r = {.format = format, .rows = rows, .value_row_stride = v, .scale_row_stride = s};
    r.slot_stride = v * rows; /* scales have room for the same stride */
    r.values = calloc((size_t)slots, (size_t)r.slot_stride);
    r.scales = s ? calloc((size_t)slots, (size_t)r.slot_stride) : NULL;
    return r;
}

struct ring_plane ops_tail(int32_t cols, int32_t rows, int32_t slots)
{
    int64_t row = 4 * (int64_t)cols;
    struct ring_plane r = {.rows = rows, .value_row_stride = row, .scale_row_stride = row, .slot_stride = row * rows};
    r.values = calloc((size_t)slots, (size_t)r.slot_stride);
    r.scales = calloc((size_t)slots, (size_t)r.slot_stride);
    return r;
}

void ops_free_ring(struct ring_plane *r)
{
    free(r->values);
    free(r->scales);
}

/* splitmix64 */
uint32_t dice_next(struct dice *d)
{
    uint64_t z = d->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

float dice_normal(struct dice *d, float scale)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += dice_next(d) * 0x1p-32;
    return (float)(sum - 6) * scale;
}

void dice_f32(struct dice *d, float *out, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = dice_normal(d, scale);
}

void dice_bf16(struct dice *d, uint16_t *out, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_encode(dice_normal(d, scale));
}

struct rope_spec ops4_rope(float *frequencies, bool compress, bool w8a8)
{
    struct qr_config c = {.family = QR_FAMILY_V4,
                          .rope_head_dim = 64,
                          .rope_theta = 10000,
                          .compress_rope_theta = 160000,
                          .rope_factor = 4,
                          .rope_beta_fast = 32,
                          .rope_beta_slow = 1,
                          .rope_original_positions = 256};
    assert_int_equal(rope_frequencies(&c, compress ? ROPE_COMPRESS : ROPE_MAIN, frequencies, NULL), QR_OK);
    return (struct rope_spec){.frequencies = frequencies, .dim = 64, .bf16_tables = w8a8};
}

void *ops4_transposed(const void *from, int32_t in, int32_t out, size_t size)
{
    char *to = malloc((size_t)in * (size_t)out * size);
    for (int32_t i = 0; i < in; i++)
        for (int32_t j = 0; j < out; j++)
            memcpy(to + (size_t)(j * in + i) * size, (const char *)from + (size_t)(i * out + j) * size, size);
    return to;
}

struct rope_spec test_rope(int32_t dim)
{
    static float frequencies[256][256];
    for (int32_t i = 0; i < dim / 2; i++)
        frequencies[dim / 2][i] = 1.0f / (float)pow(10000, 2.0 * i / dim);
    return (struct rope_spec){.frequencies = frequencies[dim / 2], .dim = dim};
}
