/* bench_grammar.h: what structured output costs: the tree of a vocabulary, and masks of typical places in JSON. */
#ifndef QR_TOOLS_BENCH_GRAMMAR_H
#define QR_TOOLS_BENCH_GRAMMAR_H

#include "base/json.h"
#include "text/tokenizer.h"

enum { BENCH_GRAMMAR_ROWS = 5 };

struct bench_grammar {
    double tree_seconds, tree_bytes, run_bytes;
    struct {
        const char *what;
        double make_seconds, find_seconds; /* of a mask: when the place is new, and when it has been there */
        double tokens;                     /* that fit */
    } rows[BENCH_GRAMMAR_ROWS];
};

qr_status bench_grammar_run(const struct tokenizer *tok, struct bench_grammar *out, qr_error *err);
void bench_grammar_print(const struct bench_grammar *b);
void bench_grammar_write(const struct bench_grammar *b, struct json_writer *w); /* one object */

#endif
