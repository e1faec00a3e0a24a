/* A tokenizer.json of any bytes: refused with a sentence, or a tokenizer that encodes, whose ids are its own and give
 * the text back. */
#include "fuzz.h"

#include <string.h>

#include "text/detokenizer.h"
#include "text/token_map.h"

static const char sample[] = "the <a><b> aaaa 1234 h\xc3\xa9llo\r\n\t\xe4\xbd\xa0\xe5\xa5\xbd th";

static void encode_and_back(const struct tokenizer *tok, bool markup)
{
    struct tok_ids ids = {0};
    struct buffer text = {0};
    qr_error err = {0};
    size_t n = strlen(sample);
    qr_status st = (markup ? tok_encode_markup : tok_encode_literal)(tok, sample, n, &ids, &err);
    must((st == QR_OK) == (err.message[0] == 0));
    for (size_t i = 0; i < ids.count; i++) {
        must(ids.data[i] >= 0 && ids.data[i] < tok_count(tok));
        must(markup || !tok_is_added(tok, ids.data[i]));
    }
    if (st == QR_OK) {
        must(detok_all(tok, ids.data, ids.count, &text, &err) == QR_OK);
        must(text.length == n && memcmp(text.data, sample, n) == 0);
    }
    tok_ids_free(&ids);
    buffer_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *tok;
    /* The scanner's tables are the same for every file and take long to make: fuzz_text has them. */
    struct tok_source source = {.json = (const char *)data, .size = size, .name = "input", .engine = SPLIT_REGEX};
    for (int ids_only = 0; ids_only < 2; ids_only++) {
        qr_error err = {0};
        source.ids_only = ids_only;
        qr_status st = tok_load(&source, NULL, &tok, &err);
        must((st == QR_OK) == (err.message[0] == 0));
        if (st != QR_OK)
            continue;
        for (int32_t id = 0; id < tok_count(tok); id++) {
            size_t length;
            must(tok_bytes(tok, id, &length) || length == 0);
        }
        if (ids_only) {
            struct token_map map;
            must(token_map_build(tok, &map, NULL) == QR_OK && map.count == tok_count(tok) && map.keys <= map.count);
            token_map_free(&map);
        } else {
            encode_and_back(tok, false);
            encode_and_back(tok, true);
        }
        tok_close(tok);
    }
    return 0;
}
