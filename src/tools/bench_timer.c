#include "tools/bench_timer.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "sched/chunk.h"
#include "tools/opened.h"
#include "tools/row_audit.h"

struct bench_timer {
    struct opened model;
    int32_t rows; /* of a step */
    int32_t *tokens, *blocks, block_count;
    struct row_audit audit;
};

static qr_status make_arrays(struct bench_timer *t, int32_t longest, qr_error *err)
{
    t->tokens = qr_calloc((size_t)longest, sizeof *t->tokens);
    t->blocks = qr_calloc((size_t)t->block_count, sizeof *t->blocks);
    if (!t->tokens || !t->blocks)
        return qr_fail(err, QR_NO_MEMORY, "bench: no memory for a prompt of %d tokens", longest);
    for (int32_t i = 0; i < t->block_count; i++)
        t->blocks[i] = i + 1;
    uint32_t random = 1;
    for (int32_t i = 0; i < longest; i++) {
        random = random * 1664525 + 1013904223;
        t->tokens[i] = (int32_t)((random >> 8) % (uint32_t)t->model.config.vocab_size);
    }
    return QR_OK;
}

static qr_status open_all(struct bench_timer *t, const struct model_options *model, int32_t longest, qr_error *err)
{
    TRY(opened_config(model, &t->model, err));
    TRY(opened_geometry(model, false, &t->model, err));
    const int32_t block = t->model.geometry.options.block_tokens;
    t->block_count = (longest + block - 1) / block;
    const struct runner_options steps = {
        .blocks = t->block_count + 1,
        .slots = 1,
        .model = {.max_rows = t->rows, .max_requests = 1, .max_logits = 1, .max_positions = longest}};
    TRY(opened_plan(&t->model, model, &steps, err));
    TRY(opened_load(&t->model, model, &steps, err));
    TRY(row_audit_open(t->model.backend, &t->model.plan, t->rows, &t->audit, err));
    return make_arrays(t, longest, err);
}

qr_status bench_timer_open(const struct model_options *model, int longest, int chunk, struct bench_timer **out, qr_error *err)
{
    struct bench_timer *t = qr_calloc(1, sizeof *t);
    if (!t)
        return qr_fail(err, QR_NO_MEMORY, "bench: no memory");
    t->rows = chunk < longest ? chunk : longest;
    qr_status st = open_all(t, model, longest, err);
    if (st != QR_OK) {
        bench_timer_close(t);
        return st;
    }
    *out = t;
    return QR_OK;
}

void bench_timer_close(struct bench_timer *t)
{
    if (!t)
        return;
    row_audit_close(&t->audit);
    opened_close(&t->model);
    qr_free(t->tokens);
    qr_free(t->blocks);
    qr_free(t);
}

const struct model_plan *bench_timer_plan(const struct bench_timer *t) { return &t->model.plan; }

const char *bench_timer_backend(const struct bench_timer *t) { return t->model.backend->name; }

/* The ranges of one chunk of a prompt whose progress is `done`. */
static void chunk_rows(const struct bench_timer *t, const struct row_plan *prompt, enum bench_mode mode, struct chunk c,
                       int32_t done, struct row_plan *out)
{
    *out = *prompt;
    if (c.first < done)
        rows_back_off(&t->model.plan, prompt, c.first, done, out);
    else if (mode == BENCH_BOUNDED && c.end < prompt->end)
        rows_unfinished(&t->model.plan, out);
}

static qr_status run_chunk(struct bench_timer *t, const struct row_plan *rows, struct chunk c, int32_t done,
                           const struct model_observer *observer, qr_error *err)
{
    const int32_t count = c.end - c.first, history = c.first < CURSOR_HISTORY ? c.first : CURSOR_HISTORY;
    const int32_t before = history < t->model.config.engram_max_ngram - 1 ? history : t->model.config.engram_max_ngram - 1;
    const bool back = c.first < done && c.first > 0;
    const struct batch_span span = {.request = 1,
                                    .blocks = t->blocks,
                                    .block_count = t->block_count,
                                    .first_position = c.first,
                                    .count = count,
                                    .tokens = t->tokens + c.first,
                                    .logits_from = c.end == rows->end ? count - 1 : count,
                                    .final = c.end == rows->end,
                                    .rows = rows,
                                    .write_from = done,
                                    .place = back,
                                    .before_count = back && before > 0 ? before : 0,
                                    .before = t->tokens + c.first - (back && before > 0 ? before : 0)};
    const struct batch batch = {.step = 1, .count = 1, .spans = &span};
    return runner_step(t->model.runner, &batch, observer, err);
}

/* Runs a prompt. `ran`: NULL, or what its kernels ran, each chunk held to the row plan. */
static qr_status run_prompt(struct bench_timer *t, enum bench_mode mode, int32_t tokens, int64_t *ran, qr_error *err)
{
    struct chunk_rule rule = {.end = tokens,
                              .tail = mode == BENCH_BOUNDED ? t->model.config.sliding_window : 0,
                              .rows = t->rows,
                              .block = t->model.geometry.options.block_tokens,
                              .cut = -1,
                              .first_logits = tokens - 1,
                              .logits = 1,
                              .only = true};
    struct row_plan prompt, rows;
    bench_mode_rows(&t->model.plan, mode, tokens, &prompt);
    while (rule.from < tokens) {
        const struct chunk c = chunk_of(&rule);
        if (c.end == rule.from)
            return qr_fail(err, QR_BAD_ARGUMENT, "--chunk %d: a prompt of %d tokens under bounded replay wants more than two "
                           "blocks of %d rows a step", t->rows, tokens, rule.block);
        const struct model_observer observer = row_audit_of_step(&t->audit, c.end - c.first);
        chunk_rows(t, &prompt, mode, c, rule.from, &rows);
        TRY(run_chunk(t, &rows, c, rule.from, ran ? &observer : NULL, err));
        if (ran) {
            TRY(row_audit_check(&t->audit, &rows, c.first, err));
            *ran += row_audit_total(&t->audit);
        }
        rule.from = c.end;
    }
    return t->model.backend->fence(t->model.backend, err);
}

qr_status bench_timer_run(struct bench_timer *t, enum bench_mode mode, int32_t tokens, double *seconds, qr_error *err)
{
    const double start = clock_seconds();
    TRY(run_prompt(t, mode, tokens, NULL, err));
    *seconds = clock_seconds() - start;
    return QR_OK;
}

qr_status bench_timer_audit(struct bench_timer *t, enum bench_mode mode, int32_t tokens, int64_t *ran, qr_error *err)
{
    *ran = 0;
    return run_prompt(t, mode, tokens, ran, err);
}
