/* GET /metrics: counters and gauges in Prometheus' text form (protocol.md 4.9). */
#include <math.h>

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
        buffer_printf(b, "quire_requests_finished_total{reason=\"%s\"} %llu\n", ended_by_names[i], (unsigned long long)c.ended[i]);
    head(b, "disconnects_total", "counter", "clients that went away, by what their request was doing");
    for (int i = 0; i < GONE_PHASES; i++)
        buffer_printf(b, "quire_disconnects_total{phase=\"%s\"} %llu\n", gone_phase_names[i], (unsigned long long)c.gone[i]);
    head(b, "parser_recovered_total", "counter", "tool calls that were not taken as they came");
    buffer_printf(b, "quire_parser_recovered_total{kind=\"refused\"} %llu\nquire_parser_recovered_total{kind=\"cut\"} %llu\n",
                  (unsigned long long)c.refused_calls, (unsigned long long)c.cut_calls);
    counter(b, "parser_discarded_tokens_total", "tokens behind finished calls", c.discarded_tokens);
    counter(b, "reasoning_tokens_total", "tokens of reasoning", c.reasoning_tokens);
    histogram(b, "e2e_seconds", "from a request to its last token", &c.seconds);
}

static void write_engine(const struct server *s, struct buffer *b)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(s->engine, &m);
    gauge(b, "requests_running", "requests that are being computed", (double)m.requests_running);
    gauge(b, "requests_waiting", "requests that wait for their turn", (double)m.requests_waiting);
    counter(b, "prompt_tokens_total", "prompt tokens of requests, cached ones included", m.prompt_tokens);
    counter(b, "cached_prompt_tokens_total", "prompt tokens that the prefix cache held", m.cached_tokens);
    counter(b, "generation_tokens_total", "tokens that were made", m.output_tokens);
    histogram(b, "queue_seconds", "from a request to its first step", &m.queue);
    histogram(b, "ttft_seconds", "from a request to its first token", &m.time_to_first_token);
    histogram(b, "itl_seconds", "between two tokens of a request", &m.inter_token);
    histogram(b, "step_seconds", "steps of the engine", &m.step);
    counter(b, "steps_total", "steps of the engine", m.steps);
    head(b, "kv_blocks", "gauge", "pages of the cache by state");
    buffer_printf(b, "quire_kv_blocks{state=\"free\"} %llu\nquire_kv_blocks{state=\"used\"} %llu\n",
                  (unsigned long long)m.blocks_free, (unsigned long long)(m.blocks_total - m.blocks_free));
    gauge(b, "kv_usage_ratio", "share of the cache's pages in use",
          m.blocks_total ? 1.0 - (double)m.blocks_free / (double)m.blocks_total : 0);
    gauge(b, "state_images", "state images held", (double)m.images_held);
    counter(b, "preemptions_total", "requests that gave their pages back", m.preemptions);
    counter(b, "prefix_lookup_tokens_total", "prompt tokens that were looked up", m.looked_up_tokens);
    counter(b, "prefix_hit_tokens_total", "of them found", m.cached_tokens);
    counter(b, "draft_tokens_total", "drafted tokens that were verified", m.drafts.verified);
    counter(b, "draft_accepted_total", "of them accepted", m.drafts.accepted);
    head(b, "build_info", "gauge", "what runs here");
    buffer_printf(b, "quire_build_info{version=\"%s\",commit=\"%s\",model=\"%s\",family=\"%s\",backend=\"%s\",profile=\"%s\"} 1\n",
                  qr_version(), quire_commit, s->info.name, s->info.family, s->info.backend, s->info.profile);
    if (!s->settings.metrics_alias_vllm)
        return;
    buffer_printf(b, "vllm:num_requests_running %llu\nvllm:num_requests_waiting %llu\nvllm:prompt_tokens_total %llu\n"
                     "vllm:generation_tokens_total %llu\nvllm:num_preemptions_total %llu\nvllm:prefix_cache_queries_total %llu\n"
                     "vllm:prefix_cache_hits_total %llu\nvllm:kv_cache_usage_perc %g\n",
                  (unsigned long long)m.requests_running, (unsigned long long)m.requests_waiting,
                  (unsigned long long)m.prompt_tokens, (unsigned long long)m.output_tokens, (unsigned long long)m.preemptions,
                  (unsigned long long)m.looked_up_tokens, (unsigned long long)m.cached_tokens,
                  m.blocks_total ? 1.0 - (double)m.blocks_free / (double)m.blocks_total : 0);
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
