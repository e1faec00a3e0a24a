#include "sched/cost.h"

#include <string.h>

#include "plan/products.h"

/* Two cores with AVX2, shared with others; their plain path; one H200 (docs/performance.md). They choose between ways to
 * the same bits, so a figure that is off by some factor costs time and nothing else. */
static const struct device_rates kinds[] = {
    {.device = "cpu", .products = 1e9, .read = 1e10, .copied = 5e9, .step = 1e-4},
    {.device = "cpu-reference", .products = 1e8, .read = 5e9, .copied = 5e9, .step = 1e-4},
    {.device = "cuda", .products = 3e13, .read = 4.5e12, .copied = 2e12, .step = 6e-3},
};
enum { DEVICE_KINDS = sizeof kinds / sizeof *kinds };

const struct device_rates *cost_rates(const char *device)
{
    const struct device_rates *found = &kinds[0];
    size_t longest = 0;
    for (int i = 0; i < DEVICE_KINDS; i++) {
        const size_t length = strlen(kinds[i].device);
        if (length > longest && strncmp(device, kinds[i].device, length) == 0) {
            found = &kinds[i];
            longest = length;
        }
    }
    return found;
}

struct sched_costs cost_of_model(const struct device_rates *rates, const struct model_plan *plan, int64_t weight_bytes)
{
    return (struct sched_costs){.row_layer = products_mean(plan) / rates->products,
                                .step = rates->step + (double)weight_bytes / rates->read,
                                .byte = 1 / rates->copied};
}

double cost_of_way(const struct sched_costs *costs, const struct start_way *way, int32_t step_rows)
{
    const int32_t steps = (way->rows + step_rows - 1) / step_rows;
    return (double)way->row_layers * costs->row_layer + steps * costs->step + (double)way->bytes * costs->byte;
}

int32_t cost_least(const struct sched_costs *costs, const struct start_way *ways, int32_t count, int32_t step_rows)
{
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++)
        if (cost_of_way(costs, &ways[i], step_rows) < cost_of_way(costs, &ways[best], step_rows))
            best = i;
    return best;
}

bool cost_image_pays(const struct sched_costs *costs, int64_t row_layers, int64_t bytes, int32_t steps)
{
    return (double)row_layers * costs->row_layer > (double)bytes * costs->byte + steps * costs->step;
}
