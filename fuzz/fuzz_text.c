/* Text of any bytes through a good tokenizer: the scanner cuts as the regex engine does, whatever comes out is text
 * again, and the stream of pieces is the text as a whole. Reads models/tiny-v41: run it in the project's folder. */
#include "fuzz.h"

#include <string.h>

#include "base/utf8.h"
#include "models.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

static struct tokenizer *scanner, *regex;

static void comes_back(const struct tok_ids *ids, const char *text, size_t size)
{
    struct buffer whole = {0}, pieces = {0};
    struct detokenizer d;
    must(detok_all(scanner, ids->data, ids->count, &whole, NULL) == QR_OK);
    must(utf8_valid_prefix(whole.data, whole.length) == whole.length);
    if (utf8_valid_prefix(text, size) == size)
        must(whole.length == size && memcmp(whole.data, text, size) == 0);
    detok_start(&d, scanner);
    for (size_t i = 0; i < ids->count; i++) {
        must(detok_push(&d, ids->data[i], &pieces, NULL) == QR_OK);
        must(utf8_valid_prefix(pieces.data, pieces.length) == pieces.length);
    }
    must(detok_flush(&d, &pieces, NULL) == QR_OK);
    must(pieces.length == whole.length && memcmp(pieces.data, whole.data, whole.length) == 0);
    buffer_free(&whole);
    buffer_free(&pieces);
}

/* Any ids, too: most are no text that an encoder would make. */
static void arbitrary_ids(const uint8_t *data, size_t size)
{
    struct tok_ids ids = {0};
    for (size_t i = 0; i + 1 < size; i += 2)
        must(tok_ids_push(&ids, (data[i] | data[i + 1] << 8) % tok_count(scanner)));
    if (ids.count)
        comes_back(&ids, "\xff", 1);
    tok_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!scanner) {
        scanner = fuzz_tokenizer(SPLIT_AUTO);
        regex = fuzz_tokenizer(SPLIT_REGEX);
    }
    if (size == 0)
        return 0;
    const char *text = (const char *)data;
    struct tok_ids a = {0}, b = {0};
    must(tok_encode_literal(scanner, text, size, &a, NULL) == QR_OK);
    must(tok_encode_literal(regex, text, size, &b, NULL) == QR_OK);
    must(a.count == b.count && memcmp(a.data, b.data, a.count * sizeof *a.data) == 0);
    comes_back(&a, text, size);
    a.count = b.count = 0;
    must(tok_encode_markup(scanner, text, size, &a, NULL) == QR_OK);
    must(tok_encode_markup(regex, text, size, &b, NULL) == QR_OK);
    must(a.count == b.count && memcmp(a.data, b.data, a.count * sizeof *a.data) == 0);
    comes_back(&a, text, size);
    arbitrary_ids(data, size);
    tok_ids_free(&a);
    tok_ids_free(&b);
    return 0;
}
