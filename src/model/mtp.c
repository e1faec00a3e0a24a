/* mtp.c: the MTP layer of V4 (v4-model.md 6.3; 7.4 mtp_projection in W8A8), to be read beside the specification. A row
 * of a draft pass is a position p: the backbone's streams there, and the token that follows. */
#include "model/block.h"

#define CALL(NAME, ...) p->backend->NAME(p->backend, &(struct op_##NAME){__VA_ARGS__}, err)

static struct activation rows_of_streams(const struct streams *x)
{
    int32_t cols = x->count * x->hidden;
    return (struct activation){.format = x->format, .cols = cols, .block = cols, .codes = x->data};
}

static int64_t stream_bytes(const struct streams *x)
{
    return (int64_t)x->count * x->hidden * (x->format == ACT_F32 ? 4 : 2);
}

/* The backbone's streams of each draft row: of a row of the last pass, or kept in the request's state. */
static qr_status gather_streams(struct pass *p, const struct model_draft *d, qr_error *err)
{
    const struct workspace *ws = p->ws;
    const struct model_cache *cache = &d->cache;
    int64_t bytes = stream_bytes(&ws->streams);
    TRY(CALL(gather, .rows = {.index = d->source, .count = d->step->rows}, .in = rows_of_streams(&ws->streams),
             .out = ws->draft_h));
    for (int32_t i = 0; i < d->kept_count; i++)
        TRY(p->backend->copy(p->backend, (uint8_t *)ws->draft_h.codes + d->kept[i].row * bytes,
                             cache->base + geometry_draft_stream(cache->geometry, cache->pool, d->kept[i].slot), bytes,
                             err));
    return QR_OK;
}

/* Step 1: the normed embedding of the token that follows, projected. */
static qr_status project_token(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    const struct mtp_weights *w = &p->weights->mtp;
    struct row_list rows = p->rows->input;
    struct streams one = {.format = ACT_BF16, .count = 1, .hidden = ws->draft_e.cols, .data = ws->draft_e.codes};

    TRY(CALL(embed, .rows = rows, .step = p->step, .weight = p->weights->embed, .out = one));
    TRY(CALL(norm, .rows = rows, .in = ws->draft_e, .weight = w->e_norm, .weight_f32 = p->w8a8, .smooth = w->e_smooth,
             .eps = p->config->rms_norm_eps, .out = ws->draft_en, .quantized = ws->draft_eq));
    return linear(p, rows, w->e_plain ? ws->draft_en : ws->draft_eq, w->e_proj, ws->draft_ep, err);
}

/* Step 2: every stream normed by itself, projected. */
static qr_status project_streams(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    const struct mtp_weights *w = &p->weights->mtp;
    struct row_list rows = p->rows->input;
    int32_t streams = p->config->hc_mult;

    TRY(CALL(norm, .rows = rows, .in = ws->draft_h, .weight = w->h_norm, .weight_f32 = p->w8a8, .smooth = w->h_smooth,
             .parts = streams, .eps = p->config->rms_norm_eps, .out = ws->draft_n, .quantized = ws->draft_nq));
    return CALL(linear, .rows = rows, .in = w->h_plain ? ws->draft_n : ws->draft_nq, .weight = w->h_proj,
                .parts = streams, .out = ws->draft_hp);
}

qr_status mtp_streams(struct pass *p, const struct model_draft *d, struct workspace *ws, qr_error *err)
{
    *ws = *p->ws;
    enter_layer(p, p->plan->layers);
    TRY(gather_streams(p, d, err));
    TRY(project_token(p, err));
    TRY(project_streams(p, err));
    TRY(CALL(stream_add, .rows = p->rows->input, .e = ws->draft_ep, .h = ws->draft_hp, .out = ws->draft_streams));

    ws->streams = ws->draft_streams; /* those of the backbone stay as they are */
    p->ws = ws;
    return v4_block(p, err);
}

qr_status mtp_forward(struct pass *p, const struct model_draft *d, qr_error *err)
{
    struct workspace ws;
    TRY(mtp_streams(p, d, &ws, err));
    return v4_head(p, &p->weights->mtp.head, err);
}
