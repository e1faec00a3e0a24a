/* usage.h: the counts of a generation, and the stamp that every OpenAI object carries. */
#ifndef QR_SERVE_USAGE_H
#define QR_SERVE_USAGE_H

#include "serve/job.h"

/* "usage": {...} of what has come so far. */
void usage_write(const struct job *job, struct json_writer *w);
/* Opens an object with id, object, created, model and system_fingerprint. */
void stamp_write(const struct job *job, const char *object, struct json_writer *w);
int64_t usage_cached(const struct job *job);

#endif
