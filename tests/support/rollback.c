#include "support/rollback.h"

#include <string.h>

#include "base/alloc.h"
#include "support/support.h"
#include "support/visible.h"

enum { TOKENS = 300, MOST = 8, PLAIN = 1, DRAFTED = 0, PERIOD_MOST = 128 };

/* What a run of one row a step had at every position. */
struct control {
    struct buffer state[TOKENS + 1];
    struct buffer drafts[TOKENS + 1]; /* logits of what the drafter said there */
};

struct lane {
    struct rig rig;
    int32_t tokens[TOKENS];
    struct rig_request plain, q;
    struct control control;
    bool covered[PERIOD_MOST][MOST][MOST];
    int32_t end;  /* of a walk */
    int32_t left; /* cases that were not yet tried */
    struct rollback_counts *counts;
};

static void open_lane(struct lane *l, const struct rollback_world *w)
{
    const struct rig_options o = {.model = w->model,
                                  .device = "cpu",
                                  .threads = 1,
                                  .draft_width = w->width,
                                  .draft_rows = w->width,
                                  .ring_short = w->short_by,
                                  .formats = w->bf16,
                                  .main_format = ROW_BF16,
                                  .index_format = w->index_format,
                                  .blocks = 64,
                                  .max_requests = 1,
                                  .max_rows = TOKENS};
    rig_open(&l->rig, &o);
    rig_tokens(&l->rig, 17, l->tokens, TOKENS);
    for (int32_t p = 6; p < TOKENS && l->rig.config.image_token_id > 0; p += 11)
        l->tokens[p] = l->rig.config.image_token_id; /* dead to Engram's history */
    l->plain = rig_request(&l->rig, l->tokens, TOKENS, PLAIN, 1, 1);
    l->q = rig_request(&l->rig, l->tokens, TOKENS, DRAFTED, 60, -1);
}

static void close_lane(struct lane *l)
{
    for (int32_t p = 0; p <= TOKENS; p++) {
        buffer_free(&l->control.state[p]);
        buffer_free(&l->control.drafts[p]);
    }
    rig_request_free(&l->plain);
    rig_request_free(&l->q);
    rig_close(&l->rig);
}

/* ---- the drafter behind a step ---- */

static void take_logits(struct lane *l, int32_t rows, struct buffer *out)
{
    const int64_t bytes = rows * (int64_t)l->rig.config.vocab_size * (int64_t)sizeof(float);
    void *logits = qr_malloc((size_t)bytes);
    assert_non_null(logits);
    rig_read(&l->rig, logits, runner_workspace(l->rig.runner)->logits, bytes);
    assert_true(buffer_append(out, logits, (size_t)bytes));
    qr_free(logits);
}

/* Rows [first, end) are true and `end`'s token is known. MTP makes their keys, DSpark has them; the draft at `end` either way. */
static void draft(struct lane *l, const struct rig_request *q, int32_t first, int32_t end, struct buffer *out)
{
    qr_error err = {0};
    buffer_clear(out);
    if (l->rig.config.drafter == QR_DRAFTER_DSPARK) {
        const struct block_draft block = {.slot = q->slot, .position = end, .anchor = q->tokens[end]};
        must(runner_block_draft(l->rig.runner, &block, 1, NULL, &err), &err);
        take_logits(l, l->rig.config.dspark_block_size, out);
        return;
    }
    for (int32_t p = first; p < end; p++) { /* one by one: room for one draft row */
        const int32_t source = p - first;
        const struct draft_span span = {
            .slot = q->slot, .first_position = p, .count = 1, .tokens = q->tokens + p + 1, .sources = &source};
        must(runner_draft(l->rig.runner, &span, 1, NULL, &err), &err);
    }
    take_logits(l, 1, out);
}

/* ---- one row at a time ---- */

static void run_plain(struct lane *l, int32_t prompt)
{
    int32_t count = prompt;
    struct rig_request *requests[1] = {&l->plain};
    while (l->plain.position + count < l->end) {
        const int32_t first = l->plain.position;
        rig_step(&l->rig, requests, &count, 1);
        draft(l, &l->plain, first, first + count, &l->control.drafts[first + count]);
        visible_state(&l->rig, &l->plain, first + count, &l->control.state[first + count]);
        count = 1;
    }
}

/* ---- with drafts ---- */

static bool same(const struct buffer *a, const struct buffer *b)
{
    return a->length == b->length && memcmp(a->data, b->data, a->length) == 0;
}

/* The request stands where `rows` rows from `first` on became true, of `sent` that ran. */
static void compare(struct lane *l, int32_t first, int32_t rows)
{
    struct buffer state = {.data = NULL}, drafts = {.data = NULL};
    const size_t vocab = (size_t)l->rig.config.vocab_size;
    const int32_t end = first + rows;
    draft(l, &l->q, first, end, &drafts);
    visible_state(&l->rig, &l->q, end, &state);
    l->counts->states += !same(&state, &l->control.state[end]);
    l->counts->drafts += !same(&drafts, &l->control.drafts[end]);
    for (int32_t p = first; p < end; p++)
        l->counts->logits += memcmp(l->q.logits + (size_t)p * vocab, l->plain.logits + (size_t)p * vocab,
                                    vocab * sizeof(float)) != 0;
    l->counts->steps++;
    buffer_free(&state);
    buffer_free(&drafts);
}

/* A verify step of `sent` drafts, the first `right` of which are, that waits for its verdict. */
static void run_drafts(struct lane *l, int32_t sent, int32_t right)
{
    struct rig_request *q = &l->q;
    const int32_t first = q->position, rows = sent + 1, vocab = l->rig.config.vocab_size;
    int32_t tokens[MOST];
    uint8_t mask[MOST];
    qr_error err = {0};
    for (int32_t i = 0; i < rows; i++) {
        const int32_t truth = q->tokens[first + i];
        tokens[i] = i <= right ? truth : (truth + 7 * i) % (vocab - 3) + 3;
        mask[i] = tokens[i] == l->rig.config.image_token_id;
    }
    struct batch_span span = rig_span(&l->rig, q, rows);
    span.tokens = tokens;
    span.image_mask = mask;
    const struct batch batch = {.count = 1, .spans = &span, .tentative = true};
    must(runner_step(l->rig.runner, &batch, NULL, &err), &err);
}

static void verify(struct lane *l, int32_t sent, int32_t right)
{
    struct rig_request *q = &l->q;
    const int32_t first = q->position, accepted = right + 1, vocab = l->rig.config.vocab_size;
    qr_error err = {0};
    run_drafts(l, sent, right);
    rig_read(&l->rig, q->logits + (size_t)first * (size_t)vocab, runner_workspace(l->rig.runner)->logits,
             accepted * (int64_t)vocab * (int64_t)sizeof(float));
    must(runner_commit(l->rig.runner, &accepted, &err), &err);
    q->position += accepted;
    compare(l, first, accepted);
}

/* The whole step is dropped before its verdict, and run again in another way: no draft is asked for between. */
static void drop(struct lane *l, int32_t sent)
{
    const int32_t none = 0;
    qr_error err = {0};
    run_drafts(l, sent, 0);
    must(runner_commit(l->rig.runner, &none, &err), &err);
}

static void plain_step(struct lane *l)
{
    const int32_t first = l->q.position, one = 1;
    rig_step(&l->rig, (struct rig_request *[]){&l->q}, &one, 1);
    compare(l, first, 1);
}

/* A step that was not yet tried at the position modulo the period; false: all were. */
static bool next_case(struct lane *l, const struct rollback_world *w, int32_t *sent, int32_t *right)
{
    for (*sent = 0; *sent <= w->width; ++*sent)
        for (*right = 0; *right <= *sent; ++*right) {
            bool *covered = &l->covered[l->q.position % w->period][*sent][*right];
            if (!*covered)
                return *covered = true;
        }
    return false;
}

static void begin(struct lane *l, int32_t prompt)
{
    l->q.position = 0;
    rig_step(&l->rig, (struct rig_request *[]){&l->q}, &prompt, 1);
    compare(l, 0, prompt);
}

/* From a prompt to the last token; every second case goes on behind NaN in all that may not be read. */
static void walk(struct lane *l, const struct rollback_world *w, int32_t prompt)
{
    int32_t sent, right;
    begin(l, prompt);
    while (l->left > 0 && l->q.position + 2 * MOST < l->end) {
        if (next_case(l, w, &sent, &right)) {
            if (l->left % 3 == 0)
                drop(l, sent);
            verify(l, sent, right);
            if (l->left-- % 2)
                visible_spoil_rest(&l->rig, &l->q, l->q.position);
        }
        plain_step(l);
    }
}

void rollback(const struct rollback_world *w, struct rollback_counts *out)
{
    struct lane *l = qr_calloc(1, sizeof *l);
    assert_non_null(l);
    assert_true(w->width < MOST && w->period <= PERIOD_MOST);
    *out = (struct rollback_counts){0};
    l->counts = out;
    l->end = w->tokens;
    assert_in_range(w->tokens, w->prompt + 2 * MOST, TOKENS);
    open_lane(l, w);
    run_plain(l, w->prompt);
    const int32_t all = w->period * (w->width + 1) * (w->width + 2) / 2;
    l->left = all;
    for (int32_t turn = 0; l->left > 0 && turn < 4 * all; turn++)
        walk(l, w, w->prompt + turn % w->period);
    assert_int_equal(l->left, 0);
    out->cases = all;
    close_lane(l);
    qr_free(l);
}
