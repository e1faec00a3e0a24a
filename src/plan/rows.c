#include "plan/rows.h"

static int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }

/* First row whose tap (or MTP stream) the drafter's rings need: W rows at the end, and W - 1 at a boundary, where one row
 * is always forwarded after a hit (addendum 3). */
static int32_t first_tap(const struct model_plan *plan, const struct rows_request *r)
{
    int32_t window = plan->config.sliding_window, from = r->end - window;
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

static struct layer_start start_of(const struct model_plan *plan, const struct rows_request *r, int32_t layer,
                                   int32_t query)
{
    const struct layer_plan *l = &plan->layer[layer];
    struct layer_start s = {.query = query, .compress = r->end};
    int32_t complete = min(query, r->end);
    if (r->boundary >= 0)
        complete = min(complete, r->boundary);
    s.key = max(r->rings_from, complete - (plan->config.sliding_window - 1));
    /* Overlapping groups of four: the first new one pools the four tokens before it too. */
    if (l->owns_rows)
        s.compress = max(r->rings_from, r->cached - (l->compressor == COMPRESSOR_OVERLAP ? l->ratio : 0));
    return s;
}

static struct layer_start draft_start(const struct model_plan *plan, const struct rows_request *r)
{
    int32_t context = r->drafting ? min(first_tap(plan, r), r->end) : r->end;
    /* The MTP layer drafts from the last row; a block drafter's queries are no rows of the prompt. */
    bool serial = r->drafting && plan->config.drafter == QR_DRAFTER_MTP;
    return (struct layer_start){.query = serial ? r->end - 1 : r->end, .key = context, .compress = r->end};
}

void rows_exact(const struct model_plan *plan, const struct rows_request *r, struct row_plan *out)
{
    int32_t wanted = r->first_logits; /* first row that someone above reads */
    out->end = r->end;
    for (int32_t i = 0; i < plan->draft_layers; i++)
        out->layer[plan->layers + i] = draft_start(plan, r);
    for (int32_t layer = plan->layers - 1; layer >= 0; layer--) {
        if (r->drafting && feeds_drafter(plan, layer))
            wanted = min(wanted, first_tap(plan, r));
        struct layer_start s = start_of(plan, r, layer, max(r->rings_from, wanted));
        out->layer[layer] = s;
        wanted = min(s.query, min(s.key, s.compress));
    }
    if (r->drafting && plan->config.family == QR_FAMILY_V41 && plan->layer[0].tap >= 0)
        wanted = min(wanted, first_tap(plan, r));
    out->first = wanted;
}

void rows_all(const struct model_plan *plan, int32_t first, int32_t end, struct row_plan *out)
{
    out->first = first;
    out->end = end;
    for (int32_t i = 0; i < plan->layers + plan->draft_layers; i++)
        out->layer[i] = (struct layer_start){first, first, plan->layer[i].owns_rows ? first : end};
}

int64_t rows_query_total(const struct model_plan *plan, const struct row_plan *rows)
{
    int64_t total = 0;
    for (int32_t i = 0; i < plan->layers; i++)
        total += rows->end - rows->layer[i].query;
    return total;
}
