/* products.h: multiplications that rows take, layer by layer: what plans of rows are compared by. Pure. The LM head is no
 * layer. */
#ifndef QR_PLAN_PRODUCTS_H
#define QR_PLAN_PRODUCTS_H

#include "plan/rows.h"

/* Of a row that passes through the whole layer: projections and experts; what it reads of other rows left out. */
double products_of_row(const struct qr_config *c, const struct layer_plan *l);
/* What its attention and its indexer take besides, at `position`. */
double products_at(const struct qr_config *c, const struct layer_plan *l, int32_t position);
/* Of a row that the layer makes no more of than its window key; than its part of a compressed row and index key. */
double products_of_key(const struct qr_config *c);
double products_of_compressed(const struct qr_config *c, const struct layer_plan *l);
/* Of the rows of a plan that one layer runs. */
double products_of_layer(const struct model_plan *plan, int32_t layer, const struct row_plan *rows);
/* Of a row through a layer, the mean of all layers, with a full window and a full selection. */
double products_mean(const struct model_plan *plan);

#endif
