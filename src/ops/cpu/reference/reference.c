#include "ops/cpu/reference/reference.h"

#include "ops/cpu/memory.h"
#include "ops/cpu/reference/best.h"
#include "ops/cpu/reference/product.h"
#include "ops/cpu/reference/scalar.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* The longest row that any product of the plan reads. */
static int64_t longest_k(const struct qr_config *c)
{
    int64_t k = larger(c->hidden_size, c->q_lora_rank);
    k = larger(k, (int64_t)c->num_attention_heads * c->head_dim / at_least_one(c->o_groups));
    k = larger(k, (int64_t)c->o_groups * c->o_lora_rank);
    k = larger(k, c->moe_intermediate_size);
    k = larger(k, (int64_t)(c->engram_max_ngram - 1) * c->engram_n_heads * c->engram_head_dim);
    k = larger(k, (int64_t)c->n_dspark_targets * c->hidden_size);
    k = larger(k, (int64_t)c->vision.hidden_size * c->vision.downsample_ratio * c->vision.downsample_ratio);
    k = larger(k, larger(c->vision.intermediate_size, 3 * (int64_t)c->vision.patch_size * c->vision.patch_size));
    return larger(k, c->hidden_size + c->dspark_markov_rank);
}

/* Every operator asks for what it needs (cpu_need); this is a bound of all of them, by kind of buffer. */
int64_t reference_scratch_bytes(const struct op_limits *limits)
{
    const struct qr_config *c = &limits->plan->config;
    enum { FLOAT = sizeof(float), ATTEND_BLOCK = 128, MOST_POOLED = 512 };
    int64_t k = longest_k(c), heads = (int64_t)c->num_attention_heads * c->head_dim;
    int64_t streams = (int64_t)c->hc_mult * c->hidden_size;
    int64_t index = (int64_t)c->index_n_heads * c->index_head_dim;
    int64_t ratio = limits->plan->max_ratio;

    int64_t rows = 3 * piece_bytes(streams, FLOAT) + 6 * piece_bytes(larger(k, heads), FLOAT);
    int64_t products = lanes_bytes(k) + lanes_bytes(c->moe_intermediate_size) +
                       3 * piece_bytes(LANES * (int64_t)c->moe_intermediate_size, FLOAT);
    int64_t attend = 2 * piece_bytes(heads, FLOAT) + piece_bytes((int64_t)ATTEND_BLOCK * c->head_dim, FLOAT) +
                     2 * piece_bytes(c->num_attention_heads, FLOAT) + 2 * piece_bytes(ATTEND_BLOCK, FLOAT);
    int64_t select = piece_bytes(index, FLOAT) + piece_bytes(c->index_head_dim, FLOAT) +
                     piece_bytes(c->index_topk, sizeof(struct scored)) +
                     piece_bytes(larger(c->candidate_topk_blocks, 0), sizeof(struct scored));
    int64_t route = 2 * piece_bytes(c->hidden_size, FLOAT) +
                    3 * piece_bytes(larger(c->n_routed_experts, c->dspark_n_routed_experts), FLOAT);
    int64_t pooled = 5 * piece_bytes(2 * larger(ratio, MOST_POOLED), FLOAT);
    return larger(larger(larger(rows, products), larger(attend, select)), larger(route, pooled));
}

static qr_status reference_reserve(struct backend *b, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    return cpu_scratch_make((struct cpu_backend *)b, reference_scratch_bytes(limits), bytes, err);
}

static float reference_dot(const float *a, const float *b, int32_t n) { return (float)dot(a, b, n); }

void reference_install(struct backend *b)
{
    ((struct cpu_backend *)b)->dot = reference_dot;
    b->reserve = reference_reserve;
    b->prepare_weight = cpu_prepare_weight;
    b->release_weight = cpu_release_weight;
#define INSTALL(NAME) b->NAME = reference_##NAME;
    QR_OPERATORS(INSTALL)
#undef INSTALL
}
