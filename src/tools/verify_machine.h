/* verify_machine.h: a model on a device against the same on the reference: every operator that its plan uses, then tokens. */
#ifndef QR_TOOLS_VERIFY_MACHINE_H
#define QR_TOOLS_VERIFY_MACHINE_H

#include "run/forward.h"
#include "tools/verify_layers.h"
#include "tools/verify_table.h"

/* A model folder, opened for no backend yet. */
struct machine {
    const char *dir;
    const struct qr_log *log;
    struct qr_config config;
    struct model_plan plan;
    struct geometry geometry;
    struct checkpoint *checkpoint;
    struct token_map map;
};

/* `profile` NULL: the folder's. `dir` and `log` stay the caller's. Free with machine_close (a zeroed one is fine). */
qr_status machine_open(const char *dir, const char *profile, const struct qr_log *log, struct machine *out, qr_error *err);
void machine_close(struct machine *m);

/* Runs one layer of each kind, those whose rows they read, and the MTP layer, at the model's shapes with its weights: a
 * context on the device alone, so that windows have wrapped and selections leave rows out (as far as 640 tokens reach), then
 * a chunk of a prompt and single tokens on both, operator by operator. The device's memory holds the model; the reference's
 * is host memory and uses the mapping. */
qr_status machine_operators(struct machine *m, struct backend *device, struct backend *reference, struct verify_table *table,
                            struct findings *findings, qr_error *err);

/* A greedy answer of the device, and what the reference makes of the same tokens, each layer from the device's streams. */
struct tokens_report {
    int32_t prompt, tokens, layers; /* how many */
    int32_t differ;                 /* choices of the reference that are others */
    double margin;                  /* the reference's largest margin of such a one */
    double largest, mean;           /* |logit difference| */
    struct layer_report layer[QR_MAX_LAYERS];
    double device_seconds, reference_seconds; /* of the tokens after the first; of the one pass over all */
    bool failed;                    /* in its choices */
};

/* A prompt and 64 greedy tokens on the device, then one pass of the reference over the same tokens, layer by layer
 * (verify_layers.h). Failed when a choice differs where the reference leads by 0.5 or more (golden/v4, "generate": twice the
 * least noise), or more than three in a hundred do (golden/v41, "layer by layer, logits"), or a layer's output is off. */
qr_status machine_tokens(struct machine *m, struct backend *device, struct backend *reference, struct tokens_report *out,
                         struct findings *findings, qr_error *err);

#endif
