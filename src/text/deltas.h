/* deltas.h: what a parser of model output has to say, as it comes; and the sum of it. */
#ifndef QR_TEXT_DELTAS_H
#define QR_TEXT_DELTAS_H

#include <stdint.h>

#include "base/buffer.h"

enum delta_kind {
    DELTA_REASONING, /* text */
    DELTA_CONTENT,   /* text */
    DELTA_CALL,      /* a call begins; its text is the name */
    DELTA_ARGUMENTS, /* a piece of the call's JSON */
    DELTA_CALL_END,  /* the call is whole */
    DELTA_CALL_LOST  /* the call was cut and does not count; what was sent of it cannot be taken back */
};

/* No text ends inside a character. `call` counts calls from 0. */
struct delta {
    enum delta_kind kind;
    uint32_t call;
    size_t offset, length; /* in the list's text */
};

/* Zero-initialise. No memory: text.failed, and later additions do nothing. */
struct deltas {
    struct delta *items;
    size_t count, capacity;
    struct buffer text;
};

/* Text of the same kind and call as the last one's joins it. */
void deltas_add(struct deltas *d, enum delta_kind kind, uint32_t call, const char *text, size_t length);
const char *deltas_text(const struct deltas *d, const struct delta *delta);
void deltas_clear(struct deltas *d); /* keeps the memory */
void deltas_free(struct deltas *d);

/* ---- the sum ---- */

struct answer_call {
    struct buffer name, arguments;
    bool whole;
};

/* Zero-initialise; free with answer_free. */
struct parsed_answer {
    struct buffer reasoning, content;
    struct answer_call *calls; /* lost ones included: not `whole` */
    size_t call_count, call_capacity;
};

/* Adds a list of deltas to what came before. False without memory. */
bool parsed_answer_add(struct parsed_answer *answer, const struct deltas *d);
void parsed_answer_free(struct parsed_answer *answer);

#endif
