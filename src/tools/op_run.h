/* op_run.h: one run of a harness on one device: the file's arrays where the backend computes, prepared weights, the
 * operators called (so that they can be called again for their time) and the outputs. */
#ifndef QR_TOOLS_OP_RUN_H
#define QR_TOOLS_OP_RUN_H

#include "ops/ops.h"
#include "tools/op_dims.h"
#include "tools/op_file.h"
#include "tools/op_harness.h"

struct op_run {
    const struct op_file *file;
    const struct op_harness *harness;
    struct backend *backend;
    bool w8a8;
    int32_t ranks;             /* --ranks; 0: not given */
    bool one_rank;             /* the arrays have no axis of ranks, where the harness's shapes begin with "ep" */
    struct qr_config config;   /* what `params` says; fields it lacks are 0 */
    struct op_dims dims;
    struct arena arena;        /* host memory of the run */
    struct op_slot *in, *out;  /* one for each row of the harness's tables */
    int32_t in_count, out_count;
    void **buffers;            /* the backend's memory */
    size_t buffer_count, buffer_capacity;
    struct op_weight *weights;
    size_t weight_count, weight_capacity;
    struct op_call *calls;
    size_t call_count, call_capacity;
    void *world;               /* what a composition made beside (op_world.h), and its end */
    void (*close_world)(void *world);
};

/* An array of the run: on the host, in the backend's memory, or prepared; NULL where it is not. */
struct op_slot {
    const struct op_array *array;
    const struct tensor_view *view; /* inputs: of the file */
    int32_t rank;
    int64_t shape[8], bytes;
    const void *host;               /* inputs: canonical values; outputs: what came back */
    void *device;
    const struct weight **prepared;
    int64_t prepared_count;
    /* outputs: which points are compared. Of the first `live` rows (outermost index) the first counts[row] columns
     * (NULL: all); rows behind must be exactly zero, columns behind exactly those of the file unless `open`. */
    int64_t live;                   /* -1: all rows */
    const int64_t *counts;
    bool open;
    const bool *slack;              /* points that may differ by 1 */
    const char *values;             /* ids (TK, sets, arg max): the output that holds their values, */
    bool values_by_id;              /* in column `id` of the same row; else beside the id */
};

struct op_weight {
    struct weight *handle;
    int64_t bytes, n, k;
};

/* One call of an operator, its struct copied. */
struct op_call {
    int kind;
    void *op;
};

/* Opens a run: binds and checks the file's arrays, uploads, prepares, makes room for the outputs. `file`, `harness` and
 * `backend` must outlive it. Free with op_run_close. */
qr_status op_run_open(const struct op_file *file, const struct op_harness *harness, struct backend *backend, int32_t ranks,
                      struct op_run **out, qr_error *err);
void op_run_close(struct op_run *run);
/* Runs the harness and brings the outputs back. */
qr_status op_run_execute(struct op_run *run, qr_error *err);
/* Calls the same operators again; *seconds: how long all of them took. */
qr_status op_run_repeat(struct op_run *run, double *seconds, qr_error *err);
/* The output of that name, or NULL. */
const struct op_slot *op_run_output(const struct op_run *run, const char *name);
/* The dtype of an output in a file. */
enum dtype op_slot_dtype(const struct op_run *run, const struct op_slot *slot);

/* ---- for harnesses ---- */

/* The value of a size, "T" or "H*d". */
int32_t op_dim(const struct op_run *run, const char *word);
/* A number of `params`; `otherwise` when it is not there. */
double op_param(const struct op_run *run, const char *name, double otherwise);
/* Whether the file has that input. */
bool op_has(const struct op_run *run, const char *name);

/* The input of that table name as it lies in the file, or NULL. */
const struct tensor_view *op_view(const struct op_run *run, const char *name);
/* An input by its name in the table: host values (ARRAY_INT, ARRAY_U8, ARRAY_HOST), backend memory, prepared weight,
 * weights of a stack. NULL when optional and absent. */
const void *op_host(const struct op_run *run, const char *name);
const int32_t *op_ints(const struct op_run *run, const char *name);
void *op_in(const struct op_run *run, const char *name);
const struct weight *op_weight(const struct op_run *run, const char *name);
const struct weight *const *op_stack(const struct op_run *run, const char *name);
/* An output: its zeroed room in the backend's memory, or on the host (ARRAY_HOST, ARRAY_INT). */
void *op_out(const struct op_run *run, const char *name);
struct op_slot *op_out_slot(const struct op_run *run, const char *name);
/* Leaves an output out: the file has nothing to make it from. */
void op_drop(struct op_run *run, const char *name);

/* Host memory that lives as long as the run, zeroed; fails naming the harness. */
qr_status op_host_new(struct op_run *run, int64_t bytes, void *pointer, qr_error *err);
/* Zeroed memory of the backend. */
qr_status op_buffer(struct op_run *run, int64_t bytes, void *pointer, qr_error *err);
/* Host bytes in the backend's memory. */
qr_status op_upload(struct op_run *run, const void *from, int64_t bytes, void *pointer, qr_error *err);
/* Fresh rows of any format. */
qr_status op_rows(struct op_run *run, enum act_format format, int64_t rows, int32_t cols, int32_t block,
                  struct activation *out, qr_error *err);
/* A weight that the file does not hold as it is. */
qr_status op_prepare(struct op_run *run, const struct weight_spec *spec, const struct weight **out, qr_error *err);

static inline struct activation act_rows(enum act_format format, const void *codes, int32_t cols)
{
    return (struct activation){.format = format, .cols = cols, .codes = (void *)(uintptr_t)codes};
}
static inline struct activation act_coded(enum act_format format, const void *codes, const void *scales, int32_t cols,
                                          int32_t block)
{
    return (struct activation){.format = format, .cols = cols, .block = block, .codes = (void *)(uintptr_t)codes,
                               .scales = (void *)(uintptr_t)scales};
}
static inline struct row_list first_rows_of(int64_t count) { return (struct row_list){NULL, (int32_t)count}; }

/* Calls an operator and keeps the call: CALL(run, norm, .rows = ..., ...) returns from the function when it fails. What
 * the struct points at must live as long as the run. */
enum op_kind {
#define OP_KIND(NAME) OP_##NAME,
    QR_OPERATORS(OP_KIND)
#undef OP_KIND
    OP_copy
};
struct op_copy {
    void *to;
    const void *from;
    int64_t bytes;
};
qr_status op_call(struct op_run *run, enum op_kind kind, const void *op, size_t size, qr_error *err);

#define CALL(run, NAME, ...) TRY(op_call(run, OP_##NAME, &(const struct op_##NAME){__VA_ARGS__}, sizeof(struct op_##NAME), err))

#endif
