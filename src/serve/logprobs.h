/* logprobs.h: log probabilities as chats tell them (protocol.md 4.3). */
#ifndef QR_SERVE_LOGPROBS_H
#define QR_SERVE_LOGPROBS_H

#include "serve/job.h"

/* Adds the entry of an event's token to the list that its text belongs to: content, reasoning, neither, or that of tokens of
 * which this is not known yet. */
void logprobs_take(struct choice *c, const qr_event *event);
/* Moves the entries of those to where the parser has found them to belong. */
void logprobs_settle(struct choice *c);

/* The member "logprobs" with what the choice has not said yet of both lists. Marks it as said. */
void logprobs_write(struct choice *c, struct json_writer *w);
/* Whether there is any. */
bool logprobs_waiting(const struct choice *c);

/* A member with what a list of JSON elements, a comma before each, holds beyond *said; which is the whole of it then. */
void list_write(struct json_writer *w, const char *key, const struct buffer *list, size_t *said);

/* The same of what lies between two places. */
void list_write_between(struct json_writer *w, const char *key, const struct buffer *list, size_t from, size_t to);

/* A number that JSON has: -inf is -9999. */
void logprob_number(struct json_writer *w, float logprob);
void logprob_value(struct json_writer *w, const char *key, float logprob);
/* A token's text, with U+FFFD for what is no UTF-8. qr_text_free. */
qr_text logprob_text(const qr_model *model, int32_t token);

/* A list whose first element is null, then objects id -> {logprob, rank, decoded_token}. */
void prompt_logprobs_write(const qr_model *model, const qr_event *e, struct json_writer *w);

#endif
