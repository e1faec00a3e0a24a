#include "cli/plan.h"

static void say_bytes(const struct qr_log *log, const char *what, uint64_t bytes)
{
    qr_logf(log, QR_LOG_INFO, "plan: %-28s %15llu bytes (%.2f GiB)", what, (unsigned long long)bytes,
            (double)bytes / (1 << 30));
}

static void say_plan(const struct qr_log *log, const qr_plan_bytes *p)
{
    say_bytes(log, "weights", p->weights);
    if (p->tables)
        say_bytes(log, "Engram tables, by row", p->tables);
    say_bytes(log, "PAGE pool", p->pages);
    say_bytes(log, "STATE pool", p->states);
    say_bytes(log, "workspace", p->workspace);
    if (p->device_total) {
        say_bytes(log, "device: weights", p->device_weights);
        say_bytes(log, "device: workspace", p->device_workspace);
        say_bytes(log, "device: of it, index scores", p->device_scores);
        say_bytes(log, "device: recorded steps", p->device_graphs);
        say_bytes(log, "device: collective reserve", p->device_collective);
        say_bytes(log, "device: others, and safety", p->device_beside);
        say_bytes(log, "device: all of it", p->device_total);
    }
    if (p->host_experts) {
        say_bytes(log, "experts in pinned memory", p->host_expert_bytes);
        qr_logf(log, QR_LOG_INFO, "plan: %llu routed experts on the device, %llu in host memory, seats for %llu",
                (unsigned long long)p->device_experts, (unsigned long long)p->host_experts, (unsigned long long)p->seats);
    }
    qr_logf(log, QR_LOG_INFO, "plan: requests of up to %d tokens, %llu at once, in %llu blocks of %llu bytes",
            p->max_model_len, (unsigned long long)p->slots, (unsigned long long)p->blocks,
            (unsigned long long)p->block_bytes);
}

qr_status plan_made(const struct model_options *options, qr_engine_options *engine, qr_plan_bytes *out, qr_error *err)
{
    const qr_model_options model = model_options_model(options);
    const struct qr_log log = model_options_log(options);
    qr_status st = qr_plan(options->model, &model, engine, out, err);
    if (st != QR_OK)
        return st;
    say_plan(&log, out);
    engine->max_model_len = out->max_model_len;
    engine->kv_ram_bytes = out->pages + out->states;
    if (out->host_experts) /* as planned, whatever the pools leave now */
        engine->expert_memory = (out->device_experts + out->seats) * (out->host_expert_bytes / out->host_experts);
    return QR_OK;
}

qr_status plan_before_loading(const struct model_options *options, qr_engine_options *engine, qr_error *err)
{
    qr_plan_bytes plan;
    return plan_made(options, engine, &plan, err);
}
