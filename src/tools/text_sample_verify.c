#include <string.h>

#include "base/alloc.h"
#include "run/sampling.h"
#include "run/verify.h"
#include "tools/text_sample.h"

/* Rows as verify.h takes them, owned. */
struct row_set {
    int64_t count, vocab;
    double **rows;
};

static void row_set_free(struct row_set *set)
{
    for (int64_t i = 0; set->rows && i < set->count; i++)
        qr_free(set->rows[i]);
    qr_free(set->rows);
}

/* `vocab` of the set is -1 until a row is seen. A null row stays NULL when `may_be_null`. */
static qr_status read_rows(const struct json *line, const char *member, int64_t count, bool may_be_null,
                           struct row_set *set, qr_error *err)
{
    const struct json *array = json_get(line, member);
    int64_t i = 0;
    if (!array || array->kind != JSON_ARRAY || array->count != (size_t)count)
        return qr_fail(err, QR_BAD_REQUEST, "%s is no list of %lld rows", member, (long long)count);
    if (!(set->rows = qr_calloc((size_t)count, sizeof *set->rows)))
        return qr_fail(err, QR_NO_MEMORY, "no memory for %lld rows", (long long)count);
    set->count = count;
    for (const struct json *e = array->child; e; e = e->next, i++) {
        if (e->kind == JSON_NULL && may_be_null)
            continue;
        qr_status st = sample_read_doubles(e, member, &set->vocab, &set->rows[i], err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}

/* The drafts of the line, or drawn from q with STREAM_DRAFT where there are none. */
static qr_status find_drafts(const struct json *line, const struct row_set *q, uint64_t seed, int64_t cursor,
                             int32_t *drafts, qr_error *err)
{
    const struct json *given = json_get(line, "drafts");
    for (int64_t k = 0; k < q->count; k++) {
        int64_t id;
        if (given) {
            if (!json_int64(json_at(given, (size_t)k), &id) || id < 0 || id >= q->vocab)
                return qr_fail(err, QR_BAD_REQUEST, "drafts[%lld] is no id below %lld", (long long)k,
                               (long long)q->vocab);
            drafts[k] = (int32_t)id;
        } else if (q->rows[k]) {
            const struct keyed_stream noise = {.seed = seed, .position = cursor + k + 1, .tag = STREAM_DRAFT};
            const struct distribution d = {.count = (int32_t)q->vocab, .p = q->rows[k]};
            drafts[k] = distribution_draw(&d, &noise);
        } else {
            return qr_fail(err, QR_BAD_REQUEST, "drafts is missing and q[%lld] is null", (long long)k);
        }
    }
    return QR_OK;
}

struct keyed {
    struct verify_rows rows;
    struct row_set p, q;
    int32_t *drafts, *emitted;
    double *u, *P, *h, *next;
    uint64_t seed;
    int64_t cursor;
};

static void keyed_close(struct keyed *k)
{
    row_set_free(&k->p);
    row_set_free(&k->q);
    qr_free(k->drafts);
    qr_free(k->emitted);
    qr_free(k->u);
    qr_free(k->P);
    qr_free(k->h);
    qr_free(k->next);
}

static qr_status keyed_memory(struct keyed *k, size_t n, qr_error *err)
{
    k->drafts = qr_calloc(n, sizeof *k->drafts);
    k->emitted = qr_calloc(n + 1, sizeof *k->emitted);
    k->u = qr_calloc(n, sizeof *k->u);
    k->P = qr_calloc(n + 1, sizeof *k->P);
    k->h = qr_calloc(n + 1, sizeof *k->h);
    k->next = qr_calloc((size_t)k->p.vocab, sizeof *k->next);
    if (!k->drafts || !k->emitted || !k->u || !k->P || !k->h || !k->next)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu drafts", n);
    return QR_OK;
}

/* Close it in every case. */
static qr_status keyed_open(const struct json *line, struct keyed *k, qr_error *err)
{
    *k = (struct keyed){.p = {.vocab = -1}};
    const struct json *q = json_get(line, "q");
    int64_t n = q && q->kind == JSON_ARRAY ? (int64_t)q->count : 0;
    qr_status st = read_rows(line, "p", n + 1, false, &k->p, err);
    if (st == QR_OK && (k->p.vocab < 1 || k->p.vocab > INT32_MAX))
        st = qr_fail(err, QR_BAD_REQUEST, "p has rows of %lld", (long long)k->p.vocab);
    k->q.vocab = k->p.vocab;
    if (st == QR_OK)
        st = read_rows(line, "q", n, true, &k->q, err);
    if (st == QR_OK)
        st = sample_read_seed(line, &k->seed, err);
    if (st == QR_OK)
        st = sample_read_int(line, "cursor", &k->cursor, err);
    if (st == QR_OK)
        st = keyed_memory(k, (size_t)n, err);
    if (st == QR_OK)
        st = find_drafts(line, &k->q, k->seed, k->cursor, k->drafts, err);
    k->rows = (struct verify_rows){.vocab = (int32_t)k->p.vocab,
                                   .n = (int32_t)n,
                                   .drafts = k->drafts,
                                   .p = (const double *const *)k->p.rows,
                                   .q = (const double *const *)k->q.rows};
    return st;
}

/* The rest of the object that is open: accepted, the distribution of y, what is emitted. */
static void write_verdict(struct keyed *k, int32_t a, double scale, struct json_writer *w)
{
    const struct distribution d = {.count = k->rows.vocab, .p = k->next};
    const struct keyed_stream noise = {.seed = k->seed, .position = k->cursor + a + 1, .tag = STREAM_TARGET};
    verify_next(&k->rows, a, scale, k->next);
    for (int32_t i = 0; i < a; i++)
        k->emitted[i] = k->drafts[i];
    k->emitted[a] = distribution_draw(&d, &noise);
    json_w_member_int(w, "accepted", a);
    sample_write_doubles(w, "y_distribution", k->next, k->rows.vocab);
    sample_write_ids(w, "emitted", k->emitted, a + 1);
}

qr_status sample_verify_keyed(const struct json *line, struct json_writer *w, qr_error *err)
{
    struct keyed k;
    qr_status st = keyed_open(line, &k, err);
    if (st == QR_OK) {
        int32_t n = k.rows.n;
        verify_uniforms(k.seed, k.cursor, n, k.u);
        sample_write_ids(w, "drafts", k.drafts, n);
        sample_write_doubles(w, "u", k.u, n);
        json_w_key(w, "ratio");
        json_w_object(w);
        write_verdict(&k, verify_ratio(&k.rows, k.u), 1.0, w);
        json_w_end_object(w);

        verify_block_levels(&k.rows, k.P, k.h);
        int32_t a = verify_block(k.h, n, k.u);
        json_w_key(w, "block");
        json_w_object(w);
        sample_write_doubles(w, "P", k.P, n + 1);
        sample_write_doubles(w, "h", k.h, n + 1);
        write_verdict(&k, a, k.P[a], w);
        json_w_end_object(w);
    }
    keyed_close(&k);
    return st;
}

/* The exact law of one verification step, by walking all drafts. Sequences are written one digit a token. */

enum { MOST_DRAFTS = 8, MOST_VOCAB = 10, MOST_SEQUENCES = 1000000 };

struct law {
    const struct json *line, *p, *q, *greedy;
    int32_t vocab, n;
    char path[MOST_DRAFTS + 2];
    struct {
        double *emitted[MOST_DRAFTS + 2]; /* by length: [vocab ^ length] */
        double accepted[MOST_DRAFTS + 1];
    } verifier[2]; /* ratio, block */
    double *p_rows[MOST_DRAFTS + 1], *q_rows[MOST_DRAFTS];
    int32_t drafts[MOST_DRAFTS];
    double *next;
};

enum { RATIO, BLOCK };

static void law_close(struct law *l)
{
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < MOST_DRAFTS + 2; i++)
            qr_free(l->verifier[v].emitted[i]);
    qr_free(l->next);
}

static qr_status law_open(const struct json *line, struct law *l, qr_error *err)
{
    int64_t vocab, n;
    *l = (struct law){.line = line};
    qr_status st = sample_read_int(line, "vocab", &vocab, err);
    if (st == QR_OK)
        st = sample_read_int(line, "drafts", &n, err);
    if (st != QR_OK)
        return st;
    if (vocab < 1 || vocab > MOST_VOCAB || n < 0 || n > MOST_DRAFTS)
        return qr_fail(err, QR_BAD_REQUEST, "vocab is %lld and drafts %lld, wanted 1 to %d and 0 to %d",
                       (long long)vocab, (long long)n, MOST_VOCAB, MOST_DRAFTS);
    l->vocab = (int32_t)vocab;
    l->n = (int32_t)n;
    l->p = json_get(line, "p");
    l->q = json_get(line, "q");
    l->greedy = json_get(line, "greedy_draft");
    if (!(l->next = qr_calloc((size_t)vocab, sizeof *l->next)))
        return qr_fail(err, QR_NO_MEMORY, "no memory for a row of %lld", (long long)vocab);
    int64_t sequences = 1;
    for (int length = 1; length <= l->n + 1; length++) {
        sequences *= vocab;
        if (sequences > MOST_SEQUENCES)
            return qr_fail(err, QR_BAD_REQUEST, "%lld tokens make more than %d sequences of %d", (long long)vocab,
                           MOST_SEQUENCES, length);
        for (int v = 0; v < 2; v++)
            if (!(l->verifier[v].emitted[length] = qr_calloc((size_t)sequences, sizeof(double))))
                return qr_fail(err, QR_NO_MEMORY, "no memory for %lld sequences", (long long)sequences);
    }
    return QR_OK;
}

/* The row of `table` for the path so far. */
static qr_status law_row(struct law *l, const struct json *table, const char *name, double **out, qr_error *err)
{
    char member[32];
    int64_t n = l->vocab;
    snprintf(member, sizeof member, "%s[\"%s\"]", name, l->path);
    return sample_read_doubles(json_get(table, l->path), member, &n, out, err);
}

/* Adds what a verifier emits after `a` accepted drafts, which happens with `chance`. */
static void law_emit(struct law *l, int verifier, const struct verify_rows *rows, int32_t a, double scale,
                     double chance)
{
    int64_t sequence = 0;
    if (chance <= 0)
        return;
    verify_next(rows, a, scale, l->next);
    for (int32_t i = 0; i < a; i++)
        sequence = sequence * l->vocab + l->drafts[i];
    for (int32_t v = 0; v < l->vocab; v++)
        l->verifier[verifier].emitted[a + 1][sequence * l->vocab + v] += chance * l->next[v];
    l->verifier[verifier].accepted[a] += chance;
}

/* All drafts are chosen, with probability `chance`. */
static void law_verify(struct law *l, double chance)
{
    const struct verify_rows rows = {.vocab = l->vocab,
                                     .n = l->n,
                                     .drafts = l->drafts,
                                     .p = (const double *const *)l->p_rows,
                                     .q = (const double *const *)l->q_rows};
    double P[MOST_DRAFTS + 1], h[MOST_DRAFTS + 1], reached = chance;
    for (int32_t a = 0; a < l->n; a++) {
        double accept = verify_ratio_chance(&rows, a + 1);
        law_emit(l, RATIO, &rows, a, 1.0, reached * (1.0 - accept));
        reached *= accept;
    }
    law_emit(l, RATIO, &rows, l->n, 1.0, reached);

    verify_block_levels(&rows, P, h);
    double left = chance;
    for (int32_t a = l->n; a > 0; a--) {
        law_emit(l, BLOCK, &rows, a, P[a], left * h[a]);
        left *= 1.0 - h[a];
    }
    law_emit(l, BLOCK, &rows, 0, 1.0, left);
}

static qr_status law_walk(struct law *l, int32_t depth, double chance, qr_error *err);

static qr_status law_step(struct law *l, int32_t depth, int32_t id, double chance, qr_error *err)
{
    l->drafts[depth] = id;
    l->path[depth] = (char)('0' + id);
    qr_status st = law_walk(l, depth + 1, chance, err);
    l->path[depth] = '\0';
    return st;
}

/* Every draft that q can give at this depth. */
static qr_status law_branch(struct law *l, int32_t depth, double chance, qr_error *err)
{
    const struct json *q = json_get(l->q, l->path);
    int64_t id;
    qr_status st;
    if (q && q->kind == JSON_NULL) {
        if (!json_int64(json_get(l->greedy, l->path), &id) || id < 0 || id >= l->vocab)
            return qr_fail(err, QR_BAD_REQUEST, "greedy_draft[\"%s\"] is no id below %d", l->path, l->vocab);
        return law_step(l, depth, (int32_t)id, chance, err);
    }
    if ((st = law_row(l, l->q, "q", &l->q_rows[depth], err)) != QR_OK)
        return st;
    for (int32_t v = 0; v < l->vocab && st == QR_OK; v++)
        if (l->q_rows[depth][v] > 0)
            st = law_step(l, depth, v, chance * l->q_rows[depth][v], err);
    qr_free(l->q_rows[depth]);
    l->q_rows[depth] = NULL;
    return st;
}

static qr_status law_walk(struct law *l, int32_t depth, double chance, qr_error *err)
{
    qr_status st = law_row(l, l->p, "p", &l->p_rows[depth], err);
    if (st != QR_OK)
        return st;
    if (depth == l->n)
        law_verify(l, chance);
    else
        st = law_branch(l, depth, chance, err);
    qr_free(l->p_rows[depth]);
    l->p_rows[depth] = NULL;
    return st;
}

/* Sequences in the order of their text; what rounding left of an impossible one is not written. */
static void write_emitted(struct law *l, int verifier, int32_t length, int64_t sequence, struct json_writer *w)
{
    const double rounding = 1e-13;
    for (int32_t v = 0; v < l->vocab && length <= l->n; v++) {
        int64_t longer = sequence * l->vocab + v;
        double probability = l->verifier[verifier].emitted[length + 1][longer];
        l->path[length] = (char)('0' + v);
        if (probability > rounding)
            json_w_member_number(w, l->path, probability);
        write_emitted(l, verifier, length + 1, longer, w);
        l->path[length] = '\0';
    }
}

static void write_law(struct law *l, int verifier, const char *key, struct json_writer *w)
{
    double mean = 0;
    for (int32_t a = 0; a <= l->n; a++)
        mean += a * l->verifier[verifier].accepted[a];
    json_w_key(w, key);
    json_w_object(w);
    json_w_key(w, "emitted");
    json_w_object(w);
    write_emitted(l, verifier, 0, 0, w);
    json_w_end_object(w);
    sample_write_doubles(w, "accepted", l->verifier[verifier].accepted, l->n + 1);
    json_w_member_number(w, "mean_accepted", mean);
    json_w_end_object(w);
}

qr_status sample_verify_law(const struct json *line, struct json_writer *w, qr_error *err)
{
    struct law l;
    qr_status st = law_open(line, &l, err);
    if (st == QR_OK)
        st = law_walk(&l, 0, 1.0, err);
    if (st == QR_OK) {
        write_law(&l, RATIO, "ratio", w);
        write_law(&l, BLOCK, "block", w);
    }
    law_close(&l);
    return st;
}
