/* checkpoint_check.h: what a folder must hold, and which values no weight may have. */
#ifndef QR_CHECKPOINT_CHECKPOINT_CHECK_H
#define QR_CHECKPOINT_CHECKPOINT_CHECK_H

#include "checkpoint/checkpoint.h"

/* How a folder differs from a list. */
enum mismatch { MISMATCH_MISSING, MISMATCH_UNEXPECTED, MISMATCH_SHAPE, MISMATCH_DTYPE, MISMATCH_KINDS };

/* Counts and first names of all differences; indices -1 when a kind did not occur. For MISSING, SHAPE and DTYPE `first`
 * is an index of the list, for UNEXPECTED one of the checkpoint. */
struct checkpoint_diff {
    int64_t count[MISMATCH_KINDS], first[MISMATCH_KINDS];
};

/* Compares the folder with a list of `count` tensors (unique names). `each`, unless NULL, is called for every
 * difference with the spec (NULL for an unexpected one) and the view (NULL for a missing one). Accepted forms:
 * tensor_spec.h. Fails only without memory. */
qr_status checkpoint_compare(const struct checkpoint *ck, const struct tensor_spec *specs, int64_t count,
                             void (*each)(void *user, enum mismatch kind, const struct tensor_spec *spec,
                                          const struct tensor_view *view),
                             void *user, struct checkpoint_diff *out, qr_error *err);

/* Fails with QR_BAD_FILE unless the folder holds exactly the list: one sentence with the first wrong shape or dtype,
 * or the first missing and first unexpected name, and how many there are. */
qr_status checkpoint_expect(const struct checkpoint *ck, const struct tensor_spec *specs, int64_t count, qr_error *err);

/* The first of the elements [first, first + count) that no weight may hold, or -1: E8M0 byte 255, an E4M3 NaN code, an F32
 * or BF16 that is not finite. Other dtypes have none. */
int64_t tensor_first_bad(const struct tensor_view *view, int64_t first, int64_t count);
/* Fails with QR_NUMERIC: the sentence about the bad element `at`, with its value and those wanted. */
qr_status tensor_bad_value(const char *path, const struct tensor_view *view, int64_t at, qr_error *err);

/* Refuses values that no weight may hold, naming `path` (a folder or file), tensor and index: E8M0 byte 255
 * (QR_NUMERIC), E4M3 NaN codes, non-finite F32, BF16. Other dtypes pass. Checks elements [first, first + count). */
qr_status tensor_check_values(const char *path, const struct tensor_view *view, int64_t first, int64_t count,
                              qr_error *err);

#endif
