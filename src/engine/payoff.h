/* payoff.h: whether drafts pay (speculation.md 6.8), from what finished steps took and how often drafts were right. It
 * reads no draft of the step to come, so that leaving drafts out changes nothing but time. Pure. */
#ifndef QR_ENGINE_PAYOFF_H
#define QR_ENGINE_PAYOFF_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PAYOFF_REST = 32, PAYOFF_LONGEST_REST = 1024, /* steps; doubled with every trial that fails */
    PAYOFF_PLAIN = 128,                           /* steps with drafts before one without says again what those take */
    PAYOFF_SAMPLES = 7                            /* the last times that are kept of each kind */
};

/* The last times of one kind: of `rows` rows each. */
struct payoff_times {
    int32_t count; /* of all that there were */
    double rows[PAYOFF_SAMPLES], seconds[PAYOFF_SAMPLES];
};

/* What steps that only decode took, without and with drafts, draft passes, by their requests, and passes that only made rows
 * for the drafter; and how often drafts were right. Zero-initialise, but for `window`. */
struct payoff {
    int32_t window; /* rows that must stand in the drafter's rings before a request drafts */
    struct payoff_times plain, verify, draft, rows;
    double right;      /* drafts of a request's step that were right, of all requests */
    int32_t verdicts;  /* that say so */
    int32_t since_plain; /* steps since the last without drafts */
    double spent;      /* seconds of all steps and passes */
    double tried;      /* of them, what trials take beside the steps that they are part of, at most */
};
/* `requests` of them, each a row and its drafts. */
void payoff_step(struct payoff *p, int32_t requests, int32_t rows, double seconds);
void payoff_draft(struct payoff *p, int32_t requests, double seconds);
void payoff_rows(struct payoff *p, int32_t rows, double seconds);

/* Of one request. Zero-initialise. */
struct payoff_request {
    double right;      /* drafts of a step that are right, as far as is known */
    int32_t verified;  /* steps that said so */
    int32_t rested;    /* steps since it last drafted */
    int32_t rest;      /* as many of them before it may be tried again */
    bool doubted;      /* what is known of it is old, or of others */
    bool lacks_rows;   /* its owner's word: a window of its rows does not stand in the rings, and it cannot draft yet */
    bool warms;        /* it will draft as soon as they do */
    bool spares_rows;  /* no row of it need be made for the drafter until this says otherwise */
};
void payoff_verified(struct payoff *p, struct payoff_request *r, int32_t right);

/* Whether the times of both kinds of steps are known. */
bool payoff_known(const struct payoff *p);
/* Which of `count` requests, all that decode, shall draft `limit` tokens: those that together make most tokens a second,
 * where a new request is taken for one like the others before it. One that has rested long enough, or is new, is tried
 * although that does not pay by what is known, as long as all trials took at most half a hundredth of the time and a few rows. Until
 * both kinds of steps are known they take turns, and one request drafts at a time. A request that rests for long spares its
 * rows for the drafter, and makes a window of them before its next trial. Writes drafts[count]. */
void payoff_choose(struct payoff *p, struct payoff_request *const *requests, int32_t count, int32_t limit, bool *drafts);

/* Whether a request that comes now shall not make its prompt's rows for the drafter: its drafts do not pay by what is known, and
 * there is no time for a trial. */
bool payoff_starts_without(const struct payoff *p, int32_t limit);

#endif
