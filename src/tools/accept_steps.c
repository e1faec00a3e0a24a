/* accept_steps.c: what steps may change: nothing (A01, A02, A10, A14, A15). */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "run/page_watch.h"
#include "tools/accept_engine.h"
#include "tools/accept_lab.h"
#include "tools/row_audit.h"

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

/* ---- A01 ---- */

/* The cursor behind `count` tokens is the one that they leave in one forward. */
static qr_status same_cursor(struct lab *lab, const struct lab_request *q, qr_error *err)
{
    struct lab_request prefix;
    TRY(lab_request(lab, q->tokens, q->position, 3, false, &prefix, err));
    TRY(lab_run(lab, &prefix, NULL, err));
    const struct cursor found = runner_cursor(lab->runner, q->slot), wanted = runner_cursor(lab->runner, 3);
    if (found.position == wanted.position && memcmp(found.history, wanted.history, sizeof found.history) == 0)
        return QR_OK;
    return qr_fail(err, QR_INTERNAL,
                   "behind %d tokens in chunks the cursor's history is another than behind one forward", q->position);
}

static qr_status run_chunks(struct lab *lab, const struct accept_prompt *p, struct accept_figures *f, qr_error *err)
{
    static const int32_t cut[] = {3, 1, 129, 7, 128, 33, 1, 64};
    struct lab_request whole = {0}, q = {0};
    qr_status st = lab_request(lab, p->tokens, p->count, 0, true, &whole, err);
    if (st == QR_OK)
        st = lab_run(lab, &whole, NULL, err);
    if (st == QR_OK)
        st = lab_poison(lab, true, err);
    if (st == QR_OK)
        st = lab_request(lab, p->tokens, p->count, 1, true, &q, err);
    for (int i = 0; st == QR_OK && q.position < q.count; i++) {
        const struct batch_span span = lab_span(lab, &q, least(cut[i % 8], q.count - q.position));
        st = lab_step(lab, &q, &span, NULL, err);
        if (st == QR_OK)
            st = same_cursor(lab, &q, err);
        accept_count(f, "chunks", 1);
    }
    if (st == QR_OK)
        st = lab_same(lab, &whole, &q, "in chunks", err);
    lab_request_free(&whole);
    lab_request_free(&q);
    return st;
}

qr_status accept_chunks(struct accept *a, struct accept_figures *f, qr_error *err)
{
    struct accept_prompt p;
    struct lab lab;
    accept_prompt(a, 0, 0, 20, least(400, a->longest), &p);
    TRY(lab_open(a, p.count, &lab, err));
    const qr_status st = run_chunks(&lab, &p, f, err);
    lab_close(&lab);
    return st;
}

/* ---- A02 ---- */

enum { PADDING = 8 };

struct row_buffer {
    const char *name;
    uint8_t *data;
    int64_t row_bytes;
};

/* Buffers that a step writes by row, of the workspace. */
static int row_buffers(const struct lab *lab, struct row_buffer out[5])
{
    const struct workspace *ws = runner_workspace(lab->runner);
    const struct qr_config *c = &lab->a->config;
    const int64_t stream = ws->streams.format == ACT_F32 ? 4 : 2, hidden = c->hidden_size;
    const struct row_buffer all[] = {{"streams", ws->streams.data, c->hc_mult * hidden * stream},
                                     {"normed inputs", ws->x.codes, hidden * 2},
                                     {"outputs of blocks", ws->y, hidden * 2},
                                     {"window keys", ws->keys, c->head_dim * (int64_t)2},
                                     {"logits", (uint8_t *)ws->logits, c->vocab_size * (int64_t)sizeof(float)}};
    memcpy(out, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

/* Rows behind a step's own are zero before it. */
static qr_status clear_padding(const struct lab *lab, int32_t rows, qr_error *err)
{
    struct row_buffer b[5];
    const int n = row_buffers(lab, b);
    for (int i = 0; i < n; i++)
        TRY(lab_fill(lab, b[i].data + rows * b[i].row_bytes, 0, PADDING * b[i].row_bytes, err));
    return QR_OK;
}

static qr_status check_zero(const struct lab *lab, const struct row_buffer *b, int32_t rows, qr_error *err)
{
    const int64_t bytes = PADDING * b->row_bytes;
    uint8_t *found = qr_malloc((size_t)bytes);
    if (!found)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %lld bytes", (long long)bytes);
    qr_status st = lab_read(lab, found, b->data + rows * b->row_bytes, bytes, err);
    for (int64_t i = 0; st == QR_OK && i < bytes; i++)
        if (found[i])
            st = qr_fail(err, QR_INTERNAL, "%s of a padding row are not zero", b->name);
    qr_free(found);
    return st;
}

static qr_status run_padded(struct lab *lab, const struct lab_request *whole, struct accept_figures *f, qr_error *err)
{
    struct lab_request q = {0};
    uint8_t *before = NULL, *after = NULL;
    struct row_buffer b[5];
    qr_status st = lab_request(lab, whole->tokens, whole->count, 1, true, &q, err);
    if (st == QR_OK)
        st = lab_poison(lab, true, err);
    before = lab_pools(lab, err);
    while (st == QR_OK && q.position < q.count) {
        const struct batch_span span = lab_span(lab, &q, least(37, q.count - q.position));
        st = clear_padding(lab, span.count, err);
        if (st == QR_OK)
            st = lab_step(lab, &q, &span, NULL, err);
        const int n = row_buffers(lab, b);
        for (int i = 0; st == QR_OK && i < n; i++)
            st = check_zero(lab, &b[i], span.count, err);
        accept_count(f, "padding_rows", PADDING);
    }
    after = lab_pools(lab, err);
    if (st == QR_OK)
        st = lab_others_unchanged(lab, &q, before, after, err);
    if (st == QR_OK)
        st = lab_same(lab, whole, &q, "with padding rows behind", err);
    qr_free(before);
    qr_free(after);
    lab_request_free(&q);
    return st;
}

qr_status accept_padding(struct accept *a, struct accept_figures *f, qr_error *err)
{
    struct accept_prompt p;
    struct lab_request whole;
    struct lab lab;
    accept_prompt(a, 0, 0, 21, least(150, a->longest), &p);
    TRY(lab_open(a, p.count + PADDING, &lab, err));
    qr_status st = lab_request(&lab, p.tokens, p.count, 0, true, &whole, err);
    if (st == QR_OK)
        st = lab_run(&lab, &whole, NULL, err);
    if (st == QR_OK)
        st = run_padded(&lab, &whole, f, err);
    lab_request_free(&whole);
    lab_close(&lab);
    return st;
}

/* ---- A14, A15 ---- */

/* A prompt in a world of NaN, and its next rows one by one, every unused row and buffer made NaN again before each. */
static qr_status run_garbage(struct lab *lab, const struct lab_request *whole, struct accept_figures *f, qr_error *err)
{
    struct lab_request q = {0};
    qr_status st = lab_request(lab, whole->tokens, whole->count, 2, true, &q, err);
    if (st == QR_OK)
        st = lab_poison(lab, true, err);
    while (st == QR_OK && q.position < q.count) {
        const struct batch_span span = lab_span(lab, &q, q.position == 0 ? q.count - 20 : 1);
        st = lab_poison(lab, false, err);
        if (st == QR_OK)
            st = lab_step(lab, &q, &span, NULL, err);
        accept_count(f, "steps", 1);
    }
    if (st == QR_OK)
        st = lab_same(lab, whole, &q, "beside NaN", err);
    lab_request_free(&q);
    return st;
}

/* Positions from the window's end on one by one, past several turns of the ring. */
static qr_status run_wrap(struct lab *lab, const struct lab_request *whole, struct accept_figures *f, qr_error *err)
{
    const int32_t cut[] = {least(127, whole->count - 1), 1, 0};
    struct lab_request q = {0};
    qr_status st = lab_request(lab, whole->tokens, whole->count, 1, true, &q, err);
    if (st == QR_OK)
        st = lab_run(lab, &q, cut, err);
    if (st == QR_OK)
        st = lab_same(lab, whole, &q, "one by one", err);
    accept_count(f, "turns_of_the_ring", (double)whole->count / lab->geometry.ring_rows);
    lab_request_free(&q);
    return st;
}

static qr_status against_whole(struct accept *a, int32_t count,
                               qr_status (*run)(struct lab *lab, const struct lab_request *whole,
                                                struct accept_figures *f, qr_error *err),
                               struct accept_figures *f, qr_error *err)
{
    struct accept_prompt p;
    struct lab_request whole;
    struct lab lab;
    accept_prompt(a, 0, 0, 22, least(count, a->longest), &p);
    TRY(lab_open(a, p.count, &lab, err));
    qr_status st = lab_request(&lab, p.tokens, p.count, 0, true, &whole, err);
    if (st == QR_OK)
        st = lab_run(&lab, &whole, NULL, err);
    if (st == QR_OK)
        st = run(&lab, &whole, f, err);
    lab_request_free(&whole);
    lab_close(&lab);
    return st;
}

qr_status accept_garbage(struct accept *a, struct accept_figures *f, qr_error *err)
{
    return against_whole(a, 220, run_garbage, f, err);
}

qr_status accept_wrap(struct accept *a, struct accept_figures *f, qr_error *err)
{
    return against_whole(a, 401, run_wrap, f, err);
}

/* ---- A10 ---- */

/* Runs the rows of a plan in chunks of `cut`, and looks at each. */
static qr_status audit_plan(struct lab *lab, struct row_audit *audit, struct lab_request *q, const struct row_plan *rows,
                            int32_t hit, int32_t cut, struct accept_figures *f, qr_error *err)
{
    const int32_t history = (int32_t)(lab->geometry.cursor_bytes / 8) - 1, back = least(history, rows->first);
    q->position = rows->first;
    while (q->position < rows->end) {
        struct batch_span span = lab_span(lab, q, least(cut, rows->end - q->position));
        const struct model_observer observer = row_audit_of_step(audit, span.count);
        const bool last = q->position + span.count == rows->end;
        span.rows = rows;
        span.write_from = hit;
        span.logits_from = last ? span.count - 1 : span.count;
        if (q->position == rows->first && rows->first > 0) {
            span.place = true;
            span.before_count = back;
            span.before = q->tokens + rows->first - back;
        }
        TRY(lab_step(lab, q, &span, &observer, err));
        TRY(row_audit_check(audit, rows, span.first_position, err));
        accept_count(f, "row_layers", (double)row_audit_total(audit));
        accept_count(f, "row_layers_untrimmed", (double)span.count * lab->a->plan.layers);
    }
    return QR_OK;
}

/* Cold in slot 1, then from a hit, over the pages that slot 1 filled, in slot 2. */
static qr_status run_audit(struct lab *lab, const struct lab_request *whole, struct accept_figures *f, qr_error *err)
{
    const struct accept *a = lab->a;
    const int32_t end = whole->count,
                  hits[] = {0, a->block, end / a->block / 2 * a->block, (end - 1) / a->block * a->block};
    const int32_t cuts[] = {end, 97, 32};
    const size_t row = (size_t)a->config.vocab_size, last = (size_t)(end - 1) * row;
    struct lab_request q = {0};
    struct row_audit audit;
    qr_status st = row_audit_open(lab->backend, &a->plan, end, &audit, err);
    if (st == QR_OK)
        st = lab_request(lab, whole->tokens, end, 1, true, &q, err);
    for (int h = 0; st == QR_OK && h < 4; h++)
        for (int c = 0; st == QR_OK && c < 3; c++) {
            const struct rows_request wanted = {.cached = hits[h], .end = end, .boundary = -1, .first_logits = end - 1};
            struct row_plan rows;
            rows_exact(&a->plan, &wanted, &rows);
            q.slot = hits[h] ? 2 : 1;
            st = audit_plan(lab, &audit, &q, &rows, hits[h], cuts[c], f, err);
            if (st == QR_OK && memcmp(q.logits + last, whole->logits + last, row * sizeof(float)) != 0)
                st = qr_fail(err, QR_INTERNAL, "a hit of %d in chunks of %d: other logits than every row gives",
                             hits[h], cuts[c]);
        }
    row_audit_close(&audit);
    lab_request_free(&q);
    return st;
}

/* A bounded decoder runs the last window of a prompt, in the forward that holds its end, of its last layer one row; in no
 * other forward anything (runtime.md 7.1). */
static qr_status check_bounded(const struct row_audit *a, int32_t decoder, int32_t end, bool finishes, qr_error *err)
{
    const int32_t tail = finishes ? end - rows_tail(a->plan, end) : 0;
    for (int32_t layer = decoder; layer < a->plan->layers; layer++) {
        const int32_t wanted = layer == a->plan->layers - 1 ? least(1, tail) : tail;
        if (a->queries[layer] != wanted || a->keys[layer] != tail)
            return qr_fail(err, QR_INTERNAL,
                           "replay bounded: decoder layer %d of a chunk that %s the prompt runs %d rows and %d keys, wanted "
                           "%d and %d", layer, finishes ? "ends" : "does not end", a->queries[layer], a->keys[layer], wanted, tail);
    }
    return QR_OK;
}

/* A cold prompt under bounded replay, in chunks of which the last one holds the window. */
static qr_status run_bounded_audit(struct lab *lab, const struct lab_request *whole, struct accept_figures *f, qr_error *err)
{
    const struct accept *a = lab->a;
    const int32_t end = whole->count, window = a->config.sliding_window, decoder = rows_decoder(&a->plan),
                  cut = most(1, (end - window) / 3);
    const struct rows_request wanted = {.end = end, .boundary = -1, .first_logits = end - 1, .tail = true};
    struct lab_request q = {0};
    struct row_audit audit;
    struct row_plan all;
    rows_exact(&a->plan, &wanted, &all);
    qr_status st = row_audit_open(lab->backend, &a->plan, end, &audit, err);
    if (st == QR_OK)
        st = lab_request(lab, whole->tokens, end, 1, false, &q, err);
    while (st == QR_OK && q.position < end) {
        const int32_t left = end - q.position;
        const bool finishes = left <= cut + window;
        struct batch_span span = lab_span(lab, &q, finishes ? left : cut);
        const struct model_observer observer = row_audit_of_step(&audit, span.count);
        struct row_plan rows = all;
        if (!finishes)
            rows_unfinished(&a->plan, &rows);
        span.rows = &rows;
        span.logits_from = finishes ? span.count - 1 : span.count;
        st = lab_step(lab, &q, &span, &observer, err);
        if (st == QR_OK)
            st = row_audit_check(&audit, &rows, span.first_position, err);
        if (st == QR_OK)
            st = check_bounded(&audit, decoder, end, finishes, err);
        accept_count(f, finishes ? "bounded_chunks_that_end" : "bounded_chunks_without_decoder", 1);
    }
    row_audit_close(&audit);
    lab_request_free(&q);
    return st;
}

qr_status accept_audit(struct accept *a, struct accept_figures *f, qr_error *err)
{
    const int32_t count = most(a->prompts[1], 13 * a->block / 2);
    accept_mode(f, "exact");
    TRY(against_whole(a, count, run_audit, f, err));
    if (!accept_has_bounded(a))
        return QR_OK;
    accept_mode(f, "bounded");
    return against_whole(a, count, run_bounded_audit, f, err);
}
