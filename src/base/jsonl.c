#define _GNU_SOURCE
#include "base/jsonl.h"

#include <errno.h>
#include <string.h>

void jsonl_open(struct jsonl_reader *reader, FILE *file, const char *name)
{
    *reader = (struct jsonl_reader){.file = file, .name = name};
}

void jsonl_close(struct jsonl_reader *reader) { buffer_free(&reader->line); }

/* One line without its newline; *end when there was not even an empty one. */
static qr_status read_line(struct jsonl_reader *reader, bool *end, qr_error *err)
{
    char part[4096];
    buffer_clear(&reader->line);
    *end = false;
    flockfile(reader->file);
    for (bool more = true; more;) {
        size_t n = 0;
        int c = 0;
        while (n < sizeof part && (c = getc_unlocked(reader->file)) != EOF && c != '\n')
            part[n++] = (char)c;
        more = n == sizeof part;
        *end = c == EOF && n == 0 && reader->line.length == 0;
        if (!buffer_append(&reader->line, part, n) || reader->line.length > JSONL_LONGEST_LINE)
            break;
    }
    funlockfile(reader->file);
    if (ferror(reader->file))
        return qr_fail(err, QR_IO, "%s: cannot read line %llu: %s", reader->name,
                       (unsigned long long)reader->number + 1, strerror(errno));
    if (reader->line.failed)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for line %llu", reader->name,
                       (unsigned long long)reader->number + 1);
    if (reader->line.length > JSONL_LONGEST_LINE)
        return qr_fail(err, QR_BAD_FILE, "%s line %llu: over %d bytes, at most that many are read", reader->name,
                       (unsigned long long)reader->number + 1, JSONL_LONGEST_LINE);
    return QR_OK;
}

qr_status jsonl_next(struct jsonl_reader *reader, struct json_document **doc, qr_error *err)
{
    bool end;
    char where[300];
    *doc = NULL;
    qr_status st = read_line(reader, &end, err);
    if (st != QR_OK || end)
        return st;
    reader->number++;
    snprintf(where, sizeof where, "%s line %llu", reader->name, (unsigned long long)reader->number);
    st = json_parse(reader->line.data, reader->line.length, where, false, doc, err);
    if (st == QR_NO_MEMORY)
        return st;
    if (st != QR_OK) {
        if (err)
            err->status = QR_BAD_REQUEST;
        return QR_BAD_REQUEST;
    }
    if (json_root(*doc)->kind != JSON_OBJECT) {
        json_close(*doc);
        *doc = NULL;
        return qr_fail(err, QR_BAD_REQUEST, "%s: not a JSON object", where);
    }
    return QR_OK;
}
