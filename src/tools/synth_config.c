#include "tools/synth_config.h"

#include <string.h>

struct cut {
    const struct qr_config *config;
    int32_t layers;
};

static bool named(const struct json *member, const char *name, const char *other)
{
    size_t n = member->key_length;
    return (strlen(name) == n && !memcmp(member->key, name, n)) ||
           (other && strlen(other) == n && !memcmp(member->key, other, n));
}

/* The elements of a list for which keep() says so, given index and value. */
static void write_kept(struct json_writer *w, const struct json *list, const struct cut *cut,
                       bool (*keep)(const struct cut *cut, int64_t index, int64_t value))
{
    int64_t index = 0, value;
    json_w_array(w);
    for (const struct json *e = list->child; e; e = e->next, index++)
        if (json_int64(e, &value) && keep(cut, index, value))
            json_w_int(w, value);
    json_w_end_array(w);
}

static bool is_layer_left(const struct cut *cut, int64_t index, int64_t value)
{
    (void)index;
    return value < cut->layers;
}

/* Ratios: those of the layers left, and of the draft stages at the end. */
static bool is_ratio_left(const struct cut *cut, int64_t index, int64_t value)
{
    (void)value;
    return index < cut->layers || index >= cut->config->num_hidden_layers;
}

static bool is_table_left(const struct cut *cut, int64_t index, int64_t value)
{
    (void)value;
    return index < cut->config->n_engram && cut->config->engram_layers[index] < cut->layers;
}

/* The draft stages read the last layers, as many as before or as there are. */
static void write_targets(struct json_writer *w, const struct cut *cut)
{
    int32_t n = cut->config->n_dspark_targets;
    n = n < cut->layers ? n : cut->layers;
    json_w_array(w);
    for (int32_t i = cut->layers - n; i < cut->layers; i++)
        json_w_int(w, i);
    json_w_end_array(w);
}

/* Writes the value of a member that depends on the number of layers; false for any other. */
static bool write_changed(struct json_writer *w, const struct json *m, const struct cut *cut)
{
    int64_t value;
    bool list = m->kind == JSON_ARRAY;
    if (named(m, "num_hidden_layers", "n_layers"))
        json_w_int(w, cut->layers);
    else if (named(m, "num_hash_layers", "n_hash_layers") && json_int64(m, &value))
        json_w_int(w, value < cut->layers ? value : cut->layers);
    else if (named(m, "candidate_source_layer_id", "candidate_source_layer") && json_int64(m, &value))
        json_w_int(w, value < cut->layers ? value : -1);
    else if (list && named(m, "compress_ratios", NULL))
        write_kept(w, m, cut, is_ratio_left);
    else if (list && (named(m, "kv_source_layer_ids", "kv_source_layers") ||
                      named(m, "index_source_layer_ids", "index_source_layers") || named(m, "engram_layer_ids", NULL)))
        write_kept(w, m, cut, is_layer_left);
    else if (list && named(m, "engram_num_embeddings", NULL))
        write_kept(w, m, cut, is_table_left);
    else if (list && named(m, "dspark_target_layer_ids", NULL))
        write_targets(w, cut);
    else
        return false;
    return true;
}

static void write_object(struct json_writer *w, const struct json *object, const struct cut *cut)
{
    json_w_object(w);
    for (const struct json *m = object->child; m; m = m->next) {
        json_w_string_n(w, m->key, m->key_length);
        if (m->kind == JSON_OBJECT && named(m, "text_config", NULL))
            write_object(w, m, cut);
        else if (!write_changed(w, m, cut))
            json_w_value(w, m);
    }
    json_w_end_object(w);
}

void synth_config_cut(struct json_writer *w, const struct json *root, const struct qr_config *config, int32_t layers)
{
    struct cut cut = {config, layers};
    write_object(w, root, &cut);
}
