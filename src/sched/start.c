#include "sched/state.h"

/* ---- rows ---- */

static struct rows_request rows_wanted(const struct sched *s, const struct sched_request *r, int32_t hit,
                                       int32_t rings_from, int32_t boundary)
{
    int32_t logits = sched_min(r->first_logits, r->end - 1);
    if (s->options.decoder_replay == REPLAY_OFF)
        logits = hit; /* every row behind the hit runs through every layer */
    return (struct rows_request){.rings_from = rings_from,
                                 .cached = hit,
                                 .end = r->end,
                                 .boundary = boundary,
                                 .first_logits = sched_max(logits, hit),
                                 .drafting = s->options.draft_width > 0 && !r->draftless,
                                 .tail = s->tail > 0,
                                 .rebuild = s->options.encoder_replay == REPLAY_BOUNDED && hit > 0};
}

/* What it takes to start like that. */
static struct start_way way_of(const struct sched *s, const struct start *st)
{
    const bool image = st->image != IMAGE_NONE;
    return (struct start_way){.row_layers = rows_query_total(s->options.plan, &st->rows),
                              .rows = st->rows.end - st->rows.first,
                              .bytes = image ? s->options.geometry->image_bytes : 0};
}

/* ---- completeness of rings ---- */

int32_t start_complete_layers(const struct sched *s, const struct sched_request *r, int32_t position)
{
    const int32_t need = sched_max(0, position - (s->window - 1));
    int32_t layer = 0;
    for (; layer < s->layers; layer++) {
        /* keys are there from `low` on without a gap: from before H0 where the image's ring was complete */
        int32_t low = r->rows.layer[layer].key;
        if (low <= r->rings_from && layer < r->ring_layers)
            low = 0;
        if (layer >= s->options.plan->layers)
            low = sched_max(low, r->draft_gap);
        if (low > need)
            break;
    }
    return layer;
}

/* Whether a resume that runs `rows` (ranges as without an image) reads nothing that an image at `position`, complete up
 * to layer `complete`, lacks. */
static bool image_serves(const struct sched *s, const struct row_plan *rows, int32_t position, int32_t complete)
{
    for (int32_t layer = complete; layer < s->own_rings; layer++)
        if (rows->layer[layer].key < position)
            return false;
    return true;
}

/* ---- what an image is worth ---- */

/* Rows times layers that a resume at `position` runs below it without an image: without reruns, all there are. */
static int64_t rerun_rows(struct sched *s, int32_t position)
{
    if (s->options.encoder_replay == REPLAY_OFF)
        return (int64_t)position * s->options.plan->layers;
    struct row_plan *rows = &s->row_scratch;
    const struct rows_request request = {.cached = position,
                                         .end = position + s->block,
                                         .boundary = -1,
                                         .first_logits = position + s->block - 1,
                                         .drafting = s->options.draft_width > 0,
                                         .tail = s->tail > 0};
    int64_t total = 0;
    rows_exact(s->options.plan, &request, rows);
    for (int32_t layer = 0; layer < s->options.plan->layers; layer++)
        total += sched_max(0, position - rows->layer[layer].query);
    return total;
}

bool start_image_pays(struct sched *s, int32_t position, int32_t steps)
{
    if (!s->options.images || !s->options.prefix_cache || position <= 0)
        return false;
    return cost_image_pays(&s->options.costs, rerun_rows(s, position), s->options.geometry->image_bytes, steps);
}

/* ---- the image to start from ---- */

struct candidate {
    image_id image;
    int32_t position;
};

/* The highest boundary of the first `matched` blocks with an image that serves; lower ones only rerun more. In copy
 * mode the hit shrinks to it. */
static struct candidate best_image(struct sched *s, const struct sched_request *r, int32_t matched, bool copy_mode)
{
    struct row_plan *rows = &s->row_scratch;
    bool known = false;
    for (int32_t i = matched; i > 0; i--) {
        const image_id id = images_find(s->images, r->blocks[i - 1]);
        if (id == IMAGE_NONE)
            continue;
        if (!known || copy_mode) {
            const struct rows_request request = rows_wanted(s, r, (copy_mode ? i : matched) * s->block, 0, -1);
            rows_exact(s->options.plan, &request, rows);
            known = true;
        }
        if (image_serves(s, rows, i * s->block, images_facts(s->images, id)->complete))
            return (struct candidate){id, i * s->block};
    }
    return (struct candidate){IMAGE_NONE, 0};
}

/* Whether the image that it starts from has all that is read below it for complete rings at `boundary`. */
static bool serves_boundary(struct sched *s, const struct sched_request *r, const struct start *st, int32_t boundary)
{
    if (st->image == IMAGE_NONE)
        return true;
    const struct rows_request request = rows_wanted(s, r, st->hit, 0, boundary);
    rows_exact(s->options.plan, &request, &s->row_scratch);
    return image_serves(s, &s->row_scratch, st->rings_from, st->ring_layers);
}

static void rows_from(struct sched *s, const struct sched_request *r, const struct start *st, struct row_plan *out)
{
    const struct rows_request request = rows_wanted(s, r, st->hit, st->rings_from, st->boundary);
    rows_exact(s->options.plan, &request, out);
}

static void start_with(struct sched *s, const struct sched_request *r, struct candidate c, struct start *out)
{
    const bool image = c.image != IMAGE_NONE;
    out->image = c.image;
    out->rings_from = image                                             ? c.position
                      : s->options.encoder_replay == REPLAY_BOUNDED ? sched_max(0, out->hit - s->block)
                                                                        : 0;
    out->ring_layers = image ? images_facts(s->images, c.image)->complete : s->layers;
    if (out->boundary >= 0 && !serves_boundary(s, r, out, out->boundary)) /* rings of its last layers end before what that would read */
        out->boundary = -1;
    rows_from(s, r, out, &out->rows);
}

/* Whether a chunk may end there for an image: the last one would have to back off, if it were left too few rows. */
static bool leaves_tail(const struct sched *s, const struct sched_request *r, int32_t position)
{
    return position >= r->end || r->end - position >= s->tail;
}

/* Where the image of the prompt shall be taken: its last boundary, when it saves more than the copy and the step that
 * the rest of the prompt then takes. */
static int32_t choose_boundary(struct sched *s, const struct sched_request *r, const struct start *st)
{
    int32_t last = r->end / s->block * s->block;
    if (!leaves_tail(s, r, last))
        last = sched_max(0, r->end - s->tail) / s->block * s->block;
    if (last <= st->hit || !start_image_pays(s, last, last < r->end))
        return -1;
    return last;
}

/* An image at the hit itself would have served this request; should it be taken now, complete, the next one of the same
 * prefix starts there. Complete rings cost rows of the layers that the prompt's end alone would not run. */
static void choose_demand(struct sched *s, const struct sched_request *r, int32_t wanted, struct start *out)
{
    if (wanted <= out->rings_from || wanted >= r->end || !leaves_tail(s, r, wanted) || !start_image_pays(s, wanted, 1))
        return;
    const int32_t pages = blocks_for(s, r->end) - out->blocks;
    if (blocks_free(s->blocks) + images_evictable(s->images) < pages + image_units(s->options.geometry)) {
        out->declined = true;
        return;
    }
    out->demand = wanted;
    if (!serves_boundary(s, r, out, wanted))
        return;
    struct start full = *out;
    full.boundary = wanted; /* rings complete there are complete at any later boundary too */
    rows_from(s, r, &full, &full.rows);
    const int64_t more = rows_query_total(s->options.plan, &full.rows) - rows_query_total(s->options.plan, &out->rows);
    if (2 * more < rerun_rows(s, wanted))
        out->rows = full.rows;
}

void start_choose(struct sched *s, const struct sched_request *r, int32_t matched, bool use_images, struct start *out)
{
    const struct candidate none = {IMAGE_NONE, 0};
    const bool copy_mode = s->options.encoder_replay == REPLAY_OFF;
    const int32_t wanted = sched_min(r->first_logits, r->end - 1) / s->block;
    const int32_t usable = sched_min(matched, wanted); /* no hit past the first row whose logits are wanted */
    const struct candidate image = use_images ? best_image(s, r, usable, copy_mode) : none;

    *out = (struct start){.blocks = copy_mode ? image.position / s->block : usable, .boundary = -1, .demand = -1};
    out->hit = out->blocks * s->block;
    out->boundary = choose_boundary(s, r, out);
    start_with(s, r, none, out);
    if (image.image != IMAGE_NONE) {
        struct start other = *out;
        start_with(s, r, image, &other);
        const bool serves = other.rows.first == other.rings_from;
        const struct start_way ways[] = {way_of(s, out), way_of(s, &other)};
        if (serves && (copy_mode || cost_least(&s->options.costs, ways, 2, s->options.max_rows) == 1))
            *out = other;
    }
    if (usable > 0 && out->rings_from < usable * s->block)
        choose_demand(s, r, usable * s->block, out);
}

/* ---- where images of a prompt are taken ---- */

int32_t start_next_cut(struct sched *s, const struct sched_request *r, int32_t from)
{
    const int32_t interval = s->options.image_interval / s->block * s->block;
    int32_t cut = r->end + 1;
    if (r->boundary > from)
        cut = sched_min(cut, r->boundary);
    if (r->demand > from)
        cut = sched_min(cut, r->demand);
    if (interval > 0) {
        const int32_t rung = sched_max(from, r->hit) / interval * interval + interval;
        if (rung < cut && rung <= r->end && leaves_tail(s, r, rung) && start_image_pays(s, rung, 1))
            cut = rung;
    }
    return cut <= r->end ? cut : -1;
}
