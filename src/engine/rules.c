#include "engine/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/rows.h"

/* ---- the list ---- */

/* Room that is kept behind the sentences for the ids of those that do not fit. */
enum { IDS_ROOM = 200 };

static void append(struct rule_list *list, const char *text, size_t length)
{
    if (length >= sizeof list->text - list->used)
        return;
    memcpy(list->text + list->used, text, length);
    list->used += length;
    list->text[list->used] = '\0';
}

static bool is_id(const char *at)
{
    return at[0] == 'E' && at[1] >= '0' && at[1] <= '9' && at[2] >= '0' && at[2] <= '9' && at[3] == ' ';
}

/* The ids of a sentence, of each of its parts, without what they say. */
static void append_ids(struct rule_list *list, const char *sentence)
{
    for (const char *at = sentence; at; at = strstr(at, "; ") ? strstr(at, "; ") + 2 : NULL)
        if (is_id(at)) {
            append(list, list->shortened ? ", " : "; also broken: ", list->shortened ? 2 : 15);
            append(list, at, 3);
            list->shortened = true;
        }
}

void rule_broken(struct rule_list *list, const char *format, ...)
{
    char sentence[sizeof list->text];
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    list->count++;
    if (length < 0)
        return;
    if (list->used > 0 && (list->shortened || list->used + 2 + (size_t)length + IDS_ROOM > sizeof list->text)) {
        append_ids(list, sentence);
        return;
    }
    append(list, "; ", list->used ? 2 : 0);
    append(list, sentence, strlen(sentence));
}

void rules_join(struct rule_list *list, const qr_error *refused) { rule_broken(list, "%s", refused->message); }

qr_status rules_told(const struct rule_list *list, qr_error *err)
{
    return list->count ? qr_fail(err, QR_REFUSED, "%s", list->text) : QR_OK;
}

/* ---- features that are not built ---- */

/* `as_is`: values, separated by bars, that ask for nothing that is missing. */
struct feature {
    const char *flag, *as_is, *feature, *rule;
};
static const struct feature features[] = {
    {"image", "", "image requests", "E12"},
    {"pipeline-parallel-size", "1", "pipeline parallelism", "E14"},
    {"context-parallel-size", "1", "context parallelism", "E15"},
    {"data-parallel-size", "1", "data parallelism", "E16"},
    {"enable-dp-attention", "off", "data-parallel attention", "E16"},
    {"dp-load-balance", "", "data parallelism", "E16"},
    {"enable-tbo", "off", "two-batch overlap", "E18"},
    {"enable-tbo-decode", "off", "two-batch overlap of decode steps", "E17"},
    {"kv-transfer", "none", "KV transfer", "E19"},
    {"offload-ram-bytes", "0", "the RAM tier of the cache", "E19"},
    {"offload-disk-bytes", "0", "the disk tier of the cache", "E19"},
    {"offload-dir", "none", "the disk tier of the cache", "E34"},
    {"disaggregation", "none", "prefill and decode on different engines", "E20"},
    {"enable-eplb", "off", "expert load balancing", "E21"},
    {"online-quantization", "none", "online quantization", "E22"},
    {"decoder-graph-sizes", "", "recording the decoder's part of a prefill apart", "E35"},
    {"tp", "1", "tensor parallelism", "E24"},
    {"ep", "1", "expert parallelism", "E24"},
    {"enable-expert-parallel", "off", "expert parallelism", "E32"},
    {"export-hidden-states", "off", "the export of hidden states", "E25"},
    {"fused-moe-communication", "off", "experts with fused communication", "E38"},
    {"index-query-grid", "fp4", "another grid of index queries", "E05"},
};
enum { FEATURES = sizeof features / sizeof *features };

bool rules_feature_flag(int index, const char **name, const char **feature, const char **rule)
{
    if (index < 0 || index >= FEATURES)
        return false;
    *name = features[index].flag;
    *feature = features[index].feature;
    *rule = features[index].rule;
    return true;
}

static bool among(const char *value, const char *words)
{
    const size_t length = strlen(value);
    for (const char *at = words;; at++) {
        const char *end = strchr(at, '|');
        const size_t n = end ? (size_t)(end - at) : strlen(at);
        if (n == length && memcmp(at, value, n) == 0)
            return n > 0;
        if (!end)
            return false;
        at = end;
    }
}

static void check_flag(const char *name, const char *value, struct rule_list *list)
{
    for (int i = 0; i < FEATURES; i++) {
        const struct feature *f = &features[i];
        if (strcmp(name, f->flag) != 0)
            continue;
        if (!among(value, f->as_is))
            rule_broken(list, "%s %s is %s: %s is not built", f->rule, name, value, f->feature);
        return;
    }
    rule_broken(list, "flag \"%s\" is not known", name);
}

void rules_features(const qr_engine_options *o, struct rule_list *list)
{
    for (size_t i = 0; i < o->flag_count; i++)
        if (o->flags[2 * i + 1])
            check_flag(o->flags[2 * i], o->flags[2 * i + 1], list);
}

/* ---- rules of the engine's own numbers ---- */

bool replay_mode_parse(const char *word, enum replay_mode *out)
{
    static const char *const words[] = {"exact", "off", "bounded"};
    *out = REPLAY_MODE_EXACT;
    for (int i = 0; word && i < 3; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (enum replay_mode)i;
            return true;
        }
    return !word;
}

static bool bounded(const char *which, const char *word, struct rule_list *list)
{
    enum replay_mode mode;
    if (!replay_mode_parse(word, &mode))
        rule_broken(list, "%s replay is \"%s\", wanted exact, bounded or off", which, word);
    return mode == REPLAY_MODE_BOUNDED;
}

/* Rows that one request's chunk can have in a step at most. */
static int32_t chunk_rows(const qr_engine_options *o, const struct rule_facts *facts)
{
    const int32_t others = o->max_num_seqs > 1 ? o->max_num_seqs - 1 : 0; /* all may decode beside it */
    int32_t most = facts->rows - others * facts->width;
    if (o->max_prefill_tokens_per_step > 0 && o->max_prefill_tokens_per_step < most)
        most = o->max_prefill_tokens_per_step;
    return most;
}

static void rules_bounded(const struct model_plan *plan, const qr_engine_options *o, const struct rule_facts *facts,
                          struct rule_list *list)
{
    const int32_t rows = chunk_rows(o, facts);
    if (plan->config.n_kv_sources == 0)
        rule_broken(list, "E26 bounded replay of a model without a KV source: nothing to cut");
    else if (rows_decoder(plan) < 0)
        rule_broken(list, "E26 bounded replay of a model whose last KV source has no layer behind it, or an n-gram table: "
                          "what it would leave out is needed");
    if (!facts->clamps)
        rule_broken(list, "E27 bounded replay: this device reads windows from before the rows that a replay begins with");
    if (rows <= 2 * facts->block)
        rule_broken(list, "E29 bounded replay with %d rows a step for a prompt, wanted more than two blocks of %d", rows,
                    facts->block);
}

void rules_engine(const struct model_plan *plan, const qr_engine_options *o, const struct rule_facts *facts,
                  struct rule_list *list)
{
    enum replay_mode encoder;
    const int32_t block = facts->block;
    const bool decoder_bounded = bounded("decoder", o->decoder_replay, list);
    const bool encoder_bounded = bounded("encoder", o->encoder_replay, list);
    replay_mode_parse(o->encoder_replay, &encoder);
    if (encoder_bounded && block < plan->config.sliding_window - 1)
        rule_broken(list, "E04 bounded encoder replay with a block size of %d, wanted at least %d: one page of rebuild "
                          "does not cover the window", block, plan->config.sliding_window - 1);
    if (decoder_bounded || encoder_bounded)
        rules_bounded(plan, o, facts, list);
    if (o->long_prefill_cap > 0 && o->long_prefill_cap < block)
        rule_broken(list, "E30 long prefill cap is %d, wanted at least a block of %d", o->long_prefill_cap, block);
    if (encoder == REPLAY_MODE_OFF && !o->no_prefix_caching && facts->length > 0 &&
        o->state_checkpoint_interval_tokens >= facts->length)
        rule_broken(list, "E36 state checkpoint interval is %d with requests of at most %d tokens: without a rerun no prompt "
                          "would ever start from the cache", o->state_checkpoint_interval_tokens, facts->length);
    if (o->prefix_provenance && strcmp(o->prefix_provenance, "exact-only") != 0 && strcmp(o->prefix_provenance, "any") != 0)
        rule_broken(list, "prefix provenance is \"%s\", wanted exact-only or any", o->prefix_provenance);
}
