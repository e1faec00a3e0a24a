/* Operator 36 of v4-model.md section 10: rotation, quantizers and the quantized linears with their INT8 twins. */
#include <math.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/int8.h"
#include "number/quantize.h"
#include "ops/cpu/reference/rotation.h"
#include "tools/op_adapters.h"

/* ---- linear_fp8, linear_fp4 ---- */

/* Row n of the weight, dequantized exactly (2.2). */
static void dequantize(const uint8_t *codes, const uint8_t *scales, bool fp4, int64_t n, int64_t k, float *out)
{
    for (int64_t c = 0; c < k; c++) {
        if (fp4) {
            uint8_t pair = codes[n * (k / 2) + c / 2];
            out[c] = e2m1_decode(c % 2 ? pair >> 4 : pair & 15) * e8m0_decode(scales[n * (k / 32) + c / 32]);
        } else {
            out[c] = e4m3_decode(codes[n * k + c]) * e8m0_decode(scales[n / 128 * ((k + 127) / 128) + c / 128]);
        }
    }
}

static qr_status run_linear(struct op_run *r, qr_error *err)
{
    int32_t k = op_dim(r, "k"), n = op_dim(r, "n"), rows = op_dim(r, "T");
    bool fp4 = strcmp(r->harness->name, "linear_fp4") == 0;
    const struct tensor_view *weight = op_file_find(r->file, "in.weight"), *scale = op_file_find(r->file, "in.scale");
    int8_t *codes = op_out(r, "int8");
    float *scales = op_out(r, "int8_scale"), *row;
    struct activation x8;
    TRY(op_rows(r, ACT_Q8, rows, k, 128, &x8, err));
    CALL(r, quantize, .rows = first_rows_of(rows), .in = act_rows(ACT_BF16, op_in(r, "x"), k), .out = x8);
    CALL(r, linear, .rows = first_rows_of(rows), .in = x8, .weight = op_weight(r, "weight"), .out = act_rows(ACT_BF16, op_out(r, "y"), n));

    TRY(op_host_new(r, 4LL * k, &row, err));
    for (int64_t i = 0; i < n; i++) {
        dequantize(weight->data, scale->data, fp4, i, k, row);
        scales[i] = int8_quantize_channel(row, k, 1, codes + i * k);
    }
    return QR_OK;
}

/* ---- quantizers ---- */

/* A code may differ by 1 where x * m is within one ulp of a half. */
static void near_half(const uint16_t *x, int64_t k, bool *out)
{
    float largest = 1e-4f, m;
    for (int64_t c = 0; c < k; c++)
        largest = fmaxf(largest, fabsf(bf16_decode(x[c])));
    m = 127.0f / largest;
    for (int64_t c = 0; c < k; c++) {
        float y = fabsf(bf16_decode(x[c]) * m), half = floorf(y) + 0.5f;
        out[c] = fabsf(y - half) <= nextafterf(y, INFINITY) - y;
    }
}

static qr_status run_quantizers(struct op_run *r, qr_error *err)
{
    int32_t rows = op_dim(r, "T"), k = op_dim(r, "k"), blocks = k / 128;
    const uint16_t *x = op_host(r, "x");
    uint16_t *aqd = op_out(r, "aqd64"), *fq = op_out(r, "fq32");
    uint8_t *exponents;
    float *scales = op_out(r, "aq_scale");
    struct activation in;
    bool *slack;
    if (k % 128)
        return op_refuse(err, BAD_SHAPE, "in.x has %d columns, wanted a multiple of 128", k);
    TRY(op_rows(r, ACT_BF16, rows, k, 0, &in, err));
    TRY(r->backend->upload(r->backend, in.codes, x, 2LL * rows * k, err));
    TRY(op_buffer(r, (int64_t)rows * blocks, &exponents, err));
    CALL(r, quantize, .rows = first_rows_of(rows), .in = in, .out = act_coded(ACT_Q8, op_out(r, "aq_codes"), exponents, k, 128));
    CALL(r, quantize, .rows = first_rows_of(rows), .in = in, .out = act_coded(ACT_I8, op_out(r, "i8"), op_out(r, "i8_scale"), k, k));

    TRY(op_download(r, exponents, (int64_t)rows * blocks, &exponents, err));
    for (int32_t i = 0; i < rows * blocks; i++)
        scales[i] = e8m0_decode(exponents[i]);
    memcpy(aqd, x, 2 * (size_t)rows * (size_t)k);
    memcpy(fq, x, 2 * (size_t)rows * (size_t)k);
    q8_round(aqd, (int64_t)rows * k, 64);
    q4_e8m0_round(fq, (int64_t)rows * k);
    TRY(op_host_new(r, (int64_t)rows * k, &slack, err));
    for (int64_t i = 0; i < rows; i++)
        near_half(x + i * k, k, slack + i * k);
    op_out_slot(r, "i8")->slack = slack;
    return QR_OK;
}

/* ---- rope ---- */

static qr_status rotate(struct op_run *r, const struct step *step, struct rope_spec rope, const char *forth, const char *back,
                        qr_error *err)
{
    int32_t heads = op_dim(r, "heads"), dim = op_dim(r, "d");
    struct row_list rows = first_rows_of(op_dim(r, "T"));
    struct activation x = act_rows(ACT_BF16, op_in(r, "x"), heads * dim);
    CALL(r, query, .rows = rows, .step = step, .heads = heads, .head_dim = dim, .rope = rope, .in = x,
         .out = act_rows(ACT_BF16, op_out(r, forth), heads * dim));
    if (back)
        CALL(r, unrotate, .rows = rows, .step = step, .heads = heads, .head_dim = dim, .rope = rope, .in = x,
             .out = act_rows(ACT_BF16, op_out(r, back), heads * dim));
    return QR_OK;
}

static qr_status run_rope(struct op_run *r, qr_error *err)
{
    static const struct {
        const char *frequencies, *cosines, *sines, *forth, *back, *w8a8;
    } names[2] = {{"plain_freq", "plain_cos", "plain_sin", "plain_ref", "plain_ref_inverse", "plain_w8a8"},
                  {"compress_freq", "compress_cos", "compress_sin", "compress_ref", "compress_ref_inverse", "compress_w8a8"}};
    int32_t rows = op_dim(r, "T"), pairs = op_dim(r, "r") / 2;
    const int32_t *positions = op_ints(r, "pos");
    struct step *step;
    float *table;
    TRY(op_check_positions(r, positions, rows, 1, err));
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = 1, .positions = positions}, &step, err));
    TRY(op_host_new(r, 8LL * pairs, &table, err));
    for (int kind = 0; kind < 2; kind++) {
        struct rope_spec rope;
        float *cosines = op_out(r, names[kind].cosines), *sines = op_out(r, names[kind].sines);
        TRY(op_frequencies(r, kind, &rope, err));
        memcpy(op_out(r, names[kind].frequencies), rope.frequencies, 4 * (size_t)pairs);
        for (int32_t i = 0; i < rows; i++) {
            rope_table(&rope, positions[i], table);
            memcpy(cosines + i * pairs, table, 4 * (size_t)pairs);
            memcpy(sines + i * pairs, table + pairs, 4 * (size_t)pairs);
        }
        TRY(rotate(r, step, rope, names[kind].forth, names[kind].back, err));
        rope.bf16_tables = true;
        TRY(rotate(r, step, rope, names[kind].w8a8, NULL, err));
    }
    return QR_OK;
}

/* ---- the tables ---- */

static const struct op_array fp8_in[] = {ARRAY("x", ARRAY_BF16, "T k"), ARRAY("weight", WEIGHT_OF_FP8, "n k", .scales = "scale"), {0}};
static const struct op_array fp4_in[] = {ARRAY("x", ARRAY_BF16, "T k"), ARRAY("weight", WEIGHT_OF_FP4, "n k/2", .scales = "scale"), {0}};
static const struct op_array linear_out[] = {ARRAY("y", ARRAY_BF16, "T n", .tolerance = "RA(1e-4,1/128,0.005)"),
                                             ARRAY("int8", ARRAY_I8, "n k", .flags = ARRAY_HOST, .tolerance = "exact"),
                                             ARRAY("int8_scale", ARRAY_F32, "n 1", .flags = ARRAY_HOST, .tolerance = "exact"),
                                             {0}};

static const struct op_array quantizers_in[] = {ARRAY("x", ARRAY_BF16, "T k", .flags = ARRAY_HOST), {0}};
static const struct op_array quantizers_out[] = {ARRAY("aq_codes", ARRAY_E4M3, "T k", .tolerance = "exact"),
                                                 ARRAY("aq_scale", ARRAY_F32, "T k/128", .flags = ARRAY_HOST, .tolerance = "exact"),
                                                 ARRAY("aqd64", ARRAY_BF16, "T k", .flags = ARRAY_HOST, .tolerance = "exact"),
                                                 ARRAY("fq32", ARRAY_BF16, "T k", .flags = ARRAY_HOST, .tolerance = "exact"),
                                                 ARRAY("i8", ARRAY_I8, "T k", .tolerance = "exact"),
                                                 ARRAY("i8_scale", ARRAY_F32, "T 1", .tolerance = "exact"),
                                                 {0}};

#define ROPE_OUT(KIND)                                                                                                 \
    ARRAY(KIND "_freq", ARRAY_F32, "r/2", .flags = ARRAY_HOST, .also = "freq", .tolerance = "exact or 1 ulp"),                       \
        ARRAY(KIND "_cos", ARRAY_F32, "T r/2", .flags = ARRAY_HOST, .also = "cos", .tolerance = "AC(0,2e-7)"),                       \
        ARRAY(KIND "_sin", ARRAY_F32, "T r/2", .flags = ARRAY_HOST, .also = "sin", .tolerance = "AC(0,2e-7)"),                       \
        ARRAY(KIND "_ref", ARRAY_BF16, "T heads d", .also = "rotations", .tolerance = "RA(1/128)"),                         \
        ARRAY(KIND "_ref_inverse", ARRAY_BF16, "T heads d", .also = "rotations", .tolerance = "RA(1/128)"),                 \
    ARRAY(KIND "_w8a8", ARRAY_BF16, "T heads d", .also = "rotations", .tolerance = "RA(1/128)")
static const struct op_array rope_in[] = {ARRAY("x", ARRAY_BF16, "T heads d"), ARRAY("pos", ARRAY_INT, "T"), {0}};
static const struct op_array rope_out[] = {ROPE_OUT("plain"), ROPE_OUT("compress"), {0}};

const struct op_harness op_number_harnesses[] = {
    {"linear_fp8", 36, "FP8 linear, and its weight as INT8", "", fp8_in, linear_out, "T", NULL, run_linear, NULL},
    {"linear_fp4", 36, "FP4 linear, and its weight as INT8", "", fp4_in, linear_out, "T", NULL, run_linear, NULL},
    {"quantizers", 36, "the activation quantizers", "", quantizers_in, quantizers_out, "T", NULL, run_quantizers, NULL},
    {"rope", 36, "rotary tables and rotations", "qk_rope_head_dim rope_theta compress_rope_theta", rope_in, rope_out, "T", NULL, run_rope, NULL},
    {0}};
