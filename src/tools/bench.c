#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/nearest.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "cli/plural.h"
#include "cli/print_json.h"
#include "tools/bench_drafts.h"
#include "tools/bench_pairs.h"
#include "tools/bench_rows.h"
#include "tools/bench_serve.h"
#include "tools/bench_text.h"
#include "tools/op.h"

#define WHAT_WORDS "memory, op, text, load, decode, prefill, serve, drafts or rows"

/* The command's line; the defaults of some depend on what is measured. */
struct bench_options {
    struct bench_step step;
    const char *op, *in; /* op */
    const char *requests, *profile; /* drafts */
    struct option_list also; /* decode */
    int pairs;
    bool has_batch, has_rows, has_tokens, has_chunk, has_context, has_steps;
    bool replay, audit; /* prefill */
};

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

static qr_status print_rate_json(int threads, double rate, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    json_w_object(w);
    json_w_member_int(w, "threads", threads);
    json_w_member_number(w, "read_bytes_per_second", rate);
    json_w_end_object(w);
    return print_json(w, err);
}

static qr_status bench_memory(const struct bench_options *o, qr_error *err)
{
    struct worker_pool *pool;
    double rate;
    qr_status st = pool_open(o->step.model.threads, &pool, err);
    if (st != QR_OK)
        return st;
    st = bench_read_rate(pool, (int64_t)1 << 29, &rate, err);
    if (st == QR_OK && o->step.json)
        st = print_rate_json(pool_threads(pool), rate, err);
    else if (st == QR_OK)
        printf("memory: %.1f GB/s read by %d thread%s\n", rate / 1e9, pool_threads(pool), plural(pool_threads(pool)));
    pool_close(pool);
    return st;
}

/* ---- text ---- */

static double rate_of(const struct bench_text *b, int row, double seconds) { return b->rows[row].bytes / seconds / 1e6; }

static void print_text(const struct bench_text *b)
{
    printf("tokenizer: loaded in %.0f ms, token map in %.0f ms\n%-24s %10s %12s %12s\n", b->load_seconds * 1e3,
           b->token_map_seconds * 1e3, "text, one thread", "bytes", "encode MB/s", "decode MB/s");
    for (int i = 0; i < BENCH_TEXT_ROWS; i++)
        if (b->rows[i].bytes > 0)
            printf("%-24s %10.0f %12.1f %12.1f\n", b->rows[i].what, b->rows[i].bytes, rate_of(b, i, b->rows[i].encode_seconds),
                   rate_of(b, i, b->rows[i].decode_seconds));
    bench_grammar_print(&b->grammar);
}

static qr_status print_text_json(const struct bench_text *b, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    json_w_object(w);
    json_w_member_number(w, "load_seconds", b->load_seconds);
    json_w_member_number(w, "token_map_seconds", b->token_map_seconds);
    json_w_key(w, "texts");
    json_w_array(w);
    for (int i = 0; i < BENCH_TEXT_ROWS; i++) {
        if (b->rows[i].bytes <= 0)
            continue;
        json_w_object(w);
        json_w_member_string(w, "text", b->rows[i].what);
        json_w_member_number(w, "bytes", b->rows[i].bytes);
        json_w_member_number(w, "encode_mb_per_second", rate_of(b, i, b->rows[i].encode_seconds));
        json_w_member_number(w, "decode_mb_per_second", rate_of(b, i, b->rows[i].decode_seconds));
        json_w_end_object(w);
    }
    json_w_end_array(w);
    json_w_key(w, "grammar");
    bench_grammar_write(&b->grammar, w);
    json_w_end_object(w);
    return print_json(w, err);
}

static qr_status bench_text(const struct bench_options *o, qr_error *err)
{
    struct bench_text b;
    qr_status st = bench_text_run(o->step.model.model, (size_t)4 << 20, &b, err);
    if (st == QR_OK && o->step.json)
        return print_text_json(&b, err);
    if (st == QR_OK)
        print_text(&b);
    return st;
}

/* ---- load ---- */

static qr_status print_load(const struct bench_options *o, double open, double engine, uint64_t weights, qr_error *err)
{
    struct json_writer *w;
    if (!o->step.json) {
        printf("load: files and text in %.3f s, engine with %.3f GB of mapped weights in %.3f s\n", open, (double)weights / 1e9,
               engine);
        return QR_OK;
    }
    if (!(w = json_writer_open(false)))
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    json_w_object(w);
    json_w_member_number(w, "open_seconds", open);
    json_w_member_number(w, "engine_seconds", engine);
    json_w_member_uint(w, "weight_bytes", weights);
    json_w_end_object(w);
    return print_json(w, err);
}

static qr_status bench_load(const struct bench_options *o, qr_error *err)
{
    const struct model_options *m = &o->step.model;
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
        st = print_load(o, opened - start, ready - opened, plan.weights, err);
        qr_engine_destroy(engine);
    }
    qr_model_close(model);
    return st;
}

/* ---- the others ---- */

static qr_status bench_op(const struct bench_options *o, qr_error *err)
{
    const struct model_options *m = &o->step.model;
    const struct op_options options = {.name = o->op, .in = o->in, .device = m->device, .threads = m->threads,
                                       .times = o->step.steps, .json = o->step.json};
    bool passed;
    return op_tool_run(&options, &passed, err);
}

/* BATCHxCONTEXT, or BATCHxCONTEXTxROWS. */
static bool read_cell(const char *text, struct bench_cell *out)
{
    long part[3] = {0, 0, 1};
    const long least[3] = {1, 0, 1}, most[3] = {4096, 1 << 20, 64};
    for (int i = 0; i < 3; i++) {
        char *end;
        if (*text < '0' || *text > '9')
            return false;
        part[i] = strtol(text, &end, 10);
        if (part[i] < least[i] || part[i] > most[i])
            return false;
        text = end + (*end == 'x' && i < 2);
        if (!*end) {
            *out = (struct bench_cell){(int)part[0], (int)part[1], (int)part[2]};
            return i > 0;
        }
        if (*end != 'x')
            return false;
    }
    return false;
}

static qr_status bench_decode(const struct bench_options *o, qr_error *err)
{
    struct bench_step step = o->step;
    struct bench_cell *cells = qr_calloc(o->also.count + 1, sizeof *cells);
    qr_status st = cells ? QR_OK : qr_fail(err, QR_NO_MEMORY, "bench: no memory");
    if (step.mtp)
        step.rows = 2;
    for (size_t i = 0; st == QR_OK && i < o->also.count; i++) {
        if (!read_cell(o->also.items[i], &cells[i]))
            st = qr_fail(err, QR_BAD_ARGUMENT, "--also %s: wanted BATCHxCONTEXT or BATCHxCONTEXTxROWS, as 8x128000", o->also.items[i]);
        else if (step.mtp)
            cells[i].rows = 2;
    }
    step.also = cells;
    step.also_count = (int)o->also.count;
    if (st == QR_OK)
        st = bench_step_run(&step, err);
    qr_free(cells);
    return st;
}

static qr_status bench_prefill(const struct bench_options *o, qr_error *err)
{
    struct bench_step step = o->step;
    step.prefill = true;
    if (o->replay)
        return bench_replay_run(&step.model, o->has_tokens ? step.tokens : 32768, o->has_chunk ? step.chunk : 2048, o->audit,
                                step.json, err);
    return bench_step_run(&step, err);
}

static qr_status bench_serve(const struct bench_options *o, qr_error *err)
{
    const struct bench_serve serve = {.model = o->step.model, .streams = o->has_batch ? o->step.batch : 8,
                                      .tokens = o->step.tokens, .json = o->step.json};
    return bench_serve_run(&serve, err);
}

static qr_status bench_drafts(const struct bench_options *o, qr_error *err)
{
    const struct bench_drafts drafts = {.model = o->step.model, .requests = o->requests, .batch = o->step.batch,
                                        .tokens = o->has_tokens ? o->step.tokens : 192,
                                        .profile = o->profile, .runs = o->has_steps ? o->step.steps : 1, .json = o->step.json};
    const struct bench_pairs pairs = {
        .model = drafts.model, .batch = drafts.batch, .tokens = drafts.tokens, .pairs = o->pairs, .json = drafts.json};
    return o->pairs > 0 ? bench_pairs_run(&pairs, err) : bench_drafts_run(&drafts, err);
}

static qr_status bench_rows(const struct bench_options *o, qr_error *err)
{
    return bench_rows_run(o->step.model.model, o->has_tokens ? o->step.tokens : 32768, o->step.json, err);
}

/* ---- the command ---- */

#define ALL_TAKE " json quiet log-level "
#define MACHINE_TAKES " device threads "
#define CACHE_TAKES                                                                                                    \
    "kv-ram-bytes gpu-memory-utilization expert-memory indexer-logits-budget-mb cudagraph-mode level enforce-eager "
/* Of steps without an engine around them (tools/opened.h). */
#define STEPS_TAKE MACHINE_TAKES "model profile max-model-len " CACHE_TAKES "block-size kv-cache-dtype index-cache-dtype "
/* Of engines: all but the lengths and places that a measurement sets by itself. */
#define ENGINE_TAKES                                                                                                   \
    MACHINE_TAKES "model profile " CACHE_TAKES "block-size kv-cache-dtype index-cache-dtype max-num-batched-tokens "     \
                  "decoder-replay decoder-swa-bounded-replay no-decoder-swa-bounded-replay encoder-replay "            \
                  "encoder-swa-bounded-replay no-encoder-swa-bounded-replay max-prefill-tokens-per-step "              \
                  "attn-prefill-chunk-size long-prefill-cap scheduler-delay-factor method num-speculative-tokens "     \
                  "draft-width verifier draft-sampling forced-acceptance-length expert-use "

static const struct bench_what {
    const char *name;
    qr_status (*run)(const struct bench_options *o, qr_error *err);
    const char *takes; /* options, a blank before and after each; every other one is refused */
    bool of_file;      /* of an operator's file instead of a model */
    bool plans;        /* options of features that are not built are refused by the plan (runtime.md 11) */
} whats[] = {
    {"memory", bench_memory, ALL_TAKE "threads ", false, false},
    {"op", bench_op, ALL_TAKE MACHINE_TAKES "in steps ", true, false},
    {"text", bench_text, ALL_TAKE "model ", false, false},
    {"load", bench_load,
     ALL_TAKE ENGINE_TAKES "max-model-len max-num-seqs no-prefix-caching prefix-provenance prompt-profile "
                           "state-checkpoint-interval-tokens ",
     false, true},
    {"decode", bench_decode, ALL_TAKE STEPS_TAKE "batch rows mtp context steps also ", false, true},
    {"prefill", bench_prefill, ALL_TAKE STEPS_TAKE "tokens chunk context replay audit ", false, true},
    {"serve", bench_serve, ALL_TAKE ENGINE_TAKES "batch tokens ", false, true},
    {"drafts", bench_drafts,
     ALL_TAKE MACHINE_TAKES "model profile prompt-profile " CACHE_TAKES "block-size kv-cache-dtype index-cache-dtype "
                            "max-num-batched-tokens max-model-len num-speculative-tokens draft-width requests batch steps tokens write-profile pairs ",
     false, true},
    {"rows", bench_rows, ALL_TAKE "model tokens ", false, false},
};
enum { WHATS = sizeof whats / sizeof *whats };

static const struct bench_what *find_what(const struct command_line *line, int *status)
{
    const char *name = line->arguments[0];
    const struct bench_what *nearest = &whats[0];
    for (int i = 0; i < WHATS; i++) {
        if (strcmp(whats[i].name, name) == 0)
            return &whats[i];
        if (edit_distance(name, whats[i].name) < edit_distance(name, nearest->name))
            nearest = &whats[i];
    }
    *status = options_wrong(line, "unknown figures \"%s\", wanted " WHAT_WORDS "%s", name,
                            nearest_hint(name, nearest->name).text);
    return NULL;
}

/* Of one that is not built: no help lists it. */
static bool is_feature(const struct option *o) { return o->help && !*o->help; }

/* 0, or 2 after a sentence about what is missing or has no meaning here. */
static int check_options(const struct command_line *line, const struct bench_what *what, const struct bench_options *o)
{
    for (const struct option *given = NULL; (given = options_given(line, given));)
        if (!option_among(given, what->takes) && !(what->plans && is_feature(given)))
            return options_wrong(line, "--%s says nothing to %s", given->name, what->name);
    if (o->step.mtp && o->has_rows && o->step.rows != 2)
        return options_wrong(line, "--rows is %d, wanted 2 with --mtp", o->step.rows);
    if (o->replay && o->has_context)
        return options_wrong(line, "--context says nothing to prefill --replay");
    if (o->audit && !o->replay)
        return options_wrong(line, "--audit says nothing to prefill without --replay");
    if (o->pairs && (o->requests || o->profile || o->has_steps))
        return options_wrong(line, "--%s says nothing to drafts --pairs",
                             o->requests ? "requests" : o->profile ? "write-profile" : "steps");
    if (o->op && !what->of_file)
        return options_wrong(line, "argument \"%s\" is one too many", o->op);
    if (what->of_file ? !o->in : !o->step.model.model && what->run != bench_memory)
        return options_wrong(line, "%s is missing", what->of_file ? "--in FILE" : "--model DIR");
    return op_check_name(line, o->op);
}

int tool_bench(int argc, char **argv)
{
    struct bench_options o = {.step = {.model = MODEL_OPTIONS_DEFAULT, .batch = 1, .rows = 1, .tokens = 512, .steps = 8}};
    qr_error err = {0};
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(o.step.model),
        ENGINE_OPTIONS(o.step.model),
        {.name = "in", .kind = OPTION_PATH, .target = &o.in, .value = "FILE", .help = "op: safetensors file with the arrays in.*"},
        {.name = "requests", .kind = OPTION_PATH, .target = &o.requests, .value = "FILE",
         .help = "drafts: JSON lines {kind, request}, of each kind the first eight; random tokens beside them"},
        {.name = "write-profile", .kind = OPTION_PATH, .target = &o.profile, .value = "FILE",
         .help = "drafts: measure what --speculation-profile reads, on all those requests, and write it; nothing else"},
        {.name = "pairs", .kind = OPTION_INT, .target = &o.pairs, .value = "N",
         .help = "drafts: random tokens only, N times without drafts and N times with method auto, by turns", .least = 1, .most = 1000},
        {.name = "batch", .kind = OPTION_INT, .target = &o.step.batch, .given = &o.has_batch, .value = "N", .help = "decode, drafts: requests at once, default 1; serve: requests that decode, default 8",
         .least = 1, .most = 4096},
        {.name = "rows", .kind = OPTION_INT, .target = &o.step.rows, .given = &o.has_rows, .value = "N",
         .help = "decode: consecutive rows of each request; default 1", .least = 1, .most = 64},
        {.name = "mtp", .kind = OPTION_FLAG, .target = &o.step.mtp,
         .help = "decode: two rows of each request, and two of the MTP layer behind them"},
        {.name = "tokens", .kind = OPTION_INT, .target = &o.step.tokens, .given = &o.has_tokens, .value = "N",
         .help = "prefill, serve: tokens of the prompt, default 512; rows, prefill --replay: of the longest, default 32768; drafts: of an answer to random tokens, default 192", .least = 1, .most = 1 << 20},
        {.name = "replay", .kind = OPTION_FLAG, .target = &o.replay,
         .help = "prefill: prompts of 1,024 tokens and doubled up to --tokens under each mode of decoder replay"},
        {.name = "audit", .kind = OPTION_FLAG, .target = &o.audit,
         .help = "prefill --replay: run each prompt once more and hold the rows that kernels run to the row plan"},
        {.name = "chunk", .kind = OPTION_INT, .target = &o.step.chunk, .given = &o.has_chunk, .value = "N",
         .help = "prefill: rows a step; default: the whole prompt, with --replay 2048", .least = 1, .most = 1 << 20},
        {.name = "context", .kind = OPTION_INT, .target = &o.step.context, .given = &o.has_context, .value = "N",
         .help = "decode, prefill: tokens cached before the first step; default 0", .least = 0, .most = 1 << 20},
        {.name = "also", .kind = OPTION_LIST, .target = &o.also, .value = "BATCHxCONTEXT[xROWS]",
         .help = "decode: measure this too, on the same model; may be given several times"},
        {.name = "steps", .kind = OPTION_INT, .target = &o.step.steps, .given = &o.has_steps, .value = "N", .help = "decode: steps timed, op: calls, default 8; drafts: runs of each, of which the fastest counts, default 1",
         .least = 1, .most = 100000},
        {.name = "json", .kind = OPTION_FLAG, .target = &o.step.json, .help = "one JSON object on standard output"},
        {0}};
    struct command_line line = {.command = "bench", .synopsis = "memory|op|text|load|decode|prefill|serve|drafts|rows [--model DIR]",
                                .about = "Figures of this machine and build, each beside the bound measured in the same run. "
                                         "`quire synth` makes checkpoints of any size for it.",
                                .options = options, .least = 1, .most = 2};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    o.op = line.argument_count > 1 ? line.arguments[1] : NULL;
    const struct bench_what *what = find_what(&line, &status);
    if (what)
        status = check_options(&line, what, &o);
    if (what && status == 0 && what->run(&o, &err) != QR_OK)
        status = report_failure("bench", &err);
    options_free(options);
    return status;
}
