/* A grammar of any bytes (the first says of which kind): refused with a sentence, or one that an answer can follow to its
 * end. The second byte chooses the tokens of such an answer: every mask has one, each fits, and what a schema lets through is
 * JSON. Reads models/tiny-v41: run it in the project's folder. */
#include "fuzz.h"

#include "base/buffer.h"
#include "models.h"
#include "text/grammar_make.h"
#include "text/grammar_run.h"

/* Of the vocabulary its first part: every byte, and the commonest tokens, whose trie a mask walks in a tenth of the time. */
enum { VOCABULARY = 512, MOST_TOKENS = 12 };

static struct tokenizer *tok;
static struct token_trie *trie;

static void load(void)
{
    tok = fuzz_tokenizer(SPLIT_AUTO);
    must(token_trie_open(tok, VOCABULARY, &trie, NULL) == QR_OK);
}

/* A token of the mask, of which there must be one. */
static int32_t pick(const uint32_t *mask, uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    const int32_t from = (int32_t)((*state >> 8) % (uint32_t)trie->vocab);
    for (int32_t i = 0; i < trie->vocab; i++) {
        const int32_t id = (from + i) % trie->vocab;
        if (mask[id >> 5] >> (id & 31) & 1)
            return id;
    }
    abort();
}

static void is_json(const struct buffer *text)
{
    struct json_document *doc;
    must(json_parse(text->data ? text->data : "", text->length, "answer", false, &doc, NULL) == QR_OK);
    json_close(doc);
}

static void follow(struct grammar *g, bool json, uint32_t state)
{
    const int32_t eos = tok_eos(tok);
    const struct grammar_run_options options = {.grammar = g, .trie = trie, .tok = tok, .ends = &eos, .end_count = 1};
    struct grammar_run *run;
    struct buffer text = {0};
    const uint32_t *mask;
    if (grammar_run_open(&options, &run, NULL) != QR_OK)
        return;
    for (int i = 0; i < MOST_TOKENS && grammar_run_mask(run, &mask, NULL) == QR_OK; i++) {
        size_t length;
        const int32_t id = pick(mask, &state);
        const uint8_t *bytes = tok_bytes(tok, id, &length);
        if (id == eos)
            must(grammar_run_complete(run));
        must(grammar_run_push(run, id, NULL) == QR_OK);
        if (id == eos)
            break;
        must(buffer_append(&text, bytes, length));
        if (json && grammar_run_complete(run))
            is_json(&text);
    }
    buffer_free(&text);
    grammar_run_close(run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum grammar_kind kinds[] = {GRAMMAR_JSON_SCHEMA, GRAMMAR_JSON_SCHEMA, GRAMMAR_REGEX, GRAMMAR_CHOICE};
    struct grammar *g;
    qr_error err = {0};
    char path[96];
    if (!tok)
        load();
    if (size < 2)
        return 0;
    const enum grammar_kind kind = kinds[data[0] % 4];
    const qr_status st = grammar_make(kind, (const char *)data + 2, size - 2, "input", &g, path, &err);
    must(st == QR_OK || st == QR_BAD_REQUEST);
    if (st != QR_OK) {
        must(!g && err.message[0]);
        return 0;
    }
    follow(g, kind == GRAMMAR_JSON_SCHEMA, data[1]);
    grammar_release(g);
    return 0;
}
