#include "tools/answer.h"

#include <errno.h>
#include <string.h>

#include "base/jsonl.h"

static void open_answer(struct json_writer *w, const struct json *id)
{
    json_writer_reset(w);
    json_w_object(w);
    json_w_key(w, "id");
    if (id && id->kind != JSON_ARRAY && id->kind != JSON_OBJECT)
        json_w_value(w, id);
    else
        json_w_null(w);
}

static qr_status close_answer(struct json_writer *w, const char **text, size_t *length, qr_error *err)
{
    json_w_end_object(w);
    return json_finish(w, text, length, err);
}

/* `st` is how reading the line went, with its message in `line_error`. */
static qr_status answer_one(qr_status st, struct json_document *doc, qr_error *line_error, FILE *out,
                            struct json_writer *w, answer_line answer, void *user, qr_error *err)
{
    const struct json *line = doc ? json_root(doc) : NULL;
    const char *text;
    size_t length;
    open_answer(w, json_get(line, "id"));
    if (st == QR_OK)
        st = answer(user, line, w, line_error);
    if (st == QR_OK)
        st = close_answer(w, &text, &length, line_error);
    if (st != QR_OK) {
        open_answer(w, json_get(line, "id"));
        json_w_member_string(w, "error", line_error->message);
        st = close_answer(w, &text, &length, err);
        if (st != QR_OK)
            return st;
    }
    if (fwrite(text, 1, length, out) != length || putc('\n', out) == EOF || fflush(out) == EOF)
        return qr_fail(err, QR_IO, "cannot write an answer of %zu bytes: %s", length, strerror(errno));
    return QR_OK;
}

qr_status answer_lines(FILE *in, const char *name, FILE *out, answer_line answer, void *user, qr_error *err)
{
    struct jsonl_reader reader;
    struct json_writer *w = json_writer_open(false);
    qr_status st = QR_OK;
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for an answer");
    jsonl_open(&reader, in, name);
    while (st == QR_OK) {
        struct json_document *doc;
        qr_error line_error = {0};
        qr_status read = jsonl_next(&reader, &doc, &line_error);
        if (read != QR_OK && read != QR_BAD_REQUEST) {
            st = qr_fail(err, read, "%s", line_error.message);
            break;
        }
        if (read == QR_OK && !doc)
            break;
        st = answer_one(read, doc, &line_error, out, w, answer, user, err);
        json_close(doc);
    }
    jsonl_close(&reader);
    json_writer_close(w);
    return st;
}

static bool is_standard(const char *path) { return !path || strcmp(path, "-") == 0; }

qr_status answer_files(const char *in, const char *out, answer_line answer, void *user, qr_error *err)
{
    FILE *input = is_standard(in) ? stdin : fopen(in, "rb");
    if (!input)
        return qr_fail(err, QR_BAD_FILE, "%s: cannot open: %s", in, strerror(errno));
    FILE *output = is_standard(out) ? stdout : fopen(out, "wb");
    if (!output) {
        qr_status st = qr_fail(err, QR_IO, "%s: cannot create: %s", out, strerror(errno));
        if (input != stdin)
            fclose(input);
        return st;
    }
    qr_status st = answer_lines(input, is_standard(in) ? "standard input" : in, output, answer, user, err);
    if (input != stdin)
        fclose(input);
    if (output != stdout && fclose(output) == EOF && st == QR_OK)
        st = qr_fail(err, QR_IO, "%s: cannot write: %s", out, strerror(errno));
    return st;
}
