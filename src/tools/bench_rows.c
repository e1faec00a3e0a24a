#include "tools/bench_rows.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/print_json.h"
#include "plan/rows.h"

enum { SHORTEST = 1024, KINDS = ATTEND_HCA + 1 };

/* Of a prompt: rows that pass through layers of each kind, and multiplications and additions. The LM head, which runs on
 * one row either way, is left out. */
struct cost {
    int64_t rows[KINDS], total;
    double operations;
};

/* ---- operations ---- */

/* Products of a row that passes through the whole layer, what it reads of other rows left out. */
static double layer_products(const struct qr_config *c, const struct layer_plan *l)
{
    const double hidden = c->hidden_size, heads = (double)c->num_attention_heads * c->head_dim;
    const double query = hidden * c->q_lora_rank + c->q_lora_rank * heads;
    const double out = heads * c->o_lora_rank + (double)c->o_groups * c->o_lora_rank * hidden;
    const double index = l->owns_index ? (double)c->q_lora_rank * c->index_n_heads * c->index_head_dim : 0;
    const double experts = 3 * hidden * c->moe_intermediate_size * (l->n_active + 1) + hidden * l->n_experts;
    return query + out + index + experts;
}

/* Rows of the cache that the attention of a query at `position` reads, and rows that its indexer scores. */
static double keys_read(const struct qr_config *c, const struct layer_plan *l, int32_t position)
{
    const int32_t window = position + 1 < c->sliding_window ? position + 1 : c->sliding_window;
    const int32_t visible = plan_visible(l->ratio, position);
    return window + (l->index_owner >= 0 && visible > c->index_topk ? c->index_topk : visible);
}

static double position_products(const struct qr_config *c, const struct layer_plan *l, int32_t position)
{
    double scored = l->owns_index ? plan_visible(l->ratio, position) : 0;
    const double most = (double)c->candidate_topk_blocks * c->candidate_block_size;
    if (l->candidate_reader && scored > most)
        scored = most;
    return 2.0 * c->num_attention_heads * c->head_dim * keys_read(c, l, position) +
           scored * c->index_n_heads * c->index_head_dim;
}

/* Products of a row that a layer only makes keys of: window key; compressed row and index key. */
static double key_products(const struct qr_config *c) { return (double)c->hidden_size * c->head_dim; }

static double compress_products(const struct qr_config *c, const struct layer_plan *l)
{
    const int32_t wide = l->compressor == COMPRESSOR_OVERLAP ? 4 : l->compressor == COMPRESSOR_SINGLE ? 1 : 2;
    return (double)c->hidden_size * (wide * c->head_dim + (l->owns_index ? wide * c->index_head_dim : 0));
}

static void add_layer(const struct model_plan *plan, int32_t layer, const struct row_plan *rows, struct cost *out)
{
    const struct layer_plan *l = &plan->layer[layer];
    const struct layer_start *s = &rows->layer[layer];
    const struct qr_config *c = &plan->config;
    const int64_t queries = rows->end - s->query;
    double products = (double)queries * layer_products(c, l) + (double)(rows->end - s->key) * key_products(c);
    if (l->owns_rows)
        products += (double)(rows->end - s->compress) * compress_products(c, l);
    for (int32_t p = s->query; p < rows->end; p++)
        products += position_products(c, l, p);
    out->rows[l->attend] += queries;
    out->total += queries;
    out->operations += 2 * products;
}

static struct cost cost_of(const struct model_plan *plan, const struct row_plan *rows)
{
    struct cost cost = {.total = 0};
    for (int32_t layer = 0; layer < plan->layers; layer++)
        add_layer(plan, layer, rows, &cost);
    return cost;
}

/* ---- the table ---- */

/* What a prompt costs with exact trimming, and with every layer on every row. */
struct saving {
    int32_t tokens;
    struct cost exact, off;
};

static struct saving saving_of(const struct model_plan *plan, int32_t tokens)
{
    const struct rows_request request = {.end = tokens, .boundary = -1, .first_logits = tokens - 1};
    struct saving s = {.tokens = tokens};
    struct row_plan rows;
    rows_exact(plan, &request, &rows);
    s.exact = cost_of(plan, &rows);
    rows_all(plan, 0, tokens, &rows);
    s.off = cost_of(plan, &rows);
    return s;
}

static double part(const struct saving *s) { return (double)s->exact.total / (double)s->off.total; }
static double work(const struct saving *s) { return s->exact.operations / s->off.operations; }

static void print_saving(const struct saving *s)
{
    printf("%7d tokens: %12lld of %12lld rows times layers (%.4f), %10.4g of %10.4g FLOPs (%.4f)\n", s->tokens,
           (long long)s->exact.total, (long long)s->off.total, part(s), s->exact.operations, s->off.operations, work(s));
    for (int kind = 0; kind < KINDS; kind++)
        if (s->off.rows[kind])
            printf("  %-10s %12lld of %12lld\n", attend_name((enum attend)kind), (long long)s->exact.rows[kind],
                   (long long)s->off.rows[kind]);
}

static void write_saving(struct json_writer *w, const struct saving *s)
{
    json_w_object(w);
    json_w_member_int(w, "tokens", s->tokens);
    json_w_member_int(w, "rows", s->exact.total);
    json_w_member_int(w, "rows_off", s->off.total);
    json_w_member_number(w, "flops", s->exact.operations);
    json_w_member_number(w, "flops_off", s->off.operations);
    json_w_member_number(w, "rows_part", part(s));
    json_w_member_number(w, "flops_part", work(s));
    json_w_key(w, "by_kind");
    json_w_object(w);
    for (int kind = 0; kind < KINDS; kind++) {
        if (s->off.rows[kind] == 0)
            continue;
        json_w_key(w, attend_name((enum attend)kind));
        json_w_array(w);
        json_w_int(w, s->exact.rows[kind]);
        json_w_int(w, s->off.rows[kind]);
        json_w_end_array(w);
    }
    json_w_end_object(w);
    json_w_end_object(w);
}

/* The next length behind `tokens`: doubled, the last one `longest` itself. */
static int64_t longer(int64_t tokens, int longest)
{
    return tokens < longest && 2 * tokens > longest ? longest : 2 * tokens;
}

static void print_table(const struct model_plan *plan, int longest)
{
    for (int64_t tokens = longest < SHORTEST ? longest : SHORTEST; tokens <= longest; tokens = longer(tokens, longest)) {
        const struct saving s = saving_of(plan, (int32_t)tokens);
        print_saving(&s);
    }
}

static qr_status print_table_json(const struct model_plan *plan, int longest, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    json_w_object(w);
    json_w_member_string(w, "what", "rows");
    json_w_key(w, "prompts");
    json_w_array(w);
    for (int64_t tokens = longest < SHORTEST ? longest : SHORTEST; tokens <= longest; tokens = longer(tokens, longest)) {
        const struct saving s = saving_of(plan, (int32_t)tokens);
        write_saving(w, &s);
    }
    json_w_end_array(w);
    json_w_end_object(w);
    return print_json(w, err);
}

qr_status bench_rows_run(const char *dir, int longest, bool json, qr_error *err)
{
    struct qr_config config;
    struct model_plan plan;
    char *path = path_join(dir, "config.json");
    qr_status st = path ? config_read(path, &config, err) : qr_fail(err, QR_NO_MEMORY, "no memory for a path");
    qr_free(path);
    if (st == QR_OK)
        st = plan_make(&config, config.stored_w8a8 ? QR_PROFILE_W8A8 : QR_PROFILE_REFERENCE, &plan, err);
    if (st == QR_OK && json)
        return print_table_json(&plan, longest, err);
    if (st == QR_OK)
        print_table(&plan, longest);
    return st;
}
