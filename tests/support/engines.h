/* engines.h: models and engines behind quire.h, and requests run to their end. Every failure fails the test. */
#ifndef QR_TESTS_ENGINES_H
#define QR_TESTS_ENGINES_H

#include "base/buffer.h"
#include "quire.h"

/* A folder that is opened in a moment: a V4.1 with a layer of every kind and no drafter, random weights, and the tokens of
 * small_tokenizer_json. scratch_remove it. */
char *small_model_folder(void);
/* The same for a config of the source tree whose vocabulary holds that tokenizer. */
char *small_folder_of(const char *config);

struct opened {
    qr_model *model;
    qr_engine *engine;
};
/* `dir`: a folder of the source tree, or an absolute path. `options` NULL: a cache of 64 MiB; kv_ram_bytes 0 becomes that.
 * Without a method nothing drafts. */
struct opened engine_open(const char *dir, const char *device, int threads, const qr_engine_options *options);
/* The same for a folder whose tokenizer cannot split text, as those of the golden traces: requests give tokens. */
struct opened engine_open_ids(const char *dir, int threads, const qr_engine_options *options);
void engine_close(struct opened *o);

enum { REPLY_TOP = 20 };

/* Everything that came of a request. */
struct reply {
    int32_t *tokens;                /* [count] */
    qr_token_logprob *logprobs;     /* [count] */
    qr_token_logprob (*top)[REPLY_TOP]; /* [count] */
    size_t count, room, top_count;
    struct buffer text;
    qr_finish finish;
    int32_t stop_token, stop_string;
    qr_error error;
    qr_token_logprob *prompt;       /* [prompt_count] */
    qr_token_logprob *prompt_top;   /* [prompt_count][prompt_top_count] */
    size_t prompt_count, prompt_top_count;
    qr_usage usage;                 /* with the last event */
};
void reply_free(struct reply *r);
/* Takes an event into the reply. */
void reply_take(struct reply *r, const qr_event *event);

/* Submits, polls to the end. A request that is refused at submit fails the test. */
struct reply reply_of(const struct opened *o, const qr_request *request);
/* Polls what is left of a request. */
void reply_rest(const struct opened *o, qr_handle handle, struct reply *r);
/* Fails unless tokens, log probabilities, texts and ends are the same, bit for bit. */
void assert_same_reply(const struct reply *a, const struct reply *b, const char *what);

/* The prompt of a one-turn chat. Free with qr_prompt_free. */
qr_prompt chat_prompt(const struct opened *o, const char *question);

/* Fails unless `st` is `wanted` and the message holds `word`. */
void assert_refused(qr_status st, const qr_error *err, qr_status wanted, const char *word);

#endif
