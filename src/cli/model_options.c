#include "cli/model_options.h"

#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {
    [QR_LOG_ERROR] = "error", [QR_LOG_WARN] = "warn", [QR_LOG_INFO] = "info", [QR_LOG_DEBUG] = "debug"};

static void write_line(void *user, enum qr_log_level level, const char *line)
{
    (void)user;
    fprintf(stderr, "quire: %s: %s\n", level_names[level], line);
}

struct qr_log model_options_log(const struct model_options *m)
{
    struct qr_log log = {.write = write_line, .level = QR_LOG_ERROR};
    for (int level = QR_LOG_ERROR; !m->quiet && level <= QR_LOG_DEBUG; level++)
        if (strcmp(m->log_level, level_names[level]) == 0)
            log.level = (enum qr_log_level)level;
    return log;
}

static void print_line(void *user, qr_log_severity severity, const char *line)
{
    write_line(user, (enum qr_log_level)severity, line);
}

qr_model_options model_options_model(const struct model_options *m)
{
    qr_model_options o = QR_MODEL_OPTIONS;
    o.device = m->device;
    o.profile = m->profile;
    o.prompt_profile = m->prompt_profile;
    o.threads = m->threads;
    o.log = print_line;
    o.log_level = (qr_log_severity)model_options_log(m).level;
    return o;
}

qr_engine_options model_options_engine(const struct model_options *m)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.max_model_len = m->max_model_len;
    o.max_num_seqs = m->max_num_seqs;
    o.max_num_batched_tokens = m->max_num_batched_tokens;
    o.kv_ram_bytes = m->kv_ram_bytes;
    o.gpu_memory_utilization = m->gpu_utilization;
    o.indexer_logits_budget_mb = m->indexer_logits_mb;
    o.expert_memory = m->expert_memory;
    o.expert_use = m->expert_use;
    o.cudagraph_mode = m->graph_mode;
    o.cudagraph_capture_sizes = m->capture_sizes;
    o.level = m->level;
    o.enforce_eager = m->eager;
    o.block_size = m->block_size;
    o.kv_cache_dtype = m->kv_cache_dtype;
    o.index_cache_dtype = m->index_cache_dtype;
    o.decoder_replay = m->decoder_replay;
    o.encoder_replay = m->encoder_replay;
    o.prefix_provenance = m->prefix_provenance;
    o.max_prefill_tokens_per_step = m->max_prefill_rows;
    o.attn_prefill_chunk_size = m->attn_chunk;
    o.long_prefill_cap = m->long_prefill_cap;
    o.state_checkpoint_interval_tokens = m->image_interval;
    o.scheduler_delay_factor = m->delay_factor;
    o.no_prefix_caching = m->no_prefix_caching;
    o.method = m->method;
    o.num_speculative_tokens = m->speculative_tokens;
    o.draft_width = m->draft_width;
    o.verifier = m->verifier;
    o.draft_sampling = m->draft_sampling;
    o.forced_acceptance_length = m->forced_length;
    o.speculation_profile = m->speculation_profile;
    o.flags = &m->features[0][0];
    o.flag_count = FEATURE_COUNT;
    return o;
}

int report_failure(const char *command, const qr_error *err)
{
    fflush(stdout);
    fprintf(stderr, "quire %s: %s\n", command, *err->message ? err->message : qr_status_name(err->status));
    return err->status == QR_REFUSED ? 3 : err->status == QR_BAD_ARGUMENT ? 2 : 1;
}
