/* accept_lab.h: a runner of the folder under test, and requests that are fed to it by hand: for the cases that are
 * about steps, not about who is in them. */
#ifndef QR_TOOLS_ACCEPT_LAB_H
#define QR_TOOLS_ACCEPT_LAB_H

#include "run/forward.h"
#include "tools/accept.h"

enum { LAB_SLOTS = 4, LAB_BLOCKS = 4 * (ACCEPT_LONGEST / 32 + 1) };

struct lab {
    struct accept *a;
    struct geometry geometry;
    struct backend *backend;
    struct runner *runner;
    int32_t rows; /* of a step */
};
qr_status lab_open(struct accept *a, int32_t rows, struct lab *out, qr_error *err);
void lab_close(struct lab *lab);

/* A request that runs in `slot`, with pages scattered over the pool: descending, every other one. */
struct lab_request {
    const int32_t *tokens;
    int32_t count, position, slot;
    int32_t blocks[ACCEPT_LONGEST / 32 + 1];
    float *logits; /* [count][vocabulary] of every row run so far; NULL: not kept */
};
/* Fails without memory. Free with lab_request_free. */
qr_status lab_request(const struct lab *lab, const int32_t *tokens, int32_t count, int32_t slot, bool logits,
                      struct lab_request *out, qr_error *err);
void lab_request_free(struct lab_request *q);

/* Its next `count` rows, all with logits. */
struct batch_span lab_span(const struct lab *lab, const struct lab_request *q, int32_t count);
/* Runs a span alone, keeps its logits and moves the request on. `observer` NULL: nobody looks. */
qr_status lab_step(struct lab *lab, struct lab_request *q, const struct batch_span *span,
                   const struct model_observer *observer, qr_error *err);
/* Runs the rest: chunks as given, ended by 0, the last one repeating; NULL: in one step. */
qr_status lab_run(struct lab *lab, struct lab_request *q, const int32_t *chunks, qr_error *err);
/* The same bits of every row that both have run. */
qr_status lab_same(const struct lab *lab, const struct lab_request *alone, const struct lab_request *q,
                   const char *what, qr_error *err);

/* Backend memory, `bytes` of it, becomes `value` everywhere. */
qr_status lab_fill(const struct lab *lab, void *at, int value, int64_t bytes, qr_error *err);
qr_status lab_read(const struct lab *lab, void *out, const void *from, int64_t bytes, qr_error *err);
/* The pools (where `pools`), and every buffer of a pass that a step must not read before it writes it, are NaN. */
qr_status lab_poison(const struct lab *lab, bool pools, qr_error *err);

/* A copy of the pools as they are; NULL, with `err` set, on failure. qr_free it. */
uint8_t *lab_pools(const struct lab *lab, qr_error *err);
/* Pages and slots that the request does not name are the same in two copies; NULL ones are a failure. */
qr_status lab_others_unchanged(const struct lab *lab, const struct lab_request *q, const uint8_t *before, const uint8_t *after,
                               qr_error *err);

#endif
