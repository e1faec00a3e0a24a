#include "tools/bench_grammar.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "text/grammar_make.h"
#include "text/grammar_run.h"

static const struct {
    const char *what, *schema, *before;
} places[BENCH_GRAMMAR_ROWS] = {
    {"first byte of an object", "{\"type\":\"object\"}", ""},
    {"inside of a string", "{\"type\":\"string\"}", "\"a"},
    {"a string of at most 100", "{\"type\":\"string\",\"maxLength\":100}", "\"a"},
    {"a date", "{\"type\":\"string\",\"format\":\"date\"}", "\"20"},
    {"a name of ten", "{\"type\":\"object\",\"properties\":{\"a\":{},\"bc\":{},\"cd\":{},\"de\":{},\"ef\":{},\"fg\":{},\"gh\":{},"
                      "\"hi\":{},\"ij\":{},\"jk\":{}},\"additionalProperties\":false}", "{\""},
};

/* Steps to a place are not counted; the mask there is made once and found a thousand times. */
static qr_status measure(const struct grammar_run_options *options, int row, struct bench_grammar *out, qr_error *err)
{
    struct grammar_run *run;
    const uint32_t *mask;
    enum { TIMES = 1000 };
    TRY(grammar_run_open(options, &run, err));
    qr_status st = grammar_run_push_bytes(run, places[row].before, strlen(places[row].before), err);
    const double start = clock_seconds();
    if (st == QR_OK)
        st = grammar_run_mask(run, &mask, err);
    const double middle = clock_seconds();
    for (int i = 0; i < TIMES && st == QR_OK; i++)
        st = grammar_run_mask(run, &mask, err);
    out->rows[row].make_seconds = middle - start;
    out->rows[row].find_seconds = (clock_seconds() - middle) / TIMES;
    for (int32_t id = 0; st == QR_OK && id < options->trie->vocab; id++)
        out->rows[row].tokens += mask[id >> 5] >> (id & 31) & 1;
    grammar_run_close(run);
    return st;
}

qr_status bench_grammar_run(const struct tokenizer *tok, struct bench_grammar *out, qr_error *err)
{
    struct token_trie *trie;
    *out = (struct bench_grammar){0};
    double start = clock_seconds();
    TRY(token_trie_open(tok, tok_count(tok), &trie, err));
    out->tree_seconds = clock_seconds() - start;
    out->tree_bytes = (double)token_trie_bytes(trie);
    out->run_bytes = (double)grammar_run_bytes(tok_count(tok));
    qr_status st = QR_OK;
    for (int row = 0; row < BENCH_GRAMMAR_ROWS && st == QR_OK; row++) {
        struct grammar_run_options options = {.trie = trie, .tok = tok};
        out->rows[row].what = places[row].what;
        st = grammar_make(GRAMMAR_JSON_SCHEMA, places[row].schema, strlen(places[row].schema), "schema", &options.grammar, NULL, err);
        if (st != QR_OK)
            break;
        st = measure(&options, row, out, err);
        grammar_release(options.grammar);
    }
    token_trie_close(trie);
    return st;
}

void bench_grammar_print(const struct bench_grammar *b)
{
    printf("grammar: tree of the vocabulary in %.1f ms, %.1f MB; %.1f MB a running request\n%-24s %10s %12s %12s\n",
           b->tree_seconds * 1e3, b->tree_bytes / 1e6, b->run_bytes / 1e6, "mask, one thread", "tokens", "made in ms", "found in us");
    for (int i = 0; i < BENCH_GRAMMAR_ROWS; i++)
        printf("%-24s %10.0f %12.3f %12.3f\n", b->rows[i].what, b->rows[i].tokens, b->rows[i].make_seconds * 1e3,
               b->rows[i].find_seconds * 1e6);
}

void bench_grammar_write(const struct bench_grammar *b, struct json_writer *w)
{
    json_w_object(w);
    json_w_member_number(w, "tree_seconds", b->tree_seconds);
    json_w_member_number(w, "tree_bytes", b->tree_bytes);
    json_w_member_number(w, "run_bytes", b->run_bytes);
    json_w_key(w, "masks");
    json_w_array(w);
    for (int i = 0; i < BENCH_GRAMMAR_ROWS; i++) {
        json_w_object(w);
        json_w_member_string(w, "place", b->rows[i].what);
        json_w_member_number(w, "tokens", b->rows[i].tokens);
        json_w_member_number(w, "make_seconds", b->rows[i].make_seconds);
        json_w_member_number(w, "find_seconds", b->rows[i].find_seconds);
        json_w_end_object(w);
    }
    json_w_end_array(w);
    json_w_end_object(w);
}
