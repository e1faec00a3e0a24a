/* JSON lines of any bytes: every line gives an object or a sentence, and reading always comes to the end. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <stdio.h>

#include "base/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FILE *file = size ? fmemopen((void *)(uintptr_t)data, size, "r") : NULL;
    if (!file)
        return 0;
    struct jsonl_reader reader;
    jsonl_open(&reader, file, "input");
    for (size_t lines = 0;; lines++) {
        struct json_document *doc = NULL;
        qr_error err = {0};
        must(lines <= size);
        qr_status st = jsonl_next(&reader, &doc, &err);
        must((st == QR_OK) == (err.message[0] == 0));
        if (st == QR_OK && !doc)
            break;
        must(st == QR_OK ? json_root(doc)->kind == JSON_OBJECT : st == QR_BAD_REQUEST && !doc);
        json_close(doc);
    }
    jsonl_close(&reader);
    fclose(file);
    return 0;
}
