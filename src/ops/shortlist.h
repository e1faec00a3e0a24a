/* shortlist.h: what a backend with memory of its own finds in rows of logits, so that a token is drawn from a few ids
 * (run/shortlist.h) and the row stays where it is. A row is cut into parts; of each part the ids with the largest keys
 * are listed. The key of an id is
 *     l                      where the largest logits are asked for,
 *     l / T - ln E           where a draw at temperature T is: E is the id's exponential in the race of
 *                            speculation.md 4.6, of the keyed stream given; the largest key wins it.
 * Keys are f32 and may be off by what run/shortlist.c allows; logits are exact. */
#ifndef QR_OPS_SHORTLIST_H
#define QR_OPS_SHORTLIST_H

#include <stdbool.h>
#include <stdint.h>

enum { SHORTLIST_PARTS = 8, SHORTLIST_LENGTH = 64 };
/* Ids that a part has at most: a vocabulary of 163,840. */
enum { SHORTLIST_PART = 20480 };

/* One row's question. */
struct shortlist_ask {
    int32_t row, added_row; /* of the logits, and of what is added to them */
    bool race;              /* by l / T - ln E; else by l */
    bool weigh;             /* wants `mass` */
    double temperature;     /* above 0 where it is raced or weighed */
    uint64_t seed;
    int64_t position;
    uint32_t tag;
};

struct shortlist_part {
    int32_t count;  /* ids listed; -1: a logit is NaN or +infinity */
    float bound;    /* the largest key of an id of the part that is not listed; -infinity: all are. Logits of -infinity are
                     * nobody's */
    float largest;  /* the largest logit of ids that are not left out, and */
    double mass;    /* the sum of e^((l - largest) / T) over them, in some fixed order; only where it is asked for */
    int32_t ids[SHORTLIST_LENGTH]; /* in no order, */
    float logits[SHORTLIST_LENGTH], keys[SHORTLIST_LENGTH];
};

/* asks [rows], out [rows][SHORTLIST_PARTS], left_out [vocab / 32] bits of ids that `mass` does not count (NULL: none),
 * logits and added (NULL: nothing is) f32 [..][vocab]: all in the backend's memory. Part p holds the ids
 * [p * part, (p + 1) * part) below vocab, part = shortlist_part_size(vocab). A result hangs on its row and question alone. */
struct op_shortlist {
    int32_t rows, vocab;
    const struct shortlist_ask *asks;
    const float *logits, *added;
    const uint32_t *left_out;
    struct shortlist_part *out;
};

static inline int32_t shortlist_part_size(int32_t vocab)
{
    const int32_t four = SHORTLIST_PARTS * 4;
    return (vocab + four - 1) / four * 4;
}
/* Rows of floats are read four at a time. */
static inline bool shortlist_takes(int32_t vocab) { return vocab % 4 == 0 && shortlist_part_size(vocab) <= SHORTLIST_PART; }

#endif
