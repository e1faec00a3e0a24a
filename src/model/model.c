#include "model/model.h"

#include <string.h>

#include "base/alloc.h"
#include "checkpoint/checkpoint_check.h"
#include "model/block.h"
#include "model/rope.h"
#include "plan/schema.h"

struct model {
    const struct model_plan *plan;
    struct backend *backend;
    struct model_limits limits;
    struct weights weights;
    struct workspace ws;
    void *memory; /* the workspace's */
    float frequencies[2][ROPE_MAX_PAIRS];
    qr_status (*forward)(struct pass *p, qr_error *err);
};

int64_t model_workspace_bytes(const struct model_plan *plan, const struct model_limits *limits)
{
    struct workspace ws;
    return workspace_lay(plan, limits, NULL, &ws);
}

/* The folder holds exactly the tensors of its config. */
static qr_status check_names(const struct checkpoint *ck, const struct model_plan *plan, qr_error *err)
{
    struct schema *schema = NULL;
    TRY(schema_make(&plan->config, &schema, err));
    qr_status st = checkpoint_expect(ck, schema_tensors(schema), schema_count(schema), err);
    schema_free(schema);
    return st;
}

/* Layer 0 collapses with pre = (1, 0, 0, 0) in every row (v41-model.md 4.1 step 3). */
static qr_status fill_first_pre(struct model *m, qr_error *err)
{
    int64_t streams = m->plan->config.hc_mult, rows = m->limits.max_rows;
    float *pre = qr_calloc((size_t)(rows * streams), sizeof *pre);
    if (!pre)
        return qr_fail(err, QR_NO_MEMORY, "model: no memory for the first mixing weights of %lld rows",
                       (long long)rows);
    for (int64_t row = 0; row < rows; row++)
        pre[row * streams] = 1.0f;
    qr_status st = m->backend->upload(m->backend, m->ws.pre_first, pre, rows * streams * (int64_t)sizeof *pre, err);
    if (st == QR_OK)
        st = m->backend->fence(m->backend, err);
    qr_free(pre);
    return st;
}

struct op_limits model_op_limits(const struct model_plan *plan, const struct model_limits *limits)
{
    return (struct op_limits){.plan = plan,
                              .max_rows = limits->max_rows,
                              .max_requests = limits->max_requests,
                              .max_positions = limits->max_positions};
}

static unsigned parts_of(const struct model_limits *limits)
{
    return WEIGHTS_BACKBONE | (limits->max_draft_rows > 0 ? WEIGHTS_DRAFTER : 0);
}

static qr_status make_workspace(struct model *m, qr_error *err)
{
    const struct op_limits largest = model_op_limits(m->plan, &m->limits);
    int64_t scratch;
    TRY(m->backend->reserve(m->backend, &largest, &scratch, err));
    TRY(m->backend->allocate(m->backend, model_workspace_bytes(m->plan, &m->limits), &m->memory, err));
    workspace_lay(m->plan, &m->limits, m->memory, &m->ws);
    return fill_first_pre(m, err);
}

static qr_status check_drafter(const struct model *m, const char *path, qr_error *err)
{
    const enum qr_drafter drafter = m->plan->config.drafter;
    if (drafter == QR_DRAFTER_NONE)
        return qr_fail(err, QR_UNSUPPORTED, "%s: drafts are wanted, but the folder holds no drafter", path);
    return QR_OK;
}

static qr_status open_parts(struct model *m, const struct checkpoint *ck, struct loading *loading, qr_error *err)
{
    const struct qr_config *c = &m->plan->config;
    if (m->limits.max_draft_rows > 0)
        TRY(check_drafter(m, checkpoint_path(ck), err));
    m->forward = c->family == QR_FAMILY_V41 ? v41_forward : v4_forward;
    TRY(check_names(ck, m->plan, err));
    TRY(rope_frequencies(c, ROPE_MAIN, m->frequencies[ROPE_MAIN], err));
    TRY(rope_frequencies(c, ROPE_COMPRESS, m->frequencies[ROPE_COMPRESS], err));
    TRY(weights_open_placed(ck, m->plan, parts_of(&m->limits), m->backend, m->limits.placement, loading, &m->weights, err));
    m->limits.placement = NULL;
    return make_workspace(m, err);
}

qr_status model_open(const struct checkpoint *ck, const struct model_plan *plan, struct backend *backend,
                     const struct model_limits *limits, struct loading *loading, struct model **out, qr_error *err)
{
    struct model *m = qr_calloc(1, sizeof *m);
    if (!m)
        return qr_fail(err, QR_NO_MEMORY, "model: no memory for its record");
    m->plan = plan;
    m->backend = backend;
    m->limits = *limits;

    qr_status st = open_parts(m, ck, loading, err);
    if (st != QR_OK) {
        model_close(m);
        return st;
    }
    *out = m;
    return QR_OK;
}

void model_rest(struct model *m)
{
    if (m->backend->rest_weights)
        weights_rest(&m->weights);
    else
        weights_close(&m->weights);
}

qr_status model_rise(struct model *m, const struct checkpoint *ck, struct loading *loading, qr_error *err)
{
    const unsigned parts = parts_of(&m->limits);
    if (m->backend->rest_weights)
        return weights_rise(ck, m->plan, parts, loading, &m->weights, err);
    return weights_open(ck, m->plan, parts, m->backend, loading, &m->weights, err);
}

qr_status model_expert_uses(const struct model *m, uint64_t *out, qr_error *err)
{
    const int32_t experts = m->plan->config.n_routed_experts;
    memset(out, 0, (size_t)m->plan->layers * (size_t)experts * sizeof *out);
    for (int32_t i = 0; m->backend->expert_uses && i < m->plan->layers; i++)
        TRY(m->backend->expert_uses(m->backend, experts, m->weights.layer[i].routed.w1, out + (int64_t)i * experts, err));
    return QR_OK;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    weights_close(&m->weights);
    if (m->memory)
        m->backend->release(m->backend, m->memory);
    qr_free(m);
}

const struct workspace *model_workspace(const struct model *m) { return &m->ws; }

const struct model_plan *model_plan_of(const struct model *m) { return m->plan; }

static struct pass pass_of(const struct model *m, const struct model_pass *args)
{
    struct pass p = {.backend = m->backend,
                     .plan = m->plan,
                     .config = &m->plan->config,
                     .weights = &m->weights,
                     .ws = &m->ws,
                     .args = args,
                     .step = args->step,
                     .w8a8 = m->plan->profile == QR_PROFILE_W8A8,
                     .plain_keys = m->limits.plain_keys};
    p.frequencies[ROPE_MAIN] = m->frequencies[ROPE_MAIN];
    p.frequencies[ROPE_COMPRESS] = m->frequencies[ROPE_COMPRESS];
    return p;
}

qr_status model_forward(struct model *m, const struct model_pass *args, qr_error *err)
{
    struct pass p = pass_of(m, args);
    TRY(m->forward(&p, err));
    return m->ws.taps_q.codes ? dspark_context(&p, err) : QR_OK;
}

qr_status model_draft(struct model *m, const struct model_draft *d, qr_error *err)
{
    const struct model_pass args = {.step = d->step, .rows = d->rows, .cache = d->cache, .observer = d->observer};
    struct pass p = pass_of(m, &args);
    if (m->limits.max_draft_rows < 1)
        return qr_fail(err, QR_INTERNAL, "model: a draft pass, but the drafter was not opened");
    if (m->plan->config.drafter == QR_DRAFTER_MTP)
        return mtp_forward(&p, d, err);
    p.draft_block = true;
    p.window_low = d->window_low;
    return dspark_draft(&p, err);
}

qr_status model_markov(struct model *m, const int32_t *tokens, int32_t count, qr_error *err)
{
    struct pass p = pass_of(m, &(struct model_pass){0});
    if (!m->ws.markov.codes || count > m->limits.max_requests)
        return qr_fail(err, QR_INTERNAL, "model: the Markov head for %d tokens, wanted a DSpark drafter and at most %d",
                       count, m->limits.max_requests);
    return dspark_markov(&p, tokens, count, err);
}

qr_status model_keep_streams(struct model *m, const struct model_cache *cache, int32_t row, int32_t slot, qr_error *err)
{
    int64_t bytes = cache->geometry->draft_stream_bytes;
    return m->backend->copy(m->backend, cache->base + geometry_draft_stream(cache->geometry, cache->pool, slot),
                            (const uint8_t *)m->ws.streams.data + row * bytes, bytes, err);
}
