/* budget.h: how many blocks and STATE entries a number of bytes buys (runtime.md 2.10). */
#ifndef QR_CACHE_BUDGET_H
#define QR_CACHE_BUDGET_H

#include "cache/geometry.h"
#include "plan/byte_plan.h"

struct budget_request {
    int64_t bytes;         /* for both pools */
    int64_t slots;         /* requests running at once */
    int64_t max_model_len; /* longest request in tokens; 0: what fits one */
    int64_t ceiling;       /* the model's max_position_embeddings */
};

struct budget {
    int64_t blocks, slots; /* block 0 included */
    int64_t max_model_len;
    struct pool_layout pool;
};

/* --kv-ram-bytes when it is not given: half of the memory available beside the resident weights; Engram tables stay in
 * the file and do not count. */
int64_t budget_default_bytes(int64_t available, int64_t resident_weights);

/* STATE first, then as many blocks as fit, at most those that every slot at full length fills: the pools are touched when
 * an engine starts, and a small model with short requests would take half of the machine's memory for pages that no
 * running request can fill. Who wants them for the prefixes of more requests asks for more slots or length. Fails with QR_REFUSED:
 * E31 with the bytes missing and the options that would fit when the states or one request of max_model_len do not, or a
 * max_model_len above the ceiling. */
qr_status budget_fit(const struct geometry *g, const struct budget_request *request, struct budget *out, qr_error *err);

/* Bytes that the states and one request of max_model_len (one block where none is given) take at least; INT64_MAX: more
 * than there can be. */
int64_t budget_least(const struct geometry *g, const struct budget_request *request);

/* Requests of `length` tokens that fit at once, and whether the blocks bound them (else the slots). */
int64_t budget_requests(const struct geometry *g, const struct budget *budget, int64_t length, bool *by_blocks);

/* The planes of both pools as items of the byte plan. */
void budget_items(const struct geometry *g, const struct budget *budget, struct byte_plan *out);

#endif
