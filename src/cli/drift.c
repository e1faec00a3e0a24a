#include "cli/drift.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "cli/plural.h"

/* Tokens scored behind one prompt: each of them is a step. */
enum { PIECE = 128 };

/* Scores of tokens[from .. count-1] behind those before. */
struct kept {
    struct kept *next;
    int32_t *tokens, *best; /* [count], [count - from] */
    double *scores;         /* [count - from] */
    size_t count, from;
};

struct drift {
    struct kept *first, **end;
};

static bool is_bounded(const char *replay) { return replay && strcmp(replay, "bounded") == 0; }

qr_status drift_open(const struct model_options *options, struct drift **out, qr_error *err)
{
    *out = NULL;
    if (!is_bounded(options->decoder_replay) && !is_bounded(options->encoder_replay))
        return QR_OK;
    struct drift *d = qr_calloc(1, sizeof *d);
    if (!d)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a record of scores");
    d->end = &d->first;
    *out = d;
    return QR_OK;
}

static void free_kept(struct kept *k)
{
    qr_free(k->tokens);
    qr_free(k->best);
    qr_free(k->scores);
    qr_free(k);
}

void drift_close(struct drift *d)
{
    if (!d)
        return;
    for (struct kept *k = d->first, *next; k; k = next) {
        next = k->next;
        free_kept(k);
    }
    qr_free(d);
}

static struct kept *make_kept(const int32_t *tokens, size_t count, size_t from)
{
    struct kept *k = qr_calloc(1, sizeof *k);
    if (!k)
        return NULL;
    k->count = count;
    k->from = from;
    k->tokens = qr_calloc(count, sizeof *k->tokens);
    k->best = qr_calloc(count - from, sizeof *k->best);
    k->scores = qr_calloc(count - from, sizeof *k->scores);
    if (!k->tokens || !k->best || !k->scores) {
        free_kept(k);
        return NULL;
    }
    memcpy(k->tokens, tokens, count * sizeof *tokens);
    return k;
}

static qr_status score_piece(struct drift *d, struct loaded *l, const int32_t *tokens, size_t count, size_t from, double *out,
                             qr_error *err)
{
    struct kept *k = make_kept(tokens, count, from);
    if (!k)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a record of %zu scores", count - from);
    const qr_status st = qr_score_best(l->engine, tokens, count, from, k->scores, k->best, err);
    if (st != QR_OK) {
        free_kept(k);
        return st;
    }
    memcpy(out, k->scores, (count - from) * sizeof *out);
    *d->end = k;
    d->end = &k->next;
    return QR_OK;
}

qr_status drift_score(struct drift *d, struct loaded *l, const int32_t *tokens, size_t count, size_t from, double *out,
                      qr_error *err)
{
    qr_status st = QR_OK;
    if (!d)
        return qr_score(l->engine, tokens, count, from, out, err);
    for (size_t at = from; st == QR_OK && at < count; at += PIECE) {
        const size_t end = count - at < PIECE ? count : at + PIECE;
        st = score_piece(d, l, tokens, end, at, out + (at - from), err);
    }
    return st;
}

/* ---- the comparison ---- */

static qr_status open_exact(struct loaded *l, const struct model_options *options, qr_error *err)
{
    qr_engine_options exact = model_options_engine(options);
    exact.decoder_replay = exact.encoder_replay = NULL;
    qr_engine_destroy(l->engine);
    l->engine = NULL;
    return qr_engine_create(l->model, &exact, &l->engine, err);
}

static qr_status compare(const struct kept *k, struct loaded *l, double *scores, int32_t *best, struct drift_figures *f,
                         qr_error *err)
{
    const qr_status st = qr_score_best(l->engine, k->tokens, k->count, k->from, scores, best, err);
    if (st != QR_OK)
        return st;
    for (size_t i = 0; i < k->count - k->from; i++) {
        f->tokens++;
        f->agreed += best[i] == k->best[i];
        f->nll -= k->scores[i];
        f->exact_nll -= scores[i];
        f->largest = fmax(f->largest, fabs(scores[i] - k->scores[i]));
    }
    return QR_OK;
}

qr_status drift_measure(const struct drift *d, struct loaded *l, const struct model_options *options,
                        struct drift_figures *out, qr_error *err)
{
    double scores[PIECE];
    int32_t best[PIECE];
    *out = (struct drift_figures){.tokens = 0};
    qr_status st = open_exact(l, options, err);
    for (const struct kept *k = d->first; st == QR_OK && k; k = k->next)
        st = compare(k, l, scores, best, out, err);
    return st;
}

/* ---- telling ---- */

static double per_token(const struct drift_figures *f, double sum) { return f->tokens ? sum / (double)f->tokens : 0; }

void drift_print(const struct drift_figures *f, FILE *to)
{
    fprintf(to,
            "drift from exact replay: mean NLL %+.6f (%.6f, exact %.6f), one log probability at most %.4f; %lld of %lld "
            "token%s the same at temperature 0 (%.4f)\n",
            per_token(f, f->nll - f->exact_nll), per_token(f, f->nll), per_token(f, f->exact_nll), f->largest,
            (long long)f->agreed, (long long)f->tokens, plural(f->tokens), per_token(f, (double)f->agreed));
}

void drift_write(struct json_writer *w, const struct drift_figures *f)
{
    json_w_key(w, "drift");
    json_w_object(w);
    json_w_member_number(w, "exact_nll", f->exact_nll);
    json_w_member_number(w, "nll_difference", f->nll - f->exact_nll);
    json_w_member_number(w, "mean_nll_difference", per_token(f, f->nll - f->exact_nll));
    json_w_member_number(w, "largest_difference", f->largest);
    json_w_member_int(w, "greedy_same", f->agreed);
    json_w_member_number(w, "greedy_agreement", per_token(f, (double)f->agreed));
    json_w_end_object(w);
}
