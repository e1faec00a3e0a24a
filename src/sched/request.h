/* request.h: a request as the scheduler sees it: its tokens, how far they are computed, and what of the two currencies
 * it holds. Knows nothing of text, sampling or clients.
 *
 *     WAITING --admitted--> PREFILL --end of known tokens--> DECODE --finish--> FINISHED
 *        ^                     |                               |
 *        '------preempted------'-------------------------------'        cancelled from anywhere: FINISHED
 *
 * Made on any thread, then handed to one scheduler, whose thread alone touches it until it is handed back. */
#ifndef QR_SCHED_REQUEST_H
#define QR_SCHED_REQUEST_H

#include "cache/images.h"
#include "plan/rows.h"

enum sched_state {
    SCHED_NEW,  /* made, not yet handed over */
    SCHED_HELD, /* waits for another to pass its prompt (sched_add_after) */
    SCHED_WAITING,
    SCHED_PREFILL, /* running: tokens below `end` are not all computed */
    SCHED_DECODE,  /* running: one new token (and drafts) a step */
    SCHED_FINISHED
};

enum finish {
    FINISH_NONE,
    FINISH_STOP, /* the executor's stop tests said so */
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_FAILED /* its step failed */
};

enum { SCHED_MAX_DEPTH = 2, SCHED_MAX_WIDTH = 8 /* drafts + 1 of one verify span */ };

/* A span that was handed out and has not come back. A result whose step has no record is dropped. */
struct flight {
    uint64_t step;
    int32_t first, count; /* from the request's progress on */
    int32_t below;        /* rows before them that it runs for their sake alone (bounded replay) */
    bool final;
};

struct request_given {
    uint64_t id;               /* unique among the requests of one scheduler */
    int32_t priority;          /* higher first */
    const int32_t *tokens;     /* the prompt; copied */
    int32_t count;             /* at least 1 */
    int32_t limit;             /* tokens that prompt and answer may have together; more than count */
    const uint8_t *image_mask; /* [count] or NULL; copied */
    const uint64_t *content;   /* [count] block_key_next's, or NULL; copied */
    struct block_key salt;     /* block_key_salt's: what it caches is found by requests of the same one alone */
    int32_t first_logits;      /* first row of the prompt whose logits are wanted; count - 1: the last only */
    void *owner;               /* the caller's, untouched */
};

struct sched_request {
    /* ---- what it is; fixed ---- */
    uint64_t id;
    int32_t priority, prompt, limit;
    struct block_key salt;
    void *owner;

    /* ---- its tokens ---- */
    int32_t *tokens; /* [limit]; [0, count) are final. Never a placeholder */
    int32_t count;
    uint8_t *image_mask;    /* [limit] or NULL */
    uint64_t *content;      /* [limit] or NULL */
    struct block_key *keys; /* [limit / B] of its full blocks of final tokens, as far as they were asked for */
    int32_t key_count;
    int32_t first_logits;                   /* rows from here on still want logits; moves up as they are computed */
    int32_t draft[SCHED_MAX_WIDTH], drafts; /* proposed after the last final token (sched_draft) */

    /* ---- where it is ---- */
    enum sched_state state;
    enum finish finish;
    bool cancelled;
    bool paused;                               /* no decode row of it runs; its owner sets it between passes */
    bool draftless;                            /* nothing is made for the drafter by admissions and decode rows; its owner sets it too */
    bool preempted;                            /* goes before others of its priority */
    uint64_t arrival;                          /* order of sched_add */
    int32_t end;                               /* T_end of this admission: the known tokens that prefill computes */
    int32_t hit;                               /* H: compressed rows below it come from the prefix cache */
    int32_t next;                              /* first row of its next span; rows below are computed or in flight */
    int32_t below;                             /* rows below `next` that its next span must run too (bounded hit) */
    int32_t done;                              /* rows below it are computed: the one source of progress */
    int32_t published;                         /* full blocks that were offered to the index */
    struct flight flight[SCHED_MAX_DEPTH + 1]; /* oldest first */
    int32_t flights;
    int32_t batches; /* out now, that name it: dropped spans included */

    /* ---- what it holds ---- */
    int32_t slot;     /* -1: none */
    block_id *blocks; /* [limit / B, rounded up] */
    int32_t block_count;
    struct row_plan rows; /* of this admission */
    int32_t draft_from;   /* first position whose rows of the drafter's rings are its own (speculation.md 3, valid_from) */
    int32_t draft_gap;    /* below it rows of those rings are missing, because it was draftless; 0: none */
    bool fresh;           /* the slot is new to it: the next span places its cursor */
    bool restored;        /* an image or another slot filled it */

    /* ---- images (runtime.md 5.5) ---- */
    int32_t rings_from;    /* H0: boundary of the image it started from; 0 */
    int32_t ring_layers;   /* layers whose rings were complete there */
    int32_t boundary;      /* where the image of its prompt will be taken; -1 */
    int32_t demand;        /* boundary at which it would have liked an image; -1 */
    int32_t image_due;     /* the state at this boundary is to be stored once it is passed, before the next row runs; -1 */
    int32_t last_image;    /* last boundary with an image of its chain that stays; 0 */
    block_id answer_block; /* the image of its answer is filed here, replaced by the next one; 0 */

    /* ---- what became of it ---- */
    int32_t cached_tokens; /* H of its first admission: what its client is told; -1: none yet */
    int32_t preemptions;
    int64_t rows_run, rows_rerun; /* rerun: below the hit */

    struct sched_request *list_prev, *list_next; /* in the list it stands in */
    struct sched_request *children, *sibling;    /* held until this one has passed its prompt */
    struct sched_request *parent;                /* of a held one */
};

/* Allocates everything that the request will ever need of host memory. `block_tokens`: B. Fails with QR_BAD_ARGUMENT
 * for numbers outside their range, QR_NO_MEMORY. */
qr_status sched_request_make(const struct request_given *given, int32_t block_tokens, struct sched_request **out,
                             qr_error *err);
/* What that is at most, `content` left out. */
int64_t sched_request_bytes_for(int32_t limit, int32_t block_tokens);
/* A request that no scheduler has. NULL is fine. */
void sched_request_free(struct sched_request *r);

/* Makes the keys of its first `blocks` full blocks, all of final tokens, where they are not there yet. */
void sched_request_keys(struct sched_request *r, const struct block_key *root, int32_t block_tokens, int32_t blocks);

static inline bool sched_request_running(const struct sched_request *r)
{
    return r->state == SCHED_PREFILL || r->state == SCHED_DECODE;
}
const char *sched_state_name(enum sched_state state);
const char *finish_name(enum finish finish);

#endif
