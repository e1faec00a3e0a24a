/* verdicts.h: verify spans whose tokens are not those that their rows would draw alone: the ratio test, block verification
 * and forced acceptance. All of them are outside law 2. */
#ifndef QR_ENGINE_VERDICTS_H
#define QR_ENGINE_VERDICTS_H

#include "engine/draft_choice.h"
#include "sched/request.h"

struct task;
struct span_rows;
struct verdicts;

/* `*out` NULL: match judges everything. */
qr_status verdicts_open(const struct draft_choice *choice, int32_t vocab, struct verdicts **out, qr_error *err);
void verdicts_close(struct verdicts *v); /* NULL is fine */
/* With what `requests` of them keep (verdicts_law). */
int64_t verdicts_bytes_for(const struct draft_choice *choice, int32_t requests, int32_t vocab);

/* What a request keeps of its drafts; NULL: it needs nothing. */
qr_status verdicts_law(const struct verdicts *v, const struct sampling_params *params, struct draft_law **out, qr_error *err);

/* The tokens that come of a verify span: the drafts that stand and one more, unless its row cannot be drawn from. */
struct span_verdict {
    int32_t tokens[SCHED_MAX_WIDTH];
    int32_t count;    /* 0 with QR_OK: every row draws its own, and match judges */
    qr_status status; /* why the last one is missing: the request fails behind the others */
};
/* Of the task's span of the step just run. */
void verdicts_take(struct verdicts *v, struct task *t, const struct span_rows *rows, struct span_verdict *out, qr_error *err);

#endif
