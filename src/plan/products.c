#include "plan/products.h"

double products_of_row(const struct qr_config *c, const struct layer_plan *l)
{
    const double hidden = c->hidden_size, heads = (double)c->num_attention_heads * c->head_dim;
    const double query = hidden * c->q_lora_rank + c->q_lora_rank * heads;
    const double out = heads * c->o_lora_rank + (double)c->o_groups * c->o_lora_rank * hidden;
    const double index = l->owns_index ? (double)c->q_lora_rank * c->index_n_heads * c->index_head_dim : 0;
    const double experts = 3 * hidden * c->moe_intermediate_size * (l->n_active + 1) + hidden * l->n_experts;
    return query + out + index + experts;
}

/* Rows of the cache that the attention of a query at `position` reads. */
static double keys_read(const struct qr_config *c, const struct layer_plan *l, int32_t position)
{
    const int32_t window = position + 1 < c->sliding_window ? position + 1 : c->sliding_window;
    const int32_t visible = plan_visible(l->ratio, position);
    return window + (l->index_owner >= 0 && visible > c->index_topk ? c->index_topk : visible);
}

double products_at(const struct qr_config *c, const struct layer_plan *l, int32_t position)
{
    double scored = l->owns_index ? plan_visible(l->ratio, position) : 0;
    const double most = (double)c->candidate_topk_blocks * c->candidate_block_size;
    if (l->candidate_reader && scored > most)
        scored = most;
    return 2.0 * c->num_attention_heads * c->head_dim * keys_read(c, l, position) +
           scored * c->index_n_heads * c->index_head_dim;
}

double products_of_key(const struct qr_config *c) { return (double)c->hidden_size * c->head_dim; }

double products_of_compressed(const struct qr_config *c, const struct layer_plan *l)
{
    const int32_t wide = l->compressor == COMPRESSOR_OVERLAP ? 4 : l->compressor == COMPRESSOR_SINGLE ? 1 : 2;
    return (double)c->hidden_size * (wide * c->head_dim + (l->owns_index ? wide * c->index_head_dim : 0));
}

double products_of_layer(const struct model_plan *plan, int32_t layer, const struct row_plan *rows)
{
    const struct layer_plan *l = &plan->layer[layer];
    const struct layer_start *s = &rows->layer[layer];
    const struct qr_config *c = &plan->config;
    double products = (double)(rows->end - s->query) * products_of_row(c, l) + (double)(rows->end - s->key) * products_of_key(c);
    if (l->owns_rows)
        products += (double)(rows->end - s->compress) * products_of_compressed(c, l);
    for (int32_t p = s->query; p < rows->end; p++)
        products += products_at(c, l, p);
    return products;
}

double products_mean(const struct model_plan *plan)
{
    const struct qr_config *c = &plan->config;
    const int32_t position = c->sliding_window + plan->max_ratio * c->index_topk;
    double sum = 0;
    for (int32_t i = 0; i < plan->layers; i++) {
        const struct layer_plan *l = &plan->layer[i];
        sum += products_of_row(c, l) + products_of_key(c) + products_at(c, l, position);
        sum += l->owns_rows ? products_of_compressed(c, l) : 0;
    }
    return sum / plan->layers;
}
