/* JSON lines of any bytes: as many answers as lines, each of them a line of JSON with an id. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <string.h>

#include "tools/answer.h"

/* Answers with the line itself; one without members cannot be done. */
static qr_status echo(void *user, const struct json *line, struct json_writer *w, qr_error *err)
{
    (void)user;
    if (line->count == 0)
        return qr_fail(err, QR_BAD_REQUEST, "an empty object");
    json_w_key(w, "line");
    json_w_value(w, line);
    return QR_OK;
}

static size_t count_lines(const char *text, size_t size)
{
    size_t lines = size > 0 && text[size - 1] != '\n';
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    return lines;
}

static void check_answers(const char *text, size_t size)
{
    for (const char *line = text, *end; line < text + size; line = end + 1) {
        struct json_document *doc = NULL;
        end = memchr(line, '\n', (size_t)(text + size - line));
        must(end);
        must(json_parse(line, (size_t)(end - line), "answer", false, &doc, NULL) == QR_OK);
        const struct json *root = json_root(doc);
        must(root->kind == JSON_OBJECT && root->count == 2 && json_get(root, "id"));
        must(json_get(root, "line") || json_get(root, "error"));
        json_close(doc);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *answers = NULL;
    size_t length = 0;
    qr_error err = {0};
    FILE *in = size ? fmemopen((void *)(uintptr_t)data, size, "rb") : fopen("/dev/null", "rb");
    FILE *out = open_memstream(&answers, &length);
    must(in && out);
    must(answer_lines(in, "input", out, echo, NULL, &err) == QR_OK);
    fclose(in);
    fclose(out);
    must(count_lines((const char *)data, size) == count_lines(answers, length));
    check_answers(answers, length);
    free(answers);
    return 0;
}
