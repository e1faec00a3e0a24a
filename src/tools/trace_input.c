#include "tools/trace_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

enum { LARGEST_FILE = 256 << 20 };

/* An integer in [least, most]; `what` and, in a list, `index` name it. */
static qr_status read_number(const struct json *value, const char *what, int32_t index, int64_t least, int64_t most,
                             int32_t *out, qr_error *err)
{
    int64_t number;
    char at[16] = "";
    if (json_int64(value, &number) && number >= least && number <= most) {
        *out = (int32_t)number;
        return QR_OK;
    }
    if (index >= 0)
        snprintf(at, sizeof at, "[%d]", index);
    return qr_fail(err, QR_BAD_REQUEST, "%s%s is %.*s, wanted %lld to %lld", what, at, value->text ? (int)value->length : 9,
                   value->text ? value->text : "no number", (long long)least, (long long)most);
}

/* The integers of a JSON list, each in [least, most]; a missing list gives none. */
static qr_status read_list(const struct json *list, const char *what, int64_t least, int64_t most, int32_t **out,
                           int32_t *count, qr_error *err)
{
    if (!list)
        return QR_OK;
    if (list->kind != JSON_ARRAY)
        return qr_fail(err, QR_BAD_REQUEST, "%s is no list", what);
    *out = qr_calloc(list->count, sizeof **out);
    if (!*out)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu numbers of %s", list->count, what);
    for (const struct json *e = list->child; e; e = e->next, ++*count)
        TRY(read_number(e, what, *count, least, most, &(*out)[*count], err));
    return QR_OK;
}

/* The token behind the last position; -1 when it is not given. */
static qr_status read_next_token(const struct json *value, int32_t vocab, int32_t *out, qr_error *err)
{
    *out = -1;
    return value && value->kind != JSON_NULL ? read_number(value, "next_token", -1, 0, vocab - 1, out, err) : QR_OK;
}

/* The positions of a list, or all of them. */
static qr_status read_positions(const struct json *list, const char *what, int32_t length, int32_t **out,
                                int32_t *count, qr_error *err)
{
    qr_status st = read_list(list, what, 0, length - 1, out, count, err);
    if (st != QR_OK || list)
        return st;
    *out = qr_calloc((size_t)length, sizeof **out);
    if (!*out)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d positions", length);
    for (int32_t i = 0; i < length; i++)
        (*out)[i] = i;
    *count = length;
    return QR_OK;
}

static qr_status read_sequence(const struct json *object, const struct qr_config *c, struct trace_sequence *s,
                               qr_error *err)
{
    if (object->kind != JSON_OBJECT)
        return qr_fail(err, QR_BAD_REQUEST, "wanted an object with tokens");
    const char *name = !json_get(object, "tokens") && json_get(object, "ids") ? "ids" : "tokens"; /* cases of golden/v4 */
    qr_status st = read_list(json_get(object, name), name, 0, c->vocab_size - 1, &s->tokens, &s->count, err);
    if (st == QR_OK && s->count == 0)
        st = qr_fail(err, QR_BAD_REQUEST, "there are no tokens");
    if (st == QR_OK && s->count > c->max_position_embeddings)
        st =
            qr_fail(err, QR_BAD_REQUEST, "%d tokens, the model has %d positions", s->count, c->max_position_embeddings);
    if (st == QR_OK)
        st = read_list(json_get(object, "draft_prefixes"), "draft_prefixes", 1, s->count, &s->prefixes,
                       &s->prefix_count, err);
    if (st == QR_OK)
        st = read_positions(json_get(object, "rows"), "rows", s->count, &s->rows, &s->row_count, err);
    if (st == QR_OK)
        st = read_positions(json_get(object, "picks"), "picks", s->count, &s->picks, &s->pick_count, err);
    if (st != QR_OK)
        return st;
    s->picked = json_get(object, "picks") != NULL;
    st = read_next_token(json_get(object, "next_token"), c->vocab_size, &s->next_token, err);
    if (st != QR_OK)
        return st;
    s->image_mask = qr_calloc((size_t)s->count, 1);
    if (!s->image_mask)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d tokens", s->count);
    for (int32_t i = 0; i < s->count; i++)
        s->image_mask[i] = c->image_token_id >= 0 && s->tokens[i] == c->image_token_id;
    return QR_OK;
}

static qr_status read_all(const struct json *root, const struct qr_config *c, struct trace_input *out, qr_error *err)
{
    bool list = root->kind == JSON_ARRAY;
    if (list && root->count == 0)
        return qr_fail(err, QR_BAD_REQUEST, "the list is empty");
    out->sequences = qr_calloc(list ? root->count : 1, sizeof *out->sequences);
    if (!out->sequences)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu sequences", root->count);
    for (const struct json *e = list ? root->child : root; e; e = list ? e->next : NULL) {
        struct trace_sequence *s = &out->sequences[out->count];
        if (list)
            snprintf(s->prefix, sizeof s->prefix, "seq%d.", out->count);
        out->count++;
        qr_status st = read_sequence(e, c, s, err);
        if (st != QR_OK)
            return list ? qr_fail_in(err, st, "sequence %d", out->count - 1) : st;
    }
    return QR_OK;
}

qr_status trace_input_read(const char *path, const struct qr_config *config, struct trace_input *out, qr_error *err)
{
    struct json_document *document = NULL;
    char *text = NULL;
    size_t size;

    memset(out, 0, sizeof *out);
    qr_status st = file_read(path, LARGEST_FILE, &text, &size, err);
    if (st == QR_OK)
        st = json_parse(text, size, path, false, &document, err);
    if (st == QR_OK) {
        st = read_all(json_root(document), config, out, err);
        if (st != QR_OK)
            qr_fail_in(err, st, "%s", path);
    }
    if (st != QR_OK)
        trace_input_free(out);
    json_close(document);
    qr_free(text);
    return st;
}

void trace_input_free(struct trace_input *input)
{
    for (int32_t i = 0; i < input->count; i++) {
        qr_free(input->sequences[i].tokens);
        qr_free(input->sequences[i].image_mask);
        qr_free(input->sequences[i].prefixes);
        qr_free(input->sequences[i].rows);
        qr_free(input->sequences[i].picks);
    }
    qr_free(input->sequences);
    memset(input, 0, sizeof *input);
}

int32_t trace_next_chunk(const struct trace_cut *cut, int32_t step, int32_t position, int32_t end)
{
    bool decoding = cut->decode_from >= 0 && position >= cut->decode_from;
    int32_t stop = cut->decode_from > position && cut->decode_from < end ? cut->decode_from : end;
    int32_t left = stop - position, want = left;
    if (decoding)
        want = 1;
    else if (cut->count > 0)
        want = cut->chunks[step < cut->count ? step : cut->count - 1];
    return want < left ? want : left;
}

int32_t trace_to_prefix(const struct trace_sequence *s, int32_t position, int32_t count)
{
    for (int32_t i = 0; i < s->prefix_count; i++)
        if (s->prefixes[i] > position && s->prefixes[i] - position < count)
            count = s->prefixes[i] - position;
    return count;
}

bool trace_read_chunks(const char *text, int32_t **out, int32_t *count)
{
    *out = NULL;
    *count = 0;
    if (!text)
        return true;
    *out = qr_calloc(strlen(text) + 1, sizeof **out);
    while (*out) {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text || value < 1 || value > INT32_MAX || (*end && *end != ','))
            break;
        (*out)[(*count)++] = (int32_t)value;
        if (!*end)
            return true;
        text = end + 1;
    }
    qr_free(*out);
    *out = NULL;
    return false;
}
