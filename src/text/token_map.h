/* token_map.h: the compressed token map of Engram (v41-model.md 8.2): tokens whose texts differ only in case, marks,
 * compatibility forms or white space share one number. */
#ifndef QR_TEXT_TOKEN_MAP_H
#define QR_TEXT_TOKEN_MAP_H

#include "text/tokenizer.h"

/* Zero-initialise; free with token_map_free. */
struct token_map {
    uint32_t *number; /* of each id, `count` of them */
    int32_t count;    /* ids: tok_count */
    int32_t keys;     /* distinct numbers, 0 .. keys-1, in the order of their first id */
};

/* Computes the map of a tokenizer. The caller compares `keys` with engram_compressed_vocab_size. */
qr_status token_map_build(const struct tokenizer *tok, struct token_map *out, qr_error *err);

/* The map of a model without a tokenizer: every id is its own number. */
qr_status token_map_identity(int32_t count, struct token_map *out, qr_error *err);

void token_map_free(struct token_map *map);

#endif
