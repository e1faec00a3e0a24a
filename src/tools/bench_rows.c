#include "tools/bench_rows.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/plural.h"
#include "cli/print_json.h"
#include "plan/products.h"
#include "tools/bench_timer.h"

enum { SHORTEST = 1024, KINDS = ATTEND_HCA + 1 };

/* Of a prompt: rows that pass through layers of each kind, and multiplications and additions. The LM head, which runs on
 * one row in every mode, is left out. */
struct cost {
    int64_t rows[KINDS], total;
    double operations;
};

/* A prompt in each mode of decoder replay that the model has. */
struct prompt_costs {
    int32_t tokens;
    bool has[BENCH_MODES];
    struct cost cost[BENCH_MODES];
    double seconds[BENCH_MODES]; /* of a timed run */
    int64_t ran[BENCH_MODES];    /* rows times layers that kernels ran, counted in an audited run */
};

/* How the prompts are measured. */
struct table {
    const struct model_plan *plan;
    struct bench_timer *timer; /* NULL: not timed */
    bool audit;
    int longest;
};

static void add_layer(const struct model_plan *plan, int32_t layer, const struct row_plan *rows, struct cost *out)
{
    const int64_t queries = rows->end - rows->layer[layer].query;
    out->rows[plan->layer[layer].attend] += queries;
    out->total += queries;
    out->operations += 2 * products_of_layer(plan, layer, rows);
}

static struct cost cost_of(const struct model_plan *plan, const struct row_plan *rows)
{
    struct cost cost = {.total = 0};
    for (int32_t layer = 0; layer < plan->layers; layer++)
        add_layer(plan, layer, rows, &cost);
    return cost;
}

/* ---- modes ---- */

static const char *const mode_names[BENCH_MODES] = {"off", "exact", "bounded"};

bool bench_mode_rows(const struct model_plan *plan, enum bench_mode mode, int32_t tokens, struct row_plan *out)
{
    const struct rows_request request = {
        .end = tokens, .boundary = -1, .first_logits = tokens - 1, .tail = mode == BENCH_BOUNDED};
    if (mode == BENCH_BOUNDED && rows_decoder(plan) < 0)
        return false;
    if (mode == BENCH_OFF)
        rows_all(plan, 0, tokens, out);
    else
        rows_exact(plan, &request, out);
    return true;
}

static qr_status measure(const struct table *t, int32_t tokens, struct prompt_costs *out, qr_error *err)
{
    *out = (struct prompt_costs){.tokens = tokens};
    for (int mode = 0; mode < BENCH_MODES; mode++) {
        struct row_plan rows;
        out->has[mode] = bench_mode_rows(t->plan, (enum bench_mode)mode, tokens, &rows);
        if (!out->has[mode])
            continue;
        out->cost[mode] = cost_of(t->plan, &rows);
        if (t->timer)
            TRY(bench_timer_run(t->timer, (enum bench_mode)mode, tokens, &out->seconds[mode], err));
        if (t->audit)
            TRY(bench_timer_audit(t->timer, (enum bench_mode)mode, tokens, &out->ran[mode], err));
    }
    return QR_OK;
}

/* ---- the table ---- */

static double rows_part(const struct prompt_costs *p, int mode)
{
    return (double)p->cost[mode].total / (double)p->cost[BENCH_OFF].total;
}

static double flops_part(const struct prompt_costs *p, int mode)
{
    return p->cost[mode].operations / p->cost[BENCH_OFF].operations;
}

static void print_prompt(const struct table *t, const struct prompt_costs *p)
{
    printf("%d token%s:\n  %-8s %14s %8s %12s %8s", p->tokens, plural(p->tokens), "replay", "rows x layers", "part", "FLOPs",
           "part");
    if (t->timer)
        printf(" %10s %8s", "seconds", "part");
    if (t->audit)
        printf(" %14s", "kernels ran");
    for (int kind = 0; kind < KINDS; kind++)
        if (p->cost[BENCH_OFF].rows[kind])
            printf(" %12s", attend_name((enum attend)kind));
    putchar('\n');
    for (int mode = 0; mode < BENCH_MODES; mode++) {
        const struct cost *c = &p->cost[mode];
        if (!p->has[mode])
            continue;
        printf("  %-8s %14lld %8.4f %12.5g %8.4f", mode_names[mode], (long long)c->total, rows_part(p, mode), c->operations,
               flops_part(p, mode));
        if (t->timer)
            printf(" %10.3f %8.4f", p->seconds[mode], p->seconds[mode] / p->seconds[BENCH_OFF]);
        if (t->audit)
            printf(" %14lld", (long long)p->ran[mode]);
        for (int kind = 0; kind < KINDS; kind++)
            if (p->cost[BENCH_OFF].rows[kind])
                printf(" %12lld", (long long)c->rows[kind]);
        putchar('\n');
    }
}

static void write_mode(struct json_writer *w, const struct table *t, const struct prompt_costs *p, int mode)
{
    const struct cost *c = &p->cost[mode];
    json_w_key(w, mode_names[mode]);
    json_w_object(w);
    json_w_member_int(w, "rows", c->total);
    json_w_member_number(w, "rows_part", rows_part(p, mode));
    json_w_member_number(w, "flops", c->operations);
    json_w_member_number(w, "flops_part", flops_part(p, mode));
    if (t->timer)
        json_w_member_number(w, "seconds", p->seconds[mode]);
    if (t->audit)
        json_w_member_int(w, "rows_audited", p->ran[mode]);
    json_w_key(w, "by_kind");
    json_w_object(w);
    for (int kind = 0; kind < KINDS; kind++)
        if (p->cost[BENCH_OFF].rows[kind])
            json_w_member_int(w, attend_name((enum attend)kind), c->rows[kind]);
    json_w_end_object(w);
    json_w_end_object(w);
}

static void write_prompt(struct json_writer *w, const struct table *t, const struct prompt_costs *p)
{
    json_w_object(w);
    json_w_member_int(w, "tokens", p->tokens);
    for (int mode = 0; mode < BENCH_MODES; mode++)
        if (p->has[mode])
            write_mode(w, t, p, mode);
    json_w_end_object(w);
}

/* The next length behind `tokens`: doubled, the last one `longest` itself. */
static int64_t longer(int64_t tokens, int longest)
{
    return tokens < longest && 2 * tokens > longest ? longest : 2 * tokens;
}

/* The widest part of what grows with the square of a prompt: without it FLOPs say little. */
static void write_indexer(struct json_writer *w, const struct qr_config *c)
{
    json_w_member_int(w, "index_heads", c->index_n_heads);
    json_w_member_int(w, "index_head_dim", c->index_head_dim);
}

/* `w` NULL: lines for people, as each comes. */
static qr_status run_table(const struct table *t, struct json_writer *w, qr_error *err)
{
    qr_status st = QR_OK;
    int64_t tokens = t->longest < SHORTEST ? t->longest : SHORTEST;
    for (; st == QR_OK && tokens <= t->longest; tokens = longer(tokens, t->longest)) {
        struct prompt_costs p;
        st = measure(t, (int32_t)tokens, &p, err);
        if (st == QR_OK && w)
            write_prompt(w, t, &p);
        else if (st == QR_OK)
            print_prompt(t, &p);
    }
    return st;
}

static qr_status run_table_json(const struct table *t, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    json_w_object(w);
    json_w_member_string(w, "what", t->timer ? "prefill" : "rows");
    if (t->timer)
        json_w_member_string(w, "backend", bench_timer_backend(t->timer));
    write_indexer(w, &t->plan->config);
    json_w_key(w, "prompts");
    json_w_array(w);
    qr_status st = run_table(t, w, err);
    json_w_end_array(w);
    json_w_end_object(w);
    if (st == QR_OK)
        return print_json(w, err);
    json_writer_close(w);
    return st;
}

static qr_status run(const struct table *t, bool json, qr_error *err)
{
    const struct qr_config *c = &t->plan->config;
    if (json)
        return run_table_json(t, err);
    printf("rows of all layers but the LM head's; index keys are scored by %d head%s of %d\n", c->index_n_heads,
           plural(c->index_n_heads), c->index_head_dim);
    return run_table(t, NULL, err);
}

qr_status bench_rows_run(const char *dir, int longest, bool json, qr_error *err)
{
    struct qr_config config;
    struct model_plan plan;
    char *path = path_join(dir, "config.json");
    qr_status st = path ? config_read(path, &config, err) : qr_fail(err, QR_NO_MEMORY, "no memory for a path");
    qr_free(path);
    if (st == QR_OK)
        st = plan_make(&config, config_profile(&config, NULL), &plan, err);
    const struct table t = {.plan = &plan, .longest = longest};
    return st == QR_OK ? run(&t, json, err) : st;
}

qr_status bench_replay_run(const struct model_options *model, int longest, int chunk, bool audit, bool json, qr_error *err)
{
    struct bench_timer *timer;
    qr_status st = bench_timer_open(model, longest, chunk, &timer, err);
    if (st != QR_OK)
        return st;
    const struct table t = {.plan = bench_timer_plan(timer), .timer = timer, .audit = audit, .longest = longest};
    st = run(&t, json, err);
    bench_timer_close(timer);
    return st;
}
