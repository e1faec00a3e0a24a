/* chat_say.h: generations as /v1/chat/completions tells them (protocol.md 4.3). */
#ifndef QR_SERVE_CHAT_SAY_H
#define QR_SERVE_CHAT_SAY_H

#include "serve/job.h"

extern const struct dialect chat_dialect;

/* How every stream of OpenAI's ends, with a chunk of usage where it was asked for, "object" in it. */
void openai_end(struct job *job, const char *object);
/* How every stream of OpenAI's fails, and shows that it lives. */
void openai_fail(struct job *job, const struct refusal *refusal);
void openai_alive(struct job *job);

/* A list of token ids as a member. */
void ids_write(struct json_writer *w, const char *key, const int32_t *ids, size_t count);

#endif
