/* shortlist.h: a token drawn from the few ids of a row that can be drawn, found where the logits lie (ops/shortlist.h). It
 * is the token that sampling_draw gives on the whole row, or none: where the list does not prove which it is, the row has
 * to be read. */
#ifndef QR_RUN_SHORTLIST_H
#define QR_RUN_SHORTLIST_H

#include "ops/shortlist.h"
#include "run/sampling.h"

/* Whether lists can help at all: penalties and biases change logits that no list may hold. */
bool shortlist_helps(const struct sampling_params *params);

/* The question for a token at `position`, of row `row`. */
struct shortlist_ask shortlist_ask(const struct sampling_params *params, int64_t position, int32_t row);

/* False: the lists do not prove it, and *token may be anything. `row`: banned lists and grammar; its logits and counts are not
 * looked at. `left_out`: what `mass` does not count; where that list itself is among the row's banned ones, sums can be told. */
bool shortlist_draw(const struct sampling_params *params, const struct sampling_row *row, const struct id_list *left_out,
                    int64_t position, const struct shortlist_part parts[SHORTLIST_PARTS], struct sampler_scratch *scratch,
                    int32_t *token);

#endif
