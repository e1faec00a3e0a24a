/* cost.h: what ways of starting a prompt cost, and which of them is taken (runtime.md 5.5, 7.5; addendum 8): rows times
 * layers, steps, and bytes copied, at the rates of a device. Pure: equal figures give equal choices on every machine. */
#ifndef QR_SCHED_COST_H
#define QR_SCHED_COST_H

#include "plan/plan.h"

/* What things cost, in seconds. */
struct sched_costs {
    double row_layer; /* one row through one layer in a prefill chunk */
    double step;      /* a step by itself, whatever its rows */
    double byte;      /* one byte copied between STATE and PAGE */
};

/* Rates of a kind of device, as `quire bench` measured them. */
struct device_rates {
    const char *device;  /* "cpu", "cuda": names that begin so are of the kind */
    double products;     /* multiplications and additions a second, in a prefill chunk */
    double read;         /* bytes of weights a second */
    double copied;       /* bytes copied a second, from cache to cache */
    double step;         /* seconds of a step beside reading the weights */
};
/* The rates of the longest kind that the name begins with; of "cpu" where there is none. */
const struct device_rates *cost_rates(const char *device);
/* The costs of a model on it; `weight_bytes` are read by a step at least. */
struct sched_costs cost_of_model(const struct device_rates *rates, const struct model_plan *plan, int64_t weight_bytes);

/* A way to start a prompt: by a rerun below the hit, whose ranges may reach the prompt's first row (a cold run that shares
 * the pages), or from an image at the hit or below it. */
struct start_way {
    int64_t row_layers; /* rows times layers to the end of the prompt */
    int32_t rows;       /* of the forward, however it is cut */
    int64_t bytes;      /* copied before it */
};
double cost_of_way(const struct sched_costs *costs, const struct start_way *way, int32_t step_rows);
/* The cheapest of `count` ways, the first of equal ones. */
int32_t cost_least(const struct sched_costs *costs, const struct start_way *ways, int32_t count, int32_t step_rows);

/* Whether an image is worth taking: the rows times layers that it spares a resume cost more than the copy of `bytes` and
 * `steps` steps more now. */
bool cost_image_pays(const struct sched_costs *costs, int64_t row_layers, int64_t bytes, int32_t steps);

#endif
