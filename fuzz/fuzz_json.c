/* JSON text of any bytes: both readers agree, and what was read can be written and read again. */
#include "fuzz.h"

#include "base/json.h"

static void round_trip(const struct json_document *doc)
{
    struct json_document *again;
    struct json_writer *w = json_writer_open(false);
    const char *text;
    size_t length;
    json_w_value(w, json_root(doc));
    qr_status st = json_finish(w, &text, &length, NULL);
    /* The writer's one limit that the reader does not have is its depth. */
    must(st == QR_OK || st == QR_BAD_ARGUMENT);
    if (st == QR_OK) {
        must(json_parse(text, length, "again", false, &again, NULL) == QR_OK);
        must(json_root(again)->kind == json_root(doc)->kind && json_root(again)->count == json_root(doc)->count);
        json_close(again);
    }
    json_writer_close(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct json_events none = {0};
    struct json_document *doc;
    qr_error err = {0};
    qr_status scanned = json_scan((const char *)data, size, "input", &none, NULL, NULL);
    qr_status parsed = json_parse((const char *)data, size, "input", false, &doc, &err);
    must(scanned == parsed);
    must((parsed == QR_OK) == (doc != NULL) && (parsed == QR_OK) == (err.message[0] == 0));
    if (doc)
        round_trip(doc);
    json_close(doc);
    return 0;
}
