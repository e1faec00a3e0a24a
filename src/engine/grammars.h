/* grammars.h: qr_grammar, and the tree of tokens that all grammars of a model are followed over. */
#ifndef QR_ENGINE_GRAMMARS_H
#define QR_ENGINE_GRAMMARS_H

#include "engine/model.h"
#include "text/grammar_make.h"
#include "text/token_trie.h"

struct qr_grammar {
    const qr_model *model;
    struct grammar *grammar;
};

/* The tree, empty at first. */
struct model_trie;
qr_status model_trie_make(struct model_trie **out, qr_error *err);
void model_trie_free(struct model_trie *trie); /* NULL is fine */
/* Makes it, once for all callers. */
qr_status model_trie_fill(const qr_model *model, qr_error *err);
/* Of a model for which a grammar was opened. */
const struct token_trie *model_trie_get(const qr_model *model);

/* What the answer to a chat request has to be; *out NULL: anything. */
qr_status grammar_of_chat(const qr_model *model, const struct chat *chat, qr_grammar **out, struct chat_issue *issue, qr_error *err);

#endif
