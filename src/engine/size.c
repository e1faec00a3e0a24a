#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cache/budget.h"
#include "engine/draft_schedule.h"
#include "engine/engine.h"
#include "engine/expert_size.h"
#include "engine/rules.h"
#include "engine/structs.h"
#include "model/w8a8.h"
#include "model/weight_bytes.h"
#include "ops/device.h"
#include "plan/schema.h"
#include "run/assemble.h"
#include "run/ngrams.h"
#include "text/token_trie.h"

/* Rows of a step whose logits may be wanted: prompt log probabilities and scores come in chunks of that many. */
enum { LOGIT_ROWS = 64 };

static qr_status read_options(const qr_engine_options *given, qr_engine_options *o, qr_error *err)
{
    static const qr_engine_options defaults = QR_ENGINE_OPTIONS;
    *o = defaults;
    qr_status st = given ? struct_take("qr_engine_options", given, sizeof *o, o, err) : QR_OK;
    if (st != QR_OK)
        return st;
    if (o->max_model_len < 0 || o->max_num_seqs < 0 || o->max_num_batched_tokens < 0 || o->block_size < 0)
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "max_model_len %d, max_num_seqs %d, max_num_batched_tokens %d, block_size %d: "
                       "none may be negative",
                       o->max_model_len, o->max_num_seqs, o->max_num_batched_tokens, o->block_size);
    if (o->max_prefill_tokens_per_step < -1 || o->attn_prefill_chunk_size < 0 || o->long_prefill_cap < 0 ||
        o->state_checkpoint_interval_tokens < 0 || !(o->scheduler_delay_factor >= 0))
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "max_prefill_tokens_per_step %d, attn_prefill_chunk_size %d, long_prefill_cap %d, "
                       "state_checkpoint_interval_tokens %d, scheduler_delay_factor %g: none may be negative, the first may "
                       "be -1",
                       o->max_prefill_tokens_per_step, o->attn_prefill_chunk_size, o->long_prefill_cap,
                       o->state_checkpoint_interval_tokens, o->scheduler_delay_factor);
    if (!(o->gpu_memory_utilization >= 0 && o->gpu_memory_utilization <= 1) || o->indexer_logits_budget_mb < 0)
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "gpu_memory_utilization %g, indexer_logits_budget_mb %d: wanted 0 to 1, and no negative number",
                       o->gpu_memory_utilization, o->indexer_logits_budget_mb);
    if (o->flag_count && !o->flags)
        return qr_fail(err, QR_BAD_ARGUMENT, "flags: %zu pairs at NULL", o->flag_count);
    if (o->max_num_seqs == 0)
        o->max_num_seqs = 1;
    if (o->max_num_batched_tokens == 0)
        o->max_num_batched_tokens = 2048;
    if (o->attn_prefill_chunk_size == 0)
        o->attn_prefill_chunk_size = 16384;
    if (o->gpu_memory_utilization == 0)
        o->gpu_memory_utilization = 0.9;
    return QR_OK;
}

/* Bytes of the Engram tables: mapped and read by row, so no part of what must stay resident. */
static int64_t table_bytes(const struct qr_config *c)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < c->n_engram; i++)
        rows += c->engram_num_embeddings[i];
    return rows * (c->engram_head_dim + c->engram_head_dim / 32);
}

/* Bytes of the weights that the w8a8 profile holds in a form of its own: derived from an official folder, or turned. */
static qr_status prepared_bytes(const struct model_plan *plan, bool drafter, int64_t *out, qr_error *err)
{
    struct byte_plan bytes = {.items = NULL};
    *out = 0;
    if (plan->profile != QR_PROFILE_W8A8)
        return QR_OK;
    qr_status st = w8a8_plan_bytes(plan, drafter, &bytes, err);
    if (st == QR_OK && bytes.failed)
        st = qr_fail(err, QR_NO_MEMORY, "no memory for the byte plan");
    if (st == QR_OK)
        *out = byte_plan_total(&bytes, BYTES_PREPARED);
    byte_plan_free(&bytes);
    return st;
}

/* The container that a flag names, where one is given; which containers a model takes is geometry's to say. */
static qr_status read_format(const char *field, const char *name, bool index, enum row_format *format, qr_error *err)
{
    if (!name || row_format_parse(name, index, format))
        return QR_OK;
    return qr_fail(err, QR_REFUSED, "%s %s is \"%s\", wanted %s", index ? "E05" : "E06", field, name,
                   index ? "fp4, fp8 or int8" : "bf16 or fp4");
}

/* What the planes look like; rules that they break are added to the list. A failure of another kind is returned. */
static qr_status choose_geometry(const struct model_plan *plan, const qr_engine_options *o, const struct draft_choice *drafts,
                                 struct geometry *out, struct rule_list *broken, qr_error *err)
{
    struct geometry_options formats = geometry_defaults(plan);
    qr_error found[3] = {0};
    formats.draft_width = drafts->width;
    if (o->block_size)
        formats.block_tokens = o->block_size;
    read_format("kv cache dtype", o->kv_cache_dtype, false, &formats.main_format, &found[0]);
    read_format("index cache dtype", o->index_cache_dtype, true, &formats.index_format, &found[1]);
    geometry_make(plan, &formats, out, &found[2]);
    for (int i = 0; i < 3; i++) {
        if (found[i].status == QR_OK)
            continue;
        if (found[i].status != QR_REFUSED)
            return qr_fail(err, found[i].status, "%s", found[i].message);
        rules_join(broken, &found[i]);
    }
    return QR_OK;
}

static struct model_limits choose_limits(const qr_engine_options *o, const struct draft_choice *drafts, int32_t length)
{
    const int32_t decode_rows = speculation_step_rows(drafts, o->max_num_seqs), /* and one left for a prompt */
        decode_logits = speculation_step_logits(drafts, o->max_num_seqs);
    const int64_t most = (int64_t)length * o->max_num_seqs;
    int32_t rows = o->max_num_batched_tokens < most ? o->max_num_batched_tokens : (int32_t)most;
    if (rows < decode_rows)
        rows = decode_rows;
    int32_t logits = rows < LOGIT_ROWS ? rows : LOGIT_ROWS;
    if (logits < decode_logits)
        logits = decode_logits;
    return (struct model_limits){.max_rows = rows,
                                 .max_requests = o->max_num_seqs,
                                 .max_logits = logits,
                                 .max_positions = length,
                                 .attention_rows = o->attn_prefill_chunk_size,
                                 .max_draft_rows = speculation_draft_rows(drafts, o->max_num_seqs, rows)};
}

static enum replay replay_of(const char *word)
{
    enum replay_mode mode;
    replay_mode_parse(word, &mode);
    return mode == REPLAY_MODE_OFF ? REPLAY_OFF : mode == REPLAY_MODE_BOUNDED ? REPLAY_BOUNDED : REPLAY_EXACT;
}

bool engine_is_bounded(const struct engine_size *size)
{
    const qr_engine_options *o = &size->options;
    return replay_of(o->decoder_replay) == REPLAY_BOUNDED || replay_of(o->encoder_replay) == REPLAY_BOUNDED;
}

/* Blocks of an engine whose resumes rebuild windows only in part are not those of a cold run. */
static enum provenance provenance_of(const qr_engine_options *o)
{
    const bool any = o->prefix_provenance && strcmp(o->prefix_provenance, "any") == 0;
    return replay_of(o->encoder_replay) == REPLAY_BOUNDED && !any ? PROVENANCE_REPLAYED : PROVENANCE_EXACT;
}

struct sched_options engine_sched_options(const struct model_plan *plan, const struct geometry *geometry,
                                          const struct pool_layout *pool, const struct engine_size *size)
{
    const qr_engine_options *o = &size->options;
    return (struct sched_options){.plan = plan,
                                  .geometry = geometry,
                                  .pool = pool,
                                  .max_requests = size->limits.max_requests,
                                  .max_rows = size->limits.max_rows,
                                  .max_logits = size->limits.max_logits,
                                  .max_length = (int32_t)size->budget.max_model_len,
                                  .max_prefill_rows = o->max_prefill_tokens_per_step,
                                  .long_prefill_cap = o->long_prefill_cap,
                                  .draft_width = size->drafts.limit,
                                  .image_token = plan->config.image_token_id,
                                  .prefix_cache = !o->no_prefix_caching,
                                  .provenance = provenance_of(o),
                                  .images = !o->no_prefix_caching,
                                  .decoder_replay = replay_of(o->decoder_replay),
                                  .encoder_replay = replay_of(o->encoder_replay),
                                  .image_interval = o->state_checkpoint_interval_tokens};
}

bool engine_watches_pages(const char *device)
{
#ifdef QR_DEBUG
    return strncmp(device, "cpu", 3) == 0;
#else
    (void)device;
    return false;
#endif
}

int64_t engine_request_bytes(int32_t limit, int32_t block_tokens)
{
    const struct request *r = NULL;
    return sched_request_bytes_for(limit, block_tokens) + limit * (int64_t)sizeof *r->answer;
}

static struct assembly_limits assembly_limits_of(const struct model_plan *plan, const struct engine_size *size,
                                                const struct model_limits *m)
{
    return (struct assembly_limits){.plan = plan,
                                    .geometry = &size->geometry,
                                    .blocks = size->blocks,
                                    .slots = size->slots,
                                    .max_rows = m->max_rows,
                                    .max_requests = m->max_requests,
                                    .max_logits = m->max_logits,
                                    .max_positions = m->max_positions,
                                    .attention_rows = m->attention_rows};
}

/* Everything beside weights and pools that an engine holds (architecture.md, law 3). */
static qr_status size_workspace(const struct model_plan *plan, const struct engine_place *place, struct engine_size *size,
                                qr_error *err)
{
    const struct model_limits *m = &size->limits;
    const struct op_limits largest = model_op_limits(plan, m);
    const struct assembly_limits lists = assembly_limits_of(plan, size, m);
    const struct sched_options sched = engine_sched_options(plan, &size->geometry, &size->budget.pool, size);
    const int32_t vocab = plan->config.vocab_size;
    struct workspace_sizes *w = &size->workspace;
    w->forward = model_workspace_bytes(plan, m);
    w->lists = assembly_bytes_for(&lists);
    w->engram = ngrams_bytes_for(plan, m->max_rows);
    w->sampling = vocab * (int64_t)sizeof(float) + (int64_t)sampler_scratch_bytes(vocab) +
                  m->max_requests * (int64_t)token_counts_bytes(vocab);
    w->grammars = (int64_t)token_trie_bytes_for(vocab) + m->max_requests * (int64_t)constraint_bytes(vocab);
    w->scheduler = sched_bytes_for(&sched) + m->max_requests * (int64_t)(sizeof(struct sched_result) + sizeof(int32_t));
    w->requests = m->max_requests * engine_request_bytes(m->max_positions, size->geometry.options.block_tokens);
    w->drafts = speculation_bytes_for(&size->drafts, m->max_requests, m->max_rows) +
                verdicts_bytes_for(&size->drafts, m->max_requests, vocab) +
                runner_draft_bytes_for(&lists, m->max_draft_rows);
    if (engine_watches_pages(place->device))
        w->scheduler += page_watch_bytes_for(size->blocks);
    if (size->on_device.memory.total > 0) {
        w->forward = 0; /* lists and drafts have a part on either side, and are counted whole on both */
        w->sampling += shortlists_bytes(vocab, m->max_logits);
    }
    return backend_scratch(place->device, place->threads, &largest, &w->scratch, err);
}

static int64_t workspace_total(const struct workspace_sizes *w)
{
    return w->forward + w->scratch + w->lists + w->engram + w->sampling + w->grammars + w->scheduler + w->requests + w->drafts;
}

/* Everything that is allocated must be there, however it was asked for: 2.10's clamp by what is free. `available` 0: the
 * system does not say. */
static qr_status check_available(const struct engine_size *size, int64_t available, int64_t ceiling, qr_error *err)
{
    const int64_t beside = size->prepared + (int64_t)size->bytes.workspace;
    const int64_t pools = size->on_device.memory.total > 0 ? 0 : size->budget.pool.bytes;
    const struct budget_request left = {.bytes = available - beside, .slots = size->slots, .ceiling = ceiling};
    struct budget fits;
    char hint[120] = "fewer requests at once (--max-num-seqs) or rows a step (--max-num-batched-tokens) take less";
    const struct device_plan *d = &size->on_device;
    const int64_t experts = d->on_host * d->expert_bytes;
    if (available > 0 && experts > 0 && beside <= available && experts > available - beside)
        return qr_fail(err, QR_REFUSED,
                       "E31 %lld routed experts of %lld bytes in pinned host memory beside %lld are more than the %lld available; "
                       "%lld bytes more of the device (--expert-memory, --gpu-memory-utilization) would do",
                       (long long)d->on_host, (long long)experts, (long long)beside, (long long)available,
                       (long long)(experts - (available - beside)));
    if (available == 0 || (beside <= available && pools <= available - beside))
        return QR_OK;
    if (budget_fit(&size->geometry, &left, &fits, NULL) == QR_OK)
        snprintf(hint, sizeof hint, "--kv-ram-bytes %lld would fit, for requests of up to %lld tokens",
                 (long long)fits.pool.bytes, (long long)fits.max_model_len);
    return qr_fail(err, QR_REFUSED,
                   "E31 pools of %lld bytes, a workspace of %lld and weights in another form of %lld are more than the %lld "
                   "available; %s",
                   (long long)pools, (long long)size->bytes.workspace, (long long)size->prepared, (long long)available, hint);
}

static int64_t cache_bytes(const qr_engine_options *o, int64_t available, int64_t weights)
{
    if (o->kv_ram_bytes == 0)
        return budget_default_bytes(available, weights);
    return o->kv_ram_bytes > INT64_MAX ? INT64_MAX : (int64_t)o->kv_ram_bytes;
}

/* ---- a device with memory of its own ---- */

/* Buffers of a step, of such limits. */
static void size_on_device(const struct model_plan *plan, const struct engine_size *size, const struct model_limits *m,
                           struct device_plan *d)
{
    struct assembly_limits lists = assembly_limits_of(plan, size, m);
    lists.blocks = lists.slots = 0; /* marks of a pool's pages are the host's */
    d->forward = model_workspace_bytes(plan, m);
    d->lists = assembly_bytes_for(&lists);
    d->drafts = runner_draft_bytes_for(&lists, m->max_draft_rows);
    d->sampling = shortlists_device_bytes(plan->config.vocab_size, m->max_logits);
}

static qr_status ask_device(const struct model_plan *plan, const struct engine_place *place, struct engine_size *out,
                            qr_error *err)
{
    struct device_plan *d = &out->on_device;
    struct weight_bytes weights;
    const int64_t scores = (int64_t)out->options.indexer_logits_budget_mb << 20;
    if (place->memory)
        d->memory = *place->memory;
    else
        TRY(backend_memory(place->device, &d->memory, err));
    if (d->memory.total == 0)
        return QR_OK;
    d->utilization = out->options.gpu_memory_utilization;
    if (out->mode.graphs == GRAPHS_NONE)
        d->memory.graphs = 0;
    if (scores > 0 && scores < d->memory.score_band)
        d->memory.score_band = scores;
    TRY(weight_bytes_count(plan, place->checkpoint, out->drafts.drafter != QR_DRAFTER_NONE, d->memory.weight_bytes,
                           d->memory.staged_bytes, &weights, err));
    d->matrices = weights.matrices;
    d->expert_bytes = weights.expert;
    d->experts = weights.expert > 0 ? weights.experts / weights.expert : 0;
    d->vectors = weights.vectors;
    d->staging = weights.staged > d->memory.staging ? weights.staged : d->memory.staging;
    return QR_OK;
}

/* What the pools may take: by number, or what everything else leaves of the device, with buffers as large as the longest
 * request could make them. */
static int64_t device_cache_bytes(const struct model_plan *plan, const struct budget_request *wanted, struct engine_size *out)
{
    const qr_engine_options *o = &out->options;
    struct device_plan *d = &out->on_device;
    const int64_t longest = o->max_model_len > 0 ? o->max_model_len : wanted->ceiling;
    const struct model_limits limits = choose_limits(o, &out->drafts, (int32_t)longest);
    size_on_device(plan, out, &limits, d);
    return o->kv_ram_bytes == 0 ? device_plan_cache(d) : cache_bytes(o, 0, 0);
}

/* Where routed experts lie, buffers being as large as the longest request could make them. */
static qr_status place_experts(const struct model_plan *plan, const struct budget_request *wanted, struct engine_size *out,
                               qr_error *err)
{
    const qr_engine_options *o = &out->options;
    struct device_plan *d = &out->on_device;
    const int64_t least = budget_least(&out->geometry, wanted), given = cache_bytes(o, 0, 0);
    const int64_t left = device_cache_bytes(plan, wanted, out);
    const struct expert_wish wish = {
        .bytes = o->expert_memory,
        .fit = o->kv_ram_bytes == 0 ? left >= least : device_plan_fits(d, given),
        .pools = o->kv_ram_bytes == 0 ? least : given,
        .by_share = o->kv_ram_bytes == 0,
        .of_layer = plan->config.n_routed_experts,
        .active = plan->config.n_experts_per_tok};
    return expert_size_choose(&wish, d, err);
}

/* A row's index scores are formed together. */
static qr_status check_scores(const struct model_plan *plan, const struct engine_size *size, qr_error *err)
{
    const struct device_memory *m = &size->on_device.memory;
    int64_t ratio = 0;
    for (int32_t i = 0; i < plan->layers; i++)
        if (plan->layer[i].owns_index && (ratio == 0 || plan->layer[i].ratio < ratio))
            ratio = plan->layer[i].ratio;
    const int64_t block = size->geometry.options.block_tokens;
    const int64_t rows = ratio > 0 ? ((int64_t)size->limits.max_positions + block - 1) / block * block / ratio : 0;
    if (5 * rows <= m->score_band) /* f32 scores, and those of candidate blocks */
        return QR_OK;
    return qr_fail(err, QR_REFUSED,
                   "E31 index scores of a row take %lld bytes with requests of up to %d tokens, more than the %lld that they may; "
                   "--indexer-logits-budget-mb %lld would do",
                   (long long)(5 * rows), size->limits.max_positions, (long long)m->score_band,
                   (long long)((5 * rows >> 20) + 1));
}

static qr_status check_device(const struct model_plan *plan, const struct engine_size *size, qr_error *err)
{
    const struct device_plan *d = &size->on_device;
    if (d->memory.total == 0)
        return QR_OK;
    if (!device_plan_fits(d, size->budget.pool.bytes))
        return device_plan_refuse(d, size->budget.pool.bytes, size->options.expert_memory, err);
    return check_scores(plan, size, err);
}

static void tell_device(const struct device_plan *d, qr_plan_bytes *out)
{
    if (d->memory.total == 0)
        return;
    out->device_workspace = (uint64_t)device_plan_workspace(d);
    out->device_weights = (uint64_t)device_plan_weights(d);
    out->device_scores = (uint64_t)d->memory.score_band;
    out->device_graphs = (uint64_t)d->memory.graphs;
    out->device_collective = (uint64_t)d->memory.collective;
    out->device_beside = (uint64_t)(device_plan_outside(d) + device_plan_safety(d));
    out->device_total = (uint64_t)d->memory.total;
    if (d->on_host == 0)
        return;
    out->device_experts = (uint64_t)(d->experts - d->on_host);
    out->host_experts = (uint64_t)d->on_host;
    out->device_seat_bytes = (uint64_t)device_plan_seats(d);
    out->seats = (uint64_t)d->seats;
    out->host_expert_bytes = (uint64_t)(d->on_host * d->expert_bytes);
}

/* Everything below the geometry. QR_REFUSED (E31): it does not fit. */
static qr_status fit(const struct model_plan *plan, int64_t stored, const struct engine_place *place, struct engine_size *out,
                     qr_error *err)
{
    const qr_engine_options *o = &out->options;
    const struct geometry *g = &out->geometry;
    qr_status st = prepared_bytes(plan, out->drafts.drafter != QR_DRAFTER_NONE, &out->prepared, err);
    if (st != QR_OK)
        return st;
    const int64_t tables = table_bytes(&plan->config), weights = stored - tables, available = memory_available();
    struct budget_request wanted = {
        .slots = o->max_num_seqs, .max_model_len = o->max_model_len, .ceiling = plan->config.max_position_embeddings};
    st = ask_device(plan, place, out, err);
    if (st != QR_OK)
        return st;
    const bool own_memory = out->on_device.memory.total > 0;
    st = own_memory ? place_experts(plan, &wanted, out, err) : QR_OK;
    if (st != QR_OK)
        return st;
    out->cache_bytes = own_memory ? device_cache_bytes(plan, &wanted, out) : cache_bytes(o, available, weights + out->prepared);
    wanted.bytes = out->cache_bytes;
    const int64_t least = own_memory ? budget_least(g, &wanted) : 0; /* STATE and PAGE of the shortest service */
    if (own_memory && o->kv_ram_bytes == 0 && least > wanted.bytes)
        return device_plan_refuse(&out->on_device, least, o->expert_memory, err);
    st = budget_fit(g, &wanted, &out->budget, err);
    if (st != QR_OK)
        return st;
    const struct budget *fits = &out->budget;
    out->blocks = fits->blocks;
    out->slots = fits->slots;
    out->limits = choose_limits(o, &out->drafts, (int32_t)fits->max_model_len);
    if (own_memory)
        size_on_device(plan, out, &out->limits, &out->on_device);
    st = size_workspace(plan, place, out, err);
    if (st != QR_OK)
        return st;
    out->bytes = (qr_plan_bytes){.weights = (uint64_t)(weights + out->prepared),
                                 .tables = (uint64_t)tables,
                                 .pages = (uint64_t)fits->pool.state_offset,
                                 .states = (uint64_t)(fits->slots * g->state_bytes),
                                 .workspace = (uint64_t)workspace_total(&out->workspace),
                                 .block_bytes = (uint64_t)g->unit_bytes,
                                 .blocks = (uint64_t)fits->blocks,
                                 .state_bytes = (uint64_t)g->state_bytes,
                                 .slots = (uint64_t)fits->slots,
                                 .max_model_len = (int32_t)fits->max_model_len};
    tell_device(&out->on_device, &out->bytes);
    st = check_device(plan, out, err);
    return st == QR_OK ? check_available(out, available, plan->config.max_position_embeddings, err) : st;
}

/* The rules that need no planes, with what is known of lengths by now. */
static void check_engine(const struct model_plan *plan, const struct engine_place *place, const struct engine_size *size,
                         struct rule_list *broken)
{
    const qr_engine_options *o = &size->options;
    const struct rule_facts facts = {
        .block = o->block_size ? o->block_size : geometry_defaults(plan).block_tokens,
        .length = size->bytes.max_model_len ? size->bytes.max_model_len : o->max_model_len,
        .rows = o->max_num_batched_tokens,
        .width = size->drafts.limit + 1,
        .clamps = backend_clamps_windows(place->device)};
    rules_features(o, broken);
    rules_engine(plan, o, &facts, broken);
}

qr_status engine_size(const struct model_plan *plan, int64_t stored, const struct engine_place *place,
                      const qr_engine_options *options, struct engine_size *out, qr_error *err)
{
    struct rule_list broken = {.used = 0};
    qr_error small = {0};
    memset(out, 0, sizeof *out);
    qr_status st = read_options(options, &out->options, err);
    if (st != QR_OK)
        return st;
    out->mode = modes_choose(&out->options, backend_records(place->device), &broken);
    expert_size_check(&out->options, place->device, place->memory || backend_records(place->device), &broken);
    const int of_modes = broken.count; /* these change no size that is refused */
    out->drafts = draft_choose(plan, &out->options, &broken);
    st = choose_geometry(plan, &out->options, &out->drafts, &out->geometry, &broken, err);
    if (st != QR_OK)
        return st;
    if (broken.count == of_modes) { /* there are planes to count */
        st = fit(plan, stored, place, out, &small);
        if (st != QR_OK && st != QR_REFUSED)
            return qr_fail(err, st, "%s", small.message);
        out->too_small = st == QR_REFUSED;
        st = draft_schedule(plan, place, out, &broken, err);
        if (st != QR_OK)
            return st;
    }
    check_engine(plan, place, out, &broken);
    out->captures = capture_choose(&out->options, &out->mode, backend_records(place->device), out->drafts.limit + 1, &broken);
    if (out->too_small)
        rules_join(&broken, &small);
    return rules_told(&broken, err);
}

/* A config that is refused, and what of the options needs none to be refused too. */
static qr_status refuse_config(const qr_error *config, const qr_engine_options *options, qr_error *err)
{
    struct rule_list broken = {.used = 0};
    qr_engine_options o;
    const qr_status st = read_options(options, &o, err);
    if (st != QR_OK)
        return st;
    rules_join(&broken, config);
    rules_features(&o, &broken);
    return rules_told(&broken, err);
}

/* What config and options decide by themselves: a rule that is broken, or a model that does not fit, is refused before
 * a shard is opened (runtime.md 11). The bytes are those that a whole folder of this config has. */
static qr_status size_from_config(const char *dir, const qr_model_options *given, const struct engine_place *place,
                                  const qr_engine_options *options, struct engine_size *size, qr_error *err)
{
    struct qr_config config;
    struct model_plan plan;
    int64_t stored;
    qr_error found = {0};
    qr_status st = model_config_read(dir, given, &config, &plan, &found);
    if (st == QR_REFUSED)
        return refuse_config(&found, options, err);
    if (st != QR_OK)
        return qr_fail(err, st, "%s", found.message);
    st = schema_total(&config, &stored, err);
    return st == QR_OK ? engine_size(&plan, stored, place, options, size, err) : st;
}

qr_status qr_plan(const char *dir, const qr_model_options *model_options, const qr_engine_options *options,
                  qr_plan_bytes *out, qr_error *err)
{
    struct engine_size size;
    qr_model_options read;
    qr_model *model = NULL;
    qr_status st = model_options_read(model_options, &read, err);
    if (st != QR_OK)
        return st;
    struct engine_place place = {.device = read.device, .threads = read.threads};
    st = size_from_config(dir, model_options, &place, options, &size, err);
    struct device_memory device = {.total = 0};
    if (st == QR_OK)
        device = size.on_device.memory; /* asked once */
    if (device.total > 0)
        place.memory = &device;
    if (st == QR_OK)
        st = model_open_parts(dir, model_options, false, &model, err);
    if (st == QR_OK) {
        place.checkpoint = model->checkpoint;
        st = engine_size(&model->plan, (int64_t)checkpoint_bytes(model->checkpoint), &place, options, &size, err);
    }
    if (st == QR_OK)
        st = draft_schedule_check(dir, &size, err);
    if (st == QR_OK)
        *out = size.bytes;
    qr_model_close(model);
    return st;
}
