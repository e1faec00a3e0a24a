#include "support/tokenizers.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "support/support.h"
#include "text/byte_map.h"
#include "text/utf8.h"

struct tokenizer *bundled_tokenizer(void)
{
    struct tokenizer *tok;
    qr_error err = {0};
    if (tok_open(source_path("models/tiny-v41"), NULL, &tok, &err) != QR_OK)
        fail_msg("%s", err.message);
    return tok;
}

static struct json_document *parse(const char *text, size_t size, const char *name)
{
    struct json_document *doc;
    qr_error err = {0};
    if (json_parse(text, size, name, false, &doc, &err) != QR_OK)
        fail_msg("%s", err.message);
    return doc;
}

static char *read_file(const char *path, size_t *size)
{
    char *text;
    qr_error err = {0};
    if (file_read(path, 1u << 30, &text, size, &err) != QR_OK)
        fail_msg("%s", err.message);
    return text;
}

char *read_source(const char *relative, size_t *size) { return read_file(source_path(relative), size); }

/* The object with its member `key` replaced by JSON text. */
static char *replace_member(const struct json *object, const char *key, const char *value, size_t length)
{
    const char *text;
    size_t size;
    qr_error err = {0};
    struct json_writer *w = json_writer_open(false);
    assert_non_null(w);
    json_w_object(w);
    for (const struct json *m = object->child; m; m = m->next) {
        json_w_key(w, m->key);
        if (strcmp(m->key, key) == 0)
            json_w_raw(w, value, length);
        else
            json_w_value(w, m);
    }
    json_w_end_object(w);
    if (json_finish(w, &text, &size, &err) != QR_OK)
        fail_msg("%s", err.message);
    char *copy = qr_strndup(text, size);
    json_writer_close(w);
    assert_non_null(copy);
    return copy;
}

char *published_json(const char *list, size_t length, size_t *size)
{
    char *json = read_file(fixture_tokenizer(), size);
    if (!list)
        return json;
    struct json_document *doc = parse(json, *size, "the published tokenizer");
    char *replaced = replace_member(json_root(doc), "added_tokens", list, length);
    json_close(doc);
    qr_free(json);
    *size = strlen(replaced);
    return replaced;
}

struct tokenizer *tokenizer_as_v4, *tokenizer_as_v41;

int published_begin(void **state)
{
    (void)state;
    tokenizer_as_v4 = published_tokenizer("tests/golden/text/added_tokens_v4.json");
    tokenizer_as_v41 = published_tokenizer("tests/golden/text/added_tokens_v41.json");
    return 0;
}

int published_end(void **state)
{
    (void)state;
    tok_close(tokenizer_as_v4);
    tok_close(tokenizer_as_v41);
    return 0;
}

struct tokenizer *published_tokenizer(const char *added)
{
    struct tokenizer *tok;
    qr_error err = {0};
    size_t size, length = 0;
    char *list = added ? read_source(added, &length) : NULL;
    char *json = published_json(list, length, &size);
    const struct tok_source source = {.json = json, .size = size, .name = "the published tokenizer"};
    if (tok_load(&source, NULL, &tok, &err) != QR_OK)
        fail_msg("%s", err.message);
    qr_free(json);
    qr_free(list);
    return tok;
}

static void append_string(struct buffer *out, const char *s, size_t length)
{
    const char *text;
    qr_error err = {0};
    struct json_writer *w = json_writer_open(false);
    json_w_string_n(w, s, length);
    assert_int_equal(json_finish(w, &text, &length, &err), QR_OK);
    buffer_append(out, text, length);
    json_writer_close(w);
}

char *small_tokenizer_json(void)
{
    static const char *const joined[] = {"th", "the", "\xC4\xA0the", "aa", "aaaa"};
    static const char *const flags = "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false";
    struct buffer out = {0};
    buffer_puts(&out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    buffer_printf(&out, "{\"id\":261,\"content\":\"<a>\",%s,\"special\":false},", flags);
    buffer_printf(&out, "{\"id\":262,\"content\":\"<a><b>\",%s,\"special\":true}],", flags);
    buffer_puts(&out, "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < REGEX_SPLIT_PASSES; i++) {
        buffer_puts(&out, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        append_string(&out, scan_patterns[i], strlen(scan_patterns[i]));
        buffer_puts(&out, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    buffer_puts(&out,
                "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},");
    buffer_puts(&out,
                "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int byte = 0; byte < 256; byte++) {
        uint8_t character[4];
        append_string(&out, (char *)character, utf8_encode(byte_map_character((uint8_t)byte), character));
        buffer_printf(&out, ":%d,", byte);
    }
    for (int i = 0; i < 5; i++)
        buffer_printf(&out, "%s\"%s\":%d", i ? "," : "", joined[i], 256 + i);
    buffer_puts(&out, "},\"merges\":[\"t h\",\"th e\",\"\xC4\xA0 the\",\"a a\",\"aa aa\"]}}");
    assert_false(out.failed);
    return out.data;
}

size_t each_line(const char *relative, void (*check)(void *user, const struct json *line), void *user)
{
    size_t size, lines = 0;
    char *text = read_source(relative, &size);
    for (char *line = text, *end; line < text + size; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + size - line));
        if (!end)
            end = text + size;
        struct json_document *doc = parse(line, (size_t)(end - line), relative);
        check(user, json_root(doc));
        json_close(doc);
        lines++;
    }
    qr_free(text);
    return lines;
}

static const char *id_of(const struct json *line)
{
    const struct json *id = json_get(line, "id");
    return id && id->text ? id->text : "a line without id";
}

const struct json *member(const struct json *line, const char *key, enum json_kind kind)
{
    const struct json *m = json_get(line, key);
    if (!m || m->kind != kind)
        fail_msg("%s: no %s of the right kind", id_of(line), key);
    return m;
}

void assert_ids(const struct json *line, const struct tok_ids *found, const struct json *want)
{
    const struct json *e = want->child;
    for (size_t i = 0; i < found->count || e; i++, e = e->next) {
        int64_t id = -1;
        if (e && !json_int64(e, &id))
            fail_msg("%s: id %zu of the golden is no integer", id_of(line), i);
        if (i >= found->count || found->data[i] != id)
            fail_msg("%s: id %zu is %d, wanted %d (%zu ids, wanted %zu)", id_of(line), i,
                     i < found->count ? found->data[i] : -1, (int)id, found->count, want->count);
    }
}

void bytes_of_hex(const struct json *hex, struct buffer *out)
{
    buffer_clear(out);
    assert_true(buffer_reserve(out, hex->length / 2));
    for (size_t i = 0; i + 1 < hex->length; i += 2) {
        char digits[3] = {hex->text[i], hex->text[i + 1], 0}, byte = (char)strtol(digits, NULL, 16);
        assert_true(buffer_append(out, &byte, 1));
    }
}

uint32_t random_below(uint64_t *state, uint32_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % limit);
}
