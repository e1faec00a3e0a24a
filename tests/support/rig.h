/* rig.h: a runner over a model folder, and requests that are fed to it by hand: for tests of what steps, batches and
 * chunks may change (nothing). Every failure fails the test. */
#ifndef QR_TESTS_RIG_H
#define QR_TESTS_RIG_H

#include "run/forward.h"

struct rig_options {
    const char *model;  /* folder of the source tree, or an absolute path */
    const char *device; /* NULL: "cpu-reference" */
    int threads;        /* 0: 1 */
    enum row_format main_format, index_format;
    bool formats; /* main_format and index_format are given */
    enum qr_profile profile;
    int32_t draft_width, draft_rows; /* draft_rows: of a draft pass; 0: none is possible */
    int32_t ring_short; /* rows that the rings lack: to see what comes of it */
    int64_t blocks, slots;
    int32_t block; /* tokens a PAGE; 0: 32, of V4 128 */
    int32_t max_rows, max_requests, max_positions; /* 0: 256, 4, 1024 */
    int32_t attention_rows; /* of an attention call; 0: those of a step */
    bool pads;              /* runner_options */
};

struct rig {
    struct qr_config config;
    struct model_plan plan;
    struct geometry geometry;
    struct checkpoint *checkpoint;
    struct token_map map;
    struct backend *backend;
    struct runner *runner;
    int32_t max_rows;
};

/* One request: its tokens, where it is, and the logits of every position run so far. */
struct rig_request {
    const int32_t *tokens;
    uint8_t *image_mask; /* owned */
    int32_t count, position, slot;
    int32_t *blocks; /* owned; as many as the tokens want */
    float *logits;   /* owned: [count][vocab] */
};

void rig_open(struct rig *r, const struct rig_options *options);
void rig_close(struct rig *r);

/* A request at position 0 in `slot`, whose blocks are first_block, first_block + step, ... */
struct rig_request rig_request(const struct rig *r, const int32_t *tokens, int32_t count, int32_t slot,
                               int32_t first_block, int32_t step);
void rig_request_free(struct rig_request *q);
/* The span of its next `count` tokens, all of which want logits. */
struct batch_span rig_span(const struct rig *r, const struct rig_request *q, int32_t count);

/* One step: request i runs its next counts[i] tokens; those with 0 are left out. */
void rig_step(struct rig *r, struct rig_request *const *requests, const int32_t *counts, int32_t n);
/* Runs the rest of one request alone: chunks of the sizes given, ended by 0, the last repeating; NULL: one chunk. */
void rig_run(struct rig *r, struct rig_request *q, const int32_t *chunks);

/* Logits of one request's whole pass alone. */
void assert_same_logits(const struct rig *r, const struct rig_request *a, const struct rig_request *b,
                        const char *what);

/* Copies backend memory, once what was started is done. */
void rig_read(const struct rig *r, void *out, const void *from, int64_t bytes);
/* The pools, backend memory. */
uint8_t *rig_pool(const struct rig *r, int64_t *bytes);
/* Fills the pools, and every buffer of a pass that a step must not read before it is written, with NaN bytes. */
void rig_poison(struct rig *r);

/* `count` tokens that look like anything: the same for the same seed. */
void rig_tokens(const struct rig *r, uint32_t seed, int32_t *out, int32_t count);

#endif
