/* completions.h: generations as /v1/completions tells them (protocol.md 4.4). */
#ifndef QR_SERVE_COMPLETIONS_H
#define QR_SERVE_COMPLETIONS_H

#include "serve/job.h"

/* job->own of the dialect. */
struct completion {
    bool echo, logprobs;
    qr_tokens *prompts;             /* until a job has them */
    bool *begun;                    /* [prompt_count]: a BOS was put before it, which is no part of its text */
    size_t prompt_count;
};
void completion_free(struct completion *c);

extern const struct dialect completions_dialect;

#endif
