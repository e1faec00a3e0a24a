#include "plan/rows.h"

static int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }

/* First row whose tap (or MTP stream) the drafter's rings need: W rows at the end, and W - 1 at a boundary, where one row
 * is always forwarded after a hit (addendum 3). A bounded decoder makes them all in its tail, whatever an image holds. */
static int32_t first_tap(const struct model_plan *plan, const struct rows_request *r)
{
    int32_t window = plan->config.sliding_window, from = r->end - window;
    if (r->tail)
        return max(0, from);
    if (r->boundary >= 0)
        from = min(from, r->boundary - (window - 1));
    return max(r->rings_from, from);
}

/* Whether the drafter reads what layer `layer` makes: V4 the outputs of its targets or of the last layer, V4.1 the inputs
 * of its targets, which are the outputs of the layers before (speculation.md 2.2, v4-model.md 6.3). */
static bool feeds_drafter(const struct model_plan *plan, int32_t layer)
{
    if (plan->config.drafter == QR_DRAFTER_MTP)
        return layer == plan->layers - 1;
    if (plan->config.family == QR_FAMILY_V4)
        return plan->layer[layer].tap >= 0;
    return layer + 1 < plan->layers && plan->layer[layer + 1].tap >= 0;
}

/* Overlapping groups of four: the first new one pools the four tokens before it too. */
static int32_t compress_from(const struct model_plan *plan, const struct rows_request *r, int32_t layer)
{
    const struct layer_plan *l = &plan->layer[layer];
    if (!l->owns_rows)
        return r->end;
    return max(r->rings_from, r->cached - (l->compressor == COMPRESSOR_OVERLAP ? l->ratio : 0));
}

static struct layer_start start_of(const struct model_plan *plan, const struct rows_request *r, int32_t layer,
                                   int32_t query)
{
    struct layer_start s = {.query = query, .compress = compress_from(plan, r, layer)};
    int32_t complete = min(query, r->end);
    if (r->boundary >= 0)
        complete = min(complete, r->boundary);
    s.key = max(r->rings_from, complete - (plan->config.sliding_window - 1));
    s.low = r->rebuild ? r->rings_from : 0;
    return s;
}

/* Table 7.1: the last W rows, of the last layer the queries of the last row only; what is not there yet of compressed rows
 * in the layer that begins the decoder. */
static struct layer_start tail_start(const struct model_plan *plan, const struct rows_request *r, int32_t layer)
{
    const int32_t tail = rows_tail(plan, r->end);
    return (struct layer_start){.query = layer == plan->layers - 1 ? max(tail, r->first_logits) : tail,
                                .key = tail,
                                .compress = compress_from(plan, r, layer),
                                .low = tail};
}

/* Table 7.3: every row from where the forward starts. */
static struct layer_start rebuilt_start(const struct model_plan *plan, const struct rows_request *r, int32_t layer)
{
    const int32_t from = r->rings_from;
    return (struct layer_start){
        .query = from, .key = from, .compress = compress_from(plan, r, layer), .low = from};
}

static struct layer_start draft_start(const struct model_plan *plan, const struct rows_request *r)
{
    int32_t context = r->drafting ? min(first_tap(plan, r), r->end) : r->end;
    /* The MTP layer drafts from the last row; a block drafter's queries are no rows of the prompt. */
    bool serial = r->drafting && plan->config.drafter == QR_DRAFTER_MTP;
    return (struct layer_start){.query = serial ? r->end - 1 : r->end, .key = context, .compress = r->end};
}

int32_t rows_tail(const struct model_plan *plan, int32_t end) { return max(0, end - plan->config.sliding_window); }

int32_t rows_decoder(const struct model_plan *plan)
{
    int32_t source = -1;
    for (int32_t layer = 0; plan->config.n_kv_sources > 0 && layer < plan->layers; layer++)
        if (plan->layer[layer].owns_rows)
            source = layer;
    for (int32_t layer = source + 1; source >= 0 && layer < plan->layers; layer++)
        if (plan->layer[layer].engram >= 0)
            return -1;
    return source + 1 < plan->layers ? source : -1;
}

void rows_exact(const struct model_plan *plan, const struct rows_request *r, struct row_plan *out)
{
    const int32_t decoder = r->tail || r->rebuild ? rows_decoder(plan) : plan->layers;
    int32_t wanted = r->first_logits; /* first row that someone above reads */
    out->end = r->end;
    for (int32_t i = 0; i < plan->draft_layers; i++)
        out->layer[plan->layers + i] = draft_start(plan, r);
    for (int32_t layer = plan->layers - 1; layer >= 0; layer--) {
        if (r->drafting && feeds_drafter(plan, layer))
            wanted = min(wanted, first_tap(plan, r));
        struct layer_start s = r->tail && layer >= decoder    ? tail_start(plan, r, layer)
                               : r->rebuild && layer < decoder ? rebuilt_start(plan, r, layer)
                                                               : start_of(plan, r, layer, max(r->rings_from, wanted));
        out->layer[layer] = s;
        wanted = min(s.query, min(s.key, s.compress));
    }
    if (r->drafting && plan->config.family == QR_FAMILY_V41 && plan->layer[0].tap >= 0)
        wanted = min(wanted, first_tap(plan, r));
    out->first = max(r->rings_from, wanted); /* a tail may begin below: rows_back_off */
}

void rows_unfinished(const struct model_plan *plan, struct row_plan *rows)
{
    for (int32_t layer = rows_decoder(plan); layer < plan->layers + plan->draft_layers; layer++)
        rows->layer[layer].query = rows->layer[layer].key = rows->end;
}

void rows_back_off(const struct model_plan *plan, const struct row_plan *rows, int32_t first, int32_t again,
                   struct row_plan *out)
{
    const int32_t decoder = rows_decoder(plan);
    *out = *rows;
    out->first = first;
    for (int32_t layer = 0; layer <= decoder; layer++) {
        struct layer_start *s = &out->layer[layer];
        s->compress = max(s->compress, min(again, rows->end));
        if (layer == decoder)
            continue;
        s->query = s->key = first;
        s->again = again;
    }
}

void rows_all(const struct model_plan *plan, int32_t first, int32_t end, struct row_plan *out)
{
    out->first = first;
    out->end = end;
    for (int32_t i = 0; i < plan->layers + plan->draft_layers; i++)
        out->layer[i] = (struct layer_start){
            .query = first, .key = first, .compress = plan->layer[i].owns_rows ? first : end};
}

int64_t rows_query_total(const struct model_plan *plan, const struct row_plan *rows)
{
    int64_t total = 0;
    for (int32_t i = 0; i < plan->layers; i++)
        total += rows->end - rows->layer[i].query;
    return total;
}
