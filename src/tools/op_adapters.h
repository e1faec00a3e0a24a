/* op_adapters.h: what the deployment's arrays become before operators can take them: steps, rotary tables, physical rows
 * of pages. Values out of range are refused by the classes of v4-model.md 9.5, never clamped. */
#ifndef QR_TOOLS_OP_ADAPTERS_H
#define QR_TOOLS_OP_ADAPTERS_H

#include "tools/op_run.h"

/* Rows of a step. Either `per_request` rows belong to each request, or request b has rows first_row[b] to
 * first_row[b+1]-1. Row i stands at positions[i] (NULL: 0) and holds tokens[i] (NULL: 0). `table`: [requests][width]
 * pages (NULL: none). All on the host. */
struct step_shape {
    int32_t rows, per_request, requests;
    const int32_t *first_row, *positions, *tokens, *table;
    int32_t width;
};
/* The step in the backend's memory, STATE slot b for request b. */
qr_status op_step(struct op_run *run, const struct step_shape *shape, struct step **out, qr_error *err);

/* Refuses a position outside [0, max_position_embeddings), and positions of a request (per_request rows each; 1: rows apart)
 * that are not consecutive. */
qr_status op_check_positions(const struct op_run *run, const int32_t *positions, int32_t rows, int32_t per_request,
                             qr_error *err);
/* Refuses a token outside [0, V). */
qr_status op_check_tokens(const int32_t *tokens, int64_t count, int32_t vocab, qr_error *err);
/* Refuses a hash table [V][K] (the input `name`) with a row that holds anything but K different experts of E. */
qr_status op_check_hash_table(const struct op_run *run, const char *name, qr_error *err);
/* Refuses an entry of a table (or list of rows) outside [-1, limit), naming `what`. */
qr_status op_check_entries(const char *what, const int32_t *entries, int64_t count, int64_t limit, qr_error *err);
/* The number of active rows: in.num_tokens, else params, else all T. Refused outside [0, T]. */
qr_status op_live_rows(struct op_run *run, int32_t *out, qr_error *err);

/* Rotary tables: given cosines and sines [rows][r or r/2] (a second half repeats the first), or computed from `params`
 * for a layer of that ratio. `rows`: how many rows of tables the step wants; row i of the step uses row[i] of the arrays
 * (NULL: i). */
qr_status op_turns(struct op_run *run, const char *cosines, const char *sines, int32_t rows, const int32_t *row,
                   struct rope_spec *out, qr_error *err);
qr_status op_frequencies(struct op_run *run, int32_t ratio, struct rope_spec *out, qr_error *err);

/* Host bytes of the backend's memory, in memory of the run. */
qr_status op_download(struct op_run *run, const void *from, int64_t bytes, void *pointer, qr_error *err);

/* A plane of compressed rows over a pool [pages][128 / ratio][1][cols], `scales` f32 [pages][128 / ratio] or NULL. */
struct row_plane op_plane(enum row_format format, void *values, void *scales, int32_t rows_per_page, int32_t cols);

#endif
