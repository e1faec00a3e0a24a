/* philox.h: the keyed random stream (speculation.md 4.6). Noise is a function of (seed, position, purpose, id) and of
 * nothing else, so that a draw is the same alone, in a batch, drafted or not. */
#ifndef QR_NUMBER_PHILOX_H
#define QR_NUMBER_PHILOX_H

#include <stdint.h>

/* Philox4x32 with 10 rounds: four words from a counter and a key. `out` may be `counter`. */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* What a word is for: three purposes never share noise. */
enum stream_tag {
    STREAM_TARGET = 0, /* target and residual draws, and coupled drafts on purpose */
    STREAM_DRAFT = 1,  /* draft draws for ratio and block verification */
    STREAM_ACCEPT = 2  /* the uniform of an acceptance test; id 0 */
};

/* `seed` is a 64-bit two's-complement number; `position` is that of the predicted token, the prompt's first being 0. */
struct keyed_stream {
    uint64_t seed;
    int64_t position;
    uint32_t tag;
};

/* The words of ids 4 * group .. 4 * group + 3: one run of the generator. */
void stream_words(const struct keyed_stream *stream, uint32_t group, uint32_t out[4]);
uint32_t stream_word(const struct keyed_stream *stream, uint32_t id);

/* U = (2 * word + 1) * 2^-33, exact in a double and inside (0, 1); E = -ln U; G = -ln E. */
double stream_uniform(uint32_t word);
double stream_exponential(uint32_t word);
double stream_gumbel(uint32_t word);

#endif
