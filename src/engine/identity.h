/* identity.h: what a cached page is a page of (runtime.md 2.11): the layout of the planes, the weights, the arithmetic. Two
 * engines with one identity may read each other's pages; whatever differs makes another key for every block. */
#ifndef QR_ENGINE_IDENTITY_H
#define QR_ENGINE_IDENTITY_H

#include <stdint.h>

#include "checkpoint/checkpoint.h"

struct qr_engine;

enum { ENGINE_IDENTITY = 2048 + 256 };

/* A fingerprint of a checkpoint: names, formats and shapes of all its tensors, and the first bytes of some of them, evenly
 * spread, so that other weights of the same shapes are others. */
void model_fingerprint(const struct checkpoint *ck, uint64_t out[2]);

/* The identity, as text, of an engine whose backend is open and whose weights are known. */
void engine_identity(const struct qr_engine *engine, char out[ENGINE_IDENTITY]);

#endif
