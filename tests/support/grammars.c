#include "support/grammars.h"

#include <string.h>

#include "support/support.h"

void grammar_rig_open(struct grammar_rig *rig)
{
    assert_int_equal(tok_open(source_path("models/tiny-v41"), NULL, &rig->tok, NULL), QR_OK);
    assert_int_equal(token_trie_open(rig->tok, tok_count(rig->tok), &rig->trie, NULL), QR_OK);
    rig->ends[0] = tok_eos(rig->tok);
}

void grammar_rig_close(struct grammar_rig *rig)
{
    token_trie_close(rig->trie);
    tok_close(rig->tok);
}

struct grammar *grammar_of(enum grammar_kind kind, const char *text)
{
    struct grammar *g;
    qr_error err = {0};
    if (grammar_make(kind, text, text ? strlen(text) : 0, "test", &g, NULL, &err) != QR_OK)
        fail_msg("%s: %s", text, err.message);
    return g;
}

struct grammar_run *run_of(const struct grammar_rig *rig, struct grammar *g)
{
    struct grammar_run *run;
    const struct grammar_run_options options = {.grammar = g, .trie = rig->trie, .tok = rig->tok, .ends = rig->ends, .end_count = 1};
    assert_int_equal(grammar_run_open(&options, &run, NULL), QR_OK);
    return run;
}

bool grammar_accepts(const struct grammar_rig *rig, struct grammar *g, const char *text, size_t length)
{
    struct grammar_run *run = run_of(rig, g);
    const bool good = grammar_run_push_bytes(run, text, length, NULL) == QR_OK && grammar_run_complete(run);
    grammar_run_close(run);
    return good;
}

/* Whether a token fits, found without the tree: by its bytes one at a time, or as the token that it is. */
static bool fits(const struct grammar_rig *rig, struct grammar_run *run, int32_t id)
{
    size_t length;
    const uint8_t *bytes = tok_bytes(rig->tok, id, &length);
    const bool end = id == rig->ends[0];
    bool good = end && grammar_run_complete(run);
    if (!end && length > 0 && !tok_is_added(rig->tok, id))
        good |= grammar_run_push_bytes(run, (const char *)bytes, length, NULL) == QR_OK;
    if (!good)
        return grammar_run_push(run, id, NULL) == QR_OK;
    return good;
}

int32_t mask_is_right(const struct grammar_rig *rig, struct grammar_run *run)
{
    const uint32_t *mask;
    int32_t count = 0;
    uint32_t bits[4096];
    assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
    memcpy(bits, mask, ((size_t)rig->trie->vocab + 31) / 32 * sizeof *mask);
    for (int32_t id = 0; id < rig->trie->vocab; id++) {
        grammar_run_mark(run);
        const bool good = fits(rig, run, id);
        grammar_run_rewind(run);
        if (good != (bits[id >> 5] >> (id & 31) & 1))
            fail_msg("token %d: the mask says %d", (int)id, !good);
        count += good;
    }
    return count;
}

struct grammar_rig rig;

int grammar_set_up(void **state)
{
    (void)state;
    grammar_rig_open(&rig);
    return 0;
}

int grammar_tear_down(void **state)
{
    (void)state;
    grammar_rig_close(&rig);
    return 0;
}
