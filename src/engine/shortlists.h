/* shortlists.h: the likeliest ids of the rows of a step that a token is drawn from, found where the logits lie
 * (ops/shortlist.h) and fetched together: a row of a large vocabulary takes a processor longer than a device its share of a
 * step. What a list does not prove is drawn from the whole row, so an answer does not hang on lists. */
#ifndef QR_ENGINE_SHORTLISTS_H
#define QR_ENGINE_SHORTLISTS_H

#include "ops/ops.h"
#include "run/sampling.h"

struct shortlists;

/* *out NULL: the backend finds none, or not of such a vocabulary; every call below takes that. `rows`: that are wanted at
 * once at most. left_out: ids that most requests ban. It outlives the lists. */
qr_status shortlists_open(struct backend *backend, int32_t vocab, int32_t rows, const struct id_list *left_out,
                          struct shortlists **out, qr_error *err);
void shortlists_close(struct shortlists *s);

/* Bytes on the host, and on a device with memory of its own. */
int64_t shortlists_bytes(int32_t vocab, int32_t rows);
int64_t shortlists_device_bytes(int32_t vocab, int32_t rows);

/* Forgets all rows. */
void shortlists_clear(struct shortlists *s);
/* A token at `position` will be drawn from row `row` of the logits, row `added_row` of what is added to them. Nothing where
 * lists cannot help, or more rows than were said. Number `key` finds it again: 0 to rows - 1. */
void shortlists_want(struct shortlists *s, int32_t key, const struct sampling_params *params, int64_t position, int32_t row,
                     int32_t added_row);
/* Finds what is wanted. logits and added (NULL: none): as op_shortlist. After a failure there are no lists. */
qr_status shortlists_find(struct shortlists *s, const float *logits, const float *added, qr_error *err);

/* False: there is no list of that key, or it does not prove the token. As shortlist_draw. */
bool shortlists_draw(struct shortlists *s, int32_t key, const struct sampling_params *params, const struct sampling_row *row,
                     int64_t position, struct sampler_scratch *scratch, int32_t *token);

/* Tokens that were drawn from lists, and lists that did not prove one, so far. */
void shortlists_count(const struct shortlists *s, int64_t *drawn, int64_t *open);

#endif
