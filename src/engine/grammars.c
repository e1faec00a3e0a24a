#include "engine/grammars.h"

#include <pthread.h>
#include <stdio.h>

#include "base/alloc.h"

/* ---- the tree ---- */

struct model_trie {
    pthread_mutex_t lock;
    struct token_trie *trie; /* set once, and read without the lock by whoever has a grammar */
};

qr_status model_trie_make(struct model_trie **out, qr_error *err)
{
    struct model_trie *t = qr_calloc(1, sizeof *t);
    *out = t;
    if (!t)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a model");
    pthread_mutex_init(&t->lock, NULL);
    return QR_OK;
}

void model_trie_free(struct model_trie *t)
{
    if (!t)
        return;
    token_trie_close(t->trie);
    pthread_mutex_destroy(&t->lock);
    qr_free(t);
}

qr_status model_trie_fill(const qr_model *model, qr_error *err)
{
    struct model_trie *t = model->trie;
    qr_status st = QR_OK;
    pthread_mutex_lock(&t->lock);
    if (!t->trie)
        st = token_trie_open(model->tokenizer, model->config.vocab_size, &t->trie, err);
    pthread_mutex_unlock(&t->lock);
    return st;
}

const struct token_trie *model_trie_get(const qr_model *model) { return model->trie->trie; }

/* ---- grammars ---- */

/* Takes the grammar over. */
static qr_status wrap(const qr_model *model, struct grammar *grammar, qr_grammar **out, qr_error *err)
{
    qr_status st = model_trie_fill(model, err);
    qr_grammar *g = st == QR_OK ? qr_calloc(1, sizeof *g) : NULL;
    if (!g) {
        grammar_release(grammar);
        return st == QR_OK ? qr_fail(err, QR_NO_MEMORY, "no memory for a grammar") : st;
    }
    *g = (qr_grammar){model, grammar};
    *out = g;
    return QR_OK;
}

qr_status qr_grammar_open(const qr_model *model, qr_grammar_kind kind, const char *text, size_t length, qr_grammar **out,
                          qr_issue *issue, qr_error *err)
{
    static const enum grammar_kind kinds[] = {[QR_GRAMMAR_JSON_OBJECT] = GRAMMAR_JSON_OBJECT,
                                              [QR_GRAMMAR_JSON_SCHEMA] = GRAMMAR_JSON_SCHEMA,
                                              [QR_GRAMMAR_REGEX] = GRAMMAR_REGEX,
                                              [QR_GRAMMAR_CHOICE] = GRAMMAR_CHOICE};
    static const char *const names[] = {"JSON object", "schema", "regular expression", "choices"};
    char path[96] = "";
    struct grammar *made = NULL;
    *out = NULL;
    if ((unsigned)kind >= sizeof kinds / sizeof *kinds || (kind != QR_GRAMMAR_JSON_OBJECT && !text))
        return qr_fail(err, QR_BAD_ARGUMENT, "qr_grammar_open: kind %d without text or unknown", (int)kind);
    qr_status st = grammar_make(kinds[kind], text, length, names[kind], &made, path, err);
    if (st == QR_OK)
        st = wrap(model, made, out, err);
    if (issue) {
        *issue = (qr_issue){.status = st == QR_BAD_REQUEST ? 400 : 0};
        snprintf(issue->param, sizeof issue->param, "%s", st == QR_BAD_REQUEST ? path : "");
    }
    return st;
}

void qr_grammar_close(qr_grammar *grammar)
{
    if (!grammar)
        return;
    grammar_release(grammar->grammar);
    qr_free(grammar);
}

qr_status grammar_of_chat(const qr_model *model, const struct chat *chat, qr_grammar **out, struct chat_issue *issue, qr_error *err)
{
    enum chat_profile profile;
    struct grammar *made;
    const char *param;
    char path[96];
    *out = NULL;
    if (!chat_profile_named(model->prompt_profile, &profile))
        return qr_fail(err, QR_INTERNAL, "prompt profile %s has no rendering", model->prompt_profile);
    const qr_status st = grammar_make_answer(chat, profile, model->tokenizer, &model->log, &made, path, &param, err);
    if (st == QR_BAD_REQUEST)
        snprintf(issue->param, sizeof issue->param, "%s%s", param, path);
    return st == QR_OK && made ? wrap(model, made, out, err) : st;
}
