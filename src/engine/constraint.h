/* constraint.h: the grammar of one running request: what its next token may be. With reasoning in front it begins behind
 * </think>; before that everything may be drawn but what would end the answer or open a turn or a call. */
#ifndef QR_ENGINE_CONSTRAINT_H
#define QR_ENGINE_CONSTRAINT_H

#include "engine/request.h"

struct constraint;

/* Of a request with a grammar, at its beginning; all memory that it will need. */
qr_status constraint_open(const qr_model *model, const struct request *r, struct constraint **out, qr_error *err);
void constraint_close(struct constraint *c); /* NULL is fine */
uint64_t constraint_bytes(int32_t vocab);

/* The tokens that may come next, as sampling_row.allowed; until the next call. */
qr_status constraint_mask(struct constraint *c, const uint32_t **allowed, qr_error *err);
/* The token that comes next. */
qr_status constraint_push(struct constraint *c, int32_t token, qr_error *err);
/* How many of the tokens, one behind the other, may come next. Stays where it is. NULL: all. */
int32_t constraint_fitting(struct constraint *c, const int32_t *tokens, int32_t count);
/* Remembers where it is; goes back there. NULL is fine. */
void constraint_mark(struct constraint *c);
void constraint_rewind(struct constraint *c);

#endif
