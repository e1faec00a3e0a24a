/* token_trie.h: the bytes of all ordinary tokens of a vocabulary as one tree, so that a walk tries their common beginnings
 * once. Added tokens are not in it: their bytes are no text that a model writes. */
#ifndef QR_TEXT_TOKEN_TRIE_H
#define QR_TEXT_TOKEN_TRIE_H

#include "text/tokenizer.h"

/* Nodes lie in preorder: the children of node i begin at i + 1, what is not below it begins at `skip`. */
struct trie_node {
    uint32_t skip;
    int32_t token;  /* whose bytes end here; -1: none */
    uint16_t depth; /* 1: a first byte */
    uint8_t byte;
};

struct token_trie {
    struct trie_node *nodes;
    uint32_t count;
    uint16_t longest; /* bytes of the longest token */
    int32_t vocab;    /* ids are below it */
};

/* A vocabulary has as many nodes as its tokens have bytes that no other begins with: about two for each of a BPE's. */
enum { TRIE_NODES_PER_TOKEN = 4, TRIE_NODES_BESIDE = 4096 };
enum { TRIE_LONGEST = 1024 }; /* tokens of more bytes are left out: no grammar lets them in */

/* Of the ids below `vocab`. Read-only from then on. QR_NO_MEMORY; QR_UNSUPPORTED: more nodes than are planned for. Close with token_trie_close (NULL is fine). */
qr_status token_trie_open(const struct tokenizer *tok, int32_t vocab, struct token_trie **out, qr_error *err);
void token_trie_close(struct token_trie *trie);
uint64_t token_trie_bytes(const struct token_trie *trie);
/* What making one of so many ids takes at most. */
uint64_t token_trie_bytes_for(int32_t vocab);

#endif
