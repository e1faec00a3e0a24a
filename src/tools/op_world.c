#include "tools/op_world.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "model/rope.h"
#include "plan/schema.h"

/* ---- what the model calls ---- */

static struct op_run *run_of(struct backend *b) { return b->self; }

static qr_status record_allocate(struct backend *b, int64_t bytes, void **out, qr_error *err)
{
    return op_buffer(run_of(b), bytes, out, err);
}
static void record_release(struct backend *b, void *p) { (void)b, (void)p; } /* the run's */
static qr_status record_upload(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    return run_of(b)->backend->upload(run_of(b)->backend, to, from, bytes, err);
}
static qr_status record_download(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    return run_of(b)->backend->download(run_of(b)->backend, to, from, bytes, err);
}
static qr_status record_copy(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    return op_call(run_of(b), OP_copy, &(const struct op_copy){to, from, bytes}, sizeof(struct op_copy), err);
}
static qr_status record_fence(struct backend *b, qr_error *err)
{
    return run_of(b)->backend->fence(run_of(b)->backend, err);
}
static qr_status record_weight(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    return op_prepare(run_of(b), spec, (const struct weight **)out, err);
}
static void release_weight(struct backend *b, struct weight *weight) { (void)b, (void)weight; }
static qr_status record_reserve(struct backend *b, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    return run_of(b)->backend->reserve(run_of(b)->backend, limits, bytes, err);
}
static void record_close(struct backend *b) { (void)b; }

#define RECORD(NAME)                                                                                                   \
    static qr_status record_##NAME(struct backend *b, const struct op_##NAME *op, qr_error *err)                       \
    {                                                                                                                  \
        return op_call(run_of(b), OP_##NAME, op, sizeof *op, err);                                                     \
    }
QR_OPERATORS(RECORD)
#undef RECORD

static void make_recorder(struct op_world *w)
{
    w->recorder = (struct backend){.name = w->run->backend->name, .self = w->run, .reserve = record_reserve,
                                   .close = record_close, .allocate = record_allocate, .release = record_release,
                                   .upload = record_upload, .download = record_download, .copy = record_copy,
                                   .fence = record_fence, .prepare_weight = record_weight, .release_weight = release_weight};
#define RECORD(NAME) w->recorder.NAME = record_##NAME;
    QR_OPERATORS(RECORD)
#undef RECORD
}

/* ---- weights ---- */

/* The file's array of a tensor: by its name, or by its end where it stands in the one layer that the harness has. */
static const struct tensor_view *array_of(const struct op_world *w, const char *name)
{
    static const char *const prefixes[] = {"", "layers.0.", "mtp.0.", "mtp_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        char full[160];
        if (strncmp(name, prefixes[i], n) != 0 || (i > 1 && !w->options.bare))
            continue;
        snprintf(full, sizeof full, "in.%s", name + n);
        const struct tensor_view *view = op_file_find(w->run->file, full);
        if (view)
            return view;
        for (const struct op_array *a = w->run->harness->in; a->name; a++) {
            if (!a->alias || strcmp(a->name, name + n) != 0)
                continue;
            snprintf(full, sizeof full, "in.%s", a->alias);
            return op_file_find(w->run->file, full);
        }
    }
    return NULL;
}

/* Every tensor of the plan's folder that the file has. */
static qr_status collect(struct op_world *w, const struct schema *schema, struct tensor_view *views, int64_t *count, qr_error *err)
{
    const struct tensor_spec *specs = schema_tensors(schema);
    *count = 0;
    for (int64_t i = 0; i < schema_count(schema); i++) {
        const struct tensor_view *view = array_of(w, specs[i].name);
        int64_t wanted = tensor_elements(specs[i].rank, specs[i].shape);
        char *name, found[128];
        if (!view || wanted < 0)
            continue;
        if (tensor_elements(view->rank, view->shape) != wanted)
            return op_refuse(err, BAD_SHAPE, "%s is %s, wanted the %lld elements of %s", view->name,
                             shape_text(view->rank, view->shape, found, sizeof found), (long long)wanted, specs[i].name);
        if (dtype_size(view->dtype) != dtype_size(specs[i].dtype))
            return op_refuse(err, BAD_SHAPE, "%s is %s, wanted %s", view->name, dtype_name(view->dtype), dtype_name(specs[i].dtype));
        TRY(op_host_new(w->run, (int64_t)strlen(specs[i].name) + 1, &name, err));
        strcpy(name, specs[i].name);
        views[*count] = *view;
        views[(*count)++].name = name;
    }
    return QR_OK;
}

static qr_status open_weights(struct op_world *w, qr_error *err)
{
    struct tensor_view *views;
    struct schema *schema;
    int64_t count;
    TRY(schema_make(&w->plan.config, &schema, err));
    qr_status st = op_host_new(w->run, (schema_count(schema) + 1) * (int64_t)sizeof *views, &views, err);
    if (st == QR_OK)
        st = collect(w, schema, views, &count, err);
    schema_free(schema);
    if (st == QR_OK)
        st = checkpoint_over(op_file_path(w->run->file), views, count, &w->checkpoint, err);
    return st == QR_OK ? weights_open(w->checkpoint, &w->plan, w->options.parts, &w->recorder, NULL, &w->weights, err) : st;
}

/* ---- opening ---- */

static void world_close(void *user)
{
    struct op_world *w = user;
    weights_close(&w->weights);
    checkpoint_close(w->checkpoint);
    drafts_close(w->drafts);
    block_drafts_close(w->blocks);
    for (size_t i = 0; i < w->assembly_count; i++)
        assembly_close(w->assemblies[i]);
    qr_free(w->assemblies);
}

static struct assembly_limits limits_of(const struct op_world *w)
{
    const struct world_options *o = &w->options;
    return (struct assembly_limits){.plan = &w->plan, .geometry = &w->geometry, .blocks = (int64_t)o->count * w->pages + 1,
                                    .slots = o->count, .max_rows = o->step_rows, .max_requests = o->count,
                                    .max_logits = o->step_rows, .max_positions = w->plan.config.max_position_embeddings};
}

/* Rows of the busiest expert call: those of the step, and of a rank that every row goes to. */
static int64_t expert_rows(const struct op_world *w)
{
    const struct world_options *o = &w->options;
    int64_t each = o->rank_rows < o->step_rows ? o->rank_rows : o->step_rows, experts = w->plan.config.n_routed_experts;
    int64_t lanes = o->form == MOE_LANES ? experts * each : (int64_t)o->step_rows * w->plan.config.n_experts_per_tok + 16 * experts;
    return lanes > o->step_rows ? lanes : o->step_rows;
}

static bool has_blocks(const struct op_world *w) { return w->plan.config.drafter == QR_DRAFTER_DSPARK; }

static qr_status make_memory(struct op_world *w, qr_error *err)
{
    const struct world_options *o = &w->options;
    const int32_t blocks = has_blocks(w) ? o->count * w->plan.draft_width : 0;
    const struct model_limits limits = {.max_rows = o->step_rows, .max_requests = o->count, .max_logits = blocks ? blocks : 1,
                                        .max_positions = w->plan.config.max_position_embeddings,
                                        .max_draft_rows = blocks ? blocks : o->mtp ? o->step_rows : 0};
    const struct op_limits most = {&w->plan, (int32_t)expert_rows(w), o->count, w->plan.config.max_position_embeddings};
    int64_t bytes;
    void *memory;
    TRY(w->run->backend->reserve(w->run->backend, &most, &bytes, err));
    TRY(geometry_pool(&w->geometry, (int64_t)o->count * w->pages + 1, o->count, &w->pool, err));
    TRY(op_buffer(w->run, w->pool.bytes, &w->base, err));
    TRY(op_buffer(w->run, workspace_lay(&w->plan, &limits, NULL, &w->ws), &memory, err));
    workspace_lay(&w->plan, &limits, memory, &w->ws);
    const struct assembly_limits drafts = limits_of(w);
    if (blocks)
        return block_drafts_open(&w->recorder, &drafts, &w->blocks, err);
    return o->mtp ? drafts_open(&w->recorder, &drafts, &w->drafts, err) : QR_OK;
}

static qr_status make_plan(struct op_world *w, qr_error *err)
{
    struct qr_config config = w->options.config;
    int64_t last = 0;
    config.family = QR_FAMILY_V4;
    config.candidate_source_layer = -1;
    config.stored_w8a8 = w->run->w8a8;
    config.fp8_block = 128;
    TRY(plan_make(&config, w->run->w8a8 ? QR_PROFILE_W8A8 : QR_PROFILE_REFERENCE, &w->plan, err));
    struct geometry_options geometry = geometry_defaults(&w->plan);
    geometry.draft_width = has_blocks(w) ? w->plan.draft_width : 1; /* else two rows of a request a step */
    TRY(geometry_make(&w->plan, &geometry, &w->geometry, err));
    for (int32_t i = 0; i < w->options.count; i++) {
        int64_t end = (int64_t)w->options.requests[i].first + w->options.requests[i].count;
        last = end > last ? end : last;
    }
    w->pages = (int32_t)((last + WORLD_PAGE - 1) / WORLD_PAGE);
    w->pages += !w->pages;
    TRY(rope_frequencies(&config, ROPE_MAIN, w->frequencies[ROPE_MAIN], err));
    return rope_frequencies(&config, ROPE_COMPRESS, w->frequencies[ROPE_COMPRESS], err);
}

static qr_status routed(void *user, struct pass *p, qr_error *err);

static void make_pass(struct op_world *w)
{
    w->args.cache = (struct model_cache){&w->geometry, &w->pool, w->base};
    w->args.observer = w->observer.at ? &w->observer : NULL;
    w->pass = (struct pass){.backend = &w->recorder, .plan = &w->plan, .config = &w->plan.config, .weights = &w->weights,
                            .ws = &w->ws, .frequencies = {w->frequencies[0], w->frequencies[1]}, .args = &w->args,
                            .w8a8 = w->run->w8a8, .routed = has_blocks(w) ? NULL : routed, .routed_user = w};
}

qr_status world_open(struct op_run *r, const struct world_options *options, struct op_world **out, qr_error *err)
{
    struct op_world *w;
    TRY(op_host_new(r, sizeof *w, &w, err));
    w->run = r;
    w->options = *options;
    r->world = w;
    r->close_world = world_close;
    make_recorder(w);
    TRY(op_host_new(r, 4LL * options->ranks, &w->tile.first, err));
    TRY(op_host_new(r, 4LL * options->ranks, &w->tile.live, err));
    TRY(make_plan(w, err));
    TRY(make_memory(w, err));
    TRY(open_weights(w, err));
    *out = w;
    return QR_OK;
}

/* ---- experts over ranks ---- */

static qr_status routed(void *user, struct pass *p, qr_error *err)
{
    struct op_world *w = user;
    const struct expert_weights *experts = &p->w->routed;
    int32_t active = p->layer->n_active;
    struct moe m = {.world = {.ranks = w->options.ranks, .experts = p->layer->n_experts, .active = active,
                              .rows = w->options.form == MOE_LANES || w->options.rank_rows < WORLD_TILE ? w->options.rank_rows : WORLD_TILE},
                    .form = w->options.form, .live = w->tile.live, .first = w->tile.first, .x = p->ws->xq,
                    .device_idx = p->ws->expert_idx, .weight = p->ws->expert_weight, .w1 = experts->w1, .w2 = experts->w2,
                    .w3 = experts->w3, .swiglu_limit = p->config->swiglu_limit, .routed = p->ws->routed, .scratch = &w->experts};
    TRY(op_download(w->run, p->ws->expert_idx, 4LL * w->tile.rows * active, &m.idx, err));
    return moe_routed(w->run, &m, err);
}

/* ---- steps ---- */

/* The rows that requests have in [from, from + count) of their own, request by request. */
static qr_status lay_tile(struct op_world *w, int32_t from, int32_t count, qr_error *err)
{
    const struct world_options *o = &w->options;
    int32_t *row, *position, *request, n = 0;
    TRY(op_host_new(w->run, 4LL * o->step_rows, &row, err));
    TRY(op_host_new(w->run, 4LL * o->step_rows, &position, err));
    TRY(op_host_new(w->run, 4LL * o->step_rows, &request, err));
    TRY(op_host_new(w->run, 4LL * o->ranks, &w->tile.first, err));
    TRY(op_host_new(w->run, 4LL * o->ranks, &w->tile.live, err));
    for (int32_t rank = 0, i = 0; rank < o->ranks; rank++) {
        w->tile.first[rank] = n;
        for (; i < o->count && o->requests[i].rank == rank; i++)
            for (int32_t k = from; k < o->requests[i].count && k < from + count; k++, n++) {
                row[n] = o->requests[i].row + k;
                position[n] = o->requests[i].first + k;
                request[n] = i;
            }
        w->tile.live[rank] = n - w->tile.first[rank];
    }
    w->tile.rows = n;
    w->tile.row = row;
    w->tile.position = position;
    w->tile.request = request;
    return QR_OK;
}

/* The turns of each row by the file's tables, and of the first position of its group. */
static qr_status tile_turns(struct op_world *w, enum rope rope, int32_t ratio, const float **turns, const float **group, qr_error *err)
{
    int32_t dim = w->plan.config.rope_head_dim;
    const float *table = w->turns[rope];
    float *at, *first;
    *turns = *group = NULL;
    if (!table)
        return QR_OK;
    TRY(op_host_new(w->run, 4LL * w->tile.rows * dim, &at, err));
    TRY(op_host_new(w->run, 4LL * w->tile.rows * dim, &first, err));
    for (int32_t i = 0; i < w->tile.rows; i++) {
        int64_t p = w->tile.position[i], start = ratio > 0 ? p / ratio * ratio : p;
        memcpy(at + (int64_t)i * dim, table + p * dim, 4 * (size_t)dim);
        memcpy(first + (int64_t)i * dim, table + start * dim, 4 * (size_t)dim);
    }
    TRY(op_upload(w->run, at, 4LL * w->tile.rows * dim, &at, err));
    TRY(op_upload(w->run, first, 4LL * w->tile.rows * dim, &first, err));
    *turns = at;
    *group = first;
    return QR_OK;
}

qr_status world_tables(struct op_world *w, enum rope rope, const float *cosines, const float *sines, int64_t positions,
                       int32_t width, qr_error *err)
{
    int32_t dim = w->plan.config.rope_head_dim, pairs = dim / 2;
    const float *from[2] = {cosines, sines};
    float *turns;
    if (width != dim && width != pairs)
        return op_refuse(err, BAD_SHAPE, "in.freqs_cos has %d columns, wanted %d or %d", width, pairs, dim);
    for (int32_t i = 0; i < w->options.count; i++) {
        const struct world_request *q = &w->options.requests[i];
        if (q->first + (int64_t)q->count > positions)
            return op_refuse(err, BAD_POSITION, "request %d ends at %lld, in.freqs_cos has %lld positions", i,
                             (long long)q->first + q->count - 1, (long long)positions);
    }
    TRY(op_host_new(w->run, 4 * positions * dim, &turns, err));
    for (int half = 0; half < 2; half++)
        for (int64_t p = 0; p < positions; p++)
            memcpy(turns + p * dim + half * pairs, from[half] + p * width, 4 * (size_t)pairs);
    w->turns[rope] = turns;
    return QR_OK;
}

qr_status world_enter(struct op_world *w, int32_t layer, qr_error *err)
{
    const struct layer_plan *l = &w->plan.layer[layer];
    TRY(tile_turns(w, l->rope, l->ratio, &w->pass.turns, &w->pass.group_turns, err));
    enter_layer(&w->pass, layer);
    return QR_OK;
}

static qr_status new_assembly(struct op_world *w, struct assembly **out, qr_error *err)
{
    const struct assembly_limits limits = limits_of(w);
    if (!array_grow(&w->assemblies, &w->assembly_capacity, w->assembly_count, sizeof *w->assemblies))
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its list of steps", w->run->harness->name);
    TRY(assembly_open(&w->recorder, &limits, out, err));
    w->assemblies[w->assembly_count++] = *out;
    return QR_OK;
}

qr_status world_step(struct op_world *w, int32_t from, int32_t count, const int32_t *tokens, bool *any, qr_error *err)
{
    const struct world_options *o = &w->options;
    struct batch_span *spans;
    struct assembly *assembly;
    struct batch batch = {.step = 1};
    int32_t *ids, *blocks;
    TRY(lay_tile(w, from, count, err));
    *any = w->tile.rows > 0;
    make_pass(w);
    if (!*any)
        return QR_OK;
    TRY(op_host_new(w->run, o->count * (int64_t)sizeof *spans, &spans, err));
    TRY(op_host_new(w->run, 4LL * w->tile.rows, &ids, err));
    TRY(op_host_new(w->run, 4LL * o->count * w->pages, &blocks, err));
    for (int32_t i = 0; i < o->count * w->pages; i++)
        blocks[i] = 1 + i;
    for (int32_t i = 0; i < w->tile.rows; i++) {
        int32_t request = w->tile.request[i];
        ids[i] = tokens ? tokens[w->tile.row[i]] : 0;
        if (i == 0 || request != w->tile.request[i - 1])
            spans[batch.count++] = (struct batch_span){.slot = request, .blocks = blocks + (int64_t)request * w->pages,
                                                       .block_count = w->pages, .first_position = w->tile.position[i],
                                                       .tokens = ids + i};
        spans[batch.count - 1].count++;
    }
    batch.spans = spans;
    TRY(new_assembly(w, &assembly, err));
    TRY(assembly_check(assembly, &batch, err));
    TRY(assembly_fill(assembly, &batch, err));
    w->args.step = w->pass.step = assembly_step(assembly);
    w->args.rows = assembly_rows(assembly);
    return QR_OK;
}

qr_status world_keep_streams(struct op_world *w, int32_t request, const void *streams, qr_error *err)
{
    struct backend *b = w->run->backend;
    TRY(b->upload(b, w->base + geometry_draft_stream(&w->geometry, &w->pool, request), streams, w->geometry.draft_stream_bytes, err));
    return b->fence(b, err);
}

qr_status world_draft_step(struct op_world *w, const int32_t *tokens, const int32_t *sources, int32_t rows, struct model_draft *out,
                           qr_error *err)
{
    const struct world_options *o = &w->options;
    struct draft_span *spans;
    int32_t *from, *ids, count = 0;
    TRY(lay_tile(w, 0, o->step_rows, err));
    make_pass(w);
    TRY(op_host_new(w->run, o->count * (int64_t)sizeof *spans, &spans, err));
    TRY(op_host_new(w->run, 4LL * o->step_rows, &from, err));
    TRY(op_host_new(w->run, 4LL * o->step_rows, &ids, err));
    for (int32_t i = 0; i < w->tile.rows; i++) {
        from[i] = sources ? sources[w->tile.row[i]] : i;
        ids[i] = tokens[w->tile.row[i]];
        if (i == 0 || w->tile.request[i] != w->tile.request[i - 1])
            spans[count++] = (struct draft_span){.slot = w->tile.request[i], .first_position = w->tile.position[i],
                                                 .tokens = ids + i, .sources = from + i};
        spans[count - 1].count++;
    }
    TRY(drafts_check(w->drafts, spans, count, sources ? rows : w->tile.rows, err));
    TRY(drafts_fill(w->drafts, spans, count, out, err));
    out->cache = w->args.cache;
    out->observer = w->args.observer;
    w->args.step = w->pass.step = out->step;
    w->args.rows = out->rows;
    return QR_OK;
}

qr_status world_block_step(struct op_world *w, const struct block_draft *requests, int32_t count, qr_error *err)
{
    struct model_draft draft;
    make_pass(w);
    TRY(block_drafts_check(w->blocks, requests, count, err));
    TRY(block_drafts_fill(w->blocks, requests, count, &draft, err));
    w->args.step = w->pass.step = draft.step;
    w->args.rows = draft.rows;
    w->pass.draft_block = true;
    w->pass.window_low = draft.window_low;
    return QR_OK;
}

/* ---- rows ---- */

qr_status world_bytes(struct op_world *w, int64_t bytes, void *pointer, qr_error *err)
{
    if (bytes > w->byte_count) {
        TRY(op_host_new(w->run, bytes, &w->bytes, err));
        w->byte_count = bytes;
    }
    memcpy(pointer, &w->bytes, sizeof w->bytes);
    return QR_OK;
}

/* Rows from i on that stand behind one another in the arrays too. */
static int32_t run_length(const struct world_tile *t, int32_t i)
{
    int32_t n = 1;
    while (i + n < t->rows && t->row[i + n] == t->row[i] + n)
        n++;
    return n;
}

qr_status world_take(struct op_world *w, const void *from, void *to, int64_t bytes, qr_error *err)
{
    for (int32_t i = 0, n; i < w->tile.rows; i += n) {
        n = run_length(&w->tile, i);
        CALL(w->run, copy, .to = (uint8_t *)to + i * bytes, .from = (const uint8_t *)from + w->tile.row[i] * bytes, .bytes = n * bytes);
    }
    return QR_OK;
}

qr_status world_give(struct op_world *w, const void *from, void *to, int64_t bytes, qr_error *err)
{
    struct backend *b = w->run->backend;
    TRY(b->fence(b, err));
    for (int32_t i = 0, n; i < w->tile.rows; i += n) {
        n = run_length(&w->tile, i);
        TRY(b->download(b, (uint8_t *)to + w->tile.row[i] * bytes, (const uint8_t *)from + i * bytes, n * bytes, err));
    }
    return b->fence(b, err);
}
