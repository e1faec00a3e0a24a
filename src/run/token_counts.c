#include "run/token_counts.h"

#include "base/alloc.h"

struct token_counts {
    int32_t vocab;
    int32_t distinct_count;
    int32_t *output;   /* [vocab] occurrences in the output */
    int32_t *distinct; /* [vocab] the first distinct_count are in use */
    bool *prompt;      /* [vocab] */
};

uint64_t token_counts_bytes(int32_t vocab)
{
    return (uint64_t)vocab * (2 * sizeof(int32_t) + sizeof(bool)) + sizeof(struct token_counts);
}

qr_status token_counts_open(int32_t vocab, struct token_counts **out, qr_error *err)
{
    *out = NULL;
    struct token_counts *c = qr_calloc(1, sizeof *c);
    if (c) {
        c->vocab = vocab;
        c->output = qr_calloc((size_t)vocab, sizeof *c->output);
        c->distinct = qr_calloc((size_t)vocab, sizeof *c->distinct);
        c->prompt = qr_calloc((size_t)vocab, sizeof *c->prompt);
    }
    if (!c || !c->output || !c->distinct || !c->prompt) {
        token_counts_close(c);
        return qr_fail(err, QR_NO_MEMORY, "no memory to count the tokens of a vocabulary of %d", vocab);
    }
    *out = c;
    return QR_OK;
}

void token_counts_close(struct token_counts *c)
{
    if (!c)
        return;
    qr_free(c->output);
    qr_free(c->distinct);
    qr_free(c->prompt);
    qr_free(c);
}

void token_counts_clear(struct token_counts *c)
{
    for (int32_t i = 0; i < c->distinct_count; i++) {
        c->output[c->distinct[i]] = 0;
        c->prompt[c->distinct[i]] = false;
    }
    c->distinct_count = 0;
}

static bool known(const struct token_counts *c, int32_t id) { return id >= 0 && id < c->vocab; }
static bool seen(const struct token_counts *c, int32_t id) { return c->prompt[id] || c->output[id] > 0; }

void token_counts_prompt(struct token_counts *c, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!known(c, ids[i]) || c->prompt[ids[i]])
            continue;
        c->distinct[c->distinct_count++] = ids[i];
        c->prompt[ids[i]] = true;
    }
}

void token_counts_push(struct token_counts *c, int32_t id)
{
    if (!known(c, id))
        return;
    if (!seen(c, id))
        c->distinct[c->distinct_count++] = id;
    c->output[id]++;
}

/* Pushes are taken back newest first, so an id that is no longer seen is the last of the distinct ones. */
void token_counts_pop(struct token_counts *c, int32_t id)
{
    if (!known(c, id) || c->output[id] == 0)
        return;
    c->output[id]--;
    if (!seen(c, id))
        c->distinct_count--;
}

const int32_t *token_counts_distinct(const struct token_counts *c, int32_t *n)
{
    *n = c->distinct_count;
    return c->distinct;
}

int32_t token_counts_output(const struct token_counts *c, int32_t id) { return known(c, id) ? c->output[id] : 0; }
