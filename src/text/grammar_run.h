/* grammar_run.h: one answer on its way through a grammar. A state is the set of all places where the answer may be, each
 * with the rules that it must come back to; equal states are one, so that steps and masks can be remembered. All memory is
 * taken when the run is opened: when it is full, everything but the states in use is forgotten and made again as needed,
 * which changes no result. */
#ifndef QR_TEXT_GRAMMAR_RUN_H
#define QR_TEXT_GRAMMAR_RUN_H

#include "text/grammar.h"
#include "text/token_trie.h"

enum {
    GRAMMAR_MOST_DEPTH = 128 /* rules that are inside of themselves: deeper nesting does not fit */
};

struct grammar_run;

/* `ends`: the tokens that end an answer; they fit where the grammar is complete, and nowhere else unless they are text. All
 * pointers but `ends` (copied) must outlive the run; the grammar is held. */
struct grammar_run_options {
    struct grammar *grammar;
    const struct token_trie *trie;
    const struct tokenizer *tok;
    const int32_t *ends;
    int32_t end_count;
};
qr_status grammar_run_open(const struct grammar_run_options *options, struct grammar_run **out, qr_error *err);
void grammar_run_close(struct grammar_run *run); /* NULL is fine */
/* Bytes of a run of any grammar over a vocabulary whose longest token has at most TRIE_LONGEST bytes. */
uint64_t grammar_run_bytes(int32_t vocab);

/* Whether the answer may end here. */
bool grammar_run_complete(const struct grammar_run *run);
/* The tokens that fit here: bit id % 32 of word id / 32. Lives until the next call. QR_BAD_REQUEST: the grammar is too
 * ambiguous here to be followed. */
qr_status grammar_run_mask(struct grammar_run *run, const uint32_t **mask, qr_error *err);
/* Goes on by a token. QR_BAD_REQUEST: it does not fit, and the run stays where it is; or as above. */
qr_status grammar_run_push(struct grammar_run *run, int32_t token, qr_error *err);
/* The same by plain bytes; marks where they begin. */
qr_status grammar_run_push_bytes(struct grammar_run *run, const char *bytes, size_t length, qr_error *err);

/* Remembers where it is, one place at a time; goes back there. */
void grammar_run_mark(struct grammar_run *run);
void grammar_run_rewind(struct grammar_run *run);

/* How often masks were made and found made. */
struct grammar_run_counts {
    uint64_t masks_made, masks_found, collections;
};
struct grammar_run_counts grammar_run_counts(const struct grammar_run *run);

#endif
