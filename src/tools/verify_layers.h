/* verify_layers.h: what leaves each layer on a device, and what the reference makes of the same input. One flip of a code in a
 * whole pass leads to others, so that only layers with equal input compare strictly (golden/v41, "Layer by layer"). */
#ifndef QR_TOOLS_VERIFY_LAYERS_H
#define QR_TOOLS_VERIFY_LAYERS_H

#include "model/model.h"
#include "tools/findings.h"

/* How the streams that leave a layer compare, over all positions. */
struct layer_report {
    double equal, mean, largest;      /* share of values equal; |difference| */
    double tenth, median, upper;      /* |difference| / |wanted| of a position's streams: quantiles 0.1, 0.5, 0.75 */
    bool failed;
};

struct layers;

/* `rows`: positions of the request. */
qr_status layers_open(const struct model_plan *plan, int32_t rows, struct layers **out, qr_error *err);
void layers_close(struct layers *l);

/* For the device: keeps what leaves each layer. Set where the step begins before it runs. */
struct model_observer layers_keep(struct layers *l, struct backend *device);
void layers_step(struct layers *l, int32_t position, int32_t count);
/* For the reference, one pass over all positions: gives every layer but the first the device's streams, and compares what
 * leaves it. */
struct model_observer layers_compare(struct layers *l, struct backend *reference);

/* [layers of the backbone]. */
const struct layer_report *layers_reports(const struct layers *l);
/* Fails layers, and all together, by the pass lines of golden/v41 ("layer by layer, streams": 99 % of the values equal) and
 * golden/v4 ("block alone"). */
void layers_judge(struct layers *l, struct findings *findings);

#endif
