/* seats.h: experts that lie in host memory (pinned, in the device's layout) are multiplied from seats: room on the device
 * for a number of them, shared by all layers. Before the experts of a step a kernel looks which of them are needed, gives
 * each a seat, taking those that were not used for longest, and copies what is not there yet. Everything that it knows lies
 * on the device, so a recorded graph works with any routing. A product reads the same bytes wherever they lie: which
 * experts are on the device changes no bit.
 *
 * A layer may need more of them than there are seats: then its experts are computed in rounds, each expert in one of them. */
#ifndef QR_OPS_CUDA_SEATS_H
#define QR_OPS_CUDA_SEATS_H

#include "ops/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOST_SEATS = 128 };

/* What the device counts, copied into host memory whenever it changes. */
struct seat_counts {
    unsigned long long found, copied, bytes;
};

/* On the device. */
struct seat_books {
    int32_t home[EXPERT_TABLES][MOST_EXPERTS];            /* the seat of an expert; -1: none */
    unsigned long long visits[EXPERT_TABLES][MOST_EXPERTS]; /* of each expert so far */
    int32_t *owner[MOST_SEATS];                           /* whose home it is; NULL: nobody's */
    unsigned long long stamp[MOST_SEATS], clock;          /* when it was last needed */
    struct seat_counts counts;
    uint32_t arrived;
    /* of the layer and round in hand: for each expert that is needed the view that its products read, -1: in another round;
     * and how many of those are in seats */
    int32_t turn[MOST_EXPERTS], seated;
};

struct seats {
    int32_t count;
    int64_t part[3], bytes; /* of w1, w2, w3 in a seat; of a seat */
    uint8_t *memory;        /* [count][bytes], of the weights' range */
    struct seat_books *books;
    struct seat_counts *counts; /* pinned */
    uint8_t *host;          /* pinned: the experts themselves */
    int64_t host_bytes, host_used;
    int32_t host_pieces;
};

/* What kernels of a layer's experts take along; books NULL: all of the layer lie on the device. */
struct seating {
    struct seat_books *books;
    struct seat_counts *counts;
    uint8_t *memory;
    int64_t part[3], bytes;
    int32_t count, table, nth; /* nth: the round */
};

/* As backend.seat_experts and expert_uses. */
qr_status seats_open(struct backend *b, const struct expert_seating *wanted, qr_error *err);
qr_status seats_uses(struct backend *b, int32_t experts, const struct weight *const *w1, uint64_t *out, qr_error *err);
/* The device must be idle; its own memory of them goes with it. */
void seats_close(struct cuda_backend *cuda);

/* Host memory for a weight; given back, what is taken again is new when all of it has come back. */
qr_status seats_take(struct cuda_backend *cuda, int64_t bytes, void **out, qr_error *err);
void seats_give(struct cuda_backend *cuda);

/* Nobody sits: what the seats hold is gone, or is of weights that are. What is written down runs behind it. */
qr_status seats_clear(struct cuda_backend *cuda, qr_error *err);

/* Fills the views of the seats behind those of a table's experts. QR_UNSUPPORTED: they do not fit. */
qr_status seats_fill(struct cuda_backend *cuda, struct expert_table *t, qr_error *err);

#ifdef __cplusplus
}
#endif
#endif
