/* loaded.h: a model with an engine, as every command that generates or scores needs them, and the answer of one request
 * streamed to a file. */
#ifndef QR_CLI_LOADED_H
#define QR_CLI_LOADED_H

#include <stdio.h>

#include "base/buffer.h"
#include "cli/model_options.h"

struct loaded {
    qr_model *model;
    qr_engine *engine;
    int percent; /* of the weights, as it was last shown */
};

/* Sizes both (cli/plan.h), then opens them, showing on a terminal how far that is; on failure nothing is left open. `out`
 * stays at its address until loaded_close. */
qr_status loaded_open(const struct model_options *options, struct loaded *out, qr_error *err);
/* The same; `look` sees the model before its weights are prepared, which may take minutes, and may refuse to go on. */
qr_status loaded_open_looking(const struct model_options *options, qr_status (*look)(const qr_model *model, const void *user, qr_error *err),
                              const void *user, struct loaded *out, qr_error *err);
void loaded_close(struct loaded *l);

struct answer {
    qr_usage usage;
    qr_finish finish;
    struct buffer text;   /* all of it, raw */
};

/* Runs a request to its end, of a session where one is given (whose prompt it is then). Text goes through `show` (may be
 * NULL) as it comes. An interrupt (cli/interrupt.h), also one noted before, cancels the request. Free answer->text. */
qr_status loaded_answer(struct loaded *l, qr_session *session, const qr_request *request,
                        void (*show)(void *user, const char *text, size_t length), void *user, struct answer *out,
                        qr_error *err);

/* One line of figures on standard error. */
void print_usage_line(const struct answer *a);

#endif
