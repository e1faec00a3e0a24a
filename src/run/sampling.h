/* sampling.h: from a row of logits to a token: the processing chain, the keyed draw (speculation.md 4.6, 4.7). All in
 * double from f32 logits; one thread a row, so the number of threads changes nothing. */
#ifndef QR_RUN_SAMPLING_H
#define QR_RUN_SAMPLING_H

#include "base/status.h"
#include "number/philox.h"
#include "run/token_counts.h"

struct logit_bias {
    int32_t id;
    double value;
};

/* What a request says. */
struct sampling_params {
    double temperature;        /* 0: arg max */
    int32_t top_k;             /* <= 0 or >= vocabulary: off */
    double top_p;              /* >= 1: off */
    double min_p;              /* 0: off */
    double repetition_penalty; /* 1: off */
    double frequency_penalty, presence_penalty;
    const struct logit_bias *bias; /* each entry is added */
    int32_t bias_count;
    uint64_t seed;
};

#define SAMPLING_PARAMS_DEFAULT                                     \
    {                                                               \
        .temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0 \
    }

/* QR_BAD_REQUEST names the field that is out of range (not finite, temperature below 0, top_p or min_p outside 0..1,
 * repetition_penalty not above 0, a bias of an id outside the vocabulary). */
qr_status sampling_check(const struct sampling_params *params, int32_t vocab, qr_error *err);

/* Whether the chain reads token counts at all. */
bool sampling_wants_counts(const struct sampling_params *params);

struct id_list {
    const int32_t *ids;
    int32_t count;
};

/* What the chain needs of one row besides the parameters. */
struct sampling_row {
    const float *logits;               /* [vocab] */
    const struct token_counts *counts; /* NULL when no penalty is set */
    const struct id_list *banned;      /* lists of ids (ban list, stop ids under min_tokens); ids outside are ignored */
    int32_t banned_lists;
    const uint32_t *allowed; /* bit id % 32 of word id / 32: the grammar's ids; NULL: all */
};

/* Memory for one row at a time; 24 bytes an id. A row allocates nothing. */
struct sampler_scratch;
qr_status sampler_scratch_open(int32_t vocab, struct sampler_scratch **out, qr_error *err);
void sampler_scratch_close(struct sampler_scratch *scratch); /* NULL is fine */
uint64_t sampler_scratch_bytes(int32_t vocab);

/* The ids that may be drawn, ascending, and their probabilities, which sum to 1; every other id has exactly 0.
 * `ids` NULL: element i is id i. */
struct distribution {
    int32_t count;
    const int32_t *ids;
    const double *p;
};

/* Steps 1 to 9 of 4.7; at temperature 0 one id with probability 1. `out` points into `scratch` until its next row.
 * QR_BAD_REQUEST: the bans leave no token. QR_NUMERIC: a logit is NaN or +infinity, or all are -infinity. */
qr_status sampling_distribution(const struct sampling_params *params, const struct sampling_row *row,
                                struct sampler_scratch *scratch, struct distribution *out, qr_error *err);

/* Steps 5 to 9 on `count` ids, ascending, that stand for a row: none of the others can have a part in them. The temperature is
 * above 0. */
void sampling_among(const struct sampling_params *params, const int32_t *ids, const float *logits, int32_t count,
                    struct sampler_scratch *scratch, struct distribution *out);

/* Rounds the probabilities of the row's distribution to floats, which are then what is drawn from: q of a draft that is
 * kept as floats (2.8). Their sum is 1 only about. */
void sampling_round(struct sampler_scratch *scratch);

/* The id with the largest ln p + G, in its race form: the smallest E / p; the lowest id among equals. */
int32_t distribution_draw(const struct distribution *d, const struct keyed_stream *stream);

/* The target's token of a row whose logits predict `position`: the two above with the purpose STREAM_TARGET. */
qr_status sampling_draw(const struct sampling_params *params, const struct sampling_row *row, int64_t position,
                        struct sampler_scratch *scratch, int32_t *token, qr_error *err);

/* Writes all `vocab` probabilities. */
void distribution_dense(const struct distribution *d, double *p, int32_t vocab);

#endif
