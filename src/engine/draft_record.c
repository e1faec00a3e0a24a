#include "engine/draft_record.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/buffer.h"

enum { REPEATS = 31 }; /* times kept of a size: the newest */

struct times {
    int32_t count;
    double ms[REPEATS];
};

struct draft_record {
    int32_t requests, rows, turn;
    struct times *steps, *passes; /* [rows + 1], [requests + 1] */
    struct calibration_sample *samples;
    size_t count, room;
    bool failed; /* a sample had no memory */
};

qr_status draft_record_open(int32_t requests, int32_t rows, struct draft_record **out, qr_error *err)
{
    struct draft_record *r = qr_calloc(1, sizeof *r);
    *out = r;
    if (r) {
        *r = (struct draft_record){.requests = requests, .rows = rows};
        r->steps = qr_calloc((size_t)rows + 1, sizeof *r->steps);
        r->passes = qr_calloc((size_t)requests + 1, sizeof *r->passes);
    }
    if (r && r->steps && r->passes)
        return QR_OK;
    draft_record_close(r);
    *out = NULL;
    return qr_fail(err, QR_NO_MEMORY, "no memory for times of steps of up to %d rows", rows);
}

void draft_record_close(struct draft_record *r)
{
    if (!r)
        return;
    qr_free(r->steps);
    qr_free(r->passes);
    qr_free(r->samples);
    qr_free(r);
}

static void note(struct times *t, double seconds) { t->ms[t->count++ % REPEATS] = 1e3 * seconds; }

void draft_record_step(struct draft_record *r, int32_t rows, double seconds)
{
    if (rows >= 1 && rows <= r->rows)
        note(&r->steps[rows], seconds);
}

void draft_record_pass(struct draft_record *r, int32_t requests, double seconds)
{
    if (requests >= 1 && requests <= r->requests)
        note(&r->passes[requests], seconds);
}

void draft_record_sample(struct draft_record *r, const struct calibration_sample *sample)
{
    if (array_grow(&r->samples, &r->room, r->count, sizeof *r->samples))
        r->samples[r->count++] = *sample;
    else
        r->failed = true;
}

int32_t draft_record_length(struct draft_record *r, int32_t limit) { return r->turn++ % (limit + 1); }

/* ---- the profile ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(struct times t)
{
    const int32_t count = t.count < REPEATS ? t.count : REPEATS;
    qsort(t.ms, (size_t)count, sizeof *t.ms, ascending);
    return t.ms[count / 2];
}

/* Of more sizes than a table holds every so many, and the largest. */
static qr_status tabulate(const struct times *times, int32_t largest, const char *what, struct draft_cost *out, qr_error *err)
{
    const int32_t every = (largest + DRAFT_PROFILE_POINTS - 2) / (DRAFT_PROFILE_POINTS - 1);
    if (times[largest].count == 0)
        return qr_fail(err, QR_BAD_REQUEST, "no %s with %d came up: the requests are too few, or too short", what, largest);
    out->count = 0;
    for (int32_t size = 1; size <= largest; size++)
        if (times[size].count > 0 && (size % every == 0 || size == largest))
            draft_cost_add(out, size, median(times[size]));
    draft_cost_settle(out);
    return QR_OK;
}

qr_status draft_record_profile(const struct draft_record *r, int32_t width, struct draft_profile *out, qr_error *err)
{
    if (r->failed)
        return qr_fail(err, QR_NO_MEMORY, "no memory for what became of drafts");
    TRY(tabulate(r->steps, r->rows, "step of rows", &out->steps, err));
    TRY(tabulate(r->passes, r->requests, "draft pass of requests", &out->drafts, err));
    calibration_fit(r->samples, r->count, width, out->taus);
    return QR_OK;
}
