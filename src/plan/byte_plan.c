#include "plan/byte_plan.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sentence.h"

static const char *const kind_names[BYTES_KINDS] = {
    [BYTES_WEIGHTS] = "weights", [BYTES_TABLES] = "tables", [BYTES_PREPARED] = "prepared",
    [BYTES_PAGES] = "pages",     [BYTES_STATES] = "states", [BYTES_WORKSPACE] = "workspace",
    [BYTES_DEVICE_WEIGHTS] = "device_weights", [BYTES_DEVICE_WORKSPACE] = "device_workspace",
    [BYTES_GRAPHS] = "device_graphs", [BYTES_COLLECTIVE] = "device_collective", [BYTES_BESIDE] = "device_beside",
    [BYTES_HOST_EXPERTS] = "host_experts",
};
static const char *const kind_titles[BYTES_KINDS] = {
    [BYTES_WEIGHTS] = "weights, mapped from the folder", [BYTES_TABLES] = "Engram tables, mapped and read by row",
    [BYTES_PREPARED] = "weights held in another form",   [BYTES_PAGES] = "PAGE pool, by cached tokens",
    [BYTES_STATES] = "STATE pool, by running requests",  [BYTES_WORKSPACE] = "workspace of a step",
    [BYTES_DEVICE_WEIGHTS] = "device: weights in its layout",
    [BYTES_DEVICE_WORKSPACE] = "device: workspace of a step",
    [BYTES_GRAPHS] = "device: recorded steps",
    [BYTES_COLLECTIVE] = "device: reserve for collectives",
    [BYTES_BESIDE] = "device: others, and safety",
    [BYTES_HOST_EXPERTS] = "experts in pinned host memory",
};

const char *byte_kind_name(enum byte_kind kind) { return kind_names[kind]; }

static int64_t plus(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

static struct byte_item *new_item(struct byte_plan *plan, enum byte_kind kind, const char *name)
{
    if (plan->failed || !array_grow(&plan->items, &plan->room, plan->count, sizeof *plan->items)) {
        plan->failed = true;
        return NULL;
    }
    struct byte_item *item = &plan->items[plan->count++];
    *item = (struct byte_item){.kind = kind};
    snprintf(item->name, sizeof item->name, "%s", name);
    return item;
}

void byte_plan_add(struct byte_plan *plan, enum byte_kind kind, const char *name, int64_t count, int64_t each)
{
    struct byte_item *item = new_item(plan, kind, name);
    if (!item)
        return;
    item->count = count;
    item->each = each;
    if (__builtin_mul_overflow(count, each, &item->bytes))
        item->bytes = INT64_MAX;
}

void byte_plan_grow(struct byte_plan *plan, enum byte_kind kind, const char *name, int64_t bytes)
{
    struct byte_item *item = NULL;
    for (size_t i = 0; i < plan->count && !item; i++)
        if (plan->items[i].kind == kind && !strcmp(plan->items[i].name, name))
            item = &plan->items[i];
    if (!item)
        item = new_item(plan, kind, name);
    if (item)
        item->bytes = plus(item->bytes, bytes);
}

int64_t byte_plan_total(const struct byte_plan *plan, enum byte_kind kind)
{
    int64_t total = 0;
    for (size_t i = 0; i < plan->count; i++)
        if (plan->items[i].kind == kind)
            total = plus(total, plan->items[i].bytes);
    return total;
}

void byte_plan_free(struct byte_plan *plan)
{
    qr_free(plan->items);
    *plan = (struct byte_plan){.items = NULL};
}

/* ---- parts of a model ---- */

/* The first row whose text stands in the name decides; `prefix` rows match its beginning only. */
static const struct {
    const char *text;
    bool prefix;
    const char *part;
} parts[] = {
    {"mtp", true, "drafter"},
    {"vision.", true, "vision tower and aligner"},
    {"aligner.", true, "vision tower and aligner"},
    {"image_", true, "vision tower and aligner"},
    {".engram.", false, "Engram projections"},
    {".ffn.experts.", false, "routed experts"},
    {"routed_", true, "routed experts"},
    {"shared_", false, "shared experts"},
    {".ffn.gate.", false, "routers"},
    {"gate_", true, "routers"},
    {"tid2eid", true, "routers"},
    {"hc_", true, "hyper-connections"},
    {".hc_", false, "hyper-connections"},
    {".compressor.", false, "compressors and indexers"},
    {".indexer.", false, "compressors and indexers"},
    {"csa_", true, "compressors and indexers"},
    {"hca_", true, "compressors and indexers"},
    {".attn.", false, "attention"},
    {"w", true, "attention"},
    {"gamma_", true, "attention"},
    {"attn_sink", true, "attention"},
    {"embed", true, "embedding"},
    {"head.", true, "head"},
    {"lm_head", true, "head"},
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

const char *byte_plan_part(const char *name)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].prefix ? !strncmp(name, parts[i].text, strlen(parts[i].text)) : !!strstr(name, parts[i].text))
            return parts[i].part;
    return "norms and tables";
}

void byte_plan_tensor(struct byte_plan *plan, const char *name, int64_t bytes)
{
    if (ends_with(name, ".engram.embed.weight") || ends_with(name, ".engram.embed.scale")) {
        char table[64];
        sentence_quote(table, sizeof table, name, (size_t)(strstr(name, ".embed.") - name));
        byte_plan_grow(plan, BYTES_TABLES, table, bytes);
        return;
    }
    byte_plan_grow(plan, BYTES_WEIGHTS, byte_plan_part(name), bytes);
}

/* ---- printing ---- */

const char *number_grouped(int64_t n, char out[32])
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n), used = 0;
    for (int i = 0; i < length; i++) {
        int left = length - i;
        if (i > 0 && left % 3 == 0 && digits[i - 1] != '-')
            out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

static void put_row(struct buffer *out, const char *name, int64_t bytes, int64_t count, int64_t each)
{
    char a[32], b[32], c[32];
    buffer_printf(out, "  %-40s %20s", name, number_grouped(bytes, a));
    if (count > 0)
        buffer_printf(out, "  = %s x %s", number_grouped(count, b), number_grouped(each, c));
    buffer_puts(out, "\n");
}

static bool has_items(const struct byte_plan *plan, enum byte_kind kind)
{
    for (size_t i = 0; i < plan->count; i++)
        if (plan->items[i].kind == kind)
            return true;
    return false;
}

void byte_plan_text(const struct byte_plan *plan, struct buffer *out)
{
    for (int kind = 0; kind < BYTES_KINDS; kind++) {
        int64_t total = byte_plan_total(plan, (enum byte_kind)kind);
        char grouped[32];
        if (!has_items(plan, (enum byte_kind)kind))
            continue;
        buffer_printf(out, "%-42s %20s  (%.2f GiB)\n", kind_titles[kind], number_grouped(total, grouped),
                      (double)total / (1 << 30));
        for (size_t i = 0; i < plan->count; i++) {
            const struct byte_item *item = &plan->items[i];
            if ((int)item->kind == kind)
                put_row(out, item->name, item->bytes, item->count, item->each);
        }
    }
}

void byte_plan_json(const struct byte_plan *plan, struct json_writer *w)
{
    json_w_object(w);
    for (int kind = 0; kind < BYTES_KINDS; kind++) {
        json_w_key(w, kind_names[kind]);
        json_w_object(w);
        json_w_member_int(w, "total", byte_plan_total(plan, (enum byte_kind)kind));
        json_w_key(w, "items");
        json_w_array(w);
        for (size_t i = 0; i < plan->count; i++) {
            const struct byte_item *item = &plan->items[i];
            if ((int)item->kind != kind)
                continue;
            json_w_object(w);
            json_w_member_string(w, "name", item->name);
            json_w_member_int(w, "bytes", item->bytes);
            if (item->count > 0) {
                json_w_member_int(w, "count", item->count);
                json_w_member_int(w, "each", item->each);
            }
            json_w_end_object(w);
        }
        json_w_end_array(w);
        json_w_end_object(w);
    }
    json_w_end_object(w);
}
