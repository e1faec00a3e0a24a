/* op_harness.h: what `quire op` can run. A harness is a table of its arrays and a short composition over ops.h; the tables
 * are what `--list` prints and what the file's arrays are held to. */
#ifndef QR_TOOLS_OP_HARNESS_H
#define QR_TOOLS_OP_HARNESS_H

#include "base/status.h"

struct op_run;

/* What an array holds, and what becomes of it before a harness runs. */
enum array_kind {
    ARRAY_INT,    /* int32; I64 in the file is taken too. On the host */
    ARRAY_BF16,   /* in the backend's memory, as the next ones */
    ARRAY_F32,
    ARRAY_STREAM, /* BF16 (reference) or F32 (w8a8) */
    ARRAY_I8,
    ARRAY_U8,     /* on the host */
    ARRAY_E4M3,   /* output codes */
    /* prepared weights, [n][k] as the last two dimensions or those named by `scales`; leading ones are stacked into n */
    WEIGHT_KINDS,
    WEIGHT_OF_BF16 = WEIGHT_KINDS,
    WEIGHT_OF_BF16_IN_OUT, /* [k][n] in the file */
    WEIGHT_OF_F32,
    WEIGHT_OF_FP8,         /* scales: E8M0 of 128 x 128 tiles */
    WEIGHT_OF_FP4,         /* two codes a byte; scales: E8M0 of 32 columns */
    WEIGHT_OF_I8,          /* scales: f32 of an output channel */
    WEIGHT_OF_I8_IN_OUT,
    ARRAY_TENSOR  /* a weight of the model's layers, read as the model reads it (op_world.h); here its shape alone. That of
                     an MTP layer may have "mtp_" before its name */
};

enum array_flag {
    ARRAY_OPTIONAL = 1,
    ARRAY_HOST = 2,      /* the harness reads it, or (output) fills it, on the host */
    ARRAY_REFERENCE = 4, /* in the reference profile only */
    ARRAY_W8A8 = 8,
    ARRAY_CUT = 32,      /* a row-parallel weight: summed in the ranges of K that the model sums it in */
    ARRAY_STACKED = 16   /* a weight for each index of the first dimension, or, `#` in its name, of the routed experts */
};

/* `name` is that of the file without "in." or "out."; `shape` as op_dims.h; `also` and `tolerance` (outputs): the names a
 * tolerance calls it by, and the comparator of v4-model.md section 10 for a file that says nothing of it. */
struct op_array {
    const char *name;
    enum array_kind kind;
    const char *shape;
    int flags;
    const char *scales; /* of a weight: the array of its scales */
    const char *also, *tolerance;
    const char *alias;  /* of an input: the name it may have instead */
};

#define ARRAY(NAME, KIND, SHAPE, ...) {.name = NAME, .kind = KIND, .shape = SHAPE, __VA_ARGS__}

struct op_harness {
    const char *name;    /* "hc_pre"; a file's op may add a variant, "hc_pre_slow" */
    int32_t number;      /* of v4-model.md section 10; from 42 on those of appendix D, which has no numbers */
    const char *about;
    const char *params;  /* those of the file it cannot do without, "rms_norm_eps hc_eps" */
    const struct op_array *in, *out; /* ended by a NULL name */
    const char *rows;    /* the most rows of a step, in the words of op_dims.h */
    /* Binds sizes that no input has, before the outputs are made; may be NULL. */
    qr_status (*sizes)(struct op_run *run, qr_error *err);
    /* Checks what 9.5 refuses, then calls operators. */
    qr_status (*run)(struct op_run *run, qr_error *err);
    /* Binds sizes before the inputs are held to theirs; may be NULL. */
    void (*bind)(struct op_run *run);
};

/* One family of operators each, ended by a NULL name. */
extern const struct op_harness op_streams_harnesses[], op_projection_harnesses[], op_compressor_harnesses[],
    op_indexer_harnesses[], op_attention_harnesses[], op_expert_harnesses[], op_exchange_harnesses[], op_head_harnesses[],
    op_prepare_harnesses[], op_number_harnesses[], op_pack_harnesses[], op_layer_harnesses[], op_mtp_harnesses[],
    op_forward_harnesses[], op_dspark_harnesses[], op_drafter_harnesses[];

/* Harness `index` of all, by number; NULL behind the last. */
const struct op_harness *op_harness_at(int32_t index);
/* The harness whose name is `name`, or the longest that `name` begins with before a variant ("_starts"); NULL: none. */
const struct op_harness *op_harness_find(const char *name);

/* Refusals by the classes of v4-model.md 9.5: "bad table: ...". */
enum refusal { BAD_TOKEN, BAD_POSITION, BAD_SHAPE, BAD_TABLE, BAD_WORLD, BAD_SLOT, STALE_SLOT, BAD_CHECKPOINT, NUMERIC_FAILURE };
qr_status op_refuse(qr_error *err, enum refusal why, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
