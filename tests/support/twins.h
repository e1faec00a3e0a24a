/* twins.h: the CPU's reference and a CUDA device with the same weights and rows, and what an operator's cases are held to: a
 * row's bits are the same alone, among few and among many rows, and its values are the reference's. */
#ifndef QR_TESTS_TWINS_H
#define QR_TESTS_TWINS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "ops/device.h"
#include "support/ops.h"
#include "support/support.h"

enum { ROWS = 256, MANY_ROWS = 4096, COMPARED = 3, MOST_BUFFERS = 256 };
enum { CONTEXT = 4096, BLOCK_TOKENS = 128, RATIO = 4, TOPK = 512 };

/* Memory on both sides; the same bytes at first. */
struct buffer {
    uint8_t *host, *device;
    size_t bytes;
};

struct twins {
    struct backend *cpu, *gpu;
    struct model_plan plan;
    struct buffer buffers[MOST_BUFFERS];
    int count;
    struct weight *weights[2][64];
    int n_weights;
    struct dice dice;
    struct step step[2]; /* CPU, GPU */
};
extern struct twins twins;

enum side { CPU, GPU };

struct backend *backend_of(enum side side);

/* Buffers live until the test ends. */
struct buffer *twin_room(size_t bytes);
void twin_send(struct buffer *b); /* the host's bytes */
void *twin_at(const struct buffer *b, enum side side);
struct buffer *twin_bf16(int64_t n, float scale);
struct buffer *twin_f32(int64_t n, float scale);
/* E4M3 codes without NaN, or any bytes. */
struct buffer *twin_codes(int64_t n, bool e4m3);
/* Bytes from `low` on, `span` of them. */
struct buffer *twin_scales(int64_t n, uint8_t low, uint8_t span);

/* A weight of random values on both sides; its number. */
int twin_weight(enum weight_format format, int32_t n, int32_t k, int32_t tile, int32_t splits);
struct weight *twin_weight_of(enum side side, int i);
struct activation twin_act(enum act_format format, const struct buffer *values, const struct buffer *scale, int32_t cols,
                      int32_t block, enum side side);
/* Rows first .. first + count - 1, as a list of the device. */
struct row_list twin_list(struct buffer *index, int32_t first, int32_t count);

/* A width of a released model; where the device is the processor (QUIRE_TEST_EMULATED=short) a fourth of one beyond 2048, and so of
 * rows beyond 1024. */
int32_t twin_width(int32_t released);
int32_t twin_rows(int32_t rows);
/* Whether that is so. */
bool twins_are_short(void);

/* ---- cases ---- */

enum kind { KIND_BYTES, KIND_BF16, KIND_F32, KIND_I32, KIND_IDS, KIND_BITS };

/* What a case writes: `bytes` a row. KIND_F32 and KIND_BF16 are compared with the reference within `within` of the
 * row's size, KIND_I32 must be equal, KIND_BYTES may differ in one of a hundred, KIND_IDS are sets that share nearly
 * all, KIND_BITS are the reference's. */
struct output {
    struct buffer *buffer;
    size_t bytes;
    enum kind kind;
    double within;
};

struct test_case {
    const char *name;
    void (*run)(const struct test_case *, enum side side, struct row_list);
    struct output out[4];
    struct buffer *in[16];
    int w[16];
    int32_t n, k, heads, dim, groups, block, rows; /* rows: how many there are; 0: ROWS */
    enum act_format format;
    bool flag;
};

void check_case(const struct test_case *c);

#define RUN_ON(NAME, ...)                                              \
    do {                                                               \
        struct op_##NAME run_op_ = {.rows = rows, __VA_ARGS__};        \
        MUST(backend_of(side)->NAME(backend_of(side), &run_op_, err)); \
        MUST(backend_of(side)->fence(backend_of(side), err));          \
    } while (0)
#define CASE(NAME) static void run_##NAME(const struct test_case *c, enum side side, struct row_list rows)
#define IN(i) twin_at(c->in[i], side)
#define OUT(i) twin_at(c->out[i].buffer, side)
#define STEP .step = &twins.step[side]

/* ---- a program of such tests ---- */

int twins_open(void **state);
int twins_release(void **state); /* frees what a test took */
/* Opens the device, QR_OK; else what main returns. */
int twins_find(void);

#endif
