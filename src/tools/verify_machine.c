#include "tools/verify_machine.h"

#include <string.h>

#include "plan/settle.h"
#include "tools/open_map.h"
#include "tools/verify_line.h"
#include "tools/verify_twin.h"

/* Tokens before the calls that are compared, at most; rows of a step of them; rows of the compared chunk, and tokens behind. */
enum { MOST_CONTEXT = 640, CONTEXT_ROWS = 128, CHUNK_ROWS = 32, SINGLE_TOKENS = 4 };

static bool machine_drafts(const struct machine *m) { return m->config.drafter != QR_DRAFTER_NONE; }

qr_status machine_open(const char *dir, const char *profile, const struct qr_log *log, struct machine *out, qr_error *err)
{
    *out = (struct machine){.dir = dir, .log = log};
    TRY(model_folder_open(dir, &out->config, &out->checkpoint, err));
    TRY(plan_make(&out->config, config_profile(&out->config, profile), &out->plan, err));
    struct geometry_options g = geometry_defaults(&out->plan);
    if (!machine_drafts(out))
        g.draft_width = 0;
    TRY(geometry_make(&out->plan, &g, &out->geometry, err));
    return open_token_map(dir, &out->config, log, &out->map, err);
}

void machine_close(struct machine *m)
{
    token_map_free(&m->map);
    checkpoint_close(m->checkpoint);
    *m = (struct machine){0};
}

/* ---- which layers, which positions ---- */

/* Two layers that no operator can tell apart. */
static bool same_kind(const struct layer_plan *a, const struct layer_plan *b)
{
    return a->attend == b->attend && a->ratio == b->ratio && a->owns_rows == b->owns_rows && a->owns_index == b->owns_index &&
           a->candidate_source == b->candidate_source && a->candidate_reader == b->candidate_reader && a->compressor == b->compressor &&
           a->order == b->order && a->rope == b->rope && a->router == b->router && (a->engram < 0) == (b->engram < 0) &&
           (a->tap < 0) == (b->tap < 0) && a->n_experts == b->n_experts && a->n_active == b->n_active;
}

/* A layer, and those whose rows and selections it reads. */
static void want_layer(const struct model_plan *plan, int32_t layer, bool *wanted)
{
    const struct layer_plan *l = &plan->layer[layer];
    wanted[layer] = true;
    if (l->kv_owner >= 0)
        wanted[l->kv_owner] = true;
    if (l->index_owner >= 0)
        wanted[l->index_owner] = true;
    if (l->candidate_reader && plan->config.candidate_source_layer >= 0)
        wanted[plan->config.candidate_source_layer] = true;
}

/* The first layer of each kind. */
static void choose_layers(const struct model_plan *plan, bool *wanted)
{
    memset(wanted, 0, QR_MAX_LAYERS * sizeof *wanted);
    for (int32_t i = 0; i < plan->layers; i++) {
        bool seen = false;
        for (int32_t k = 0; k < i; k++)
            seen |= same_kind(&plan->layer[i], &plan->layer[k]);
        if (!seen)
            want_layer(plan, i, wanted);
    }
    for (int32_t i = 0; i < plan->draft_layers; i++)
        wanted[plan->layers + i] = true;
}

/* The first position of the compared chunk: behind a wrapped window, with more compressed rows visible than are selected
 * where that is not too far, and with the end of a group of the largest ratio inside of the chunk. */
static int32_t chunk_position(const struct machine *m)
{
    const struct qr_config *c = &m->config;
    int64_t wanted = 2 * (int64_t)c->sliding_window, most = c->max_position_embeddings - (CHUNK_ROWS + SINGLE_TOKENS + 1);
    wanted = wanted > MOST_CONTEXT ? MOST_CONTEXT : wanted;
    for (int32_t i = 0; i < m->plan.owners; i++) {
        int64_t beyond = (int64_t)m->plan.owner[i].ratio * (c->index_topk + CHUNK_ROWS);
        if (m->plan.owner[i].has_index && beyond > wanted && beyond <= MOST_CONTEXT)
            wanted = beyond;
    }
    wanted = wanted / m->plan.max_ratio * m->plan.max_ratio - CHUNK_ROWS / 2;
    wanted = wanted > most ? most : wanted;
    return wanted > 0 ? (int32_t)wanted : 0;
}

/* ---- operators ---- */

static qr_status run_watched(struct machine *m, struct twin *twin, struct line *l, int32_t rows, qr_error *err)
{
    bool drafts = machine_drafts(m);
    TRY(twin_watch(twin, true, err));
    for (int32_t i = 0; i <= SINGLE_TOKENS; i++) {
        int32_t count = i ? 1 : rows;
        TRY(line_step(l, count, 1, err));
        if (drafts)
            TRY(line_draft(l, count, err));
    }
    return twin_compare_memory(twin, err);
}

static qr_status run_context(struct line *l, int32_t end, qr_error *err)
{
    while (l->position < end) {
        int32_t left = end - l->position;
        TRY(line_step(l, left < CONTEXT_ROWS ? left : CONTEXT_ROWS, 0, err));
    }
    return QR_OK;
}

static qr_status run_operators(struct machine *m, struct twin *twin, qr_error *err)
{
    bool wanted[QR_MAX_LAYERS];
    struct line l = {0};
    int32_t first = chunk_position(m), rows = CHUNK_ROWS;
    if (first + rows + SINGLE_TOKENS + 1 > m->config.max_position_embeddings)
        rows = m->config.max_position_embeddings - SINGLE_TOKENS - 1 - first;
    if (rows < 1)
        return qr_fail(err, QR_UNSUPPORTED, "%s: %d positions, wanted at least %d to compare operators at", m->dir,
                       m->config.max_position_embeddings, SINGLE_TOKENS + 2);
    choose_layers(&m->plan, wanted);
    twin_layers(twin, wanted);
    qr_status st = line_open(m, twin_backend(twin), first + rows + SINGLE_TOKENS, CONTEXT_ROWS, 1,
                             machine_drafts(m), &l, err);
    if (st == QR_OK) {
        l.observer = twin_observer(twin);
        line_draw_tokens(m, l.tokens, l.count + 1);
        st = run_context(&l, first, err);
    }
    if (st == QR_OK)
        st = run_watched(m, twin, &l, rows, err);
    line_close(&l);
    return st;
}

qr_status machine_operators(struct machine *m, struct backend *device, struct backend *reference, struct verify_table *table,
                            struct findings *findings, qr_error *err)
{
    struct twin *twin;
    TRY(twin_open(device, reference, &m->plan, table, findings, &twin, err));
    qr_status st = run_operators(m, twin, err);
    twin_close(twin);
    return st;
}
