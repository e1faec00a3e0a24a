#include "tools/bench_text.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "text/detokenizer.h"
#include "text/token_map.h"
#include "text/utf8.h"

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* A space and letters: a word as it stands in a sentence. */
static bool is_word(const uint8_t *s, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (s[i] < 'a' || s[i] > 'z')
            return false;
    return n > 1 && s[0] == ' ';
}

static bool is_han(const uint8_t *s, size_t n)
{
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        i += utf8_decode(s + i, n - i, &cp);
        if (cp < 0x4E00 || cp > 0x9FA5)
            return false;
    }
    return n > 0;
}

/* Draws tokens that `fits` accepts, the k-th of them about as often as 1/k, until there are `bytes` of text. */
static bool draw_text(const struct tokenizer *tok, bool (*fits)(const uint8_t *, size_t), const char *sentence_end,
                      size_t bytes, struct buffer *out)
{
    struct tok_ids ids = {0};
    uint64_t seed = 1;
    size_t n;
    for (int32_t id = 0; id < tok_count(tok); id++) {
        const uint8_t *s = tok_bytes(tok, id, &n);
        if (!tok_is_added(tok, id) && fits(s, n) && !tok_ids_push(&ids, id))
            out->failed = true;
    }
    while (ids.count && out->length < bytes && !out->failed) {
        double u = next_random(&seed) / 4294967296.0;
        size_t k = (size_t)(pow((double)ids.count, u)) - 1;
        const uint8_t *s = tok_bytes(tok, ids.data[k < ids.count ? k : ids.count - 1], &n);
        buffer_append(out, s, n);
        if (next_random(&seed) % 12 == 0)
            buffer_puts(out, sentence_end);
    }
    tok_ids_free(&ids);
    return !out->failed;
}

static bool repeat_text(const char *unit, size_t bytes, struct buffer *out)
{
    while (out->length < bytes && buffer_puts(out, unit))
        ;
    return !out->failed;
}

static qr_status measure(const struct tokenizer *tok, const struct buffer *text, struct bench_text *out, size_t row,
                         qr_error *err)
{
    struct tok_ids ids = {0};
    struct buffer back = {0};
    double start = clock_seconds();
    qr_status st = tok_encode_literal(tok, text->data ? text->data : "", text->length, &ids, err);
    double middle = clock_seconds();
    if (st == QR_OK)
        st = detok_all(tok, ids.data, ids.count, &back, err);
    out->rows[row].bytes = (double)text->length;
    out->rows[row].tokens = (double)ids.count;
    out->rows[row].encode_seconds = middle - start;
    out->rows[row].decode_seconds = clock_seconds() - middle;
    tok_ids_free(&ids);
    buffer_free(&back);
    return st;
}

static bool make_text(const struct tokenizer *tok, size_t row, size_t bytes, struct buffer *out)
{
    switch (row) {
    case 0:
        return draw_text(tok, is_word, ". The", bytes, out);
    case 1:
        return draw_text(tok, is_han, "\xEF\xBC\x8C", bytes, out);
    case 2:
        return repeat_text("    for (int i = 0; i < count; i++) {\n        total += values[i] * 0.5;\n    }\n\n", bytes,
                           out);
    case 3:
        return repeat_text("a", bytes, out);
    case 4:
        return repeat_text(" ", bytes, out);
    default:
        return repeat_text("0123456789", bytes, out);
    }
}

qr_status bench_text_run(const char *dir, size_t bytes, struct bench_text *out, qr_error *err)
{
    static const char *const names[BENCH_TEXT_ROWS] = {"words", "han", "code", "one letter", "one space", "digits"};
    struct tokenizer *tok;
    struct token_map map = {0};
    double start = clock_seconds();
    *out = (struct bench_text){0};
    qr_status st = tok_open(dir, NULL, &tok, err);
    if (st != QR_OK)
        return st;
    out->load_seconds = clock_seconds() - start;
    start = clock_seconds();
    st = token_map_build(tok, &map, err);
    out->token_map_seconds = clock_seconds() - start;
    for (size_t row = 0; row < BENCH_TEXT_ROWS && st == QR_OK; row++) {
        struct buffer text = {0};
        out->rows[row].what = names[row];
        if (make_text(tok, row, bytes, &text))
            st = measure(tok, &text, out, row, err);
        else
            st = qr_fail(err, QR_NO_MEMORY, "no memory for %zu bytes of text", bytes);
        buffer_free(&text);
    }
    if (st == QR_OK)
        st = bench_grammar_run(tok, &out->grammar, err);
    token_map_free(&map);
    tok_close(tok);
    return st;
}
