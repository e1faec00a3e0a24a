/* ops.h: a backend to try operators on, and the small things that every operator test needs. Failing calls fail the
 * running test with the backend's sentence. */
#ifndef QR_TESTS_OPS_H
#define QR_TESTS_OPS_H

#include "ops/ops.h"
#include "support/support.h"

struct ops {
    struct backend *b;
    struct model_plan plan; /* sizes that the backend reserved for: as large as any test here needs */
    struct weight *weights[512];
    int n_weights;
};

/* `path` as backend_cpu_open, or "cuda" (shared_memory.h). ops_close frees the weights too. */
void ops_open(struct ops *o, const char *path, int threads);
void ops_close(struct ops *o);

/* RUN(&o, norm, .rows = ..., ...): runs one operator that must succeed. */
#define RUN(o, NAME, ...)                                                                                              \
    do {                                                                                                               \
        struct op_##NAME run_op_ = {__VA_ARGS__};                                                                      \
        qr_error run_err_ = {0};                                                                                       \
        if ((o)->b->NAME((o)->b, &run_op_, &run_err_) != QR_OK)                                                        \
            fail_msg(#NAME ": %s", run_err_.message);                                                                  \
    } while (0)

struct weight *ops_weight(struct ops *o, struct weight_spec spec);
/* Without splits; tile of an FP8 weight. */
struct weight *ops_bf16(struct ops *o, int32_t n, int32_t k, const void *values);
struct weight *ops_f32(struct ops *o, int32_t n, int32_t k, const void *values);
struct weight *ops_fp8(struct ops *o, int32_t n, int32_t k, int32_t tile, const void *values, const void *scales);
struct weight *ops_fp4(struct ops *o, int32_t n, int32_t k, const void *values, const void *scales);
struct weight *ops_int8(struct ops *o, int32_t n, int32_t k, const void *values, const void *scales);

static inline struct row_list first_rows(int32_t count) { return (struct row_list){NULL, count}; }
static inline struct activation bf16_rows(const void *p, int32_t cols)
{
    return (struct activation){.format = ACT_BF16, .cols = cols, .codes = (void *)p};
}
static inline struct activation f32_rows(const void *p, int32_t cols)
{
    return (struct activation){.format = ACT_F32, .cols = cols, .codes = (void *)p};
}
/* Rows with room of their own; format, cols and block as given. Freed by ops_free_rows. */
struct activation ops_rows(enum act_format format, int32_t rows, int32_t cols, int32_t block);
void ops_free_rows(struct activation *a);
/* The values of plain rows as f32; free() the result. */
float *ops_values(const struct activation *a, int32_t rows);

/* One request in STATE slot 0 whose rows stand at first_position, +1, ..., with pages 0, 1, 2, ... */
struct one_request {
    struct step step;
    int32_t *positions, *batch_id, *tokens, first_row[2], first_position[1], slot[1], *table;
};
void one_request_make(struct one_request *r, int32_t first_position, int32_t rows, int32_t pages);
void one_request_free(struct one_request *r);

/* Planes and rings in memory of their own, zeroed; `rows_per_block` rows a block. ops_free_plane frees. */
struct row_plane ops_plane(enum row_format format, int32_t cols, int32_t rows_per_block, int32_t blocks);
void ops_free_plane(struct row_plane *p);
struct ring_plane ops_ring(enum row_format format, int32_t cols, int32_t rows, int32_t slots);
/* A compressor tail: f32 value and score rows. */
struct ring_plane ops_tail(int32_t cols, int32_t rows, int32_t slots);
void ops_free_ring(struct ring_plane *r);

/* A reproducible stream of numbers. */
struct dice {
    uint64_t state;
};
uint32_t dice_next(struct dice *d);
/* About normal, mean 0, deviation `scale`. */
float dice_normal(struct dice *d, float scale);
void dice_f32(struct dice *d, float *out, int64_t n, float scale);
void dice_bf16(struct dice *d, uint16_t *out, int64_t n, float scale);

/* The rope of golden/ops4: its config, plain or compressed table. `frequencies` has room for 32. */
struct rope_spec ops4_rope(float *frequencies, bool compress, bool w8a8);
/* A matrix that golden/ops4 gives as [in][out], as [out][in]; elements of `size` bytes; free() the result. */
void *ops4_transposed(const void *from, int32_t in, int32_t out, size_t size);

/* Rope of the released models' kind (rotated `dim`, base 10000), from a table that lives as long as the program. */
struct rope_spec test_rope(int32_t dim);

#endif
