#include "tools/bench_pairs.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/plan.h"
#include "cli/print_json.h"
#include "engine/engine.h"
#include "tools/bench_random.h"
#include "tools/scripted_drafts.h"

enum { REQUESTS = BENCH_ANSWERS };
enum side { WITHOUT, AUTO, SIDES };

static const struct text {
    const char *name;
    bool any; /* drafts of any tokens in the place of the drafter's */
} texts[] = {{"random tokens", false}, {"random drafts", true}};
enum { TEXTS = sizeof texts / sizeof *texts };

/* One run of all requests. */
struct pair {
    double cpu[SIDES], seconds[SIDES];
    uint64_t steps, verify_steps; /* of AUTO */
};

struct pairs_bench {
    const struct bench_pairs *o;
    qr_model *model;
    qr_engine_options options;
    struct request_text requests[REQUESTS];
    struct pair *pairs; /* [o->pairs] */
    double *sorted;     /* [o->pairs] */
};

/* ---- running ---- */

static qr_status run_turns(struct pairs_bench *b, qr_engine *const *engines, int turn, struct pair *out, qr_error *err)
{
    for (int from = 0; from < REQUESTS; from += b->o->batch, turn++)
        for (int k = 0; k < SIDES; k++) {
            const int side = (turn + k) % SIDES, to = from + b->o->batch < REQUESTS ? from + b->o->batch : REQUESTS;
            const double start = clock_seconds(), cpu = clock_cpu_seconds();
            const qr_status st = bench_answers(engines[side], b->requests + from, to - from, err);
            if (st != QR_OK)
                return st;
            out->cpu[side] += clock_cpu_seconds() - cpu;
            out->seconds[side] += clock_seconds() - start;
        }
    return QR_OK;
}

static qr_status run_pair(struct pairs_bench *b, const struct text *text, int number, struct pair *out, qr_error *err)
{
    static const char *const methods[SIDES] = {"none", "auto"};
    struct scripted_drafts any = {.mode = SCRIPT_RANDOM, .random = (uint64_t)number + 1};
    qr_model_info info;
    qr_engine *engines[SIDES] = {0};
    qr_metrics after = {.size = sizeof after};
    qr_status st = QR_OK;
    *out = (struct pair){0};
    qr_model_get_info(b->model, &info);
    any.vocab = info.vocab_size;
    for (int side = 0; st == QR_OK && side < SIDES; side++) {
        qr_engine_options options = b->options;
        options.method = methods[side];
        st = qr_engine_create(b->model, &options, &engines[side], err);
    }
    if (st == QR_OK && !engines[AUTO]->speculation)
        st = qr_fail(err, QR_UNSUPPORTED, "bench drafts: the checkpoint has no drafter that can run");
    if (st == QR_OK && text->any)
        script_install(&any, engines[AUTO]);
    if (st == QR_OK)
        st = run_turns(b, engines, number, out, err);
    if (st == QR_OK)
        qr_get_metrics(engines[AUTO], &after);
    out->steps = after.drafts.decode_steps;
    out->verify_steps = after.drafts.verify_steps;
    for (int side = 0; side < SIDES; side++)
        qr_engine_destroy(engines[side]);
    return st;
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct spread {
    double least, lower, median, upper, most;
};

/* Of b->sorted, which it sorts. */
static struct spread spread_of(struct pairs_bench *b)
{
    const int n = b->o->pairs;
    const double *v = b->sorted;
    qsort(b->sorted, (size_t)n, sizeof *b->sorted, by_value);
    return (struct spread){v[0], v[n / 4], (v[(n - 1) / 2] + v[n / 2]) / 2, v[n - 1 - n / 4], v[n - 1]};
}

struct pair_figures {
    double cpu[SIDES], seconds[SIDES]; /* medians */
    struct spread cpu_ratio, ratio;    /* AUTO over WITHOUT */
    double resting;                    /* part of the automatic setting's steps that verified nothing */
};

static struct pair_figures figures_of(struct pairs_bench *b)
{
    struct pair_figures f = {0};
    const int n = b->o->pairs;
    uint64_t steps = 0, verify_steps = 0;
    for (int side = 0; side < SIDES; side++) {
        for (int i = 0; i < n; i++)
            b->sorted[i] = b->pairs[i].cpu[side];
        f.cpu[side] = spread_of(b).median;
        for (int i = 0; i < n; i++)
            b->sorted[i] = b->pairs[i].seconds[side];
        f.seconds[side] = spread_of(b).median;
    }
    for (int i = 0; i < n; i++)
        b->sorted[i] = b->pairs[i].seconds[AUTO] / b->pairs[i].seconds[WITHOUT];
    f.ratio = spread_of(b);
    for (int i = 0; i < n; i++)
        b->sorted[i] = b->pairs[i].cpu[AUTO] / b->pairs[i].cpu[WITHOUT];
    f.cpu_ratio = spread_of(b);
    for (int i = 0; i < n; i++) {
        steps += b->pairs[i].steps;
        verify_steps += b->pairs[i].verify_steps;
    }
    f.resting = steps > 0 ? 1 - (double)verify_steps / (double)steps : 1;
    return f;
}

static void write_spread(struct json_writer *w, const char *name, const struct spread *s)
{
    json_w_key(w, name);
    json_w_object(w);
    json_w_member_number(w, "least", s->least);
    json_w_member_number(w, "lower_quartile", s->lower);
    json_w_member_number(w, "median", s->median);
    json_w_member_number(w, "upper_quartile", s->upper);
    json_w_member_number(w, "most", s->most);
    json_w_end_object(w);
}

static void write_figures(struct json_writer *w, const char *name, const struct pair_figures *f)
{
    json_w_object(w);
    json_w_member_string(w, "text", name);
    json_w_member_number(w, "cpu_seconds_without", f->cpu[WITHOUT]);
    json_w_member_number(w, "cpu_seconds_auto", f->cpu[AUTO]);
    json_w_member_number(w, "seconds_without", f->seconds[WITHOUT]);
    json_w_member_number(w, "seconds_auto", f->seconds[AUTO]);
    write_spread(w, "cpu_ratio", &f->cpu_ratio);
    write_spread(w, "ratio", &f->ratio);
    json_w_member_number(w, "steps_resting_auto", f->resting);
    json_w_end_object(w);
}

static void print_figures(const char *name, const struct pair_figures *f)
{
    printf("%-16s %10.2f %10.2f %8.3f %6.3f %6.3f %6.3f %6.3f %8.3f %8.1f%%\n", name, f->cpu[WITHOUT], f->cpu[AUTO],
           f->cpu_ratio.median, f->cpu_ratio.lower, f->cpu_ratio.upper, f->cpu_ratio.least, f->cpu_ratio.most, f->ratio.median,
           100 * f->resting);
}

static void print_heading(const struct bench_pairs *o)
{
    printf("%d answers of %d tokens, %d at once, %d pairs of runs; processor seconds\n", REQUESTS, o->tokens, o->batch, o->pairs);
    printf("%-16s %10s %10s %8s %13s %13s %8s %9s\n", "", "without", "auto", "auto/", "quartiles", "extremes", "elapsed", "steps");
    printf("%-16s %10s %10s %8s %13s %13s %8s %9s\n", "", "", "", "without", "", "", "", "resting");
}

/* ---- the whole ---- */

static qr_status run_texts(struct pairs_bench *b, struct json_writer *w, qr_error *err)
{
    for (int t = 0; t < TEXTS; t++) {
        for (int i = 0; i < b->o->pairs; i++) {
            const qr_status st = run_pair(b, &texts[t], i, &b->pairs[i], err);
            if (st != QR_OK)
                return st;
        }
        const struct pair_figures f = figures_of(b);
        if (w)
            write_figures(w, texts[t].name, &f);
        else
            print_figures(texts[t].name, &f);
    }
    return QR_OK;
}

static qr_status run(struct pairs_bench *b, qr_error *err)
{
    const size_t pairs = (size_t)b->o->pairs;
    b->pairs = qr_calloc(pairs, sizeof *b->pairs);
    b->sorted = qr_calloc(pairs, sizeof *b->sorted);
    struct json_writer *w = b->o->json ? json_writer_open(false) : NULL;
    qr_status st = b->pairs && b->sorted && (w || !b->o->json) ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for %zu pairs", pairs);
    if (st == QR_OK)
        st = bench_random(b->model, b->o->tokens, b->requests, REQUESTS, err);
    if (st == QR_OK && w) {
        json_w_object(w);
        json_w_member_int(w, "batch", b->o->batch);
        json_w_member_int(w, "tokens", b->o->tokens);
        json_w_member_int(w, "pairs", b->o->pairs);
        json_w_key(w, "texts");
        json_w_array(w);
    } else if (st == QR_OK) {
        print_heading(b->o);
    }
    if (st == QR_OK)
        st = run_texts(b, w, err);
    for (int i = 0; i < REQUESTS; i++)
        request_text_free(&b->requests[i]);
    qr_free(b->pairs);
    qr_free(b->sorted);
    if (!w)
        return st;
    if (st != QR_OK) {
        json_writer_close(w);
        return st;
    }
    json_w_end_array(w);
    json_w_end_object(w);
    return print_json(w, err);
}

qr_status bench_pairs_run(const struct bench_pairs *o, qr_error *err)
{
    struct model_options m = o->model;
    struct pairs_bench b = {.o = o};
    m.max_num_seqs = o->batch;
    m.no_prefix_caching = true; /* the same prompts again and again */
    m.method = "auto";          /* what is planned for */
    if (m.max_model_len == 0)   /* two engines stand side by side: no larger than the answers need */
        m.max_model_len = BENCH_RANDOM_PROMPT + o->tokens;
    const qr_model_options model_options = model_options_model(&m);
    b.options = model_options_engine(&m);
    qr_status st = plan_before_loading(&m, &b.options, err);
    if (st == QR_OK)
        st = qr_model_open(m.model, &model_options, &b.model, err);
    if (st == QR_OK)
        st = run(&b, err);
    qr_model_close(b.model);
    return st;
}
