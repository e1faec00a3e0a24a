#include "tools/bench.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "tools/bench_rows.h"
#include "tools/bench_serve.h"
#include "tools/bench_text.h"

/* ---- memory ---- */

enum { READ_PIECE = 1 << 22 };

struct read_job {
    const uint64_t *data;
    uint64_t *sums; /* a cache line apart, one a thread */
};

static void read_piece(void *user, int64_t item, int thread)
{
    const struct read_job *job = user;
    const uint64_t *p = job->data + item * (READ_PIECE / 8);
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = 0; i < READ_PIECE / 8; i += 4) {
        a += p[i];
        b += p[i + 1];
        c += p[i + 2];
        d += p[i + 3];
    }
    job->sums[thread * 8] += a + b + c + d;
}

qr_status bench_read_rate(struct worker_pool *pool, int64_t bytes, double *out, qr_error *err)
{
    const int64_t pieces = bytes / READ_PIECE;
    struct read_job job = {0};
    uint64_t *data = qr_aligned_alloc(4096, (size_t)(pieces * READ_PIECE));
    job.sums = qr_calloc((size_t)pool_threads(pool) * 8, sizeof *job.sums);
    qr_status st = data && job.sums ? QR_OK : qr_fail(err, QR_NO_MEMORY, "bench memory: no memory for %lld bytes",
                                                      (long long)bytes);
    *out = 0;
    if (st == QR_OK) {
        memset(data, 1, (size_t)(pieces * READ_PIECE));
        job.data = data;
        for (int pass = 0; pass < 5; pass++) {
            const double start = clock_seconds();
            pool_run(pool, pieces, read_piece, &job);
            const double rate = (double)(pieces * READ_PIECE) / (clock_seconds() - start);
            if (rate > *out)
                *out = rate;
        }
    }
    qr_free(job.sums);
    qr_free(data);
    return st;
}

static qr_status bench_memory(int threads, bool json, qr_error *err)
{
    struct worker_pool *pool;
    double rate;
    qr_status st = pool_open(threads, &pool, err);
    if (st != QR_OK)
        return st;
    st = bench_read_rate(pool, (int64_t)1 << 29, &rate, err);
    if (st == QR_OK && json)
        printf("{\"threads\":%d,\"read_bytes_per_second\":%.6g}\n", pool_threads(pool), rate);
    else if (st == QR_OK)
        printf("memory: %.1f GB/s read by %d threads\n", rate / 1e9, pool_threads(pool));
    pool_close(pool);
    return st;
}

/* ---- text ---- */

static qr_status bench_text(const char *dir, bool json, qr_error *err)
{
    struct bench_text b;
    qr_status st = bench_text_run(dir, (size_t)4 << 20, &b, err);
    if (st != QR_OK)
        return st;
    if (json)
        printf("{\"load_seconds\":%.6g,\"token_map_seconds\":%.6g,\"texts\":[", b.load_seconds, b.token_map_seconds);
    else
        printf("tokenizer: loaded in %.0f ms, token map in %.0f ms\n%-24s %10s %12s %12s\n", b.load_seconds * 1e3,
               b.token_map_seconds * 1e3, "text, one thread", "bytes", "encode MB/s", "decode MB/s");
    bool first = true;
    for (int i = 0; i < BENCH_TEXT_ROWS; i++) {
        if (b.rows[i].bytes <= 0)
            continue;
        const double encode = b.rows[i].bytes / b.rows[i].encode_seconds / 1e6;
        const double decode = b.rows[i].bytes / b.rows[i].decode_seconds / 1e6;
        if (json)
            printf("%s{\"text\":\"%s\",\"bytes\":%.0f,\"encode_mb_per_second\":%.4g,\"decode_mb_per_second\":%.4g}",
                   first ? "" : ",", b.rows[i].what, b.rows[i].bytes, encode, decode);
        else
            printf("%-24s %10.0f %12.1f %12.1f\n", b.rows[i].what, b.rows[i].bytes, encode, decode);
        first = false;
    }
    if (json)
        printf("]}\n");
    return QR_OK;
}

/* ---- load ---- */

static qr_status bench_load(const struct model_options *m, bool json, qr_error *err)
{
    const qr_model_options model_options = model_options_model(m);
    qr_engine_options engine_options = model_options_engine(m);
    qr_model *model;
    qr_engine *engine;
    qr_status st = plan_before_loading(m, &engine_options, err);
    if (st != QR_OK)
        return st;
    const double start = clock_seconds();
    st = qr_model_open(m->model, &model_options, &model, err);
    if (st != QR_OK)
        return st;
    const double opened = clock_seconds();
    st = qr_engine_create(model, &engine_options, &engine, err);
    if (st == QR_OK) {
        const double ready = clock_seconds();
        qr_plan_bytes plan;
        qr_engine_get_plan(engine, &plan);
        if (json)
            printf("{\"open_seconds\":%.6g,\"engine_seconds\":%.6g,\"weight_bytes\":%llu}\n", opened - start,
                   ready - opened, (unsigned long long)plan.weights);
        else
            printf("load: files and text in %.3f s, engine with %.3f GB of mapped weights in %.3f s\n", opened - start,
                   (double)plan.weights / 1e9, ready - opened);
        qr_engine_destroy(engine);
    }
    qr_model_close(model);
    return st;
}

/* ---- the command ---- */

static int wrong_what(const struct command_line *line, const char *what)
{
    return options_wrong(line, "%s is not one of memory, text, load, decode, prefill, serve and rows", what);
}

int tool_bench(int argc, char **argv)
{
    struct bench_step o = {.model = MODEL_OPTIONS_DEFAULT, .batch = 1, .rows = 1, .tokens = 512, .steps = 8};
    qr_error err = {0};
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(o.model),
        ENGINE_OPTIONS(o.model),
        {.name = "batch", .kind = OPTION_INT, .target = &o.batch, .value = "N", .help = "decode: requests, default 1; serve: requests that decode, default 8",
         .least = 1, .most = 4096},
        {.name = "rows", .kind = OPTION_INT, .target = &o.rows, .value = "N",
         .help = "decode: consecutive rows of each request; default 1", .least = 1, .most = 64},
        {.name = "mtp", .kind = OPTION_FLAG, .target = &o.mtp,
         .help = "decode: two rows of each request, and two of the MTP layer behind them"},
        {.name = "tokens", .kind = OPTION_INT, .target = &o.tokens, .value = "N",
         .help = "prefill, serve: tokens of the prompt, default 512; rows: of the longest, default 32768", .least = 1, .most = 1 << 20},
        {.name = "chunk", .kind = OPTION_INT, .target = &o.chunk, .value = "N",
         .help = "prefill: rows a step; default: the whole prompt", .least = 1, .most = 1 << 20},
        {.name = "context", .kind = OPTION_INT, .target = &o.context, .value = "N",
         .help = "tokens cached before the first step; default 0", .least = 0, .most = 1 << 20},
        {.name = "steps", .kind = OPTION_INT, .target = &o.steps, .value = "N", .help = "steps timed; default 8",
         .least = 1, .most = 100000},
        {.name = "json", .kind = OPTION_FLAG, .target = &o.json, .help = "one JSON object on standard output"},
        {0}};
    struct command_line line = {.command = "bench", .synopsis = "memory|text|load|decode|prefill|serve|rows [--model DIR]",
                                .about = "Figures of this machine and build, each beside the bound measured in the same run. "
                                         "`quire synth` makes checkpoints of any size for it.",
                                .options = options, .least = 1, .most = 1};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    const char *what = line.arguments[0];
    const bool memory = strcmp(what, "memory") == 0, prefill = strcmp(what, "prefill") == 0;
    qr_status st = QR_OK;
    if (!memory && !o.model.model) {
        status = options_wrong(&line, "--model DIR is missing");
    } else {
        status = 0;
        if (memory)
            st = bench_memory(o.model.threads, o.json, &err);
        else if (strcmp(what, "text") == 0)
            st = bench_text(o.model.model, o.json, &err);
        else if (strcmp(what, "load") == 0)
            st = bench_load(&o.model, o.json, &err);
        else if (prefill || strcmp(what, "decode") == 0) {
            o.prefill = prefill;
            if (o.mtp)
                o.rows = 2;
            st = bench_step_run(&o, &err);
        } else if (strcmp(what, "rows") == 0)
            st = bench_rows_run(o.model.model, o.tokens > 512 ? o.tokens : 32768, o.json, &err);
        else if (strcmp(what, "serve") == 0)
            st = bench_serve_run(
                &(struct bench_serve){.model = o.model, .streams = o.batch > 1 ? o.batch : 8, .tokens = o.tokens, .json = o.json},
                &err);
        else
            status = wrong_what(&line, what);
        if (st != QR_OK)
            status = report_failure("bench", &err);
    }
    options_free(options);
    return status;
}
