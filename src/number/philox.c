#include "number/philox.h"

#include <math.h>

enum { ROUNDS = 10 };

static const uint32_t multiplier[2] = {0xD2511F53, 0xCD9E8D57};
static const uint32_t key_step[2] = {0x9E3779B9, 0xBB67AE85}; /* golden ratio, sqrt(3) - 1 */

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t even = (uint64_t)multiplier[0] * c0, odd = (uint64_t)multiplier[1] * c2;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)odd;
        c3 = (uint32_t)even;
        k0 += key_step[0];
        k1 += key_step[1];
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void stream_words(const struct keyed_stream *stream, uint32_t group, uint32_t out[4])
{
    uint64_t position = (uint64_t)stream->position;
    const uint32_t key[2] = {(uint32_t)stream->seed, (uint32_t)(stream->seed >> 32)};
    const uint32_t counter[4] = {group, (uint32_t)position, stream->tag, (uint32_t)(position >> 32)};
    philox4x32(counter, key, out);
}

uint32_t stream_word(const struct keyed_stream *stream, uint32_t id)
{
    uint32_t words[4];
    stream_words(stream, id >> 2, words);
    return words[id & 3];
}

double stream_uniform(uint32_t word) { return (2.0 * word + 1.0) * 0x1p-33; }
double stream_exponential(uint32_t word) { return -log(stream_uniform(word)); }
double stream_gumbel(uint32_t word) { return -log(stream_exponential(word)); }
