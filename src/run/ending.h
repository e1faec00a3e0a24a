/* ending.h: which token ends an answer (speculation.md 4.7, protocol.md 3.6). Stop strings are text/stop.h's. */
#ifndef QR_RUN_ENDING_H
#define QR_RUN_ENDING_H

#include <stdbool.h>
#include <stdint.h>

struct ending {
    const int32_t *eos; /* the model's end tokens */
    int32_t eos_count;
    bool ignore_eos;            /* an end token is one like any other */
    const int32_t *stop_tokens; /* the request's own */
    int32_t stop_token_count;
    int32_t min_tokens, max_tokens; /* of the answer; max_tokens at least 1 */
};

enum ended { ENDED_NOT, ENDED_EOS, ENDED_STOP_TOKEN, ENDED_LENGTH };

/* Whether the answer ends with `token`, its token number `made` (from 1). An end or stop token counts above the length,
 * and not before min_tokens other ones were made. */
enum ended ending_after(const struct ending *e, int32_t token, int32_t made);

/* Whether end and stop tokens must be banned from the row that draws the token after `made` ones. (With ignore_eos the
 * model's end tokens need no ban.) */
bool ending_bans_stops(const struct ending *e, int32_t made);

/* Whether a stop string that ends in the text of token number `made` counts. */
bool ending_hears_strings(const struct ending *e, int32_t made);

/* How many of the `n` tokens that one step emits belong to the answer, which had `made` before; *ended says how it ends
 * with the last of them. Tokens after an end are dropped. */
int32_t ending_cut(const struct ending *e, const int32_t *tokens, int32_t n, int32_t made, enum ended *ended);

#endif
