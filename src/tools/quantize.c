/* quire quantize: the INT8 deployment checkpoint (v4-model.md 7.1, 7.2) of an official folder, one matrix at a time. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "checkpoint/checkpoint_check.h"
#include "checkpoint/safetensors_write.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/print_json.h"
#include "model/rope.h"
#include "model/w8a8.h"
#include "number/bf16.h"
#include "plan/schema.h"
#include "plan/settle.h"
#include "tools/fresh_folder.h"

#define WEIGHTS_FILE "w8a8.safetensors"
#define HASHES_FILE "w8a8_sha256.json"
enum { LARGEST_CONFIG = 1 << 24, LARGEST_COPY = 1 << 28 };

struct quantize {
    const char *model, *out;
    bool w8a8, json, quiet;
    int threads;

    struct filling filling; /* `out` */
    struct qr_config config; /* of the official folder */
    struct model_plan plan;
    struct checkpoint *ck;
    struct schema *schema; /* of the folder to make */
    struct worker_pool *pool;
    struct w8a8 *source;
    struct safetensors_writer *writer;
    struct json_writer *hashes;
    int64_t tensors, bytes;
};

/* ---- the folders ---- */

/* Both schemas: the official one is checked and gone, that of the folder to make stays. */
static qr_status open_source(struct quantize *q, qr_error *err)
{
    TRY(model_folder_open(q->model, &q->config, &q->ck, err));
    if (q->config.stored_w8a8)
        return qr_fail(err, QR_BAD_CONFIG, "%s holds INT8 weights already", q->model);
    TRY(plan_make(&q->config, QR_PROFILE_W8A8, &q->plan, err));
    TRY(schema_make(&q->config, &q->schema, err));
    qr_status st = checkpoint_expect(q->ck, schema_tensors(q->schema), schema_count(q->schema), err);
    schema_free(q->schema);
    q->schema = NULL;
    if (st != QR_OK)
        return st;
    struct qr_config stored = q->config;
    stored.stored_w8a8 = true;
    TRY(schema_make(&stored, &q->schema, err));
    TRY(pool_open(q->threads, &q->pool, err));
    return w8a8_open(q->ck, &q->plan, q->pool, &q->source, err);
}

/* ---- config.json and what stands beside the weights ---- */

static bool named(const struct json *m, const char *name)
{
    return strlen(name) == m->key_length && memcmp(m->key, name, m->key_length) == 0;
}

/* The official config with quantization_config replaced, or added where an inference-style file has none. */
static void write_config(struct json_writer *w, const struct json *root)
{
    bool seen = false;
    json_w_object(w);
    for (const struct json *m = root->child; m || !seen; m = m ? m->next : NULL) {
        if (!m || named(m, "quantization_config")) {
            seen = true;
            json_w_key(w, "quantization_config");
            json_w_object(w);
            json_w_member_string(w, "quant_method", "w8a8-int8");
            json_w_end_object(w);
        } else {
            json_w_string_n(w, m->key, m->key_length);
            json_w_value(w, m);
        }
        if (!m)
            break;
    }
    json_w_end_object(w);
}

static qr_status write_text(const struct quantize *q, const char *name, struct json_writer *w, qr_error *err)
{
    const char *text;
    size_t length;
    qr_status st = json_finish(w, &text, &length, err);
    char *path = path_join(q->out, name);
    if (st == QR_OK)
        st = path ? file_write_atomic(path, text, length, err) : qr_fail(err, QR_NO_MEMORY, "%s: no memory", q->out);
    qr_free(path);
    return st;
}

static qr_status save_config(const struct quantize *q, qr_error *err)
{
    struct json_document *doc = NULL;
    char *path = path_join(q->model, "config.json"), *text = NULL;
    size_t size;
    struct json_writer *w = json_writer_open(true);
    qr_status st = path && w ? file_read(path, LARGEST_CONFIG, &text, &size, err)
                             : qr_fail(err, QR_NO_MEMORY, "%s: no memory for its config.json", q->model);
    if (st == QR_OK)
        st = json_parse(text, size, path, true, &doc, err);
    if (st == QR_OK) {
        write_config(w, json_root(doc));
        st = write_text(q, "config.json", w, err);
    }
    json_close(doc);
    json_writer_close(w);
    qr_free(text);
    qr_free(path);
    return st;
}

/* Copies a file that may be absent. */
static qr_status copy_file(const struct quantize *q, const char *name, qr_error *err)
{
    char *from = path_join(q->model, name), *to = path_join(q->out, name), *text = NULL;
    size_t size;
    qr_status st = QR_OK;
    if (!from || !to)
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for a path", q->model);
    else if (access(from, F_OK) == 0)
        st = file_read(from, LARGEST_COPY, &text, &size, err);
    if (text)
        st = file_write_atomic(to, text, size, err);
    qr_free(text);
    qr_free(from);
    qr_free(to);
    return st;
}

static qr_status copy_text_files(const struct quantize *q, qr_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TRY(copy_file(q, names[i], err));
    char *from = path_join(q->model, "encoding/encoding_dsv4.py"), *folder = path_join(q->out, "encoding");
    qr_status st = from && folder ? QR_OK : qr_fail(err, QR_NO_MEMORY, "%s: no memory for a path", q->model);
    if (st == QR_OK && access(from, F_OK) == 0) { /* tells the form of chat text */
        st = fresh_folder(folder, NULL, err);
        if (st == QR_OK)
            st = copy_file(q, "encoding/encoding_dsv4.py", err);
    }
    qr_free(from);
    qr_free(folder);
    return st;
}

/* ---- the weights ---- */

/* Number of the tensor in the file, which is its place in the schema. */
static int64_t number_of(const struct quantize *q, const char *name)
{
    const struct tensor_spec *specs = schema_tensors(q->schema);
    for (int64_t i = 0; i < schema_count(q->schema); i++)
        if (strcmp(specs[i].name, name) == 0)
            return i;
    return -1;
}

static qr_status declare(struct quantize *q, qr_error *err)
{
    const struct tensor_spec *specs = schema_tensors(q->schema);
    TRY(safetensors_declare_metadata(q->writer, "format", "pt", err));
    for (int64_t i = 0; i < schema_count(q->schema); i++) {
        int64_t shape[4];
        for (int32_t d = 0; d < specs[i].rank; d++)
            shape[d] = specs[i].shape[d] < 0 ? q->config.max_position_embeddings : specs[i].shape[d];
        TRY(safetensors_declare(q->writer, specs[i].name, specs[i].dtype, specs[i].rank, shape, NULL, err));
        q->tensors++;
        q->bytes += tensor_elements(specs[i].rank, shape) * (int64_t)dtype_size(specs[i].dtype);
    }
    return safetensors_begin(q->writer, err);
}

/* A tensor of the file on its way: its number, the bytes of a member, and its hash so far. */
struct stream {
    int64_t number, bytes;
    struct sha256 hash;
};

static struct stream start_stream(const struct quantize *q, const char *name, int64_t members)
{
    struct stream s = {.number = number_of(q, name)};
    s.bytes = schema_tensor_bytes(&schema_tensors(q->schema)[s.number]) / members;
    sha256_start(&s.hash);
    return s;
}

static qr_status put(struct quantize *q, struct stream *s, int64_t member, const void *data, qr_error *err)
{
    sha256_add(&s->hash, data, (size_t)s->bytes);
    return safetensors_put(q->writer, s->number, (uint64_t)(member * s->bytes), data, (uint64_t)s->bytes, err);
}

static void end_stream(struct quantize *q, const char *name, struct stream *s)
{
    char hex[SHA256_HEX];
    sha256_end(&s->hash, hex);
    json_w_member_string(q->hashes, name, hex);
}

static qr_status write_members(struct quantize *q, const struct w8a8_output *o, void *values, float *scales,
                               struct stream *value_stream, struct stream *scale_stream, qr_error *err)
{
    for (int64_t member = 0; member < o->members; member++) {
        const struct tensor_view *same = w8a8_unchanged(q->source, o, member);
        TRY(filling_check(&q->filling, err));
        if (!same)
            TRY(w8a8_make(q->source, o, member, values, scales, err));
        TRY(put(q, value_stream, member, same ? same->data : values, err));
        if (scale_stream)
            TRY(put(q, scale_stream, member, scales, err));
    }
    return QR_OK;
}

static qr_status write_output(struct quantize *q, const struct w8a8_output *o, qr_error *err)
{
    bool scaled = o->scale_name[0] != '\0', same = w8a8_unchanged(q->source, o, 0) != NULL;
    struct stream values = start_stream(q, o->name, o->members), scales = {0};
    if (scaled)
        scales = start_stream(q, o->scale_name, o->members);
    void *value_room = same ? NULL : qr_malloc((size_t)values.bytes);
    float *scale_room = scaled ? qr_malloc((size_t)scales.bytes) : NULL;
    qr_status st = (same || value_room) && (!scaled || scale_room)
                       ? write_members(q, o, value_room, scale_room, &values, scaled ? &scales : NULL, err)
                       : qr_fail(err, QR_NO_MEMORY, "%s: no memory for %lld bytes", o->name, (long long)values.bytes);
    qr_free(value_room);
    qr_free(scale_room);
    if (st != QR_OK)
        return st;
    end_stream(q, o->name, &values);
    if (scaled)
        end_stream(q, o->scale_name, &scales);
    return QR_OK;
}

/* Rounded cosines or sines of one position, the second half of the width a copy of the first (7.4). */
static void fill_table_row(const float *frequencies, int32_t width, int64_t position, bool sine, uint16_t *out)
{
    for (int32_t i = 0; i < width / 2; i++) {
        double angle = (double)((float)position * frequencies[i]);
        out[i] = out[width / 2 + i] = bf16_encode((float)(sine ? sin(angle) : cos(angle)));
    }
}

static qr_status write_tables(struct quantize *q, qr_error *err)
{
    static const char *const names[2] = {"freqs_cos", "freqs_sin"};
    int32_t width = q->config.rope_head_dim;
    int64_t positions = q->config.max_position_embeddings, row = width * (int64_t)sizeof(uint16_t);
    float frequencies[ROPE_MAX_PAIRS];
    uint16_t values[2 * ROPE_MAX_PAIRS];

    for (int kind = ROPE_MAIN; kind <= ROPE_COMPRESS; kind++) {
        TRY(rope_frequencies(&q->config, (enum rope)kind, frequencies, err));
        for (int side = 0; side < 2; side++)
            for (int64_t p = 0; p < positions; p++) {
                TRY(filling_check(&q->filling, err));
                fill_table_row(frequencies, width, p, side == 1, values);
                TRY(safetensors_put(q->writer, number_of(q, names[side]), (uint64_t)((kind * positions + p) * row),
                                    values, (uint64_t)row, err));
            }
    }
    return QR_OK;
}

static void show(const struct quantize *q, int32_t done, int32_t all, const char *name)
{
    if (!q->quiet && isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%d of %d  %s", (int)done, (int)all, name);
}

static qr_status write_weights(struct quantize *q, qr_error *err)
{
    struct w8a8_output o;
    int32_t all = 0;
    while (w8a8_output(&q->plan, all, &o))
        all++;
    for (int32_t i = 0; w8a8_output(&q->plan, i, &o); i++) {
        show(q, i, all, o.name);
        TRY(write_output(q, &o, err));
    }
    show(q, all, all, "rotary tables\n");
    return write_tables(q, err);
}

static qr_status save_weights(struct quantize *q, qr_error *err)
{
    char *path = path_join(q->out, WEIGHTS_FILE);
    q->hashes = json_writer_open(true);
    qr_status st = path && q->hashes ? safetensors_create(path, &q->writer, err)
                                     : qr_fail(err, QR_NO_MEMORY, "%s: no memory for its path", q->out);
    if (st == QR_OK)
        st = declare(q, err);
    if (st == QR_OK) {
        json_w_object(q->hashes);
        st = write_weights(q, err);
    }
    if (st == QR_OK)
        st = safetensors_end(q->writer, err);
    safetensors_discard(q->writer);
    if (st == QR_OK) {
        json_w_end_object(q->hashes);
        st = write_text(q, HASHES_FILE, q->hashes, err);
    }
    json_writer_close(q->hashes);
    qr_free(path);
    return st;
}

static qr_status run(struct quantize *q, qr_error *err)
{
    TRY(open_source(q, err));
    TRY(filling_open(&q->filling, q->out, err));
    TRY(save_weights(q, err));
    TRY(copy_text_files(q, err));
    return save_config(q, err); /* last: a folder with a config is whole */
}

static void close_all(struct quantize *q)
{
    w8a8_close(q->source);
    pool_close(q->pool);
    schema_free(q->schema);
    checkpoint_close(q->ck);
}

static qr_status print_summary(const struct quantize *q, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the summary");
    json_w_object(w);
    json_w_member_int(w, "tensors", q->tensors);
    json_w_member_int(w, "bytes", q->bytes);
    json_w_end_object(w);
    return print_json(w, err);
}

int tool_quantize(int argc, char **argv)
{
    struct quantize q = {.threads = 0};
    int status;
    const struct option options[] = {
        {.name = "w8a8",
         .kind = OPTION_FLAG,
         .target = &q.w8a8,
         .help = "INT8 weights and activations (the only form there is)"},
        {.name = "model",
         .kind = OPTION_PATH,
         .target = &q.model,
         .value = "DIR",
         .help = "an official DeepSeek-V4 folder"},
        {.name = "out", .kind = OPTION_PATH, .target = &q.out, .value = "DIR", .help = "the folder to make"},
        {.name = "threads",
         .kind = OPTION_INT,
         .target = &q.threads,
         .value = "N",
         .help = "default: every core",
         .least = 0,
         .most = 4096},
        {.name = "json", .kind = OPTION_FLAG, .target = &q.json, .help = "the summary as JSON"},
        {.name = "quiet", .kind = OPTION_FLAG, .target = &q.quiet, .help = "no progress and no summary"},
        {0}};
    struct command_line line = {.command = "quantize",
                                .synopsis = "--w8a8 --model DIR --out DIR",
                                .about =
                                    "Makes the INT8 deployment checkpoint of an official DeepSeek-V4 folder, and the "
                                    "SHA-256 of each of its tensors beside it.",
                                .options = options};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!q.w8a8 || !q.model || !q.out)
        return options_wrong(&line, "%s is missing", !q.w8a8 ? "--w8a8" : !q.model ? "--model DIR" : "--out DIR");

    qr_error err = {0};
    qr_status st = run(&q, &err);
    filling_close(&q.filling, st == QR_OK);
    close_all(&q);
    if (st != QR_OK)
        status = report_failure("quantize", &err);
    if (st == QR_CANCELLED)
        filling_obey_signal();
    if (st != QR_OK)
        return status;
    if (q.json)
        return print_summary(&q, &err) == QR_OK ? 0 : report_failure("quantize", &err);
    if (!q.quiet)
        printf("%lld tensors, %lld bytes in %s/%s\n", (long long)q.tensors, (long long)q.bytes, q.out, WEIGHTS_FILE);
    return 0;
}
