/* drift.h: how far bounded replay is from exact (runtime.md 7.1, 7.3, 13): every score that an engine under bounded replay
 * gave is kept, and taken again by an exact engine of the same model. */
#ifndef QR_CLI_DRIFT_H
#define QR_CLI_DRIFT_H

#include "base/json.h"
#include "cli/loaded.h"

struct drift;

/* Opens the record where one of the options' replays is bounded; NULL in `out` where none is: there is no drift. */
qr_status drift_open(const struct model_options *options, struct drift **out, qr_error *err);
void drift_close(struct drift *d);

/* qr_score by the engine of `l`. With a record (not NULL) tokens are scored in pieces, so that each stands behind a prompt
 * that was replayed, and the scores are kept. */
qr_status drift_score(struct drift *d, struct loaded *l, const int32_t *tokens, size_t count, size_t from, double *out,
                      qr_error *err);

/* What came of the comparison. */
struct drift_figures {
    int64_t tokens, agreed;  /* agreed: both would have drawn the same token at temperature 0 */
    double nll, exact_nll;   /* sums */
    double largest;          /* difference of one log probability */
};
/* Scores again what was kept, by an exact engine in place of that of `l`. */
qr_status drift_measure(const struct drift *d, struct loaded *l, const struct model_options *options,
                        struct drift_figures *out, qr_error *err);

/* A sentence for people, and the member "drift" of an object. */
void drift_print(const struct drift_figures *f, FILE *to);
void drift_write(struct json_writer *w, const struct drift_figures *f);

#endif
