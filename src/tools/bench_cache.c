#include "tools/bench_cache.h"

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* Index keys that the layer scores; none where it keeps every visible row anyway. */
static int32_t keys_scored(const struct qr_config *c, const struct layer_plan *l, int32_t visible)
{
    if (!l->owns_index || (visible <= c->index_topk && !l->candidate_source))
        return 0;
    return l->candidate_reader ? smaller(visible, c->candidate_topk_blocks * c->candidate_block_size) : visible;
}

int64_t bench_cache_bytes(const struct model_plan *plan, const struct geometry *g, int32_t layer, int32_t position)
{
    const struct qr_config *c = &plan->config;
    const struct layer_plan *l = &plan->layer[layer];
    const int32_t window = smaller(position, c->sliding_window - 1), visible = plan_visible(l->ratio, position - 1);
    const int32_t read = l->index_owner >= 0 ? smaller(visible, c->index_topk) : visible;
    return (int64_t)window * g->window_row_bytes + (int64_t)read * g->main_row_bytes +
           (int64_t)keys_scored(c, l, visible) * (g->index_row_bytes + g->index_scale_row_bytes);
}
