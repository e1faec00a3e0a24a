/* chains.h: small languages whose laws are known, and answers drawn in them by the steps of speculative decoding. */
#ifndef QR_TESTS_CHAINS_H
#define QR_TESTS_CHAINS_H

#include "run/verdict.h"

enum { CHAIN_VOCAB = 32, CHAIN_BINS = 1 << 16 };

/* Each token depends on the one before it: p and q of row t follow token t; row `vocab` stands at the beginning. */
struct chain {
    const char *name;
    int32_t vocab;
    bool points; /* drafts are q's likeliest, and no q is kept */
    double p[CHAIN_VOCAB + 1][CHAIN_VOCAB], q[CHAIN_VOCAB + 1][CHAIN_VOCAB];
};

enum chain_kind {
    CHAIN_RANDOM,
    CHAIN_CLOSE,    /* q not far from p */
    CHAIN_SAME,     /* q is p */
    CHAIN_NEARLY,   /* q is p but for rounding: what is left of p is nothing */
    CHAIN_DISJOINT, /* no token that p and q both know */
    CHAIN_ONE_HOT,  /* q has one token */
    CHAIN_POINTS,   /* greedy drafts */
    CHAIN_PEAKED,   /* both are almost sure, of the same token or not */
    CHAIN_KINDS
};
struct chain chain_of(enum chain_kind kind, int32_t vocab, uint64_t seed);

/* How answers are drawn. */
struct drawing {
    enum verifier verifier;
    int32_t drafts;  /* of a step */
    int32_t tokens;  /* of an answer */
    bool stale;      /* every try at a position has the streams of the first: what draft_law.h is against */
    /* Drafts that are verified of those drawn, from what the first `drafts` are; NULL: all. */
    int32_t (*schedule)(const struct chain *c, const int32_t *drafts, int32_t n);
};
/* What came of `rounds` answers. */
struct drawn {
    double counts[CHAIN_BINS]; /* by tokens, the first the highest digit */
    double steps, accepted, accepted_squares;  /* of their first steps */
};
void chain_draw(const struct chain *c, const struct drawing *how, int rounds, struct drawn *out);
/* Whether the joint law of the first tokens is p's. */
bool chain_follows(const struct chain *c, const struct drawing *how, int rounds, const struct drawn *found);
/* Fails unless block verification keeps no fewer drafts than the ratio test, within three deviations. */
void assert_no_fewer(const char *name, const struct drawn *block, const struct drawn *ratio);

#endif
