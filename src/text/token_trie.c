#include "text/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

struct word {
    const uint8_t *bytes;
    uint32_t length;
    int32_t id;
};

static int by_bytes(const void *left, const void *right)
{
    const struct word *a = left, *b = right;
    const int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    if (order)
        return order;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* The words that a walk can spell, sorted; returns how many and the sum of their bytes. */
static size_t list_words(const struct tokenizer *tok, int32_t vocab, struct word *words, size_t *bytes)
{
    size_t count = 0;
    *bytes = 0;
    for (int32_t id = 0; id < vocab && id < tok_count(tok); id++) {
        size_t length;
        const uint8_t *text = tok_bytes(tok, id, &length);
        if (length == 0 || length > TRIE_LONGEST || tok_is_added(tok, id))
            continue;
        words[count++] = (struct word){text, (uint32_t)length, id};
        *bytes += length;
    }
    qsort(words, count, sizeof *words, by_bytes);
    return count;
}

/* Bytes that a word shares with the one before; its last byte always gets a node of its own. */
static uint32_t shared(const struct word *a, const struct word *b)
{
    uint32_t n = 0;
    while (n < a->length && n + 1 < b->length && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* Nodes of the open path that are at `depth` or below end here. */
static void close_nodes(struct token_trie *t, uint32_t *open, uint32_t *opened, uint32_t depth)
{
    while (*opened > depth)
        t->nodes[open[--*opened]].skip = t->count;
}

static void add_words(struct token_trie *t, const struct word *words, size_t count)
{
    uint32_t open[TRIE_LONGEST], opened = 0;
    for (size_t i = 0; i < count; i++) {
        const struct word *w = &words[i];
        const uint32_t from = i ? shared(&words[i - 1], w) : 0;
        close_nodes(t, open, &opened, from);
        for (uint32_t k = from; k < w->length; k++) {
            open[opened++] = t->count;
            t->nodes[t->count++] = (struct trie_node){.token = -1, .depth = (uint16_t)(k + 1), .byte = w->bytes[k]};
        }
        t->nodes[t->count - 1].token = w->id;
        if (w->length > t->longest)
            t->longest = (uint16_t)w->length;
    }
    close_nodes(t, open, &opened, 0);
}

/* How many nodes they take. */
static size_t count_nodes(const struct word *words, size_t count)
{
    size_t nodes = 0;
    for (size_t i = 0; i < count; i++)
        nodes += words[i].length - (i ? shared(&words[i - 1], &words[i]) : 0);
    return nodes;
}

static size_t most_nodes(int32_t vocab) { return (size_t)vocab * TRIE_NODES_PER_TOKEN + TRIE_NODES_BESIDE; }

uint64_t token_trie_bytes_for(int32_t vocab)
{
    return sizeof(struct token_trie) + ((uint64_t)vocab + 1) * sizeof(struct word) + most_nodes(vocab) * (uint64_t)sizeof(struct trie_node);
}

qr_status token_trie_open(const struct tokenizer *tok, int32_t vocab, struct token_trie **out, qr_error *err)
{
    *out = NULL;
    size_t bytes = 0, count = 0, nodes = 0;
    struct word *words = qr_calloc((size_t)vocab + 1, sizeof *words);
    struct token_trie *t = qr_calloc(1, sizeof *t);
    if (words && t) {
        count = list_words(tok, vocab, words, &bytes);
        t->vocab = vocab;
        nodes = count_nodes(words, count);
        t->nodes = nodes < most_nodes(vocab) ? qr_calloc(nodes + 1, sizeof *t->nodes) : NULL;
    }
    if (!words || !t || !t->nodes) {
        qr_free(words);
        token_trie_close(t);
        if (nodes >= most_nodes(vocab))
            return qr_fail(err, QR_UNSUPPORTED, "the tokens of this vocabulary have %zu beginnings, grammars are planned for %zu", nodes,
                           most_nodes(vocab));
        return qr_fail(err, QR_NO_MEMORY, "no memory for a tree of %d tokens", vocab);
    }
    add_words(t, words, count);
    qr_free(words);
    *out = t;
    return QR_OK;
}

void token_trie_close(struct token_trie *trie)
{
    if (!trie)
        return;
    qr_free(trie->nodes);
    qr_free(trie);
}

uint64_t token_trie_bytes(const struct token_trie *trie) { return trie->count * (uint64_t)sizeof *trie->nodes + sizeof *trie; }
