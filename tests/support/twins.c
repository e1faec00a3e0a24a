#include "support/twins.h"

struct twins twins;

struct backend *backend_of(enum side side) { return side == CPU ? twins.cpu : twins.gpu; }

/* ---- memory ---- */

struct buffer *twin_room(size_t bytes)
{
    void *device;
    assert_true(twins.count < MOST_BUFFERS);
    struct buffer *b = &twins.buffers[twins.count++];
    b->bytes = bytes;
    b->host = calloc(1, bytes);
    assert_non_null(b->host);
    MUST(twins.gpu->allocate(twins.gpu, (int64_t)bytes, &device, err));
    b->device = device;
    return b;
}

void twin_send(struct buffer *b) { MUST(twins.gpu->upload(twins.gpu, b->device, b->host, (int64_t)b->bytes, err)); }

void *twin_at(const struct buffer *b, enum side side) { return side == CPU ? b->host : b->device; }

struct buffer *twin_bf16(int64_t n, float scale)
{
    struct buffer *b = twin_room((size_t)n * 2);
    dice_bf16(&twins.dice, (uint16_t *)(void *)b->host, n, scale);
    twin_send(b);
    return b;
}

struct buffer *twin_f32(int64_t n, float scale)
{
    struct buffer *b = twin_room((size_t)n * 4);
    dice_f32(&twins.dice, (float *)(void *)b->host, n, scale);
    twin_send(b);
    return b;
}

/* E4M3 codes without NaN, or pairs of E2M1 codes. */
struct buffer *twin_codes(int64_t n, bool e4m3)
{
    struct buffer *b = twin_room((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        b->host[i] = (uint8_t)dice_next(&twins.dice);
        if (e4m3 && (b->host[i] & 0x7F) == 0x7F)
            b->host[i] ^= 1;
    }
    twin_send(b);
    return b;
}

/* Bytes from `low` on, `span` of them. */
struct buffer *twin_scales(int64_t n, uint8_t low, uint8_t span)
{
    struct buffer *b = twin_room((size_t)n);
    for (int64_t i = 0; i < n; i++)
        b->host[i] = (uint8_t)(low + dice_next(&twins.dice) % span);
    twin_send(b);
    return b;
}

struct weight *twin_weight_of(enum side side, int i) { return twins.weights[side][i]; }

int twin_weight(enum weight_format format, int32_t n, int32_t k, int32_t tile, int32_t splits)
{
    struct weight_spec s = {.name = "test.weight", .format = format, .n = n, .k = k, .tile = tile, .k_splits = splits};
    int64_t values = (int64_t)n * k, scale_rows = format == WEIGHT_FP8 ? (n + tile - 1) / tile : n;
    int64_t scale_cols = format == WEIGHT_FP8 ? (k + tile - 1) / tile : k / 32;
    const struct buffer *b = format == WEIGHT_BF16 ? twin_bf16(values, 0.05f)
                             : format == WEIGHT_F32
                                 ? twin_f32(values, 0.05f)
                                 : twin_codes(format == WEIGHT_FP4 ? values / 2 : values, format == WEIGHT_FP8);
    s.values = b->host;
    if (format == WEIGHT_FP8 || format == WEIGHT_FP4)
        s.scales = twin_scales(scale_rows * scale_cols, 114, 8)->host;
    if (format == WEIGHT_INT8)
        s.scales = twin_f32(n, 0.01f)->host;
    assert_true(twins.n_weights < 64);
    MUST(twins.cpu->prepare_weight(twins.cpu, &s, &twins.weights[CPU][twins.n_weights], err));
    MUST(twins.gpu->prepare_weight(twins.gpu, &s, &twins.weights[GPU][twins.n_weights], err));
    return twins.n_weights++;
}

struct activation twin_act(enum act_format format, const struct buffer *values, const struct buffer *scale,
                             int32_t cols, int32_t block, enum side side)
{
    return (struct activation){.format = format,
                               .cols = cols,
                               .block = block,
                               .codes = twin_at(values, side),
                               .scales = scale ? twin_at(scale, side) : NULL};
}

bool twins_are_short(void)
{
    const char *emulated = getenv("QUIRE_TEST_EMULATED");
    return emulated && strcmp(emulated, "short") == 0;
}

int32_t twin_width(int32_t released) { return twins_are_short() && released > 2048 ? released / 4 : released; }
int32_t twin_rows(int32_t rows) { return twins_are_short() && rows > 1024 ? rows / 4 : rows; }

/* ---- cases ---- */

static void clear(const struct test_case *c)
{
    for (int i = 0; i < 4 && c->out[i].buffer; i++) {
        memset(c->out[i].buffer->host, 0, c->out[i].buffer->bytes);
        twin_send(c->out[i].buffer);
    }
}

static uint8_t *fetch(const struct output *o)
{
    uint8_t *copy = malloc(o->buffer->bytes);
    assert_non_null(copy);
    MUST(twins.gpu->download(twins.gpu, copy, o->buffer->device, (int64_t)o->buffer->bytes, err));
    MUST(twins.gpu->fence(twins.gpu, err));
    return copy;
}

/* Rows first .. first + count - 1, as a list. */
struct row_list twin_list(struct buffer *index, int32_t first, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        ((int32_t *)(void *)index->host)[i] = first + i;
    twin_send(index);
    return (struct row_list){(const int32_t *)(void *)index->device, count};
}

static double value_at(const struct output *o, const uint8_t *row, size_t i)
{
    uint16_t half;
    float single;
    if (o->kind == KIND_BF16) {
        memcpy(&half, row + 2 * i, 2);
        return bf16_decode(half);
    }
    memcpy(&single, row + 4 * i, 4);
    return single;
}

static void compare_values(const struct test_case *c, const struct output *o, int32_t row, const uint8_t *found,
                           const uint8_t *want)
{
    size_t n = o->bytes / (o->kind == KIND_BF16 ? 2 : 4);
    double size = 0, worst = 0;
    for (size_t i = 0; i < n; i++)
        size += value_at(o, want, i) * value_at(o, want, i);
    size = sqrt(size / (double)n);
    for (size_t i = 0; i < n; i++) {
        double a = value_at(o, found, i), b = value_at(o, want, i), apart = fabs(a - b) / (size + fabs(b));
        if (!(apart <= worst))
            worst = apart;
    }
    if (!(worst <= o->within))
        fail_msg("%s: row %d is %.3g of its size away from the reference, wanted %.3g", c->name, row, worst, o->within);
}

static void compare_ids(const struct test_case *c, int32_t row, const int32_t *found, const int32_t *want, size_t n)
{
    size_t shared = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            shared += found[i] == want[j];
    if (shared * 100 < n * 99)
        fail_msg("%s: row %d shares %zu of %zu with the reference", c->name, row, shared, n);
}

static void compare_bytes(const struct test_case *c, int32_t row, const uint8_t *found, const uint8_t *want, size_t n)
{
    size_t different = 0;
    for (size_t i = 0; i < n; i++)
        different += found[i] != want[i];
    if (different * 100 > n)
        fail_msg("%s: row %d: %zu of %zu bytes are not the reference's", c->name, row, different, n);
}

static void compare_row(const struct test_case *c, const struct output *o, int32_t row, const uint8_t *found)
{
    const uint8_t *want = o->buffer->host + (size_t)row * o->bytes;
    found += (size_t)row * o->bytes;
    if (o->kind == KIND_BYTES)
        compare_bytes(c, row, found, want, o->bytes);
    else if (o->kind == KIND_BITS && memcmp(found, want, o->bytes) != 0)
        fail_msg("%s: row %d has not the reference's bits", c->name, row);
    else if (o->kind == KIND_I32)
        compare_ids(c, row, (const int32_t *)(const void *)found, (const int32_t *)(const void *)want, 1);
    else if (o->kind == KIND_IDS)
        compare_ids(c, row, (const int32_t *)(const void *)found, (const int32_t *)(const void *)want, o->bytes / 4);
    else if (o->kind == KIND_BF16 || o->kind == KIND_F32)
        compare_values(c, o, row, found, want);
}

/* The first rows and the last. */
static void check_closeness(const struct test_case *c, int32_t rows, uint8_t *const *all)
{
    int32_t list[2 * COMPARED];
    for (int i = 0; i < COMPARED; i++) {
        list[i] = i;
        list[COMPARED + i] = rows - COMPARED + i;
    }
    c->run(c, CPU, (struct row_list){list, 2 * COMPARED});
    for (int i = 0; i < 4 && c->out[i].buffer; i++)
        for (int k = 0; k < 2 * COMPARED; k++)
            compare_row(c, &c->out[i], list[k], all[i]);
}

void check_case(const struct test_case *c)
{
    static const int32_t counts[] = {1, 9, 17, 50, 2, 7, 8, 64, 200};
    const size_t tried = twins_are_short() ? 4 : sizeof counts / sizeof *counts;
    const int32_t rows = c->rows ? c->rows : ROWS;
    uint8_t *all[4] = {0};
    struct buffer *index = twin_room(ROWS * 4);

    clear(c);
    c->run(c, GPU, (struct row_list){NULL, rows});
    for (int i = 0; i < 4 && c->out[i].buffer; i++)
        all[i] = fetch(&c->out[i]);
    for (size_t k = 0; k < tried; k++) {
        int32_t first = (int32_t)(5 * k % 20), count = counts[k];
        if (first + count > rows)
            continue;
        clear(c);
        c->run(c, GPU, twin_list(index, first, count));
        for (int i = 0; i < 4 && c->out[i].buffer; i++) {
            uint8_t *some = fetch(&c->out[i]);
            size_t bytes = c->out[i].bytes;
            for (int32_t row = first; row < first + count; row++)
                if (memcmp(some + (size_t)row * bytes, all[i] + (size_t)row * bytes, bytes) != 0)
                    fail_msg("%s: output %d: row %d among %d rows is not row %d among %d", c->name, i, row, count, row,
                             rows);
            free(some);
        }
    }
    clear(c);
    check_closeness(c, rows, all);
    for (int i = 0; i < 4; i++)
        free(all[i]);
}

/* ---- the twins ---- */

int twins_open(void **state)
{
    enum { BLOCKS = CONTEXT / BLOCK_TOKENS };
    struct op_limits limits = {&twins.plan, MANY_ROWS, 1, CONTEXT};
    struct ops o;
    int64_t bytes;
    (void)state;
    ops_open(&o, "portable", 1); /* for its plan, larger than any operator here */
    twins.plan = o.plan;
    ops_close(&o);
    twins.plan.config.hidden_size = 8192;
    twins.plan.config.num_attention_heads = 64;
    twins.plan.config.index_n_heads = 64;
    twins.plan.config.moe_intermediate_size = 2304;
    MUST(backend_cpu_open("reference", 0, NULL, &twins.cpu, err));
    MUST(twins.cpu->reserve(twins.cpu, &limits, &bytes, err));
    MUST(twins.gpu->reserve(twins.gpu, &limits, &bytes, err));
    twins.dice.state = 7;

    struct one_request r;
    one_request_make(&r, CONTEXT - ROWS, ROWS, BLOCKS);
    twins.step[CPU] = twins.step[GPU] = r.step;
    const struct {
        const void *from;
        size_t bytes;
        const int32_t **to;
    } arrays[] = {{r.positions, ROWS * 4, &twins.step[GPU].positions},    {r.batch_id, ROWS * 4, &twins.step[GPU].batch_id},
                  {r.tokens, ROWS * 4, &twins.step[GPU].token_ids},       {r.first_row, 8, &twins.step[GPU].first_row},
                  {r.first_position, 4, &twins.step[GPU].first_position}, {r.slot, 4, &twins.step[GPU].slot},
                  {r.table, BLOCKS * 4, &twins.step[GPU].block_table}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *device;
        MUST(twins.gpu->allocate(twins.gpu, (int64_t)arrays[i].bytes, &device, err));
        MUST(twins.gpu->upload(twins.gpu, device, arrays[i].from, (int64_t)arrays[i].bytes, err));
        *arrays[i].to = device;
    }
    static struct one_request kept; /* the CPU's step points into it */
    kept = r;
    twins.step[CPU].first_row = kept.first_row;
    twins.step[CPU].first_position = kept.first_position;
    twins.step[CPU].slot = kept.slot;
    return 0;
}

/* Frees what a test took. */
int twins_release(void **state)
{
    (void)state;
    for (int i = 0; i < twins.n_weights; i++) {
        twins.cpu->release_weight(twins.cpu, twins.weights[CPU][i]);
        twins.gpu->release_weight(twins.gpu, twins.weights[GPU][i]);
    }
    for (int i = 0; i < twins.count; i++) {
        twins.gpu->release(twins.gpu, twins.buffers[i].device);
        free(twins.buffers[i].host);
    }
    twins.n_weights = twins.count = 0;
    return 0;
}

int twins_find(void)
{
    qr_error err = {0};
    const qr_status st = backend_cuda_open(NULL, NULL, &twins.gpu, &err);
    if (st != QR_OK)
        print_message("skipped: %s\n", err.message);
    else if (twins_are_short())
        print_message("emulated: widths beyond 2048 and rows beyond 1024 are a fourth of a released model's, attention has 16 rows, and "
                      "4 counts of rows are tried of 9\n");
    return st == QR_OK ? 0 : st == QR_UNSUPPORTED ? 77 : 1;
}
