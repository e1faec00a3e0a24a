/* bench_text.h: how fast a tokenizer loads, encodes and decodes (the targets of protocol.md 1.9), and what grammars
 * cost over it. */
#ifndef QR_TOOLS_BENCH_TEXT_H
#define QR_TOOLS_BENCH_TEXT_H

#include "tools/bench_grammar.h"

enum { BENCH_TEXT_ROWS = 6 };

struct bench_text {
    double load_seconds, token_map_seconds;
    /* One thread. Words and Han characters are drawn from the vocabulary itself, low ids often, as they occur;
     * bytes is 0 when the vocabulary has none. */
    struct {
        const char *what;
        double bytes, tokens, encode_seconds, decode_seconds;
    } rows[BENCH_TEXT_ROWS];
    struct bench_grammar grammar;
};

/* Measures the tokenizer of the folder `dir` on about `bytes` of each kind of text. */
qr_status bench_text_run(const char *dir, size_t bytes, struct bench_text *out, qr_error *err);

#endif
