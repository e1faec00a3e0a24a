/* draft_calibration.h: how sure a drafter is, made to mean what it says (speculation.md 6.4, sequential temperature
 * scaling). Pure. */
#ifndef QR_ENGINE_DRAFT_CALIBRATION_H
#define QR_ENGINE_DRAFT_CALIBRATION_H

#include "quire.h"

/* The confidence of a draft from its logit, clipped at confidences of 1e-6 and 1 - 1e-6: sigmoid(logit / tau). Rises with
 * the logit whatever tau > 0 is; tau 1 changes nothing. */
double calibration_confidence(double logit, double tau);

/* What a step showed of the drafts that it verified. */
struct calibration_sample {
    float logits[QR_MAX_DRAFTS];
    int32_t verified, accepted;
};
enum { CALIBRATION_BINS = 15 };
/* Expected calibration error over CALIBRATION_BINS bins of the estimate that draft k (0-based) and all before it are
 * accepted, over the samples that verified draft k; 0 where none did. taus[k + 1]. */
double calibration_error(const struct calibration_sample *samples, size_t count, const double *taus, int32_t k);
/* Temperatures of drafts 0 .. width-1, one after the other: of 49 between 1/8 and 8 the one with the smallest error, the
 * one nearest to 1 among equals; 1 where no sample verified the draft. */
void calibration_fit(const struct calibration_sample *samples, size_t count, int32_t width, double *taus);

#endif
