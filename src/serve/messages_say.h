/* messages_say.h: generations as /v1/messages tells them (protocol.md 4.5). */
#ifndef QR_SERVE_MESSAGES_SAY_H
#define QR_SERVE_MESSAGES_SAY_H

#include "serve/job.h"

enum said_block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL };

/* job->own of the dialect; qr_calloc. */
struct messages_way {
    bool failed;            /* something had no memory */
    bool hides_thinking;    /* the reasoning is in the signature alone */
    int blocks;             /* of a stream: begun so far, */
    enum said_block open;   /* the one that the last of them is while it goes on, */
    size_t thinking_from;   /* where in the reasoning it begins */
};

extern const struct dialect messages_dialect;

#endif
