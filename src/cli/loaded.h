/* loaded.h: a model with an engine, as every command that generates or scores needs them, and the answer of one request
 * streamed to a file. */
#ifndef QR_CLI_LOADED_H
#define QR_CLI_LOADED_H

#include <stdio.h>

#include "base/buffer.h"
#include "cli/model_options.h"

/* Who sees what is loaded, which may take minutes, and can end it. `look` (or NULL) sees the model before its weights are prepared
 * and may refuse it; `goes_on` (or NULL) is asked again and again: false is QR_CANCELLED. */
struct load_watch {
    qr_status (*look)(void *user, const qr_model *model, qr_error *err);
    bool (*goes_on)(void *user);
    void *user;
};

struct loaded {
    qr_model *model;
    qr_engine *engine;
    int percent; /* of the weights, as it was last shown */
    bool shown;  /* it is */
    struct load_watch watch;
};

/* Sizes both (cli/plan.h), then opens them, showing on a terminal how far that is; on failure nothing is left open. `out`
 * stays at its address until loaded_close. */
qr_status loaded_open(const struct model_options *options, struct loaded *out, qr_error *err);
/* The same, watched. */
qr_status loaded_open_watched(const struct model_options *options, const struct load_watch *watch, struct loaded *out, qr_error *err);
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
