#include "tools/opened.h"

#include <string.h>

#include "base/memory.h"
#include "cli/plan.h"
#include "engine/model.h"
#include "engine/modes.h"
#include "ops/device.h"
#include "plan/settle.h"
#include "tools/open_map.h"

qr_status opened_config(const struct model_options *m, struct opened *out, qr_error *err)
{
    const qr_model_options given = model_options_model(m);
    return model_config_read(m->model, &given, &out->config, &out->plan, err);
}

qr_status opened_geometry(const struct model_options *m, bool drafts, struct opened *o, qr_error *err)
{
    struct geometry_options g = geometry_defaults(&o->plan);
    if (!drafts)
        g.draft_width = 0;
    if (m->block_size > 0)
        g.block_tokens = m->block_size;
    if (m->kv_cache_dtype)
        row_format_parse(m->kv_cache_dtype, false, &g.main_format);
    if (m->index_cache_dtype)
        row_format_parse(m->index_cache_dtype, true, &g.index_format);
    return geometry_make(&o->plan, &g, &o->geometry, err);
}

/* ---- the plan ---- */

static qr_status check_length(const struct opened *o, const struct model_options *m, int32_t longest, qr_error *err)
{
    const int32_t positions = o->config.max_position_embeddings;
    if (m->max_model_len > positions)
        return qr_fail(err, QR_REFUSED, "max-model-len is %d, wanted at most max_position_embeddings %d", m->max_model_len,
                       positions);
    if (longest > (m->max_model_len ? m->max_model_len : positions))
        return qr_fail(err, QR_BAD_REQUEST, "a request of %d tokens, wanted at most %s %d", longest,
                       m->max_model_len ? "--max-model-len" : "max_position_embeddings",
                       m->max_model_len ? m->max_model_len : positions);
    return QR_OK;
}

/* Every request of a step is there at once, so pools have one size. */
static qr_status check_pools(const struct pool_layout *pool, uint64_t given, qr_error *err)
{
    if (given == 0 || (uint64_t)pool->bytes <= given)
        return QR_OK;
    return qr_fail(err, QR_REFUSED,
                   "E31 %lld STATE entries and %lld blocks take %lld bytes, %llu more than the %llu given to the cache; "
                   "--kv-ram-bytes %lld would do",
                   (long long)pool->slots, (long long)pool->blocks, (long long)pool->bytes,
                   (unsigned long long)((uint64_t)pool->bytes - given), (unsigned long long)given, (long long)pool->bytes);
}

/* An engine's workspace, which the plan counts, has fewer rows of logits. */
static qr_status check_workspace(const struct opened *o, const struct pool_layout *pool, const struct model_limits *limits,
                                 qr_error *err)
{
    const int64_t available = memory_available(), workspace = model_workspace_bytes(&o->plan, limits);
    if (available == 0 || (pool->bytes <= available && workspace <= available - pool->bytes))
        return QR_OK;
    return qr_fail(err, QR_REFUSED,
                   "E31 pools of %lld bytes and a workspace of %lld for steps of %d rows are more than the %lld available; "
                   "fewer rows a step (chunks) or shorter requests take less",
                   (long long)pool->bytes, (long long)workspace, limits->max_rows, (long long)available);
}

qr_status opened_plan(struct opened *o, const struct model_options *m, const struct runner_options *steps,
                      qr_error *err)
{
    qr_engine_options engine = model_options_engine(m);
    struct pool_layout pool;
    TRY(check_length(o, m, steps->model.max_positions, err));
    TRY(geometry_pool(&o->geometry, steps->blocks, steps->slots, &pool, err));
    TRY(check_pools(&pool, m->kv_ram_bytes, err));
    TRY(check_workspace(o, &pool, &steps->model, err));
    engine.kv_ram_bytes = (uint64_t)pool.bytes;
    engine.method = o->geometry.options.draft_width > 0 ? "auto" : "none";
    engine.max_model_len = steps->model.max_positions;
    engine.max_num_seqs = steps->model.max_requests;
    engine.max_num_batched_tokens = steps->model.max_rows;
    return plan_made(m, &engine, &o->bytes, err);
}

/* ---- loading ---- */

/* Steps run as the options say; what they must not say was refused with the plan. */
static void run_as(const struct opened *o, const struct model_options *m)
{
    struct rule_list broken = {.used = 0};
    const qr_engine_options engine = model_options_engine(m);
    const struct run_mode mode = modes_choose(&engine, backend_records(m->device), &broken);
    if (o->backend->run_as)
        o->backend->run_as(o->backend, &mode);
}

/* A runner with its experts where the plan has them. */
static qr_status open_runner(struct opened *o, const struct runner_options *steps, qr_error *err)
{
    struct expert_placement placement;
    struct runner_options options = *steps;
    if (o->bytes.host_experts == 0)
        return runner_open(o->checkpoint, &o->plan, &o->geometry, o->backend, o->config.n_engram > 0 ? &o->map : NULL, steps,
                           &o->runner, err);
    TRY(placement_make(o->plan.layers, o->config.n_routed_experts, (int64_t)o->bytes.device_experts, (int32_t)o->bytes.seats,
                       NULL, &placement, err));
    options.model.placement = &placement;
    const qr_status st = runner_open(o->checkpoint, &o->plan, &o->geometry, o->backend,
                                     o->config.n_engram > 0 ? &o->map : NULL, &options, &o->runner, err);
    placement_free(&placement);
    return st;
}

qr_status opened_load(struct opened *o, const struct model_options *m, const struct runner_options *steps, qr_error *err)
{
    const struct qr_log log = model_options_log(m);
    const struct qr_config stated = o->config;
    TRY(checkpoint_open(m->model, &o->checkpoint, err));
    TRY(config_settle(o->checkpoint, &o->config, err));
    if (memcmp(&stated, &o->config, sizeof stated) != 0) /* the shards decide what config.json leaves open */
        TRY(plan_make(&o->config, o->plan.profile, &o->plan, err));
    TRY(open_token_map(m->model, &o->config, &log, &o->map, err));
    TRY(backend_open(m->device, m->threads, &log, &o->backend, err));
    run_as(o, m);
    return open_runner(o, steps, err);
}

void opened_close(struct opened *o)
{
    runner_close(o->runner);
    if (o->backend)
        o->backend->close(o->backend);
    token_map_free(&o->map);
    checkpoint_close(o->checkpoint);
    *o = (struct opened){.checkpoint = NULL};
}
