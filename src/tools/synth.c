/* quire synth: an official-format checkpoint of any size with random weights. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors_write.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/plural.h"
#include "cli/print_json.h"
#include "plan/schema.h"
#include "tools/fresh_folder.h"
#include "tools/synth_config.h"
#include "tools/synth_values.h"

/* Without --values a folder up to this size is filled, a larger one left sparse. */
#define FILLED_BY_ITSELF (8 * (int64_t)1 << 30)
enum { LARGEST_CONFIG = 1 << 24 };

struct synth {
    const char *config_path, *out, *values_wanted;
    uint64_t seed;
    int layers;
    bool json, quiet;

    struct filling filling; /* `out` */
    struct qr_config config;
    char *config_text; /* what config.json of the folder will hold */
    size_t config_length;
    struct schema *schema;
    struct synth_values values;
    bool fill, fill_tables;
    int64_t tensors, bytes;
};

/* Reads the config and, for --layers, cuts it; the text and what it means end up in `s`. */
static qr_status read_config(struct synth *s, qr_error *err)
{
    struct json_document *doc = NULL;
    struct json_writer *w = NULL;
    const char *text;
    size_t length;
    qr_status st = file_read(s->config_path, LARGEST_CONFIG, &s->config_text, &s->config_length, err);
    if (st == QR_OK)
        st = config_parse(s->config_text, s->config_length, s->config_path, &s->config, err);
    if (st != QR_OK || !s->layers)
        return st;
    if (s->layers > s->config.num_hidden_layers)
        return qr_fail(err, QR_BAD_ARGUMENT, "%s has %d layers, fewer than --layers %d", s->config_path,
                       (int)s->config.num_hidden_layers, s->layers);
    st = json_parse(s->config_text, s->config_length, s->config_path, true, &doc, err);
    if (st != QR_OK)
        goto cleanup;
    w = json_writer_open(true);
    if (!w) {
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory to cut it", s->config_path);
        goto cleanup;
    }
    synth_config_cut(w, json_root(doc), &s->config, s->layers);
    st = json_finish(w, &text, &length, err);
    if (st != QR_OK)
        goto cleanup;
    qr_free(s->config_text);
    s->config_text = qr_strndup(text, length);
    s->config_length = length;
    st = s->config_text ? config_parse(s->config_text, length, s->config_path, &s->config, err)
                        : qr_fail(err, QR_NO_MEMORY, "%s: no memory to cut it", s->config_path);
cleanup:
    json_writer_close(w);
    json_close(doc);
    return st;
}

static bool is_table(const struct tensor_spec *spec) { return strstr(spec->name, "engram.embed.") != NULL; }

/* Counts what will be written and decides how much of it gets values. */
static qr_status make_list(struct synth *s, qr_error *err)
{
    if (s->config.stored_w8a8)
        return qr_fail(err, QR_BAD_CONFIG, "%s is of an INT8 folder, wanted an official config.json", s->config_path);
    qr_status st = schema_make(&s->config, &s->schema, err);
    if (st != QR_OK)
        return st;
    const struct tensor_spec *specs = schema_tensors(s->schema);
    for (int64_t i = 0; i < schema_count(s->schema); i++)
        if (!specs[i].optional) {
            s->tensors++;
            s->bytes += schema_tensor_bytes(&specs[i]);
        }
    bool automatic = strcmp(s->values_wanted, "auto") == 0;
    s->fill_tables = strcmp(s->values_wanted, "all") == 0 || (automatic && s->bytes <= FILLED_BY_ITSELF);
    s->fill = s->fill_tables || strcmp(s->values_wanted, "no-tables") == 0;
    return QR_OK;
}

static void shard_name(const struct synth *s, int32_t shard, char out[64])
{
    snprintf(out, 64, "model-%05d-of-%05d.safetensors", (int)shard + 1, (int)schema_shards(s->schema));
}

/* The weight whose scale `spec` is: the tensor before it, when the names agree. */
static const struct tensor_spec *weight_of(const struct tensor_spec *specs, int64_t index)
{
    size_t stem = strlen(specs[index].name) - strlen("scale");
    if (!index || specs[index].dtype != DTYPE_F8_E8M0 || strncmp(specs[index - 1].name, specs[index].name, stem) != 0)
        return NULL;
    return &specs[index - 1];
}

static qr_status write_values(const struct synth *s, struct safetensors_writer *w, int64_t number, int64_t index,
                              uint8_t *chunk, qr_error *err)
{
    const struct tensor_spec *specs = schema_tensors(s->schema);
    struct synth_tensor t;
    uint64_t bytes = (uint64_t)schema_tensor_bytes(&specs[index]);
    synth_tensor_init(&t, &s->values, &s->config, &specs[index], weight_of(specs, index));
    for (uint64_t at = 0; at < bytes; at += SYNTH_CHUNK) {
        uint64_t size = bytes - at < SYNTH_CHUNK ? bytes - at : SYNTH_CHUNK;
        qr_status st = filling_check(&s->filling, err);
        if (st != QR_OK)
            return st;
        synth_tensor_fill(&t, at, size, chunk);
        st = safetensors_put(w, number, at, chunk, size, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}

static qr_status write_shard(const struct synth *s, int32_t shard, uint8_t *chunk, qr_error *err)
{
    char name[64];
    const struct tensor_spec *specs = schema_tensors(s->schema);
    struct safetensors_writer *w = NULL;
    shard_name(s, shard, name);
    char *path = path_join(s->out, name);
    qr_status st = path ? safetensors_create(path, &w, err) : qr_fail(err, QR_NO_MEMORY, "%s: no memory", s->out);
    if (st == QR_OK)
        st = safetensors_declare_metadata(w, "format", "pt", err);
    int64_t count = schema_count(s->schema), number = 0;
    for (int64_t i = 0; st == QR_OK && i < count; i++)
        if (schema_shard(s->schema, i) == shard && !specs[i].optional)
            st = safetensors_declare(w, specs[i].name, specs[i].dtype, specs[i].rank, specs[i].shape, NULL, err);
    if (st == QR_OK)
        st = safetensors_begin(w, err);
    for (int64_t i = 0; st == QR_OK && i < count; i++)
        if (schema_shard(s->schema, i) == shard && !specs[i].optional) {
            if (is_table(&specs[i]) ? s->fill_tables : s->fill)
                st = write_values(s, w, number, i, chunk, err);
            number++;
        }
    if (st == QR_OK)
        st = safetensors_end(w, err);
    safetensors_discard(w);
    qr_free(path);
    return st;
}

static qr_status write_text(const struct synth *s, const char *name, const char *text, size_t length, qr_error *err)
{
    char *path = path_join(s->out, name);
    qr_status st =
        path ? file_write_atomic(path, text, length, err) : qr_fail(err, QR_NO_MEMORY, "%s: no memory", s->out);
    qr_free(path);
    return st;
}

static qr_status write_index(const struct synth *s, qr_error *err)
{
    const struct tensor_spec *specs = schema_tensors(s->schema);
    const char *text;
    size_t length;
    struct json_writer *w = json_writer_open(true);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its index", s->out);
    json_w_object(w);
    json_w_key(w, "metadata");
    json_w_object(w);
    json_w_member_int(w, "total_size", s->bytes);
    json_w_end_object(w);
    json_w_key(w, "weight_map");
    json_w_object(w);
    for (int64_t i = 0; i < schema_count(s->schema); i++) {
        char file[64];
        if (specs[i].optional)
            continue;
        shard_name(s, schema_shard(s->schema, i), file);
        json_w_member_string(w, specs[i].name, file);
    }
    json_w_end_object(w);
    json_w_end_object(w);
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK)
        st = write_text(s, "model.safetensors.index.json", text, length, err);
    json_writer_close(w);
    return st;
}

static qr_status write_folder(struct synth *s, qr_error *err)
{
    uint8_t *chunk = qr_malloc(SYNTH_CHUNK);
    qr_status st =
        chunk ? filling_open(&s->filling, s->out, err) : qr_fail(err, QR_NO_MEMORY, "no memory for %d bytes", SYNTH_CHUNK);
    for (int32_t shard = 0; st == QR_OK && shard < schema_shards(s->schema); shard++)
        st = write_shard(s, shard, chunk, err);
    if (st == QR_OK)
        st = filling_check(&s->filling, err);
    if (st == QR_OK)
        st = write_text(s, "config.json", s->config_text, s->config_length, err);
    if (st == QR_OK)
        st = write_index(s, err);
    filling_close(&s->filling, st == QR_OK);
    qr_free(chunk);
    return st;
}

static const char *values_filled(const struct synth *s) { return s->fill_tables ? "all" : s->fill ? "no-tables" : "none"; }

static qr_status print_summary(const struct synth *s, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the summary");
    json_w_object(w);
    json_w_member_int(w, "tensors", s->tensors);
    json_w_member_int(w, "bytes", s->bytes);
    json_w_member_int(w, "files", schema_shards(s->schema));
    json_w_member_string(w, "values", values_filled(s));
    json_w_end_object(w);
    return print_json(w, err);
}

static qr_status report(const struct synth *s, qr_error *err)
{
    const int shards = schema_shards(s->schema);
    if (s->json)
        return print_summary(s, err);
    if (!s->quiet)
        printf("%lld tensors, %lld bytes in %d file%s; values: %s\n", (long long)s->tensors, (long long)s->bytes, shards,
               plural(shards), values_filled(s));
    return QR_OK;
}

int tool_synth(int argc, char **argv)
{
    struct synth s = {.values_wanted = "auto"};
    int status;
    const struct option options[] = {
        {.name = "config",
         .kind = OPTION_PATH,
         .target = &s.config_path,
         .value = "FILE",
         .help = "an official config.json"},
        {.name = "out", .kind = OPTION_PATH, .target = &s.out, .value = "DIR", .help = "the folder to make"},
        {.name = "seed", .kind = OPTION_UINT64, .target = &s.seed, .value = "N", .help = "default: 0"},
        {.name = "layers",
         .kind = OPTION_INT,
         .target = &s.layers,
         .value = "N",
         .help = "keep the first N layers only",
         .least = 1,
         .most = QR_MAX_LAYERS},
        {.name = "values",
         .kind = OPTION_CHOICE,
         .target = &s.values_wanted,
         .value = "auto|all|no-tables|none",
         .help =
             "what gets values; the rest is zeros that take no space on disk. no-tables: all but the Engram tables; "
             "auto (default): all up to 8 GiB, none beyond"},
        {.name = "json", .kind = OPTION_FLAG, .target = &s.json, .help = "the summary as JSON"},
        {.name = "quiet", .kind = OPTION_FLAG, .target = &s.quiet, .help = "no summary"},
        {0}};
    struct command_line line = {.command = "synth",
                                .synopsis = "--config FILE --out DIR [--seed N] [--layers N]",
                                .about = "Makes an official-format checkpoint with random weights of lively scale.",
                                .options = options};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!s.config_path || !s.out)
        return options_wrong(&line, "%s is missing", s.config_path ? "--out DIR" : "--config FILE");

    qr_error err = {0};
    synth_values_init(&s.values, s.seed);
    qr_status st = read_config(&s, &err);
    if (st == QR_OK)
        st = make_list(&s, &err);
    if (st == QR_OK)
        st = write_folder(&s, &err);
    if (st == QR_OK)
        st = report(&s, &err);
    schema_free(s.schema);
    qr_free(s.config_text);
    status = st == QR_OK ? 0 : report_failure("synth", &err);
    if (st == QR_CANCELLED)
        filling_obey_signal();
    return status;
}
