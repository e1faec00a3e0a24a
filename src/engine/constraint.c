#include "engine/constraint.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/grammars.h"
#include "text/grammar_run.h"

struct constraint {
    struct grammar_run *run;
    bool reasoning, marked_reasoning;
    int32_t end_think;
    uint32_t *free; /* what may be drawn in reasoning; NULL: there is none */
};

static uint64_t mask_bytes(int32_t vocab) { return ((uint64_t)vocab + 31) / 32 * sizeof(uint32_t); }

uint64_t constraint_bytes(int32_t vocab)
{
    return sizeof(struct constraint) + mask_bytes(vocab) + grammar_run_bytes(vocab);
}

static void drop(uint32_t *mask, int32_t vocab, int32_t id)
{
    if (id >= 0 && id < vocab)
        mask[id >> 5] &= ~(UINT32_C(1) << (id & 31));
}

static qr_status make_free(struct constraint *c, const qr_model *model, const struct request *r, qr_error *err)
{
    static const char *const closed[] = {TOKEN_DSML, TOKEN_BOS, TOKEN_EOS, TOKEN_SYSTEM, TOKEN_USER, TOKEN_ASSISTANT, TOKEN_REMINDER};
    const int32_t vocab = model->config.vocab_size;
    c->end_think = tok_find(model->tokenizer, TOKEN_END_THINK);
    c->reasoning = true;
    c->free = qr_malloc(mask_bytes(vocab));
    if (!c->free)
        return qr_fail(err, QR_NO_MEMORY, "no memory to follow a grammar");
    memset(c->free, 0xff, mask_bytes(vocab));
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        drop(c->free, vocab, tok_find(model->tokenizer, closed[i]));
    for (int32_t i = 0; i < r->end_count; i++)
        drop(c->free, vocab, r->ends[i]);
    return QR_OK;
}

qr_status constraint_open(const qr_model *model, const struct request *r, struct constraint **out, qr_error *err)
{
    const struct grammar_run_options options = {.grammar = r->grammar, .trie = model_trie_get(model), .tok = model->tokenizer,
                                                .ends = r->ends, .end_count = r->end_count};
    *out = NULL;
    struct constraint *c = qr_calloc(1, sizeof *c);
    if (!c)
        return qr_fail(err, QR_NO_MEMORY, "no memory to follow a grammar");
    qr_status st = grammar_run_open(&options, &c->run, err);
    if (st == QR_OK && r->grammar_after_reasoning)
        st = make_free(c, model, r, err);
    if (st != QR_OK) {
        constraint_close(c);
        return st;
    }
    *out = c;
    return QR_OK;
}

void constraint_close(struct constraint *c)
{
    if (!c)
        return;
    grammar_run_close(c->run);
    qr_free(c->free);
    qr_free(c);
}

qr_status constraint_mask(struct constraint *c, const uint32_t **allowed, qr_error *err)
{
    *allowed = c->free;
    return c->reasoning ? QR_OK : grammar_run_mask(c->run, allowed, err);
}

qr_status constraint_push(struct constraint *c, int32_t token, qr_error *err)
{
    if (!c->reasoning)
        return grammar_run_push(c->run, token, err);
    c->reasoning = token != c->end_think;
    return QR_OK;
}

static bool may_follow(struct constraint *c, int32_t token)
{
    qr_error err;
    if (c->reasoning && !(c->free[token >> 5] >> (token & 31) & 1))
        return false;
    return constraint_push(c, token, &err) == QR_OK;
}

int32_t constraint_fitting(struct constraint *c, const int32_t *tokens, int32_t count)
{
    int32_t fit = 0;
    if (!c)
        return count;
    constraint_mark(c);
    while (fit < count && may_follow(c, tokens[fit]))
        fit++;
    constraint_rewind(c);
    return fit;
}

void constraint_mark(struct constraint *c)
{
    if (!c)
        return;
    c->marked_reasoning = c->reasoning;
    grammar_run_mark(c->run);
}

void constraint_rewind(struct constraint *c)
{
    if (!c)
        return;
    c->reasoning = c->marked_reasoning;
    grammar_run_rewind(c->run);
}
