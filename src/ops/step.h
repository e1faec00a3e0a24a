/* step.h: one forward of a ragged batch of rows (runtime.md 3). Every forward goes through it: prefill chunks, decode
 * rows and verify rows are the same thing, a span of consecutive positions of one request. Filled by run/assemble from
 * the scheduler's batch; arrays live where the backend computes and are only read there. */
#ifndef QR_OPS_STEP_H
#define QR_OPS_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/plan.h"

/* Which rows of the step an operator works on: `count` row numbers, ascending; index NULL: rows 0..count-1. Buffers
 * always have room for every row of the step and are addressed by row number, so a trimmed layer leaves the other
 * rows' contents as they are. A padding row is in no list. */
struct row_list {
    const int32_t *index;
    int32_t count;
};

/* Rows of request b are first_row[b] .. first_row[b+1]-1, at positions first_position[b], +1, ... */
struct step {
    int32_t rows, requests;         /* live ones; padding stands behind and is never listed */
    const int32_t *token_ids;       /* [rows] */
    const int32_t *positions;       /* [rows] absolute, 0-based */
    const int32_t *batch_id;        /* [rows] request of the row; -1 on padding */
    const int32_t *first_row;       /* [requests + 1] */
    const int32_t *first_position;  /* [requests] */
    const int32_t *slot;            /* [requests] STATE slot */
    const int32_t *block_table;     /* [requests][block_stride] PAGE ids; -1: unmapped */
    int32_t block_stride;
    const uint8_t *image_mask;      /* [rows] 1: image-span token; NULL: none */
    bool tentative;                 /* verify step: rows beyond the first of a request may be rejected */
};

/* What one layer runs (architecture.md "Row plan", runtime.md 7.5). The three starts may differ in one layer. The model
 * code gets these lists and does not know why a row is missing. */
struct layer_rows {
    struct row_list input;         /* rows whose attention input is computed: every row of `key` or `compress` */
    struct row_list query;         /* rows that pass through the whole layer: `once` and `again` together */
    struct row_list once;          /* their windows: this forward's keys from `key_from` on, the ring's below */
    struct row_list again;         /* run a second time (runtime.md 4.6, back-off): this forward's keys alone; mostly none */
    struct row_list key;           /* rows whose window key is computed (a superset of query) */
    struct row_list compress;      /* rows whose compressor inputs are computed; empty where the layer owns no rows */
    struct row_list emit;          /* last token of each compressed row emitted here; row j = position div ratio */
    bool emit_padded;              /* emit holds other rows too (op_compress.padded) */
    struct row_list ring;          /* rows whose window key is kept in the ring (the last R of a request at most) */
    struct row_list tail;          /* rows whose compressor inputs are kept in the tail */
    const int32_t *key_from;       /* [requests] first position whose window key is read from this forward's rows (`win_src`) */
    const int32_t *compress_from;  /* [requests] first position whose compressor inputs this forward computes */
    const int32_t *window_low;     /* [rows] lowest position of the row's window (`lo` of runtime.md 3.3); NULL: 0 */
    /* Host memory, [cuts + 1]: entries of `query`, `once` and `again` before each cut; NULL: the step is not cut. */
    const int32_t *query_cut, *once_cut, *again_cut;
};

struct step_rows {
    const struct layer_rows *layer; /* [layers + draft layers] */
    struct row_list logits;         /* rows whose logits are wanted */
    /* Attention takes the rows of a step in cuts: rows [i * attention_rows, (i + 1) * attention_rows) in the i-th. */
    int32_t cuts, attention_rows;   /* cuts 0: all at once */
    const int32_t *numbers;         /* [rows] 0, 1, 2 ...: what is cut of a list of every row */
};

#endif
