/* grammars.h: grammars of tests, followed byte by byte and token by token over the bundled tokenizer. */
#ifndef QR_TESTS_GRAMMARS_H
#define QR_TESTS_GRAMMARS_H

#include "text/grammar_make.h"
#include "text/grammar_run.h"

struct grammar_rig {
    struct tokenizer *tok;
    struct token_trie *trie;
    int32_t ends[1];
};

void grammar_rig_open(struct grammar_rig *rig);
void grammar_rig_close(struct grammar_rig *rig);

/* Fails the test when it is refused. */
struct grammar *grammar_of(enum grammar_kind kind, const char *text);
struct grammar_run *run_of(const struct grammar_rig *rig, struct grammar *g);
/* Whether the grammar lets the whole text through. */
bool grammar_accepts(const struct grammar_rig *rig, struct grammar *g, const char *text, size_t length);
/* Whether the mask of `run` is what trying each token says; fails the test where not. Returns how many tokens fit. */
int32_t mask_is_right(const struct grammar_rig *rig, struct grammar_run *run);

/* The rig of a test program, and what opens and closes it around its tests. */
extern struct grammar_rig rig;
int grammar_set_up(void **state);
int grammar_tear_down(void **state);

#endif
