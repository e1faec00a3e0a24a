#define _GNU_SOURCE
#include "text/tokenizer.h"

#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "text/added.h"
#include "text/byte_map.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

/* From this length on a call keeps the pieces that it has merged. */
enum { CACHE_FROM = 2048 };
/* Offsets within a text are 32-bit numbers while it is merged. */
static const size_t max_text = INT32_MAX;
static const uint64_t max_file = 512u << 20, max_config = 16u << 20;

struct tokenizer {
    struct tokenizer_file file;
    struct added added;
    struct splitter splitter;
    size_t longest_base; /* bytes of the longest base token */
    int32_t bos, eos, pad;
    bool adds_bos;
    int64_t max_length;
    bool ids_only;
};

/* ---- opening ---- */

/* The id of the token that member `key` of tokenizer_config.json names, or of the `usual` one. */
static int32_t named_token(const struct tokenizer *tok, const struct json *config, const char *key, const char *usual,
                           const char *name, const struct qr_log *log)
{
    const struct json *value = json_get(config, key);
    if (value && value->kind == JSON_OBJECT)
        value = json_get(value, "content");
    if (!value || value->kind != JSON_STRING)
        return tok_find(tok, usual);
    int32_t id = vocab_find(&tok->file.vocab, value->text, value->length);
    if (id < 0)
        qr_logf(log, QR_LOG_WARN, "%s: %s of its tokenizer_config.json, \"%.100s\", is no token", name, key,
                value->text);
    return id;
}

static qr_status read_config(struct tokenizer *tok, const struct tok_source *source, const struct qr_log *log,
                             qr_error *err)
{
    struct json_document *doc = NULL;
    if (source->config) {
        const char *name = source->config_name ? source->config_name : "tokenizer_config.json";
        TRY(json_parse(source->config, source->config_size, name, false, &doc, err));
    }
    const struct json *config = doc ? json_root(doc) : NULL;
    tok->bos = named_token(tok, config, "bos_token", "<｜begin▁of▁sentence｜>", source->name, log);
    tok->eos = named_token(tok, config, "eos_token", "<｜end▁of▁sentence｜>", source->name, log);
    tok->pad = named_token(tok, config, "pad_token", "<｜▁pad▁｜>", source->name, log);
    if (!json_bool(json_get(config, "add_bos_token"), &tok->adds_bos))
        tok->adds_bos = false;
    /* Files without a limit write a number beyond 64 bits. */
    if (!json_int64(json_get(config, "model_max_length"), &tok->max_length) || tok->max_length < 0)
        tok->max_length = 0;
    json_close(doc);
    return QR_OK;
}

static void log_versions(const struct tok_source *source, const struct qr_log *log)
{
    char hash[SHA256_HEX], pcre[64];
    if (!log || !log->write || log->level < QR_LOG_INFO)
        return;
    sha256_hex(source->json, source->size, hash);
    regex_unicode_version(pcre, sizeof pcre);
    qr_logf(log, QR_LOG_INFO, "%s: SHA-256 %s; Unicode tables: utf8proc %s, PCRE2 %s", source->name, hash,
            utf8proc_unicode_version(), pcre);
}

static void note_longest(struct tokenizer *tok)
{
    for (size_t id = 0; id < tok->file.vocab.count; id++) {
        const struct vocab_entry *e = &tok->file.vocab.entries[id];
        if (e->kind == VOCAB_BASE && e->bytes_length > tok->longest_base)
            tok->longest_base = e->bytes_length;
    }
}

qr_status tok_load(const struct tok_source *source, const struct qr_log *log, struct tokenizer **out, qr_error *err)
{
    struct json_document *doc = NULL;
    struct tokenizer *tok = qr_calloc(1, sizeof *tok);
    qr_status st;
    *out = NULL;
    if (!tok)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for a tokenizer", source->name);
    if ((st = json_parse(source->json, source->size, source->name, false, &doc, err)) != QR_OK)
        goto cleanup;
    if ((st = tokenizer_file_read(json_root(doc), source->name, source->ids_only, &tok->file, err)) != QR_OK)
        goto cleanup;
    if ((st = added_open(&tok->file.vocab, &tok->added, err)) != QR_OK)
        goto cleanup;
    tok->ids_only = source->ids_only;
    if (!tok->ids_only &&
        (st = split_open(tok->file.patterns, source->engine, source->name, log, &tok->splitter, err)) != QR_OK)
        goto cleanup;
    if ((st = read_config(tok, source, log, err)) != QR_OK)
        goto cleanup;
    memset(tok->file.patterns, 0, sizeof tok->file.patterns); /* they go with the document */
    note_longest(tok);
    log_versions(source, log);
    *out = tok;
    tok = NULL;

cleanup:
    json_close(doc);
    tok_close(tok);
    return st;
}

static qr_status open_folder(const char *dir, bool ids_only, const struct qr_log *log, struct tokenizer **out,
                             qr_error *err)
{
    struct mapped_file file = {0};
    struct tok_source source = {.engine = SPLIT_AUTO, .ids_only = ids_only};
    char *path = path_join(dir, "tokenizer.json"), *config_path = path_join(dir, "tokenizer_config.json");
    char *config = NULL;
    qr_status st = QR_OK;
    *out = NULL;
    if (!path || !config_path)
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for the paths of its tokenizer", dir);
    else
        st = file_map(path, &file, err);
    if (st == QR_OK && file.size > max_file)
        st = qr_fail(err, QR_BAD_FILE, "%s: %llu bytes, at most %llu are read", path, (unsigned long long)file.size,
                     (unsigned long long)max_file);
    if (st == QR_OK && access(config_path, F_OK) == 0)
        st = file_read(config_path, max_config, &config, &source.config_size, err);
    if (st == QR_OK) {
        source.json = (const char *)file.data;
        source.size = (size_t)file.size;
        source.name = path;
        source.config = config;
        source.config_name = config_path;
        st = tok_load(&source, log, out, err);
    }
    qr_free(config);
    file_unmap(&file);
    qr_free(path);
    qr_free(config_path);
    return st;
}

qr_status tok_open(const char *dir, const struct qr_log *log, struct tokenizer **out, qr_error *err)
{
    return open_folder(dir, false, log, out, err);
}

qr_status tok_open_ids(const char *dir, const struct qr_log *log, struct tokenizer **out, qr_error *err)
{
    return open_folder(dir, true, log, out, err);
}

void tok_close(struct tokenizer *tok)
{
    if (!tok)
        return;
    split_close(&tok->splitter);
    added_free(&tok->added);
    tokenizer_file_free(&tok->file);
    qr_free(tok);
}

/* ---- encoding ---- */

/* One call: what it needs beside the tokenizer. */
struct encoding {
    const struct tokenizer *tok;
    struct bpe_scratch scratch;
    struct buffer mapped; /* of a piece, for ignore_merges */
    struct tok_ids *ids;
};

static qr_status no_memory(qr_error *err, size_t n)
{
    return qr_fail(err, QR_NO_MEMORY, "no memory for the ids of a piece of %zu bytes", n);
}

/* The id of the base token that a piece is as a whole, or -1. */
static qr_status whole_token(struct encoding *e, const uint8_t *piece, size_t n, int32_t *id, qr_error *err)
{
    const struct vocab *vocab = &e->tok->file.vocab;
    *id = -1;
    if (n > e->tok->longest_base)
        return QR_OK;
    if (!buffer_reserve(&e->mapped, 2 * n))
        return no_memory(err, n);
    int32_t found = vocab_find(vocab, e->mapped.data, byte_map_to_text(piece, n, e->mapped.data));
    if (found >= 0 && vocab->entries[found].kind == VOCAB_BASE)
        *id = found;
    return QR_OK;
}

static qr_status encode_piece(struct encoding *e, const uint8_t *piece, size_t n, qr_error *err)
{
    int32_t whole = -1;
    if (e->tok->file.ignore_merges) {
        qr_status st = whole_token(e, piece, n, &whole, err);
        if (st != QR_OK)
            return st;
    }
    bool done = whole >= 0 ? tok_ids_push(e->ids, whole) : bpe_encode(&e->tok->file.bpe, piece, n, &e->scratch, e->ids);
    return done ? QR_OK : no_memory(err, n);
}

/* Plain text, well-formed. */
static qr_status encode_plain(struct encoding *e, const uint8_t *text, size_t n, qr_error *err)
{
    struct split_cursor cursor;
    size_t from, to;
    if (n == 0)
        return QR_OK;
    qr_status st = split_start(&e->tok->splitter, text, n, &cursor, err);
    while (st == QR_OK) {
        if ((st = split_next(&cursor, &from, &to, err)) != QR_OK || from == to)
            break;
        st = encode_piece(e, text + from, to - from, err);
    }
    split_finish(&cursor);
    return st;
}

static qr_status encode_with_added(struct encoding *e, const uint8_t *text, size_t n, qr_error *err)
{
    size_t from = 0, at, length;
    int32_t id;
    qr_status st = QR_OK;
    while (st == QR_OK && (id = added_search(&e->tok->added, text, n, from, &at, &length)) >= 0) {
        st = encode_plain(e, text + from, at - from, err);
        if (st == QR_OK && !tok_ids_push(e->ids, id))
            st = no_memory(err, length);
        from = at + length;
    }
    return st == QR_OK ? encode_plain(e, text + from, n - from, err) : st;
}

static qr_status encode(const struct tokenizer *tok, const char *text, size_t n, bool markup, struct tok_ids *ids,
                        qr_error *err)
{
    struct encoding e = {.tok = tok, .ids = ids};
    struct buffer repaired = {0};
    const uint8_t *bytes = (const uint8_t *)text;
    size_t start = ids->count;
    qr_status st = QR_OK;
    if (tok->ids_only)
        return qr_fail(err, QR_UNSUPPORTED, "this tokenizer was opened for its ids only");
    if (n <= max_text && utf8_valid_prefix(text, n) < n) {
        if (!utf8_sanitize(bytes, n, &repaired)) {
            st = qr_fail(err, QR_NO_MEMORY, "no memory to repair a text of %zu bytes", n);
            goto cleanup;
        }
        bytes = (const uint8_t *)repaired.data;
        n = repaired.length;
    }
    if (n > max_text) {
        st = qr_fail(err, QR_BAD_REQUEST, "a text of %zu bytes, at most %zu can be encoded", n, max_text);
        goto cleanup;
    }
    if (n >= CACHE_FROM)
        bpe_scratch_cache(&e.scratch);
    st = markup ? encode_with_added(&e, bytes, n, err) : encode_plain(&e, bytes, n, err);

cleanup:
    if (st != QR_OK)
        ids->count = start;
    bpe_scratch_free(&e.scratch);
    buffer_free(&e.mapped);
    buffer_free(&repaired);
    return st;
}

qr_status tok_encode_literal(const struct tokenizer *tok, const char *text, size_t n, struct tok_ids *ids,
                             qr_error *err)
{
    return encode(tok, text, n, false, ids, err);
}

qr_status tok_encode_markup(const struct tokenizer *tok, const char *text, size_t n, struct tok_ids *ids, qr_error *err)
{
    return encode(tok, text, n, true, ids, err);
}

/* ---- ids ---- */

int32_t tok_count(const struct tokenizer *tok) { return (int32_t)tok->file.vocab.count; }

int32_t tok_base_count(const struct tokenizer *tok) { return tok->file.base_count; }

static bool is_id(const struct tokenizer *tok, int32_t id) { return id >= 0 && id < tok_count(tok); }

const uint8_t *tok_bytes(const struct tokenizer *tok, int32_t id, size_t *length)
{
    *length = 0;
    return is_id(tok, id) ? vocab_bytes(&tok->file.vocab, id, length) : (const uint8_t *)"";
}

const char *tok_string(const struct tokenizer *tok, int32_t id, size_t *length)
{
    *length = 0;
    return is_id(tok, id) ? vocab_string(&tok->file.vocab, id, length) : "";
}

bool tok_is_added(const struct tokenizer *tok, int32_t id)
{
    return is_id(tok, id) && tok->file.vocab.entries[id].kind >= VOCAB_ADDED;
}

bool tok_is_special(const struct tokenizer *tok, int32_t id)
{
    return is_id(tok, id) && tok->file.vocab.entries[id].kind == VOCAB_SPECIAL;
}

int32_t tok_find(const struct tokenizer *tok, const char *content)
{
    return added_find(&tok->added, content, strlen(content));
}

int32_t tok_bos(const struct tokenizer *tok) { return tok->bos; }
int32_t tok_eos(const struct tokenizer *tok) { return tok->eos; }
int32_t tok_pad(const struct tokenizer *tok) { return tok->pad; }
bool tok_adds_bos(const struct tokenizer *tok) { return tok->adds_bos; }
int64_t tok_max_length(const struct tokenizer *tok) { return tok->max_length; }

static bool starts_with(const char *s, size_t n, const char *prefix)
{
    return n >= strlen(prefix) && memcmp(s, prefix, strlen(prefix)) == 0;
}

static bool is_banned(const char *s, size_t n)
{
    static const char *const names[] = {"<｜rl_image_pad｜>", "<｜rl_image_start｜>", "<｜deepseek_image｜>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (n == strlen(names[i]) && memcmp(s, names[i], n) == 0)
            return true;
    return starts_with(s, n, "<｜place▁holder▁no▁") || starts_with(s, n, "<|place_holder_mm_span_");
}

qr_status tok_ban_list(const struct tokenizer *tok, struct tok_ids *ids, qr_error *err)
{
    size_t start = ids->count;
    for (int32_t id = 0; id < tok_count(tok); id++) {
        size_t length;
        const char *content = tok_string(tok, id, &length);
        if (tok_is_added(tok, id) && is_banned(content, length) && !tok_ids_push(ids, id)) {
            ids->count = start;
            return qr_fail(err, QR_NO_MEMORY, "no memory for the list of banned tokens");
        }
    }
    return QR_OK;
}
