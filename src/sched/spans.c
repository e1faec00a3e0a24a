#include <string.h>

#include "sched/state.h"

/* ---- prefill ---- */

/* Logits rows that a chunk may have: what decode rows leave, one kept for each other prompt that may still come into this
 * step. At least one, because a step has logits for every request's decode rows. */
static int32_t logits_room(const struct sched *s)
{
    return s->logits_left - (s->prompts_most - s->making->batch.count - 1);
}

struct chunk next_chunk(struct sched *s, const struct sched_request *r)
{
    const struct chunk_rule rule = {.from = r->next,
                                    .end = r->end,
                                    .below = r->below,
                                    .tail = s->tail,
                                    .rows = s->prefill_left,
                                    .cap = s->options.long_prefill_cap,
                                    .block = s->block,
                                    .cut = start_next_cut(s, r, r->next),
                                    .first_logits = sched_min(r->first_logits, r->end - 1),
                                    .logits = logits_room(s),
                                    .only = s->making->prefill_spans == 0};
    return chunk_of(&rule);
}

/* ---- spans ---- */

static block_id *copy_blocks(const struct sched *s, const struct sched_request *r, int32_t end)
{
    block_id *blocks = s->making->blocks + (int64_t)s->making->batch.count * s->max_blocks;
    memcpy(blocks, r->blocks, (size_t)blocks_for(s, end) * sizeof *blocks);
    return blocks;
}

/* Tokens of a decode span: the last final one and the drafts, or the one that the step before draws. */
static const int32_t *copy_decode_tokens(const struct sched *s, const struct sched_request *r, int32_t count)
{
    int32_t *tokens = s->making->tokens + (int64_t)s->making->batch.count * s->width;
    tokens[0] = r->next < r->count ? r->tokens[r->next] : BATCH_TOKEN_DRAWN;
    memcpy(tokens + 1, r->draft, (size_t)(count - 1) * sizeof *tokens);
    return tokens;
}

/* How the slot's cursor gets to the span's first position. An image may have been copied from a state that stood further. */
static void place_cursor(const struct sched *s, struct sched_request *r, struct batch_span *span)
{
    span->restored = r->restored;
    const bool moved = r->fresh, back = r->state == SCHED_PREFILL && span->first_position < r->next;
    span->place = (moved || back) && span->first_position > 0;
    r->fresh = r->restored = false;
    if (span->first_position > r->count) /* the token before it is being drawn */
        return;
    span->before_count = sched_min(s->history, span->first_position);
    const int32_t from = span->first_position - span->before_count;
    span->before = r->tokens + from;
    span->before_mask = r->image_mask ? r->image_mask + from : NULL;
}

void span_ranges(const struct sched *s, const struct sched_request *r, struct chunk chunk, int32_t again,
                 struct row_plan *out)
{
    *out = r->rows;
    if (again > 0)
        rows_back_off(s->options.plan, &r->rows, chunk.first, again, out);
    else if (s->tail > 0 && chunk.end < r->end)
        rows_unfinished(s->options.plan, out);
}

static void count_prefill(struct sched *s, struct sched_request *r, struct chunk c, bool back_off)
{
    const int32_t rerun = sched_max(0, sched_min(c.end, r->hit) - (back_off ? r->next : c.first));
    s->prefill_left -= c.end - c.first;
    s->making->prefill_spans++;
    s->metrics.prefill_rows += c.end - c.first;
    s->metrics.rows_backed_off += back_off ? r->next - c.first : 0;
    s->metrics.rows_rerun += rerun;
    r->rows_rerun += rerun;
    s->metrics.chunks_cut += c.end < r->end && c.end == start_next_cut(s, r, r->next);
}

static struct batch_span prefill_span(struct sched *s, struct sched_request *r, struct chunk c)
{
    const int32_t count = c.end - c.first, wanted = sched_min(r->first_logits, r->end - 1) - c.first;
    const bool back_off = c.first < r->next - r->below;
    struct row_plan *rows = &s->making->rows[s->making->batch.count];
    span_ranges(s, r, c, back_off ? r->next : 0, rows);
    count_prefill(s, r, c, back_off);
    return (struct batch_span){.tokens = r->tokens + c.first,
                               .image_mask = r->image_mask ? r->image_mask + c.first : NULL,
                               .logits_from = sched_max(0, sched_min(wanted, count)),
                               .rows = rows,
                               .write_from = back_off ? sched_max(r->hit, r->next) : r->hit};
}

static struct batch_span decode_span(struct sched *s, struct sched_request *r, int32_t end)
{
    const int32_t count = end - r->next;
    for (int32_t i = 1; r->image_mask && i < count; i++) /* a draft is marked as the token that it may become */
        r->image_mask[r->next + i] = r->draft[i - 1] == s->options.image_token;
    s->metrics.decode_rows += count;
    s->making->batch.tentative |= count > 1;
    return (struct batch_span){.tokens = copy_decode_tokens(s, r, count),
                               .image_mask = r->image_mask && r->next < r->count ? r->image_mask + r->next : NULL,
                               .drafts = count - 1,
                               .draftless = r->draftless};
}

/* The position whose state is to be stored behind a span that ends at `end`; -1: none. A verify step may pass a boundary: what
 * was needed there is still in its place then, because rings and tails have room for the drafts (speculation.md 5.2). */
static int32_t image_wanted(struct sched *s, const struct sched_request *r, int32_t end, bool prefill)
{
    const int32_t boundary = end / s->block * s->block;
    if (prefill)
        return end == start_next_cut(s, r, r->next) ? end : -1;
    return boundary > r->next && start_image_pays(s, boundary, 0) ? boundary : -1;
}

void span_add(struct sched *s, struct sched_request *r, struct chunk chunk)
{
    struct batch *batch = &s->making->batch;
    const bool prefill = r->state == SCHED_PREFILL;
    const int32_t end = chunk.end;
    struct batch_span span = prefill ? prefill_span(s, r, chunk) : decode_span(s, r, end);
    span.request = r->id;
    span.slot = r->slot;
    span.first_position = chunk.first;
    span.count = end - chunk.first;
    span.blocks = copy_blocks(s, r, end);
    span.block_count = blocks_for(s, end);
    span.final = end >= r->end;
    place_cursor(s, r, &span);

    s->making->spans[batch->count] = span;
    s->making->request[batch->count++] = r;
    s->logits_left -= span.count - span.logits_from;
    r->flight[r->flights++] = (struct flight){.step = s->step + 1,
                                              .first = r->next,
                                              .count = end - r->next,
                                              .below = r->next - chunk.first,
                                              .final = span.final};
    r->batches++;
    r->rows_run += span.count;
    const int32_t image = image_wanted(s, r, end, prefill);
    if (image >= 0)
        r->image_due = image;
    if (span.draftless)
        r->draft_gap = end;
    r->next = end;
    r->below = 0;
}
