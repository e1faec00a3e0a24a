/* members.h: the members of a JSON request that say how tokens are drawn (protocol.md 4.2), for every command that reads
 * requests. */
#ifndef QR_SERVE_MEMBERS_H
#define QR_SERVE_MEMBERS_H

#include "base/json.h"
#include "quire.h"

/* A request and the memory that its pointers name. Zero-initialise; request_text_free. */
struct request_text {
    qr_request request;
    qr_sampling sampling;
    qr_tokens tokens;
    qr_logit_bias *bias;
    const char **stop;
    int32_t *stop_tokens, *banned;
    char *id;
    qr_grammar *grammar;  /* what the answer has to be; NULL: anything */
    qr_chat *chat;        /* of which the prompt and a grammar are; NULL */
    bool may_say_nothing; /* a max_tokens of 0 is read as one that is absent */
};
void request_text_free(struct request_text *r);
/* Takes a chat over: its tokens are the prompt, and the answer is held to what it asks of it. */
qr_status request_text_chat(struct request_text *out, qr_chat *chat, qr_error *err);
/* Lets the request point at what is beside it. */
void request_text_point(struct request_text *out);
/* Holds the answer to what the chat asks of it, unless the request has a grammar, behind the reasoning that it may begin with. */
void request_hold(qr_request *request, const qr_chat *chat);

/* Reads those members over the defaults that `out` holds. The JSON must outlive `out`. QR_BAD_REQUEST: "member: sentence". */
qr_status members_read(const struct json *body, struct request_text *out, qr_error *err);

/* A seed nobody has used. */
uint64_t random_seed(void);

/* One member each: NULL when it is absent or null; an absent one leaves the target alone. QR_BAD_REQUEST names member, value
 * and what is wanted. */
const struct json *member_of(const struct json *line, const char *name);
qr_status member_double(const struct json *line, const char *name, double *out, qr_error *err);
qr_status member_int(const struct json *line, const char *name, int64_t least, int64_t most, int32_t *out, qr_error *err);
/* A limit: more than an int32_t holds is as much as it holds. */
qr_status member_most(const struct json *line, const char *name, int64_t least, int32_t *out, qr_error *err);
qr_status member_bool(const struct json *line, const char *name, bool *out, qr_error *err);
qr_status member_ids(const struct json *line, const char *name, int32_t **out, size_t *count, qr_error *err); /* qr_free */
qr_status member_wrong(qr_error *err, const char *name, const struct json *value, const char *wanted);

#endif
