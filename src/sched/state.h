/* state.h: the scheduler's inside, shared by its modules: start, admit, grow, spans, maintain, complete, check. */
#ifndef QR_SCHED_STATE_H
#define QR_SCHED_STATE_H

#include "sched/chunk.h"
#include "sched/queue.h"
#include "sched/sched.h"

/* A batch that is out or being made, and the memory that its pointers name. */
struct out_batch {
    struct batch batch;
    struct batch_span *spans;       /* [max_requests] */
    struct sched_request **request; /* [max_requests] whose span it is */
    block_id *blocks;               /* [max_requests][blocks of max_length] */
    struct row_plan *rows;          /* [max_requests] */
    int32_t *tokens;                /* [max_requests][width]: of decode spans */
    struct cache_copy *copies;      /* [copies_most] */
    image_id *stores, *pins;        /* [slots], [max_requests]: images being written, images being read */
    int32_t store_count, pin_count;
    int32_t prefill_spans;
};

/* What the tables of all requests say about one block or slot (check.c). */
struct books {
    int32_t *references; /* [blocks] */
    int32_t *holder;     /* [slots] requests that hold it */
};

struct sched {
    struct sched_options options;
    struct row_plan row_scratch;
    int32_t block, width;   /* B; rows of a decode span at most */
    int32_t history;        /* tokens that a fresh cursor looks back to */
    int32_t window, layers; /* W; layers whose rings an image holds */
    int32_t tail;           /* M: rows that a prompt's last chunk must hold; 0 */
    int32_t own_rings;      /* layers whose rings a resume reads: not those that its prompt's tail makes anew */
    int32_t max_blocks;     /* blocks of a request of max_length */
    int32_t copies_most;
    struct blocks *blocks;
    struct images *images;
    struct block_key root;

    struct queue waiting, running;
    struct queue leaving;       /* finished; hold slot and pages until their image is copied */
    struct queue over;          /* finished, holding nothing; handed back when in no batch */
    int32_t held;               /* requests that wait for a parent */
    int32_t *slots, slot_count; /* free ones, the next on top */

    struct out_batch ring[SCHED_MAX_DEPTH + 1];
    int32_t ring_first, out;
    uint64_t step, arrivals;
    image_id *settle; /* pins of completed batches, released at the start of the next pass */
    int32_t settle_count;
    struct cache_copy *moves; /* relocations for the next batch, [slots] */
    int32_t move_count;
    int32_t prefill_passes; /* in a row, while decode waited (unmixed) */

    /* of the pass that is going on */
    struct out_batch *making;
    int32_t prefill_left, logits_left;
    int32_t prompts_most; /* requests that may have a chunk in it: those that decode in it have none */

    struct sched_metrics metrics;
    struct books books;
    qr_error broken; /* first invariant found broken */
};

static inline int32_t sched_min(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t sched_max(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t blocks_for(const struct sched *s, int32_t tokens) { return (tokens + s->block - 1) / s->block; }

/* ---- start.c: where a request begins, and what images are worth ---- */

struct start {
    int32_t hit;    /* H */
    int32_t blocks; /* matched blocks that it keeps */
    image_id image; /* to restore; IMAGE_NONE */
    int32_t rings_from, ring_layers;
    int32_t boundary, demand;
    bool declined; /* there was no room for the image that it would have liked to take */
    struct row_plan rows;
};
/* The cheapest start of a request whose first `matched` blocks are cached in r->blocks. Claims nothing. `use_images`
 * false: as if there were none. */
void start_choose(struct sched *s, const struct sched_request *r, int32_t matched, bool use_images, struct start *out);
/* Layers, counted from layer 0, whose rings are complete when the request's cursor stands at `position`. */
int32_t start_complete_layers(const struct sched *s, const struct sched_request *r, int32_t position);
/* Whether an image at `position` saves more than its copy, and `steps` steps more, cost. */
bool start_image_pays(struct sched *s, int32_t position, int32_t steps);
/* The next position in (from, end] at which an image of the prompt is to be taken; -1: none. */
int32_t start_next_cut(struct sched *s, const struct sched_request *r, int32_t from);

/* ---- admit.c, grow.c, spans.c, maintain.c, complete.c ---- */

/* Admits from `waiting` while there is room. */
void admit_waiting(struct sched *s);
/* Room in the pool for `n` blocks, images evicted as need be. False: nothing was evicted. */
bool take_blocks(struct sched *s, int32_t n, block_id *out);

/* Pages for the rows of decoding requests that this pass may run. */
void grow_decoding(struct sched *s);
/* Whether the request's next decode rows may go into the batch being made. */
bool decode_ready(const struct sched *s, const struct sched_request *r);
/* Rows of its next decode span. */
int32_t decode_rows(const struct sched_request *r);
void preempt(struct sched *s, struct sched_request *r);

/* Adds a span of a running request to the batch being made. */
void span_add(struct sched *s, struct sched_request *r, struct chunk chunk);
/* The ranges of a chunk of it that ends at `end`; `again`: C of a back-off from row `first` on, 0: none. */
void span_ranges(const struct sched *s, const struct sched_request *r, struct chunk chunk, int32_t again,
                 struct row_plan *out);
/* The next prefill chunk of a request, given what the pass has left; one that ends at r->next: it waits. */
struct chunk next_chunk(struct sched *s, const struct sched_request *r);

/* Pins whose batch is over, cancelled requests that nothing holds any more. */
void settle(struct sched *s);
void attach_moves(struct sched *s);
void attach_stores(struct sched *s);
void attach_restore(struct sched *s, struct sched_request *r, image_id image);

/* Takes a running or leaving request's pages and slot. */
void give_up(struct sched *s, struct sched_request *r);
/* Ends a request in whatever list it stands; keeps its state for an image that is still due. */
void finish_request(struct sched *s, struct sched_request *r, enum finish finish);
/* Requests that waited for `r` may be admitted. */
void release_children(struct sched *s, struct sched_request *r);

#endif
