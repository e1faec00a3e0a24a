/* accept_engine.h: engines, prompts and answers of the acceptance suite. */
#ifndef QR_TOOLS_ACCEPT_ENGINE_H
#define QR_TOOLS_ACCEPT_ENGINE_H

#include "tools/accept.h"

/* How an engine differs from the fixture; zero: not at all. */
struct accept_setup {
    const char *replay; /* decoder and encoder: NULL (exact), "off" (images only) or "bounded" */
    int32_t rows, cap, requests;
    int32_t drafts; /* that a step verifies at most, of the checkpoint's drafter; 0: none is used */
};
qr_status accept_open(const struct accept *a, const struct accept_setup *setup, qr_engine **out, qr_error *err);

/* A prompt: `shared` tokens of a family that many prompts begin with, then its own. */
struct accept_prompt {
    const struct accept *a;
    int32_t tokens[ACCEPT_LONGEST];
    int32_t count;
};
void accept_prompt(const struct accept *a, int32_t family, int32_t shared, int32_t own, int32_t count,
                   struct accept_prompt *out);

enum { ACCEPT_TOKENS = 32 };
struct accept_answer {
    int32_t tokens[ACCEPT_TOKENS];
    float logprobs[ACCEPT_TOKENS];
    int32_t count;
    qr_finish finish;
    qr_usage usage;
};

qr_sampling accept_greedy(const struct accept_prompt *p);
/* Greedy, `most` tokens of answer. `after`: a request that it is a fork of; 0. */
qr_status accept_submit(qr_engine *engine, const struct accept_prompt *p, int32_t most, qr_handle after, qr_handle *out,
                        qr_error *err);
/* The same, but the answer ends at token `stop`. */
qr_status accept_submit_stop(qr_engine *engine, const struct accept_prompt *p, int32_t most, int32_t stop, qr_handle *out,
                             qr_error *err);
/* Polls to the end and forgets the request. */
qr_status accept_finish(qr_engine *engine, qr_handle handle, struct accept_answer *out, qr_error *err);
qr_status accept_ask(qr_engine *engine, const struct accept_prompt *p, int32_t most, struct accept_answer *out,
                     qr_error *err);
/* What the prompt gives alone: cold, in one step, every layer on every row. */
qr_status accept_alone(struct accept *a, const struct accept_prompt *p, int32_t most, struct accept_answer *out,
                       qr_error *err);
/* The same; of a bounded run from `hit` cached tokens on, which must be where the run under test began: the control forced to
 * the same start (runtime.md 13). Its cache then holds what it needs for that and nothing else. */
qr_status accept_alone_from(struct accept *a, const struct accept_prompt *p, int32_t hit, int32_t most,
                            struct accept_answer *out, qr_error *err);
/* The same bits. `what` stands in the sentence that says they are not. */
qr_status accept_same(const struct accept_answer *alone, const struct accept_answer *r, const char *what,
                      qr_error *err);
/* Asks the engine, and compares with the prompt alone, from where it began. */
qr_status accept_agree(struct accept *a, qr_engine *engine, const struct accept_prompt *p, const char *what,
                       struct accept_answer *out, qr_error *err);

qr_metrics accept_metrics(const qr_engine *engine);
/* Before the `later`th step from now; 1: before the next. */
qr_status accept_inject(qr_engine *engine, qr_injection what, qr_handle handle, uint64_t later, qr_error *err);
/* Every page is free or cached, every slot free. */
qr_status accept_returned(const qr_engine *engine, const char *what, qr_error *err);

/* Runs a case once with exact replay and once from images alone. */
qr_status accept_both(struct accept *a, struct accept_figures *f,
                      qr_status (*run)(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err),
                      qr_error *err);
/* Runs a case with bounded replay, where there is such a thing: `cached`, or without a cache. What it is compared with is cut
 * into the same chunks and starts where it starts. */
qr_status accept_bounded(struct accept *a, bool cached, struct accept_figures *f,
                         qr_status (*run)(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err),
                         qr_error *err);
/* All three, the last without a cache. */
qr_status accept_all_modes(struct accept *a, struct accept_figures *f,
                           qr_status (*run)(struct accept *a, const char *replay, struct accept_figures *f,
                                            qr_error *err),
                           qr_error *err);

#endif
