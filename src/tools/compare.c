#include "tools/compare.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"

/* ---- points ---- */

/* Steps of f32 between two values of the same sign; a large number across signs. */
static int64_t ulps_between(double a, double b)
{
    uint32_t x = f32_bits((float)a), y = f32_bits((float)b);
    if ((x ^ y) >> 31)
        return INT64_MAX;
    return x > y ? (int64_t)x - y : (int64_t)y - x;
}

/* rho of RD: relative where the difference is at least theta, else the difference itself. */
static double relative_difference(double theta, double a, double e)
{
    double d = fabs(a - e);
    if (d < theta)
        return d;
    return d / (fmax(fmax(fabs(a), fabs(e)), 0x1p-14 / theta) + 1e-9);
}

/* How far a point is outside; 0 or less: it is good. */
static double excess(const struct tolerance *t, double a, double e)
{
    switch (t->kind) {
    case COMPARE_RD:
        return relative_difference(t->theta, a, e) - t->theta;
    case COMPARE_RA:
    case COMPARE_AC:
        return fabs(a - e) - (t->absolute + t->relative * fabs(e));
    case COMPARE_COSINE: /* no point by itself */
        return fabs(a - e) - INFINITY;
    default:
        if (a == e && signbit(a) == signbit(e))
            return 0;
        return t->ulps > 0 && ulps_between(a, e) <= t->ulps ? 0 : fmax(fabs(a - e), 1e-300);
    }
}

/* Sentences for what is outside; NULL: nothing. Two vectors of zeros agree. */
static const char *compare_vectors(const struct tolerance *t, const double *a, const double *e, int64_t n)
{
    double dot = 0, aa = 0, ee = 0, dd = 0;
    for (int64_t i = 0; i < n; i++) {
        dot += a[i] * e[i];
        aa += a[i] * a[i];
        ee += e[i] * e[i];
        dd += (a[i] - e[i]) * (a[i] - e[i]);
    }
    if (dd == 0)
        return NULL;
    if (!(dot >= t->theta * sqrt(aa) * sqrt(ee)))
        return "the cosine is below the least allowed";
    return sqrt(dd) <= t->relative * sqrt(ee) ? NULL : "the relative L2 distance is above the most allowed";
}

void compare_points(const struct tolerance *t, const double *found, const double *want, int64_t n, const bool *slack,
                    struct comparison *out)
{
    double worst = -INFINITY;
    *out = (struct comparison){.points = n, .allowed = (int64_t)llround(t->share * (double)n)};
    for (int64_t i = 0; i < n; i++) {
        double a = found[i], e = want[i], over = excess(t, a, e);
        if (!isfinite(a) || !isfinite(e)) {
            *out = (struct comparison){.points = n, .bad = out->bad + 1, .worst = i, .found = a, .want = e, .largest = INFINITY,
                                       .why = isfinite(a) ? "the file holds a NaN or infinity" : "a NaN or infinity"};
            return;
        }
        if (slack && slack[i] && fabs(a - e) <= 1)
            over = 0;
        if (over > 0) {
            out->bad++;
            if (t->kind == COMPARE_RD && t->cap > 0 && over + t->theta >= t->cap)
                out->why = "a point beyond the cap";
        }
        out->largest = fmax(out->largest, fabs(a - e));
        if (over > worst) {
            worst = over;
            out->worst = i;
            out->found = a;
            out->want = e;
        }
    }
    if (t->kind == COMPARE_COSINE && !out->why)
        out->why = compare_vectors(t, found, want, n);
    out->passed = out->bad <= out->allowed && !out->why;
}

/* ---- ranks ---- */

static bool holds(const double *ids, int64_t count, double id)
{
    for (int64_t k = 0; k < count; k++)
        if (ids[k] == id)
            return true;
    return false;
}

static bool all_differ(const double *ids, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        if (holds(ids, k, ids[k]))
            return false;
    return true;
}

static double value_at(const struct ranks *r, int64_t row, int64_t k)
{
    return r->value(r->user, row, k, (int64_t)r->found[row * r->stride + k]);
}

/* Whether another id may stand in place k of a row: its value is in order there and is the one wanted. */
static bool place_is_in_order(const struct ranks *r, int64_t row, int64_t k, int64_t count)
{
    double here = value_at(r, row, k);
    if ((k > 0 && value_at(r, row, k - 1) < here) || (k + 1 < count && here < value_at(r, row, k + 1)))
        return false;
    if (!r->values || !r->wanted_value)
        return true;
    double wanted = r->wanted_value(r->user, row, k, (int64_t)r->want[row * r->stride + k]);
    return excess(r->values, here, wanted) <= 0;
}

static bool same_set(const double *a, const double *b, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        if (!holds(a, count, b[k]))
            return false;
    return true;
}

/* Bad places of one row (for SETS: 1 when its set is another). */
static int64_t bad_places(const struct tolerance *t, const struct ranks *r, int64_t row, int64_t *first)
{
    const double *found = r->found + row * r->stride, *want = r->want + row * r->stride;
    int64_t bad = 0, count = r->counts[row];
    bool sets = t->kind == COMPARE_SETS;

    *first = 0;
    if (sets && same_set(found, want, count))
        return 0;
    for (int64_t k = 0; k < count; k++) {
        if ((sets ? holds(want, count, found[k]) : found[k] == want[k]) ||
            ((!sets || t->ranks_too) && place_is_in_order(r, row, k, count)))
            continue;
        if (!bad)
            *first = k;
        bad++;
    }
    return sets ? bad > 0 : bad;
}

void compare_ranks(const struct tolerance *t, const struct ranks *r, struct comparison *out)
{
    *out = (struct comparison){.allowed = t->kind == COMPARE_SETS ? t->moved : 0};
    for (int64_t row = 0; row < r->rows; row++) {
        const double *found = r->found + row * r->stride, *want = r->want + row * r->stride;
        int64_t first, bad = bad_places(t, r, row, &first);
        out->points += t->kind == COMPARE_SETS ? 1 : r->counts[row];
        if (!all_differ(found, r->counts[row]))
            out->why = "a row with an id twice";
        if (bad && !out->bad) {
            out->worst = row * r->stride + first;
            out->found = found[first];
            out->want = want[first];
        }
        out->bad += bad;
    }
    out->passed = out->bad <= out->allowed && !out->why;
}

/* ---- the text of a tolerance ---- */

struct span {
    const char *at;
    size_t length;
};

static bool next_clause(const char **text, struct span *out)
{
    const char *at = *text;
    int depth = 0;
    if (!*at)
        return false;
    out->at = at;
    for (; *at && (depth || *at != ';'); at++)
        depth += (*at == '(') - (*at == ')');
    out->length = (size_t)(at - out->at);
    *text = *at ? at + 1 : at;
    return true;
}

static const char *find_in(struct span s, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.length; i++)
        if (memcmp(s.at + i, word, n) == 0)
            return s.at + i;
    return NULL;
}

/* Numbers of "RA(1e-4,1/128,.01)" behind the parenthesis; returns how many, -1 when malformed. */
static int read_arguments(const char *at, double out[3])
{
    for (int n = 0; n < 3;) {
        char *end;
        out[n] = strtod(at, &end);
        if (end == at)
            return -1;
        at = end;
        if (*at == '/') {
            double divisor = strtod(at + 1, &end);
            if (end == at + 1 || divisor == 0)
                return -1;
            out[n] /= divisor;
            at = end;
        }
        n++;
        while (*at == ' ')
            at++;
        if (*at == ')')
            return n;
        if (*at++ != ',')
            return -1;
    }
    return -1;
}

/* RA(a, r, phi), or RA(r) for RA(1e-4, r, 0.005). RD(theta, phi[, cap]). AC(rtol, atol). COS(cosine, relative L2). */
static bool read_numbers(enum comparator kind, const char *at, struct tolerance *out)
{
    double v[3] = {0};
    int n = read_arguments(at, v);
    *out = (struct tolerance){.kind = kind};
    if (kind == COMPARE_RA) {
        out->absolute = n == 1 ? 1e-4 : v[0];
        out->relative = n == 1 ? v[0] : v[1];
        out->share = n == 3 ? v[2] : 0.005;
        return n >= 1;
    }
    if (kind == COMPARE_RD) {
        out->theta = v[0];
        out->share = v[1];
        out->cap = n == 3 ? v[2] : 0;
        return n >= 2;
    }
    if (kind == COMPARE_COSINE) {
        out->theta = v[0];
        out->relative = v[1];
        return n == 2;
    }
    out->relative = v[0];
    out->absolute = v[1];
    return n == 2;
}

/* A number that stands after `word` in the clause. */
static bool number_after(struct span clause, const char *word, double *out)
{
    const char *at = find_in(clause, word);
    char *end;
    if (!at)
        return false;
    *out = strtod(at + strlen(word), &end);
    return end != at + strlen(word);
}

/* The comparator of a clause; `names_end` gets where it begins. */
static bool read_comparator(struct span clause, struct tolerance *out, const char **names_end)
{
    static const struct {
        const char *word;
        enum comparator kind;
    } words[] = {{"as sets", COMPARE_SETS},
                 {"exactly the lowest arg max", COMPARE_ARGMAX},
                 {"TK(", COMPARE_TK},
                 {"RA(", COMPARE_RA},
                 {"RD(", COMPARE_RD},
                 {"AC(", COMPARE_AC},
                 {"COS(", COMPARE_COSINE},
                 {"exact", COMPARE_EXACT}};
    double n;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *at = find_in(clause, words[i].word);
        if (!at)
            continue;
        *names_end = at;
        *out = (struct tolerance){.kind = words[i].kind};
        if (words[i].kind == COMPARE_RA || words[i].kind == COMPARE_RD || words[i].kind == COMPARE_AC || words[i].kind == COMPARE_COSINE) {
            if (!read_numbers(words[i].kind, strchr(at, '(') + 1, out))
                return false;
            if (number_after(clause, "compare ", &n))
                out->share = 1 - n / 100;
        }
        if (words[i].kind == COMPARE_SETS) {
            out->ranks_too = find_in(clause, "TK(") != NULL;
            if (number_after(clause, "at most ", &n))
                out->moved = (int64_t)n;
        }
        if (words[i].kind == COMPARE_EXACT && number_after(clause, "exact or ", &n) && find_in(clause, "ulp"))
            out->ulps = (int32_t)n;
        return true;
    }
    /* "cos/sin 2e-7": a bare number is an absolute bound */
    for (size_t i = 0; i + 1 < clause.length; i++) {
        char *end;
        if (clause.at[i] != ' ' || !isdigit((unsigned char)clause.at[i + 1]))
            continue;
        *names_end = clause.at + i;
        *out = (struct tolerance){.kind = COMPARE_AC, .absolute = strtod(clause.at + i + 1, &end)};
        return end <= clause.at + clause.length;
    }
    return false;
}

/* Whether `word` of the text is one of "a|b|c". */
static bool is_one_of(struct span word, const char *names)
{
    while (*names) {
        size_t n = strcspn(names, "|");
        if (n == word.length && memcmp(names, word.at, n) == 0)
            return true;
        names += n + (names[n] == '|');
    }
    return false;
}

/* 2: the clause names the array, 1: it speaks of all others, 0: of something else. */
static int clause_speaks_of(struct span clause, const char *names_end, const char *names)
{
    bool any = false, others = false;
    const char *at = clause.at;
    while (at < names_end) {
        size_t n = strcspn(at, " ,/");
        if (at + n > names_end)
            n = (size_t)(names_end - at);
        if (n) {
            struct span word = {at, n};
            any = true;
            if (is_one_of(word, names))
                return 2;
            others |= is_one_of(word, "others|outputs");
        }
        at += n + 1;
    }
    return !any || others;
}

qr_status tolerance_find(const char *text, const char *names, struct tolerance *out, bool *found, qr_error *err)
{
    struct span clause;
    int best = 0;
    while (next_clause(&text, &clause)) {
        struct tolerance t;
        const char *names_end = clause.at;
        if (!read_comparator(clause, &t, &names_end)) {
            if (find_in(clause, "see note"))
                continue;
            return qr_fail(err, QR_BAD_FILE, "tolerance \"%.*s\" has no comparator that is known", (int)clause.length, clause.at);
        }
        int speaks = clause_speaks_of(clause, names_end, names);
        if (speaks > best) {
            best = speaks;
            *out = t;
        }
    }
    *found = best > 0;
    return QR_OK;
}

const char *tolerance_text(const struct tolerance *t, char *out, size_t size)
{
    switch (t->kind) {
    case COMPARE_EXACT:
        snprintf(out, size, t->ulps ? "exact or %d ulp" : "exact", t->ulps);
        break;
    case COMPARE_RA:
        snprintf(out, size, "RA(%g,%g,%g)", t->absolute, t->relative, t->share);
        break;
    case COMPARE_RD:
        snprintf(out, size, t->cap > 0 ? "RD(%g,%g,%g)" : "RD(%g,%g)", t->theta, t->share, t->cap);
        break;
    case COMPARE_AC:
        snprintf(out, size, "AC(%g,%g)", t->relative, t->absolute);
        break;
    case COMPARE_COSINE:
        snprintf(out, size, "COS(%g,%g)", t->theta, t->relative);
        break;
    case COMPARE_TK:
        snprintf(out, size, "TK");
        break;
    case COMPARE_SETS:
        snprintf(out, size, "sets");
        break;
    case COMPARE_ARGMAX:
        snprintf(out, size, "arg max");
        break;
    }
    return out;
}
