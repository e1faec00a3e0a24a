/* jsonl.h: reading JSON lines, one object a line. */
#ifndef QR_BASE_JSONL_H
#define QR_BASE_JSONL_H

#include <stdio.h>

#include "base/buffer.h"
#include "base/json.h"

/* A longer line is no request: the file is something else, perhaps one without an end. */
enum { JSONL_LONGEST_LINE = 256 << 20 };

/* `file` and `name` (quoted in errors) stay the caller's. `number` counts lines from 1. */
struct jsonl_reader {
    FILE *file;
    const char *name;
    uint64_t number;
    struct buffer line;
};

void jsonl_open(struct jsonl_reader *reader, FILE *file, const char *name);
void jsonl_close(struct jsonl_reader *reader);

/* Reads the next line into *doc (json_close), whose root is an object; *doc is NULL with QR_OK at the end of the file.
 * QR_BAD_REQUEST: this line is no JSON object (an empty one neither), the message names file and line, and the next
 * call goes on with the next line. Any other failure (QR_BAD_FILE: a line without an end, QR_IO, QR_NO_MEMORY) is the end
 * of the reading. */
qr_status jsonl_next(struct jsonl_reader *reader, struct json_document **doc, qr_error *err);

#endif
