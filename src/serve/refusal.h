/* refusal.h: what an HTTP answer says of a request that is not served (protocol.md 4.5, 4.10). */
#ifndef QR_SERVE_REFUSAL_H
#define QR_SERVE_REFUSAL_H

#include "base/json.h"
#include "quire.h"

/* Whose error bodies a route speaks. */
enum tongue { TONGUE_OPENAI, TONGUE_ANTHROPIC };

/* Zero-initialise; status 0: nothing is wrong. */
struct refusal {
    int status;           /* HTTP */
    char code[48];        /* "model_not_found"; "": none */
    char param[96];       /* JSON path; "": none */
    char message[1000];
    int retry_after;      /* seconds, a header; 0: none */
    int64_t prompt_tokens, context; /* of a prompt that is too long; 0: not said */
};

/* Fills it in and returns false, so that a reader ends in `return refuse(...)`. Code and param may be NULL. */
bool refuse(struct refusal *out, int status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same from what the library said. `issue` may be NULL. */
bool refuse_for(struct refusal *out, qr_status st, const qr_error *err, const qr_issue *issue);
/* 503: the server ends; and its sentence. */
#define SHUTS_DOWN "the server is shutting down"
bool refuse_ending(struct refusal *out);
/* From what serve/members.h said: "member: sentence". */
bool refuse_member(struct refusal *out, qr_status st, const qr_error *err);

/* The status of its answer: Anthropic has one of its own for a server that has no room. */
int refusal_status(const struct refusal *r, enum tongue tongue);
/* "rate_limit_error" */
const char *refusal_type(const struct refusal *r, enum tongue tongue);
/* The body: one JSON object. */
void refusal_write(const struct refusal *r, enum tongue tongue, const char *request_id, struct json_writer *w);

#endif
