/* speculate.h: the drafter beside a running engine (speculation.md). After each step it keeps what the drafter needs of
 * the step's tokens and proposes what the next step verifies. Under match verification drafts decide how many steps an
 * answer takes, never a bit of it: every token is the target's own, drawn from the row that would have drawn it alone (4.2,
 * 4.3). The other verifiers are verdicts.h's. */
#ifndef QR_ENGINE_SPECULATE_H
#define QR_ENGINE_SPECULATE_H

#include "engine/draft_choice.h"
#include "run/forward.h"
#include "sched/sched.h"

/* Rows of a draft pass, and the least that a step must hold in rows, of them with logits. */
int32_t speculation_draft_rows(const struct draft_choice *c, int32_t requests, int32_t step_rows);
int32_t speculation_step_rows(const struct draft_choice *c, int32_t requests);
int32_t speculation_step_logits(const struct draft_choice *c, int32_t requests);

struct speculation;
struct task;
struct draft_record;

/* For tests; a member may be NULL. `replace` puts other drafts in the place of those that were made for a request, `count` of at
 * most `limit`, and returns how many. `choose` puts another choice in the place of the automatic setting's: whether a request
 * that decodes drafts now, if it has the rows for it, and whether it makes none until the next choice. */
struct draft_hook {
    int32_t (*replace)(void *user, const struct sched_request *r, int32_t *drafts, int32_t count, int32_t limit);
    void (*choose)(void *user, const struct sched_request *r, bool *drafts, bool *spares_rows);
    void *user;
};
/* Before any request; stays. */
void speculation_hook(struct speculation *s, const struct draft_hook *hook);

/* `engine`: with backend, runner, scheduler and sampler open. */
qr_status speculation_open(struct qr_engine *engine, const struct draft_choice *choice, struct speculation **out,
                           qr_error *err);
void speculation_close(struct speculation *s); /* NULL is fine */
/* Bytes beside those of the runner. */
int64_t speculation_bytes_for(const struct draft_choice *c, int32_t requests, int32_t step_rows);

/* Before a pass of the scheduler: says which of the requests that wait start without rows for the drafter. `s` NULL: nothing. */
void speculation_pass(struct speculation *s);
/* Before the batch is completed: remembers its spans and what it took. `s` NULL: nothing. */
void speculation_note(struct speculation *s, const struct batch *batch, double seconds);
/* Of a step of the task `right` of the `verified` drafts were accepted. */
void speculation_verified(struct speculation *s, struct task *t, int32_t verified, int32_t right);
/* From now on a profile is measured into `record`, which outlives the speculation; nothing may run yet. */
void speculation_record(struct speculation *s, struct draft_record *record);
/* Behind sched_complete: runs the drafter on the spans remembered, for the requests where drafts pay, and tells the
 * scheduler its drafts. A pass that fails proposes nothing. */
void speculation_draft(struct speculation *s);

#endif
