/* accept.h: the acceptance suite (runtime.md 13) on any model folder: its cases, and what they are given. A case says
 * QR_OK when its criterion holds, anything else, with the first difference, when it fails. Whether it applies is asked of
 * model and build before: a case that refuses has failed. */
#ifndef QR_TOOLS_ACCEPT_H
#define QR_TOOLS_ACCEPT_H

#include "cache/geometry.h"
#include "cli/model_options.h"
#include "plan/rows.h"

enum { ACCEPT_FIGURES = 12, ACCEPT_MODES = 3, ACCEPT_LONGEST = 1024, ACCEPT_ANSWER = 4 };

/* What a case counted, for the report. */
struct accept_figures {
    struct {
        const char *name;
        double value;
    } at[ACCEPT_FIGURES];
    int count;
    const char *modes[ACCEPT_MODES]; /* of replay that it ran in, the last one where it failed */
    int mode_count;
};
/* What follows runs in that mode of replay. */
void accept_mode(struct accept_figures *f, const char *mode);
/* Adds to the figure of that name. */
void accept_count(struct accept_figures *f, const char *name, double value);

/* The folder, and the sizes of the fixture for its family: pages as small as they may be, prompts cut into many chunks.
 */
struct accept {
    const struct model_options *options;
    struct qr_config config;
    struct model_plan plan;
    qr_model *model;
    qr_engine *control;          /* no cache, no trimming, one request, a prompt in one step */
    bool no_cache;               /* engines have no prefix cache */
    bool bounded;                /* replay is: the control starts where the run under test did (runtime.md 13, controls) */
    int32_t block;               /* tokens a PAGE: 32, or 128 where a ratio asks for it */
    int32_t rows, cap, interval; /* of a step, of one prompt and step, between images */
    int32_t longest;             /* tokens of a request */
    int32_t prompts[3];          /* lengths of the prompts: the last one is the long one */
    int64_t soak_steps;
    bool ids_only;    /* the folder's tokenizer cannot split text */
    qr_tokens words;  /* what prompts are made of: English, Chinese, code */
    qr_tokens banned; /* ids without a token */
};

struct accept_case {
    const char *id, *title;
    qr_status (*run)(struct accept *a, struct accept_figures *f, qr_error *err); /* NULL: of no model, because of */
    const char *reason;
    const char *(*unless)(const struct accept *a); /* why it is not about this model, or NULL; NULL: it is about all */
};
/* In order of their ids; the last one is all zero. */
extern const struct accept_case accept_cases[];

/* Whether the device can run bounded replay, and the model has something for it to cut (runtime.md 7.1, E26, E27). */
bool accept_has_bounded(const struct accept *a);

/* ---- the cases: accept_steps.c, accept_graphs.c, accept_lives.c, accept_hits.c, accept_drafts.c, accept_soak.c,
 * accept_static.c ---- */

qr_status accept_chunks(struct accept *a, struct accept_figures *f, qr_error *err);     /* A01 */
qr_status accept_padding(struct accept *a, struct accept_figures *f, qr_error *err);    /* A02 */
qr_status accept_reversed(struct accept *a, struct accept_figures *f, qr_error *err);   /* A03 */
qr_status accept_forks(struct accept *a, struct accept_figures *f, qr_error *err);      /* A04 */
qr_status accept_no_images(struct accept *a, struct accept_figures *f, qr_error *err);  /* A05 */
qr_status accept_preempted(struct accept *a, struct accept_figures *f, qr_error *err);  /* A06 */
qr_status accept_cancelled(struct accept *a, struct accept_figures *f, qr_error *err);  /* A07 */
qr_status accept_slot_reuse(struct accept *a, struct accept_figures *f, qr_error *err); /* A08 */
qr_status accept_hits(struct accept *a, struct accept_figures *f, qr_error *err);       /* A09 */
qr_status accept_audit(struct accept *a, struct accept_figures *f, qr_error *err);      /* A10 */
qr_status accept_last_chunk(struct accept *a, struct accept_figures *f, qr_error *err); /* A11 */
qr_status accept_budget(struct accept *a, struct accept_figures *f, qr_error *err);     /* A12 */
qr_status accept_graphs(struct accept *a, struct accept_figures *f, qr_error *err);     /* A13 */
const char *accept_no_graphs(const struct accept *a);
qr_status accept_garbage(struct accept *a, struct accept_figures *f, qr_error *err);    /* A14 */
qr_status accept_wrap(struct accept *a, struct accept_figures *f, qr_error *err);       /* A15 */
qr_status accept_drafts(struct accept *a, struct accept_figures *f, qr_error *err);     /* A16 */
const char *accept_no_drafts(const struct accept *a);
qr_status accept_geometry(struct accept *a, struct accept_figures *f, qr_error *err);   /* A21 */
qr_status accept_rules(struct accept *a, struct accept_figures *f, qr_error *err);      /* A22 */
qr_status accept_soak(struct accept *a, struct accept_figures *f, qr_error *err);       /* A23 */
qr_status accept_whole_hit(struct accept *a, struct accept_figures *f, qr_error *err);  /* A25 */
qr_status accept_sleep(struct accept *a, struct accept_figures *f, qr_error *err);      /* A26 */

#endif
