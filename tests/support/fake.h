/* fake.h: an executor that computes nothing and remembers everything, for tests of the scheduler. Its cache is a real
 * pool of a real geometry; where a model would leave a row it leaves a stamp: which tokens the row stands for, its
 * layer and position. Every read that the arithmetic would make looks for the right stamp, so a stale ring row, a page
 * of other tokens, a missing row of the row plan or a lost cursor fails the test where it happens. What a request will
 * say is fixed beforehand, so every token of every request is checked. */
#ifndef QR_TESTS_FAKE_H
#define QR_TESTS_FAKE_H

#include "cache/pool.h"
#include "run/page_watch.h"
#include "sched/sched.h"

struct fake_options {
    const char *config; /* of the source tree */
    int32_t block;      /* 0: 32 */
    int32_t draft_width;
    int64_t blocks, slots;
    struct sched_options sched; /* plan, geometry, pool and zeros are filled in */
    int32_t fail_every;         /* about one step in so many fails; 0: none */
    int32_t accept_percent;     /* of drafts */
    int32_t drafts;             /* always so many of them; 0: any number */
    int32_t rest_percent;       /* of passes behind which a request leaves out its rows for the drafter, or makes them again */
    uint32_t seed;
};

struct fake_request {
    struct sched_request *r; /* NULL once it is over */
    uint64_t id;
    int32_t *oracle; /* [limit] its tokens, the answer included */
    uint64_t *chain; /* [limit] of tokens 0..p */
    int32_t prompt, limit, stop_at, first_logits;
    uint8_t *delivered;                 /* [prompt] rows whose logits came */
    uint8_t *marks; /* [prompt] of image-span tokens, where sched.image_token is above 0: every row is held to its own */
    enum finish finish;                 /* once it is over */
    int32_t count, cached, preemptions; /* once it is over */
    int64_t rows_run, rows_rerun;
    bool cancelled; /* by the test: no token may come any more */
    int32_t count_at_cancel;
    int32_t draft[SCHED_MAX_WIDTH], drafts; /* last proposed */
};

struct fake {
    struct model_plan plan;
    struct geometry geometry;
    struct cache_pool pool;
    struct page_watch *pages; /* no step changes a page that it does not name */
    struct sched *sched;
    struct fake_options options;
    struct fake_request **requests; /* by number */
    int32_t request_count, request_room, live;
    const struct batch *out[SCHED_MAX_DEPTH + 1];
    bool failed[SCHED_MAX_DEPTH + 1];
    int32_t out_count;
    uint64_t random;
    int64_t steps, rows, reads, failures, dropped;
    int64_t verified, accepted;  /* drafts of all verify spans whose results were taken */
    int64_t due, cut, emitted;   /* tokens: one more than drafts were right; behind an end; appended */
    int64_t layer_rows[QR_MAX_LAYERS], layer_keys[QR_MAX_LAYERS]; /* run so far */
    /* Called for every batch before it runs; NULL. */
    void (*watch)(struct fake *f, const struct batch *batch);
    /* The same, when its rows have run and its results are not known yet. */
    void (*between)(struct fake *f, const struct batch *batch);
};

void fake_open(struct fake *f, const struct fake_options *options);
/* Everything must have come back: pages, slots, requests. */
void fake_close(struct fake *f);

struct fake_given {
    const int32_t *tokens;
    int32_t count, answer;          /* answer: tokens after which it stops */
    int32_t room;                   /* more tokens that it could have had; 0: it ends for length */
    int32_t priority, first_logits; /* first_logits -1: the last row's only */
    int32_t parent;                 /* number of the request to wait for, -1: none */
};
#define FAKE_GIVEN                       \
    {                                    \
        .first_logits = -1, .parent = -1 \
    }
/* Returns its number. */
int32_t fake_submit(struct fake *f, const struct fake_given *given);
/* A prompt of `count` tokens that starts with `shared` tokens of the family `family`. */
int32_t fake_prompt(struct fake *f, int32_t family, int32_t shared, int32_t count, int32_t answer);
int32_t fake_fork(struct fake *f, int32_t number, int32_t answer);
void fake_cancel(struct fake *f, int32_t number);

/* One pass: runs what comes, and completes the oldest batch when no more may be out. False: nothing happened. */
bool fake_step(struct fake *f);
/* Steps until nothing is left to do. */
void fake_run(struct fake *f);
/* Steps until the request has computed `rows` rows of its tokens, or is over. */
void fake_run_to(struct fake *f, int32_t number, int32_t rows);

struct fake_request *fake_of(const struct fake *f, int32_t number);
uint32_t fake_random(struct fake *f, uint32_t below);

#endif
