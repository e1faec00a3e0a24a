/* sched.h: who runs what, in which step (runtime.md 4). Pure logic on the scheduler's thread: no clock, no I/O, no
 * weight. An executor asks for a batch, runs it, and tells what came of it; how many batches it has in hand at once is
 * its depth.
 *
 *     sched_add -----> waiting --.                                  .--> executor: copies, forward, sample, stop tests
 *                                 >-- sched_next: one pass --> batch                        |
 *     sched_cancel --> running --'          ^                                               v
 *                                           '------- blocks published, tokens appended <-- sched_complete
 *                                                                   sched_finished <-- requests that are over
 *
 * One pass (sched_next), in this order; docs/runtime.md proves that it never lacks a page it counted on:
 *   1. settle what finished batches leave: restore pins, cancelled requests;
 *   2. pages for the rows that decoding requests will run, preempting from the tail; no victim has rows in this batch;
 *   3. chunks of partial prefills, which own all their pages;
 *   4. admission, which takes only pages that are free and never preempts;
 *   5. decode rows; image stores, restores and relocations that this batch's rows need. */
#ifndef QR_SCHED_SCHED_H
#define QR_SCHED_SCHED_H

#include "sched/batch.h"
#include "sched/cost.h"
#include "sched/request.h"

enum replay {
    REPLAY_EXACT,
    REPLAY_OFF,    /* decoder: every row; encoder: resume from images only */
    REPLAY_BOUNDED /* the approximations of runtime.md 7.1 and 7.3, of plans with rows_decoder: no logits but the last row's */
};

struct sched_options {
    const struct model_plan *plan;
    const struct geometry *geometry;
    const struct pool_layout *pool;
    const char *identity; /* block_key_root's; NULL: the PAGE layout alone */
    int32_t max_requests; /* running at once, at most the pool's slots */
    int32_t max_rows;     /* rows of a step: more than max_requests * (draft width + 1) */
    int32_t max_logits;   /* rows of a step with logits: max_requests * (draft width + 1) at least */
    int32_t max_length;   /* tokens of a request */
    int32_t
        max_prefill_rows; /* prefill rows of a step beside decode rows; -1: what decode leaves; 0: never in one step */
    int32_t long_prefill_cap; /* rows of one request's chunk; 0: none */
    int32_t depth;            /* batches in hand beside the one being made; 0: each is complete before the next */
    int32_t draft_width;      /* drafts of a request's verify span at most; at most the geometry's */
    int32_t image_token;      /* a drawn one is an image-span token, in requests that have an image mask; -1: none */
    bool prefix_cache;
    enum provenance provenance; /* of the blocks that it publishes and finds (runtime.md 5.1) */
    enum replay decoder_replay, encoder_replay;
    int32_t image_interval; /* tokens between rungs of the ladder; 0: no ladder */
    bool images;            /* false: no image is taken at all */
    struct sched_costs costs; /* the start of a request is the cheapest one (runtime.md 7.5) */
    bool check; /* sched_check after every pass and completion; also on in debug builds */
};

struct sched;

struct sched_metrics {
    int64_t passes, batches, empty_passes;
    int64_t added, finished, cancelled, failed, preemptions;
    int64_t prefill_rows, decode_rows, rows_rerun, rows_trimmed; /* trimmed: row-layers that no result needs */
    int64_t rows_backed_off; /* run again below a prompt's last chunk (bounded decoder) */
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    int64_t hits, reruns, restores, lower_restores; /* admissions by how they started; hits: with cached tokens */
    int64_t wanted_tokens; /* of admissions: what an index and images that forget nothing could have served */
    int64_t demands, demands_declined, chunks_cut;
    int64_t waiting, running, slots_free; /* now */
};

qr_status sched_open(const struct sched_options *options, struct sched **out, qr_error *err);
/* Bytes that it takes; of the options only the numbers, plan, geometry and pool are looked at. */
int64_t sched_bytes_for(const struct sched_options *options);
/* That a hit can happen: a block is published and looked for as blocks of requests are, then forgotten. For a scheduler that
 * nobody uses yet. QR_INTERNAL: it was not found (I5); QR_NO_MEMORY. */
qr_status sched_prove_hit(struct sched *s, qr_error *err);
/* Every request must have been taken by sched_finished or be freed by its owner afterwards. */
void sched_close(struct sched *s);

/* Takes a request over. Refused (QR_BAD_REQUEST; it stays the caller's) when it can never run: longer than max_length,
 * or than the pool; or wants logits of other rows than the last under bounded replay (E37). */
qr_status sched_add(struct sched *s, struct sched_request *r, qr_error *err);
/* The same, but it waits until `parent` has passed its prompt (or ended), so that it finds the pages of what they
 * share. */
qr_status sched_add_after(struct sched *s, struct sched_request *r, struct sched_request *parent, qr_error *err);
/* A new request that goes on from the final tokens of `parent`, whatever its state: pages are shared through the index,
 * the state is an image's or rerun, no slot is shared. `given`'s tokens are not looked at. */
qr_status sched_fork(struct sched *s, const struct sched_request *parent, const struct request_given *given,
                     struct sched_request **out, qr_error *err);
/* In any state: no token of it is appended after this call. It finishes when no batch names it any more. */
void sched_cancel(struct sched *s, struct sched_request *r);
/* What the executor proposes to verify with the request's next row: at most draft_width tokens. */
void sched_draft(struct sched *s, struct sched_request *r, const int32_t *tokens, int32_t count);

/* Makes the next batch, which stays as it is until it is completed. False: nothing to run now. At most depth + 1
 * batches are out. Fails never; invariants that do not hold are QR_INTERNAL from sched_check. */
bool sched_next(struct sched *s, const struct batch **out);

/* What came of one span. */
struct sched_result {
    bool failed;           /* nothing of it counts; the request ends */
    int32_t accepted;      /* rows that became true: all, or in a verify span 1 to its count */
    const int32_t *tokens; /* drawn tokens that are final, cut where the answer stops: none unless the span is final */
    int32_t token_count;
    enum finish finish; /* FINISH_NONE: goes on */
};
/* Ends the oldest batch that is out; results[b] belongs to span b. Results of requests that were cancelled or preempted
 * meanwhile are dropped: `dropped`, when not NULL, says for each span whether it was. */
void sched_complete(struct sched *s, const struct sched_result *results, bool *dropped);

/* Hands a request back that is over and in no batch; NULL: none. `finish` says how it ended. */
struct sched_request *sched_finished(struct sched *s);

/* ---- events that tests and the acceptance suite inject ---- */

/* Sends a running request back to the head of its queue, as lack of pages would. */
void sched_preempt(struct sched *s, struct sched_request *r);
/* Forgets all images; all cached blocks and images. */
void sched_drop_images(struct sched *s);
void sched_drop_cache(struct sched *s);
/* With no batch out: sends every running request back to its queue, gives up images that are due, and forgets the cache.
 * Nothing refers to the pools any more. */
void sched_vacate(struct sched *s);
/* Pages are another computation's from now on: forgets the cache. `identity`: block_key_root's. */
void sched_identify(struct sched *s, const char *identity);
/* Moves a running request's STATE to another slot with the next batch. False: that slot is taken, or the request is in
 * flight or has no state yet. */
bool sched_relocate(struct sched *s, struct sched_request *r, int32_t slot);
/* Turns the order of the running requests around. */
void sched_reverse(struct sched *s);

/* ---- what others look at ---- */

void sched_set_costs(struct sched *s, const struct sched_costs *costs);
struct sched_metrics sched_metrics(const struct sched *s);
struct blocks *sched_blocks(const struct sched *s);
struct images *sched_images(const struct sched *s);
/* Batches that are out. */
int32_t sched_out(const struct sched *s);
/* Nothing waits, runs, is held, or waits for its image to be copied. */
bool sched_idle(const struct sched *s);
/* The request of span b of the oldest batch that is out; NULL when it is no longer listening. */
struct sched_request *sched_span_request(const struct sched *s, int32_t b);

/* The invariants of runtime.md 4.11 that can be seen from here (I1 to I9, I11; run/page_watch.h sees I10): QR_INTERNAL
 * naming the first broken. */
qr_status sched_check(const struct sched *s, qr_error *err);
/* The first broken invariant that option `check` met; QR_OK: none. */
qr_status sched_broken(const struct sched *s, qr_error *err);

#endif
