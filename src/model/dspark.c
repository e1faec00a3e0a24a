/* dspark.c: the block drafter of both families (speculation.md 2), to be read beside the specification. Its stages are
 * layers with a window and nothing else: their rings hold keys made from what the backbone left at committed positions,
 * and a draft pass runs a block of rows, the anchor and placeholders, each of which sees all of them. */
#include "model/block.h"

#define CALL(NAME, ...) p->backend->NAME(p->backend, &(struct op_##NAME){__VA_ARGS__}, err)

static bool is_v4(const struct pass *p) { return p->config->family == QR_FAMILY_V4; }

/* 2.3: one vector a row, of which every stage makes its key; in ws->x and ws->xq. */
static qr_status context_input(struct pass *p, struct row_list rows, qr_error *err)
{
    const struct workspace *ws = p->ws;
    const struct dspark_weights *w = &p->weights->dspark;
    const int32_t hidden = p->config->hidden_size;
    struct activation projected = {.format = ACT_BF16, .cols = hidden, .block = hidden, .codes = ws->y};

    if (!p->w8a8)
        TRY(quantize(p, rows, ws->taps, ws->taps_q, err));
    TRY(linear(p, rows, ws->taps_q, w->main_proj, projected, err));
    return norm(p, rows, projected, w->main_norm, ws->x, p->w8a8 ? (struct activation){0} : ws->xq, err);
}

qr_status dspark_context(struct pass *p, qr_error *err)
{
    enter_layer(p, p->plan->layers);
    if (p->rows->key.count == 0) /* none of the step's rows has all of its taps, or is needed */
        return QR_OK;
    TRY(observe(p, POINT_TAPS, err));
    TRY(context_input(p, p->rows->key, err));
    for (int32_t i = 0; i < p->plan->draft_layers; i++) {
        enter_layer(p, p->plan->layers + i);
        TRY(window_key(p, is_v4(p) ? v4_key_grid(p) : GRID_FP8_ALL, err));
        TRY(keep_window(p, err));
    }
    return QR_OK;
}

/* 2.5: the stages, from the embeddings of the block; `*pre` is what the last one leaves for a collapse. */
static qr_status stages(struct pass *p, const float **pre, qr_error *err)
{
    *pre = p->ws->pre_first;
    TRY(embed(p, p->args->rows->layer[p->plan->layers].input, err));
    for (int32_t i = 0; i < p->plan->draft_layers; i++) {
        enter_layer(p, p->plan->layers + i);
        TRY(is_v4(p) ? v4_block(p, err) : v41_block(p, *pre, err));
        *pre = p->ws->pre;
    }
    return is_v4(p) ? v4_head_mix(p, &p->weights->dspark.head, p->args->rows->logits, err) : QR_OK;
}

/* 2.7: the confidence head reads the row before its norm, the head behind it. */
qr_status dspark_draft(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    const struct dspark_weights *w = &p->weights->dspark;
    const struct row_list rows = p->args->rows->logits;
    const float *pre;

    TRY(stages(p, &pre, err));
    TRY(CALL(collapse, .rows = rows, .x = ws->streams, .pre = pre, .norm = w->head.norm,
             .norm_eps = p->config->rms_norm_eps, .collapsed = ws->draft_hidden, .normed = ws->x));
    TRY(linear(p, rows, ws->draft_hidden, w->confidence_hidden, ws->draft_confidence, err));
    return logits(p, err);
}

/* 2.7: B(x) = W2 W1[x], and the other part of the confidence. */
qr_status dspark_markov(struct pass *p, const int32_t *tokens, int32_t count, qr_error *err)
{
    const struct workspace *ws = p->ws;
    const struct dspark_weights *w = &p->weights->dspark;
    const struct row_list rows = {.count = count};
    const struct step step = {.rows = count, .token_ids = tokens};
    const struct streams one = {
        .format = ACT_BF16, .count = 1, .hidden = ws->markov.cols, .data = ws->markov.codes};

    TRY(CALL(embed, .rows = rows, .step = &step, .weight = w->markov_embed, .out = one));
    TRY(linear(p, rows, ws->markov, w->markov_head, ws->markov_bias, err));
    return linear(p, rows, ws->markov, w->confidence_markov, ws->markov_confidence, err);
}
