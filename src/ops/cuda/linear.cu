#include "ops/cuda/few.cuh"
#include "ops/cuda/linear.cuh"

/* The linears: v41-model.md 2.5, 3.5; v4-model.md 4.3, 7.3. */

enum { THREADS = 256 };

static int32_t at_least_one(int32_t n) { return n > 0 ? n : 1; }

/* ---- on the matrix unit ---- */

/* Columns of a piece of a row as bf16, zeros behind them. */
static __global__ void widen_kernel(struct activation in, struct row_list rows, int32_t offset, int32_t k,
                                    int64_t width, uint16_t *out)
{
    await_earlier();
    int64_t row = row_at(rows, blockIdx.x) + (rows.index ? 0 : offset);
    int64_t pieces = gridDim.y, piece = blockIdx.y, first = row * in.cols + piece * k;
    uint16_t *to = out + (blockIdx.x * pieces + piece) * width;
    for (int64_t c = blockIdx.z * THREADS + threadIdx.x; c < width; c += gridDim.z * THREADS) {
        uint16_t bits = 0;
        if (c < k && in.format == ACT_BF16)
            bits = ((const uint16_t *)in.codes)[first + c];
        else if (c < k)
            bits = bf16_bits(e4m3_value(((const uint8_t *)in.codes)[first + c]) *
                             e8m0_value(((const uint8_t *)in.scales)[(first + c) / in.block]));
        to[c] = bits;
    }
}

/* Units are the tiles of a piece that one group of 8 * TOKENS rows multiplies. */
template <int TOKENS> struct linear_work {
    enum { WEIGHTS_FIRST = 1, CODE_ORDER = 0 };
    const struct product &p;
    struct place {
        int32_t tile, piece, first; /* first: row of W at which the piece begins */
    };
    __device__ int units() const { return p.tiles * p.pieces; }
    __device__ const struct weight_view &shape() const { return p.w; }
    __device__ place find(int unit) const
    {
        place at = {unit % p.tiles, unit / p.tiles, 0};
        int last = (p.w.n + TILE_ROWS - 1) / TILE_ROWS - 1;
        at.first = p.groups ? at.piece * p.columns : 0;
        at.tile += at.first / TILE_ROWS;
        at.tile = at.tile < last ? at.tile : last;
        return at;
    }
    __device__ const struct weight_view &weight(const place &, int) const { return p.w; }
    __device__ int shift() const { return p.shift; }
    __device__ struct row_source row(const place &at, int token) const
    {
        const int first_token = blockIdx.y * TOKENS * TILE_TOKENS;
        token = first_token + token < p.rows.count ? first_token + token : first_token;
        int64_t first = (p.listed ? output_row(p, token) : token) * p.stride + at.piece * p.piece_stride;
        return {p.x + first, p.scales + (first >> p.shift)};
    }
    __device__ void finish(const place &at, const struct tile_sums<TOKENS> *sums) const
    {
        for (int i = threadIdx.x; i < TOKENS * TILE_TOKENS * TILE_ROWS; i += PRODUCT_THREADS) {
            int r = i % TILE_ROWS, t = i / TILE_ROWS, token = blockIdx.y * TOKENS * TILE_TOKENS + t;
            int column = at.tile * TILE_ROWS + r - at.first;
            if (token < p.rows.count && column >= 0 && column < p.columns)
                act_store(p.out, output_row(p, token), (int64_t)at.piece * p.columns + column,
                          sum_of<TOKENS>(*sums, t, r));
        }
    }
};

template <int FORMAT, int TOKENS, bool LARGE, bool Q8>
static __global__ void __launch_bounds__(PRODUCT_THREADS, (form_residents<FORMAT, TOKENS, 1, LARGE>()))
    product_kernel(const __grid_constant__ struct product p)
{
    stream_form<FORMAT, 1, TOKENS, LARGE, Q8>(linear_work<TOKENS>{p});
}

template <int FORMAT, int TOKENS, bool LARGE, bool Q8>
static qr_status start_product(struct backend *b, const struct product *p, qr_error *err)
{
    int units = p->tiles * p->pieces, most = cuda_of(b)->processors * form_residents<FORMAT, TOKENS, 1, LARGE>();
    dim3 grid(units < most ? units : most, (p->rows.count + TOKENS * TILE_TOKENS - 1) / (TOKENS * TILE_TOKENS));
    LAUNCH("linear", (product_kernel<FORMAT, TOKENS, LARGE, Q8>), grid, PRODUCT_THREADS,
           (form_shared<FORMAT, TOKENS, 1, LARGE>()), *p);
    return QR_OK;
}

/* How many rows a block takes changes no bit. */
template <int FORMAT> static qr_status choose_product(struct backend *b, const struct product *p, qr_error *err)
{
    const int32_t rows = p->rows.count;
    const size_t room = cuda_of(b)->most_shared;
    if (p->q8)
        return rows <= TILE_TOKENS ? start_product<WEIGHT_FP8, 1, false, true>(b, p, err)
                                   : start_product<WEIGHT_FP8, 2, false, true>(b, p, err);
    if (p->w.large_scales)
        return start_product<FORMAT, 2, FORMAT != WEIGHT_BF16, false>(b, p, err);
    if (rows <= TILE_TOKENS)
        return start_product<FORMAT, 1, false, false>(b, p, err);
    if (rows <= 2 * TILE_TOKENS || product_shared<4, 1, FORMAT>() > room)
        return start_product<FORMAT, 2, false, false>(b, p, err);
    if (rows <= 4 * TILE_TOKENS || product_shared<8, 1, FORMAT>() > room)
        return start_product<FORMAT, 4, false, false>(b, p, err);
    return start_product<FORMAT, 8, false, false>(b, p, err);
}

/* bf16 rows that a lane can read 16 bytes at a time are used where they lie. */
static bool reads_in_place(const struct activation *in, int32_t k)
{
    return in->format == ACT_BF16 && k % BLOCK_COLUMNS == 0 && in->cols % 8 == 0 && (uintptr_t)in->codes % 16 == 0;
}

/* Q8 rows that the product widens by itself: few, so that no other block widens them again at length. */
static bool reads_codes(const struct op_linear *op)
{
    const struct activation *in = &op->in;
    const struct weight *w = op->weight;
    return in->format == ACT_Q8 && w->spec.format == WEIGHT_FP8 && !w->view.large_scales &&
           op->rows.count <= 2 * TILE_TOKENS && w->spec.k % BLOCK_COLUMNS == 0 && in->cols % 8 == 0 &&
           (in->block == 32 || in->block == 64 || in->block == 128) && w->spec.k % in->block == 0 &&
           (uintptr_t)in->codes % 8 == 0;
}

static bool is_matrix(const struct op_linear *op)
{
    enum weight_format f = op->weight->spec.format;
    return op->in.format == ACT_Q8 || (op->in.format == ACT_BF16 && (f == WEIGHT_BF16 || f == WEIGHT_FP8));
}

bool cuda_linear_takes_scratch(const struct op_linear *op)
{
    const bool many = op->rows.count > 2 * TILE_TOKENS; /* linear_is_wide */
    return is_matrix(op) && !reads_codes(op) && (many || !reads_in_place(&op->in, op->weight->spec.k));
}

static qr_status matrix_linear(struct backend *b, const struct op_linear *op, qr_error *err)
{
    const struct weight *w = op->weight;
    int32_t groups = at_least_one(op->groups), parts = at_least_one(op->parts);
    bool codes = reads_codes(op), in_place = codes || reads_in_place(&op->in, w->spec.k);
    struct product p = {.w = w->view, .pieces = groups * parts, .columns = w->spec.n / groups, .groups = groups > 1};
    int64_t width = row_width(w), row_bytes = p.pieces * width * 2, most = SCRATCH_BYTES / row_bytes;
    int64_t size = codes ? 1 : 2;
    p.tiles = (p.columns + TILE_ROWS - 1) / TILE_ROWS + (groups > 1 && p.columns % TILE_ROWS != 0);
    p.out = op->out;
    p.q8 = codes;
    p.listed = in_place;
    p.x = (const uint8_t *)(in_place ? op->in.codes : cuda_of(b)->scratch);
    p.scales = (const uint8_t *)op->in.scales;
    p.shift = op->in.block == 128 ? 7 : op->in.block == 64 ? 6 : 5;
    p.stride = (in_place ? op->in.cols : p.pieces * width) * size;
    p.piece_stride = (in_place ? w->spec.k : width) * size;
    if (linear_is_wide(b, op))
        return linear_wide(b, op, &p, err);

    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "linear: weight %s: a row of %lld bytes is more than its scratch holds",
                       w->spec.name, (long long)row_bytes);
    for (int64_t first = 0; first < op->rows.count; first += most) {
        p.rows = band_of(op->rows, first, most);
        p.offset = (int32_t)first;
        if (!in_place)
            LAUNCH("linear", widen_kernel, dim3(p.rows.count, p.pieces, (unsigned)((width + 2047) / 2048)), THREADS, 0,
                   op->in, p.rows, p.offset, w->spec.k, width, (uint16_t *)(void *)cuda_of(b)->scratch);
        qr_status st = w->spec.format == WEIGHT_BF16  ? choose_product<WEIGHT_BF16>(b, &p, err)
                       : w->spec.format == WEIGHT_FP8 ? choose_product<WEIGHT_FP8>(b, &p, err)
                                                      : choose_product<WEIGHT_FP4>(b, &p, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}

/* ---- plain: f32 values ---- */

static __device__ float plain_weight(const struct weight_view &w, enum weight_format format, int64_t n, int64_t k)
{
    if (format == WEIGHT_F32)
        return ((const float *)(const void *)(w.values + n * w.pitch))[k];
    return format == WEIGHT_BF16 ? packed_bf16(w, n, k) : packed_e4m3(w, n, k);
}

/* A warp for each output. */
static __global__ void plain_kernel(struct op_linear op, struct weight_view w, enum weight_format format,
                                    int32_t pieces, int32_t columns)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.y), column = (int64_t)blockIdx.x * (THREADS / WARP) + warp_of();
    if (column >= (int64_t)pieces * columns)
        return;
    int64_t piece = column / columns, n = op.groups > 1 ? column : column % columns, first = piece * w.k;
    double sum = 0;
    for (int k = lane_of(); k < w.k; k += WARP)
        sum += (double)act_value(op.in, row, first + k) * (double)plain_weight(w, format, n, k);
    sum = warp_sum(sum);
    if (lane_of() == 0)
        act_store(op.out, row, column, (float)sum);
}

static qr_status plain_linear(struct backend *b, const struct op_linear *op, qr_error *err)
{
    int32_t groups = at_least_one(op->groups), parts = at_least_one(op->parts), warps = THREADS / WARP;
    int32_t pieces = groups * parts, columns = op->weight->spec.n / groups;
    dim3 grid((unsigned)(((int64_t)pieces * columns + warps - 1) / warps), op->rows.count);
    LAUNCH("linear", plain_kernel, grid, THREADS, 0, *op, op->weight->view, op->weight->spec.format, pieces, columns);
    return QR_OK;
}

static qr_status linear_check(const struct op_linear *op, qr_error *err)
{
    static const char *const act_name[] = {"bf16", "f32", "Q8", "I8"};
    static const char *const weight_name[] = {"BF16", "F32", "FP8", "FP4", "INT8"};
    const struct weight_spec *w = &op->weight->spec;
    int32_t groups = at_least_one(op->groups), parts = at_least_one(op->parts);
    enum weight_format f = w->format;
    bool plain = act_is_float(op->in) && (f == WEIGHT_BF16 || f == WEIGHT_F32 || f == WEIGHT_FP8);
    bool q8 = op->in.format == ACT_Q8 && (f == WEIGHT_FP8 || f == WEIGHT_FP4);
    bool i8 = op->in.format == ACT_I8 && f == WEIGHT_INT8;

    if (groups > 1 && parts > 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s: both %d groups and %d parts", w->name, groups, parts);
    if (w->n % groups || op->in.cols != groups * parts * w->k || op->out.cols != parts * w->n)
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s [%d][%d]: %d columns in, %d out, %d groups, %d parts",
                       w->name, w->n, w->k, op->in.cols, op->out.cols, groups, parts);
    if (!act_is_float(op->out))
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s: the output is neither bf16 nor f32", w->name);
    if (!plain && !q8 && !i8)
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s: no product of %s with %s", w->name,
                       act_name[op->in.format], weight_name[f]);
    if (!plain && (op->in.block < 1 || op->in.cols % op->in.block || w->k % op->in.block))
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s: blocks of %d do not divide %d columns", w->name,
                       op->in.block, w->k);
    return QR_OK;
}

qr_status cuda_linear(struct backend *b, const struct op_linear *op, qr_error *err)
{
    qr_status st = linear_check(op, err);
    if (st != QR_OK || op->rows.count == 0)
        return st;
    if (op->in.cols > cuda_of(b)->max_k)
        return qr_fail(err, QR_BAD_ARGUMENT, "linear: weight %s: %d input columns, scratch was reserved for %d",
                       op->weight->spec.name, op->in.cols, cuda_of(b)->max_k);
    if (op->in.format == ACT_I8)
        return cuda_linear_int8(b, op, err);
    return is_matrix(op) ? matrix_linear(b, op, err) : plain_linear(b, op, err);
}
