#include "engine/capture.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine.h"

/* ---- the list ---- */

/* The next number of the list; false at what is none. */
static bool next_number(const char **at, int32_t *out)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    const long n = strtol(*at, &end, 10);
    if (n < 1 || n > INT32_MAX || (*end && *end != ',') || (*end == ',' && !end[1]))
        return false;
    *at = *end ? end + 1 : end;
    *out = (int32_t)n;
    return true;
}

static bool read_list(const char *text, struct capture_sizes *out)
{
    int32_t n, last = 0;
    *out = (struct capture_sizes){.count = 0};
    do {
        if (!next_number(&text, &n) || n <= last || out->count == CAPTURE_SIZES)
            return false;
        out->requests[out->count++] = last = n;
    } while (*text);
    return true;
}

struct capture_sizes capture_choose(const qr_engine_options *o, const struct run_mode *mode, bool records, int32_t width,
                                    struct rule_list *broken)
{
    struct capture_sizes sizes = {.count = 0};
    const char *list = o->cudagraph_capture_sizes;
    if (!list)
        return sizes;
    if (!read_list(list, &sizes))
        rule_broken(broken, "E35 cudagraph-capture-sizes is \"%s\", wanted at most %d numbers from 1 on, ascending, with commas "
                            "between them", list, CAPTURE_SIZES);
    else if (!records)
        rule_broken(broken, "E35 cudagraph-capture-sizes is %s: this device records no graphs", list);
    else if (mode->graphs == GRAPHS_NONE)
        rule_broken(broken, "E35 cudagraph-capture-sizes is %s, and cudagraph-mode NONE: nothing is recorded", list);
    else if (sizes.requests[sizes.count - 1] > o->max_num_seqs)
        rule_broken(broken, "E35 cudagraph-capture-sizes is %s: %d requests are more than max-num-seqs %d", list,
                    sizes.requests[sizes.count - 1], o->max_num_seqs);
    else if ((int64_t)sizes.requests[sizes.count - 1] * width > o->max_num_batched_tokens)
        rule_broken(broken, "E35 cudagraph-capture-sizes is %s: %d requests of %d rows are more than max-num-batched-tokens %d",
                    list, sizes.requests[sizes.count - 1], width, o->max_num_batched_tokens);
    else
        return sizes;
    sizes.count = 0;
    return sizes;
}

/* ---- recording ---- */

/* Requests in slots 0, 1, ..., each of the same tokens, on blocks of its own. */
struct crowd {
    struct qr_engine *engine;
    struct batch_span *spans;
    int32_t *tokens, *blocks; /* [max_rows], [requests][blocks_each] */
    int32_t blocks_each;
    uint64_t step;
};

/* The next `count` tokens of n requests that stand at `position`. */
static qr_status run_step(struct crowd *c, int32_t n, int32_t position, int32_t count, bool logits, qr_error *err)
{
    for (int32_t b = 0; b < n; b++)
        c->spans[b] = (struct batch_span){.slot = b,
                                          .blocks = c->blocks + (int64_t)b * c->blocks_each,
                                          .block_count = c->blocks_each,
                                          .first_position = position,
                                          .count = count,
                                          .tokens = c->tokens,
                                          .logits_from = logits ? 0 : count,
                                          .final = logits};
    const struct batch batch = {.step = ++c->step, .count = n, .spans = c->spans};
    return runner_step(c->engine->runner, &batch, NULL, err);
}

enum { TIMES = 2 }; /* a list is recorded when it comes again */

/* A step of one request holds the rows that emit alone: it is another where a group of some ratio ends. */
static qr_status run_one(struct crowd *c, qr_error *err)
{
    const int32_t ratio = c->engine->model->plan.max_ratio, few = ratio < 8 ? ratio : 8;
    int32_t position = 0;
    for (; position < TIMES * few; position++)
        TRY(run_step(c, 1, position, 1, true, err));
    for (int32_t end = ratio; end <= TIMES * ratio && ratio > few; end += ratio) {
        for (int32_t count; position < end - 1; position += count) {
            count = end - 1 - position < c->engine->max_rows ? end - 1 - position : c->engine->max_rows;
            TRY(run_step(c, 1, position, count, false, err));
        }
        TRY(run_step(c, 1, position++, 1, true, err));
    }
    return QR_OK;
}

static qr_status run_sizes(struct crowd *c, const struct capture_sizes *sizes, qr_error *err)
{
    for (int32_t i = 0; i < sizes->count; i++) {
        if (sizes->requests[i] == 1)
            TRY(run_one(c, err));
        for (int32_t time = 0; sizes->requests[i] > 1 && time < TIMES; time++)
            TRY(run_step(c, sizes->requests[i], time, 1, true, err));
    }
    return c->engine->backend->fence(c->engine->backend, err);
}

/* Blocks that the longest of them takes; 0: the pools hold fewer, or shorter ones. */
static int32_t blocks_needed(const struct qr_engine *engine, const struct capture_sizes *sizes)
{
    const int32_t block = engine->geometry.options.block_tokens, longest = TIMES * engine->model->plan.max_ratio;
    const int32_t each = sizes->requests[0] == 1 ? (longest + block - 1) / block : 1;
    const int64_t most = sizes->requests[sizes->count - 1];
    const bool fit = longest <= engine->max_model_len || sizes->requests[0] > 1;
    return fit && each < engine->pool.blocks && most < engine->pool.blocks && most <= engine->pool.slots ? each : 0;
}

static qr_status make_crowd(struct crowd *c, int32_t most, qr_error *err)
{
    const struct qr_engine *engine = c->engine;
    c->spans = qr_calloc((size_t)most, sizeof *c->spans);
    c->tokens = qr_calloc((size_t)engine->max_rows, sizeof *c->tokens);
    c->blocks = qr_calloc((size_t)most * (size_t)c->blocks_each, sizeof *c->blocks);
    if (!c->spans || !c->tokens || !c->blocks)
        return qr_fail(err, QR_NO_MEMORY, "no memory for steps of %d requests to be recorded", most);
    for (int32_t b = 0; b < most; b++)
        for (int32_t i = 0; i < c->blocks_each; i++) /* the first alone has more than one */
            c->blocks[(int64_t)b * c->blocks_each + i] = 1 + (b + i) % (int32_t)(engine->pool.blocks - 1);
    return QR_OK;
}

qr_status capture_run(struct qr_engine *engine, const struct capture_sizes *sizes, qr_error *err)
{
    struct crowd c = {.engine = engine};
    struct backend_counts counts = {.graphs_recorded = 0};
    const double began = clock_seconds();
    if (sizes->count == 0)
        return QR_OK;
    c.blocks_each = blocks_needed(engine, sizes);
    if (c.blocks_each == 0) {
        qr_logf(&engine->model->log, QR_LOG_WARN, "no step is recorded ahead: %lld blocks, %lld slots and %d positions are too few for that",
                (long long)engine->pool.blocks, (long long)engine->pool.slots, engine->max_model_len);
        return QR_OK;
    }
    qr_status st = make_crowd(&c, sizes->requests[sizes->count - 1], err);
    if (st == QR_OK)
        st = run_sizes(&c, sizes, err);
    qr_free(c.spans);
    qr_free(c.tokens);
    qr_free(c.blocks);
    if (st != QR_OK)
        return st;
    if (engine->backend->count)
        engine->backend->count(engine->backend, &counts);
    qr_logf(&engine->model->log, QR_LOG_INFO, "%lld lists of decode steps recorded ahead in %.0f ms",
            (long long)counts.graphs_recorded, (clock_seconds() - began) * 1e3);
    return QR_OK;
}
