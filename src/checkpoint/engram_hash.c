#include "checkpoint/engram_hash.h"

#include "base/alloc.h"

__extension__ typedef unsigned __int128 wide;

/* ---- primes (8.3) ---- */

static uint64_t power_mod(uint64_t base, uint64_t exponent, uint64_t n)
{
    uint64_t result = 1;
    for (base %= n; exponent; exponent >>= 1) {
        if (exponent & 1)
            result = (uint64_t)((wide)result * base % n);
        base = (uint64_t)((wide)base * base % n);
    }
    return result;
}

/* Miller-Rabin; the first twelve primes as bases decide every 64-bit number. */
static bool is_prime(uint64_t n)
{
    static const uint64_t bases[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    enum { BASES = sizeof bases / sizeof *bases };
    if (n < 2)
        return false;
    for (int i = 0; i < BASES; i++)
        if (n % bases[i] == 0)
            return n == bases[i];
    int twos = __builtin_ctzll(n - 1);
    for (int i = 0; i < BASES; i++) {
        uint64_t x = power_mod(bases[i], (n - 1) >> twos, n);
        bool passes = x == 1 || x == n - 1;
        for (int r = 1; r < twos && !passes; r++) {
            x = (uint64_t)((wide)x * x % n);
            passes = x == n - 1;
        }
        if (!passes)
            return false;
    }
    return true;
}

int64_t prime_from(int64_t n)
{
    while (!is_prime((uint64_t)n))
        n++;
    return n;
}

/* ---- NumPy's default generator (8.4) ---- */

static uint32_t stir(uint32_t value, uint32_t *constant, uint32_t multiplier)
{
    value ^= *constant;
    *constant *= multiplier;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t z = 0xca01f9ddu * x - 0x4973f715u * y;
    return z ^ z >> 16;
}

void pcg64_seed_words(uint64_t seed, uint32_t words[8])
{
    uint32_t pool[4], constant = 0x43b0d7e5;
    const uint32_t entropy[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0};
    for (int i = 0; i < 4; i++)
        pool[i] = stir(entropy[i], &constant, 0x931e8875);
    for (int source = 0; source < 4; source++)
        for (int d = 0; d < 4; d++)
            if (d != source)
                pool[d] = mix(pool[d], stir(pool[source], &constant, 0x931e8875));
    constant = 0x8b51f9dd;
    for (int i = 0; i < 8; i++)
        words[i] = stir(pool[i % 4], &constant, 0x58f38ded);
}

static wide join(uint64_t high, uint64_t low) { return (wide)high << 64 | low; }

static void step(struct pcg64 *g)
{
    const wide multiplier = join(0x2360ED051FC65DA4, 0x4385DF649FCCF645);
    wide state = join(g->state_high, g->state_low) * multiplier + join(g->increment_high, g->increment_low);
    g->state_high = (uint64_t)(state >> 64);
    g->state_low = (uint64_t)state;
}

void pcg64_seed(struct pcg64 *g, uint64_t seed)
{
    uint32_t words[8];
    uint64_t u[4];
    pcg64_seed_words(seed, words);
    for (int i = 0; i < 4; i++)
        u[i] = (uint64_t)words[2 * i + 1] << 32 | words[2 * i];
    wide increment = join(u[2], u[3]) * 2 + 1;
    *g = (struct pcg64){0, 0, (uint64_t)(increment >> 64), (uint64_t)increment};
    step(g);
    wide state = join(g->state_high, g->state_low) + join(u[0], u[1]);
    g->state_high = (uint64_t)(state >> 64);
    g->state_low = (uint64_t)state;
    step(g);
}

uint64_t pcg64_next(struct pcg64 *g)
{
    step(g);
    uint64_t folded = g->state_high ^ g->state_low;
    unsigned turn = (unsigned)(g->state_high >> 58);
    return folded >> turn | folded << (-turn & 63);
}

uint64_t pcg64_below(struct pcg64 *g, uint64_t bound)
{
    wide product = (wide)pcg64_next(g) * bound;
    if ((uint64_t)product < bound) {
        uint64_t threshold = -bound % bound;
        while ((uint64_t)product < threshold)
            product = (wide)pcg64_next(g) * bound;
    }
    return (uint64_t)(product >> 64);
}

/* ---- tables ---- */

/* Odd multipliers below 2^63 / vocabulary, so that no product leaves 63 bits. */
static void draw_multipliers(const struct qr_config *c, int32_t layer, int32_t n, uint64_t *out)
{
    struct pcg64 g;
    int64_t bound = INT64_MAX / c->engram_compressed_vocab_size / 2;
    pcg64_seed(&g, UINT64_C(10007) * (uint64_t)layer);
    for (int32_t i = 0; i < n; i++)
        out[i] = 2 * pcg64_below(&g, bound > 1 ? (uint64_t)bound : 1) + 1;
}

/* One ascending stream of primes, shared by all layers: starting again from engram_vocab_size and skipping what is used
 * is going on after the last. */
int64_t engram_layer_rows(int64_t *last_prime, int32_t columns, int64_t *primes)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < columns; i++) {
        *last_prime = prime_from(*last_prime + 1);
        sum += *last_prime;
        if (primes)
            primes[i] = *last_prime;
    }
    return sum;
}

static void fill_layer(const struct qr_config *c, int32_t ordinal, int64_t *last_prime, struct engram_hash *h)
{
    int64_t *primes = h->primes + (int64_t)ordinal * h->columns, *offsets = h->offsets + (int64_t)ordinal * h->columns;
    engram_layer_rows(last_prime, h->columns, primes);
    for (int32_t i = 1; i < h->columns; i++)
        offsets[i] = offsets[i - 1] + primes[i - 1];
    draw_multipliers(c, c->engram_layers[ordinal], h->ngram, h->multipliers + (int64_t)ordinal * h->ngram);
}

qr_status engram_hash_make(const struct qr_config *config, int64_t pad, struct engram_hash *out, qr_error *err)
{
    *out = (struct engram_hash){.layers = config->n_engram,
                                .ngram = config->engram_max_ngram,
                                .heads = config->engram_n_heads,
                                .columns = (config->engram_max_ngram - 1) * config->engram_n_heads,
                                .pad = pad};
    if (!config->n_engram)
        return QR_OK;
    size_t cells = (size_t)out->layers * (size_t)out->columns;
    out->primes = qr_calloc(cells, sizeof *out->primes);
    out->offsets = qr_calloc(cells, sizeof *out->offsets);
    out->multipliers = qr_calloc((size_t)out->layers * (size_t)out->ngram, sizeof *out->multipliers);
    if (!out->primes || !out->offsets || !out->multipliers) {
        engram_hash_free(out);
        return qr_fail(err, QR_NO_MEMORY, "engram: no memory for %zu primes", cells);
    }
    int64_t last_prime = config->engram_vocab_size - 1;
    for (int32_t i = 0; i < out->layers; i++)
        fill_layer(config, i, &last_prime, out);
    return QR_OK;
}

void engram_hash_free(struct engram_hash *h)
{
    qr_free(h->primes);
    qr_free(h->offsets);
    qr_free(h->multipliers);
    *h = (struct engram_hash){0};
}

void engram_hash_rows(const struct engram_hash *h, int32_t ordinal, const int64_t *ids, int64_t *rows)
{
    const uint64_t *multipliers = h->multipliers + (int64_t)ordinal * h->ngram;
    const int64_t *primes = h->primes + (int64_t)ordinal * h->columns;
    const int64_t *offsets = h->offsets + (int64_t)ordinal * h->columns;
    uint64_t mixed = 0;
    bool dead = false; /* latched: an n-gram never reaches across a dead place */
    for (int32_t s = 0; s < h->ngram; s++) {
        int64_t id = ids[h->ngram - 1 - s];
        dead = dead || id == ENGRAM_DEAD;
        mixed ^= (uint64_t)(dead ? h->pad : id) * multipliers[s];
        for (int32_t head = 0; s > 0 && head < h->heads; head++) {
            int32_t column = (s - 1) * h->heads + head;
            rows[column] = (int64_t)(mixed % (uint64_t)primes[column]) + offsets[column];
        }
    }
}
