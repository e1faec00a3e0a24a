/* engram_hash.h: from token history to row numbers of the n-gram tables (v41-model.md 8.3 to 8.5). Pure integers; knows
 * no table. */
#ifndef QR_CHECKPOINT_ENGRAM_HASH_H
#define QR_CHECKPOINT_ENGRAM_HASH_H

#include "checkpoint/config.h"

/* A place of the history that holds no token: before the start, or an image-span token. */
#define ENGRAM_DEAD INT64_C(-1)

struct engram_hash {
    int32_t layers;            /* Engram layers, ascending */
    int32_t ngram;             /* longest n-gram; the history of a row is this many ids */
    int32_t heads;             /* hashes for each n-gram size */
    int32_t columns;           /* row numbers a position looks up in one layer: (ngram - 1) * heads, 2-grams first */
    int64_t pad;               /* compressed id that stands for what the history lacks */
    int64_t *primes, *offsets; /* [layers][columns] */
    uint64_t *multipliers;     /* [layers][ngram], look-back 0 first */
};

/* Computes primes, offsets and multipliers. `pad` is the compressed id of engram_pad_token_id. The config's table sizes
 * are those of the primes (config_read saw to it). Fails only without memory. Free with engram_hash_free. */
qr_status engram_hash_make(const struct qr_config *config, int64_t pad, struct engram_hash *out, qr_error *err);
void engram_hash_free(struct engram_hash *h);

/* Row numbers of one position in Engram layer `ordinal`. `ids`: [ngram] compressed ids of the positions p - ngram + 1
 * .. p, oldest first, ENGRAM_DEAD where there is none. rows: [columns]. */
void engram_hash_rows(const struct engram_hash *h, int32_t ordinal, const int64_t *ids, int64_t *rows);

/* The parts, for tests and other configurations. */

/* The four words (8.4) of NumPy's default generator: seeds it and draws. */
struct pcg64 {
    uint64_t state_high, state_low, increment_high, increment_low;
};
void pcg64_seed(struct pcg64 *g, uint64_t seed);
uint64_t pcg64_next(struct pcg64 *g);
/* Uniform in [0, bound), bound > 0. */
uint64_t pcg64_below(struct pcg64 *g, uint64_t bound);
/* The eight seed words of 8.4. */
void pcg64_seed_words(uint64_t seed, uint32_t words[8]);

/* The rows of one layer's table: the sum of the next `columns` primes after *last_prime, which moves to the last of
 * them. Before the first layer *last_prime is engram_vocab_size - 1. `primes`, unless NULL, gets them all. */
int64_t engram_layer_rows(int64_t *last_prime, int32_t columns, int64_t *primes);

/* The least prime >= n; n at most 2^62. */
int64_t prime_from(int64_t n);

#endif
