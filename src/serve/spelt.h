/* spelt.h: the bytes that a model spelt the calls of an answer in, kept for requests that bring these calls back
 * (protocol.md 2.13). */
#ifndef QR_SERVE_SPELT_H
#define QR_SERVE_SPELT_H

#include "serve/job.h"

/* A token of the answer. Nothing where its chat has no tools. */
void spelt_take(struct choice *c, int32_t token);
/* The answer is done: its block of calls, where it ended with one that is whole. What cannot be kept is written anew. */
void spelt_keep(const struct choice *c);

#endif
