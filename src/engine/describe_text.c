#include "engine/describe.h"

#include <stdio.h>
#include <string.h>

#include "base/sentence.h"

/* A name as the file has it, on one line. */
static void put_name(const char *name, struct buffer *out)
{
    char shown[SENTENCE_ROOM];
    buffer_append(out, shown, sentence_quote(shown, sizeof shown, name, strlen(name)));
}

static void put_model(const struct description *d, struct buffer *out)
{
    const struct qr_config *c = &d->plan->config;
    char vocab[32], positions[32];
    buffer_printf(out, "%s  ", config_family_title(c));
    put_name(d->dir, out);
    buffer_puts(out, "\n");
    buffer_printf(out, "  %d layers, hidden size %d, %d heads of %d, vocabulary %s, positions %s\n", (int)c->num_hidden_layers,
                  (int)c->hidden_size, (int)c->num_attention_heads, (int)c->head_dim,
                  number_grouped(c->vocab_size, vocab), number_grouped(c->max_position_embeddings, positions));
    buffer_printf(out, "  experts %s, FP8 tiles of %d, profile %s\n",
                  c->stored_w8a8                            ? "INT8"
                  : c->expert_format == QR_EXPERT_FP8 ? "FP8"
                                                      : "FP4",
                  (int)c->fp8_block, config_profile_name(d->plan->profile));
    if (c->drafter == QR_DRAFTER_DSPARK)
        buffer_printf(out, "  drafter: DSpark, %d stages, block of %d\n", (int)c->num_draft_layers,
                      (int)c->dspark_block_size);
    else
        buffer_printf(out, "  drafter: %s\n", drafter_title(c));
    if (c->has_vision)
        buffer_printf(out, "  vision: %d layers\n", (int)c->vision.num_hidden_layers);
}

/* A number or a dash. */
static const char *or_dash(int32_t value, bool some, char room[16])
{
    snprintf(room, 16, some ? "%d" : "-", (int)value);
    return room;
}

static void put_layer(const struct model_plan *plan, int32_t i, struct buffer *out)
{
    const struct layer_plan *l = &plan->layer[i];
    bool draft = i >= plan->layers;
    char name[24], ratio[16], rows[16], selection[16];
    const char *candidates = candidate_role(l);
    snprintf(name, sizeof name, draft ? "draft %d" : "%d", (int)(draft ? i - plan->layers : i));
    buffer_printf(out, "  %7s  %-7s  %5s  %7s  %12s  %-10s  %-8s  %-5s %d of %d%s%s\n", name, attend_name(l->attend),
                  or_dash(l->ratio, l->ratio > 0, ratio), or_dash(l->kv_owner, l->kv_owner >= 0, rows),
                  or_dash(l->index_owner, l->index_owner >= 0, selection), candidates ? candidates : "-",
                  l->rope == ROPE_MAIN ? "main" : "compress", l->router == ROUTER_HASH ? "hash" : "score",
                  (int)l->n_active, (int)l->n_experts, l->engram >= 0 ? "  engram" : "", l->tap >= 0 ? "  tap" : "");
}

static void put_layers(const struct model_plan *plan, struct buffer *out)
{
    buffer_printf(out, "\n  %7s  %-7s  %5s  %7s  %12s  %-10s  %-8s  %s\n", "layer", "kind", "ratio", "rows of",
                  "selection of", "candidates", "rope", "router");
    for (int32_t i = 0; i < plan->layers + plan->draft_layers; i++)
        put_layer(plan, i, out);
}

static void put_difference(const struct differences *d, enum mismatch kind, int32_t i, struct buffer *out)
{
    const struct tensor_spec *spec = d->shown[kind][i].spec;
    const struct tensor_view *view = d->shown[kind][i].view;
    char found[96], wanted[96];
    buffer_puts(out, "    ");
    put_name(spec ? spec->name : view->name, out);
    if (spec && view)
        buffer_printf(out, ": %s %s, wanted %s %s", dtype_name(view->dtype),
                      shape_text(view->rank, view->shape, found, sizeof found), dtype_name(spec->dtype),
                      shape_text(spec->rank, spec->shape, wanted, sizeof wanted));
    buffer_puts(out, "\n");
}

static void put_differences(const struct differences *d, struct buffer *out)
{
    for (int kind = 0; kind < MISMATCH_KINDS; kind++) {
        char grouped[32];
        if (d->diff.count[kind] == 0) {
            if (kind == MISMATCH_MISSING || kind == MISMATCH_UNEXPECTED)
                buffer_printf(out, "  %s: none\n", mismatch_title((enum mismatch)kind));
            continue;
        }
        buffer_printf(out, "  %s: %s\n", mismatch_title((enum mismatch)kind), number_grouped(d->diff.count[kind], grouped));
        for (int32_t i = 0; i < d->count[kind]; i++)
            put_difference(d, (enum mismatch)kind, i, out);
        if (d->diff.count[kind] > d->count[kind])
            buffer_printf(out, "    and %s more\n", number_grouped(d->diff.count[kind] - d->count[kind], grouped));
    }
}

static void put_tensors(const struct description *d, struct buffer *out)
{
    struct format_census n;
    char a[32], b[32];
    format_census(d->checkpoint, &n);
    buffer_printf(out, "\ntensors: %s, %s bytes in %d files\n", number_grouped(n.tensors[DTYPE_COUNT], a),
                  number_grouped(n.bytes[DTYPE_COUNT], b), (int)checkpoint_shards(d->checkpoint));
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (n.tensors[t] > 0)
            buffer_printf(out, "  %-8s %10s tensors %20s bytes\n", dtype_name((enum dtype)t), number_grouped(n.tensors[t], a),
                          number_grouped(n.bytes[t], b));
    put_differences(d->differences, out);
}

static void put_tokenizer(const struct description *d, struct buffer *out)
{
    char ids[32];
    if (d->tokenizer_defect)
        buffer_printf(out, "tokenizer: %s\n", d->tokenizer_defect);
    else
        buffer_printf(out, "tokenizer: %s ids\n", number_grouped(d->token_ids, ids));
}

/* How many requests of each length run at once (runtime.md 2.10 step 6). */
static void put_capacity(const struct description *d, struct buffer *out)
{
    static const int percent[] = {10, 30, 50, 70, 90, 100};
    for (size_t i = 0; i < sizeof percent / sizeof *percent; i++) {
        int64_t length = d->budget->max_model_len * percent[i] / 100;
        bool by_blocks;
        int64_t n = budget_requests(d->geometry, d->budget, length, &by_blocks);
        char a[32], b[32];
        buffer_printf(out, "  %s requests of %s tokens (bound by %s)\n", number_grouped(n, a), number_grouped(length, b),
                      by_blocks ? "blocks" : "slots");
    }
}

static void put_bytes(const struct description *d, struct buffer *out)
{
    char a[32], b[32], c[32];
    buffer_puts(out, "\nbyte plan\n");
    byte_plan_text(d->bytes, out);
    buffer_printf(out, "cache: %s bytes given; a block of %d tokens takes %s, a request's state %s\n",
                  number_grouped(d->cache_bytes, a), (int)d->geometry->options.block_tokens,
                  number_grouped(d->geometry->unit_bytes, b), number_grouped(d->geometry->state_bytes, c));
    if (d->cache_bytes == 0)
        buffer_puts(out, "the weights leave no memory to share out; say how much the cache may take with --kv-ram-bytes\n");
    if (!d->budget) {
        buffer_printf(out, "does not fit: %s\n", d->refusal);
        return;
    }
    buffer_printf(out, "fits: requests of up to %s tokens, %s blocks, %s at once\n",
                  number_grouped(d->budget->max_model_len, a), number_grouped(d->budget->blocks, b),
                  number_grouped(d->budget->slots, c));
    if (d->budget->slots > 1)
        put_capacity(d, out);
    for (int32_t i = 0; i < d->captures->count; i++)
        buffer_printf(out, "%s%d", i == 0 ? "decode steps recorded at the start, of so many requests: " : ", ",
                      d->captures->requests[i]);
    if (d->captures->count > 0)
        buffer_puts(out, "\n");
}

void describe_text(const struct description *d, struct buffer *out)
{
    put_model(d, out);
    put_layers(d->plan, out);
    put_tensors(d, out);
    put_tokenizer(d, out);
    put_bytes(d, out);
}
