/* GET /metrics: counters and gauges in Prometheus' text form (protocol.md 4.9). */
#include <math.h>

#include "base/clock.h"
#include "serve/api.h"
#include "serve/routes.h"
#include "serve/server.h"

static void head(struct buffer *b, const char *name, const char *type, const char *help)
{
    buffer_printf(b, "# HELP quire_%s %s\n# TYPE quire_%s %s\n", name, help, name, type);
}

static void counter(struct buffer *b, const char *name, const char *help, uint64_t value)
{
    head(b, name, "counter", help);
    buffer_printf(b, "quire_%s %llu\n", name, (unsigned long long)value);
}

static void labelled(struct buffer *b, const char *name, const char *label, const char *value, uint64_t n)
{
    buffer_printf(b, "quire_%s{%s=\"%s\"} %llu\n", name, label, value, (unsigned long long)n);
}

static void gauge(struct buffer *b, const char *name, const char *help, double value)
{
    head(b, name, "gauge", help);
    buffer_printf(b, "quire_%s %.17g\n", name, value);
}

static void histogram(struct buffer *b, const char *name, const char *help, const qr_histogram *h)
{
    uint64_t sum = 0;
    head(b, name, "histogram", help);
    for (int i = 0; i < QR_HISTOGRAM_BUCKETS; i++) {
        sum += h->count[i];
        if (isfinite(qr_histogram_bound(i)))
            buffer_printf(b, "quire_%s_bucket{le=\"%g\"} %llu\n", name, qr_histogram_bound(i), (unsigned long long)sum);
        else
            buffer_printf(b, "quire_%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)sum);
    }
    buffer_printf(b, "quire_%s_sum %.9g\nquire_%s_count %llu\n", name, h->sum, name, (unsigned long long)sum);
}

static void write_answers(const struct server *s, struct buffer *b)
{
    head(b, "requests_total", "counter", "HTTP answers by endpoint and status");
    for (size_t r = 0; r <= route_count(); r++)
        for (int status = 200; status < 600; status++) {
            const uint64_t n = counters_answers(s->counters, r, status);
            if (n)
                buffer_printf(b, "quire_requests_total{endpoint=\"%s\",status=\"%d\"} %llu\n",
                              r < route_count() ? route_at(r)->path : "none", status, (unsigned long long)n);
        }
}

static void write_counted(const struct server *s, struct buffer *b)
{
    const struct counted c = counters_get(s->counters);
    head(b, "requests_finished_total", "counter", "generations by how they ended");
    for (int i = 0; i < ENDED_KINDS; i++)
        labelled(b, "requests_finished_total", "reason", ended_by_names[i], c.ended[i]);
    head(b, "disconnects_total", "counter", "clients that went away, by what their request was doing");
    for (int i = 0; i < GONE_PHASES; i++)
        labelled(b, "disconnects_total", "phase", gone_phase_names[i], c.gone[i]);
    head(b, "parser_recovered_total", "counter", "tool calls that were not taken as they came");
    labelled(b, "parser_recovered_total", "kind", "refused", c.refused_calls);
    labelled(b, "parser_recovered_total", "kind", "cut", c.cut_calls);
    counter(b, "parser_discarded_tokens_total", "tokens behind finished calls", c.discarded_tokens);
    counter(b, "parser_discarded_bytes_total", "their bytes", c.discarded_bytes);
    counter(b, "reasoning_tokens_total", "tokens of reasoning", c.reasoning_tokens);
    histogram(b, "first_byte_seconds", "from the last byte of a request to the first token of its stream, or to its whole answer", &c.first_byte);
    histogram(b, "e2e_seconds", "from a request to its last token", &c.seconds);
}

static double kv_usage(const qr_metrics *m)
{
    return m->blocks_total ? 1.0 - (double)m->blocks_free / (double)m->blocks_total : 0;
}

static void write_cache(const struct server *s, const qr_metrics *m, struct buffer *b)
{
    counter(b, "prefix_lookup_tokens_total", "prompt tokens that were looked up", m->looked_up_tokens);
    counter(b, "prefix_hit_tokens_total", "of them found", m->cached_tokens);
    counter(b, "prefix_wanted_tokens_total", "of them that a cache which forgets nothing had found", m->wanted_tokens);
    const uint64_t looked = m->looked_up_tokens;
    gauge(b, "prefix_hit_ratio", "found of those looked up", looked ? (double)m->cached_tokens / (double)looked : 0);
    head(b, "prefix_hits_total", "counter", "prompts that started from cached pages, by how");
    labelled(b, "prefix_hits_total", "start", "restored", m->hits_restored);
    labelled(b, "prefix_hits_total", "start", "restored_lower", m->hits_restored_lower);
    labelled(b, "prefix_hits_total", "start", "rerun", m->hits_rerun);
    head(b, "rows_total", "counter", "rows of steps");
    labelled(b, "rows_total", "kind", "prefill", m->prefill_rows);
    labelled(b, "rows_total", "kind", "decode", m->decode_rows);
    labelled(b, "rows_total", "kind", "rerun", m->rows_rerun);
    labelled(b, "rows_total", "kind", "backed_off", m->rows_backed_off);
    counter(b, "row_layers_trimmed_total", "rows times layers that no result needed", m->row_layers_trimmed);
    gauge(b, "state_images", "state images held", (double)m->images_held);
    head(b, "state_images_total", "counter", "state images by what became of them");
    labelled(b, "state_images_total", "fate", "kept", m->images_kept);
    labelled(b, "state_images_total", "fate", "dropped", m->images_dropped);
    labelled(b, "state_images_total", "fate", "evicted", m->images_evicted);
    labelled(b, "state_images_total", "fate", "orphaned", m->images_orphaned);
    head(b, "state_bytes_moved_total", "counter", "bytes of states copied into images and back");
    labelled(b, "state_bytes_moved_total", "direction", "saved", m->images_kept * s->plan.state_bytes);
    labelled(b, "state_bytes_moved_total", "direction", "restored", (m->hits_restored + m->hits_restored_lower) * s->plan.state_bytes);
}

static void write_drafts(const qr_draft_metrics *d, struct buffer *b)
{
    counter(b, "draft_tokens_total", "drafted tokens that were verified", d->verified);
    counter(b, "draft_accepted_total", "of them accepted", d->accepted);
    counter(b, "draft_proposed_total", "tokens that the drafter made", d->proposed);
    gauge(b, "draft_acceptance_ratio", "accepted of those verified", d->acceptance_rate);
    gauge(b, "draft_acceptance_length", "tokens of an answer that a step brings", d->acceptance_length_decode_steps);
    head(b, "draft_rests_total", "counter", "decode steps of requests that verified no draft, by why");
    for (int i = 0; i < QR_REST_REASONS; i++)
        labelled(b, "draft_rests_total", "reason", qr_rest_name((qr_rest)i), d->rests[i]);
}

static void alias(struct buffer *b, const char *name, const char *type, const char *ours, double value)
{
    buffer_printf(b, "# HELP vllm:%s as quire_%s\n# TYPE vllm:%s %s\nvllm:%s %.17g\n", name, ours, name, type, name, value);
}

/* Names that dashboards know. */
static void write_aliases(const qr_metrics *m, struct buffer *b)
{
    alias(b, "num_requests_running", "gauge", "requests_running", (double)m->requests_running);
    alias(b, "num_requests_waiting", "gauge", "requests_waiting", (double)m->requests_waiting);
    alias(b, "prompt_tokens_total", "counter", "prompt_tokens_total", (double)m->prompt_tokens);
    alias(b, "generation_tokens_total", "counter", "generation_tokens_total", (double)m->output_tokens);
    alias(b, "num_preemptions_total", "counter", "preemptions_total", (double)m->preemptions);
    alias(b, "prefix_cache_queries_total", "counter", "prefix_lookup_tokens_total", (double)m->looked_up_tokens);
    alias(b, "prefix_cache_hits_total", "counter", "prefix_hit_tokens_total", (double)m->cached_tokens);
    alias(b, "kv_cache_usage_perc", "gauge", "kv_usage_ratio", kv_usage(m));
}

static void write_engine(const struct server *s, struct buffer *b)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(s->engine, &m);
    gauge(b, "requests_running", "requests that are being computed", (double)m.requests_running);
    gauge(b, "requests_paused", "of those: that rest until their clients have read", (double)m.requests_paused);
    gauge(b, "requests_waiting", "requests that wait for their turn", (double)m.requests_waiting);
    gauge(b, "requests_prefilling", "of the running ones those that have said nothing yet", (double)m.requests_prefilling);
    counter(b, "prompt_tokens_total", "prompt tokens of requests, cached ones included", m.prompt_tokens);
    counter(b, "cached_prompt_tokens_total", "prompt tokens that the prefix cache held", m.cached_tokens);
    counter(b, "generation_tokens_total", "tokens that were made", m.output_tokens);
    histogram(b, "queue_seconds", "from a request to its first step", &m.queue);
    histogram(b, "ttft_seconds", "from a request to its first token", &m.time_to_first_token);
    histogram(b, "itl_seconds", "between two tokens of a request", &m.inter_token);
    histogram(b, "step_seconds", "steps of the engine", &m.step);
    counter(b, "steps_total", "steps of the engine", m.steps);
    counter(b, "prefill_steps_total", "of them those with rows of prompts", m.prefill_steps);
    counter(b, "prefill_chunks_total", "chunks of prompts in those", m.prefill_chunks);
    counter(b, "prefill_context_tokens_total", "tokens before those chunks", m.prefill_context_tokens);
    counter(b, "decode_steps_total", "steps with rows of requests that decode", m.decode_steps);
    counter(b, "decode_requests_total", "those requests, step by step", m.decode_requests);
    head(b, "kv_blocks", "gauge", "pages of the cache by state");
    labelled(b, "kv_blocks", "state", "free", m.blocks_free);
    labelled(b, "kv_blocks", "state", "used", m.blocks_total - m.blocks_free);
    gauge(b, "kv_blocks_vacant", "free ones that hold nothing; the others give way when need be", (double)m.blocks_vacant);
    gauge(b, "kv_usage_ratio", "share of the cache's pages in use", kv_usage(&m));
    counter(b, "preemptions_total", "requests that gave their pages back", m.preemptions);
    write_cache(s, &m, b);
    counter(b, "graph_replays_total", "lists of operators replayed as graphs, on a GPU", m.graphs_replayed);
    counter(b, "graph_misses_total", "lists for which no graph was there", m.lists_eager);
    counter(b, "experts_found_total", "routed experts that steps found on a GPU, with some in host memory", m.experts_found);
    counter(b, "experts_copied_total", "those that they had to copy there", m.experts_copied);
    counter(b, "expert_bytes_copied_total", "bytes of these", m.expert_bytes);
    write_drafts(&m.drafts, b);
    gauge(b, "last_step_age_seconds", "since the last step that went well; -1: none yet", m.last_step_age);
    gauge(b, "longest_silence_seconds", "since the last token of the request that has been silent longest", m.longest_silence);
    head(b, "process_cpu_seconds_total", "counter", "processor time of all threads");
    buffer_printf(b, "quire_process_cpu_seconds_total %.6f\n", clock_cpu_seconds());
    head(b, "build_info", "gauge", "what runs here");
    buffer_printf(b, "quire_build_info{version=\"%s\",commit=\"%s\",model=\"%s\",family=\"%s\",backend=\"%s\",profile=\"%s\"} 1\n",
                  qr_version(), quire_commit, s->info.name, s->info.family, s->info.backend, s->info.profile);
    if (s->settings.metrics_alias_vllm)
        write_aliases(&m, b);
}

enum MHD_Result api_metrics(struct exchange *x)
{
    struct buffer b = {0};
    write_engine(x->server, &b);
    write_counted(x->server, &b);
    write_answers(x->server, &b);
    const enum MHD_Result r = b.failed ? exchange_json(x, 500, NULL)
                                       : exchange_text(x, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.length);
    buffer_free(&b);
    return r;
}
