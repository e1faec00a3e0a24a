#include "engine/shortlists.h"

#include "base/alloc.h"
#include "run/shortlist.h"

struct shortlists {
    struct backend *backend;
    int32_t vocab, rows;
    struct id_list left_out;
    int32_t asked;                /* rows wanted; */
    bool found;                   /* and their lists are there */
    int32_t *place;               /* [rows] of a key among those asked for; -1: it is none of them */
    struct shortlist_ask *asks;   /* [rows] */
    struct shortlist_part *parts; /* [rows][SHORTLIST_PARTS] */
    struct shortlist_ask *device_asks;
    struct shortlist_part *device_parts;
    uint32_t *device_left_out;
    int64_t drawn, open;
};

static int64_t words_of(int32_t vocab) { return ((int64_t)vocab + 31) / 32; }

static int64_t row_bytes(void)
{
    return (int64_t)sizeof(struct shortlist_ask) + SHORTLIST_PARTS * (int64_t)sizeof(struct shortlist_part);
}

int64_t shortlists_device_bytes(int32_t vocab, int32_t rows)
{
    return shortlist_takes(vocab) ? rows * row_bytes() + words_of(vocab) * (int64_t)sizeof(uint32_t) : 0;
}

int64_t shortlists_bytes(int32_t vocab, int32_t rows)
{
    const int64_t own = (int64_t)sizeof(struct shortlists) + rows * (int64_t)sizeof(int32_t);
    return shortlist_takes(vocab) ? own + rows * row_bytes() : 0;
}

/* ---- memory ---- */

static qr_status take(struct shortlists *s, int64_t bytes, void *out, qr_error *err)
{
    return s->backend->allocate(s->backend, bytes, out, err);
}

static qr_status upload_left_out(struct shortlists *s, qr_error *err)
{
    const int64_t words = words_of(s->vocab);
    uint32_t *bits = qr_calloc((size_t)words, sizeof *bits);
    if (!bits)
        return qr_fail(err, QR_NO_MEMORY, "no memory for marks of a vocabulary of %d", s->vocab);
    for (int32_t i = 0; i < s->left_out.count; i++)
        if (s->left_out.ids[i] >= 0 && s->left_out.ids[i] < s->vocab)
            bits[s->left_out.ids[i] >> 5] |= 1u << (s->left_out.ids[i] & 31);
    qr_status st = s->backend->upload(s->backend, s->device_left_out, bits, words * (int64_t)sizeof *bits, err);
    if (st == QR_OK)
        st = s->backend->fence(s->backend, err);
    qr_free(bits);
    return st;
}

static qr_status allocate(struct shortlists *s, qr_error *err)
{
    const size_t rows = (size_t)s->rows;
    s->place = qr_calloc(rows, sizeof *s->place);
    s->asks = qr_calloc(rows, sizeof *s->asks);
    s->parts = qr_calloc(rows * SHORTLIST_PARTS, sizeof *s->parts);
    if (!s->place || !s->asks || !s->parts)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the likeliest ids of %d rows", s->rows);
    void *at;
    TRY(take(s, (int64_t)(rows * sizeof *s->asks), &at, err));
    s->device_asks = at;
    TRY(take(s, (int64_t)(rows * SHORTLIST_PARTS * sizeof *s->parts), &at, err));
    s->device_parts = at;
    TRY(take(s, words_of(s->vocab) * (int64_t)sizeof *s->device_left_out, &at, err));
    s->device_left_out = at;
    return upload_left_out(s, err);
}

qr_status shortlists_open(struct backend *backend, int32_t vocab, int32_t rows, const struct id_list *left_out,
                          struct shortlists **out, qr_error *err)
{
    *out = NULL;
    if (!backend->shortlist || !shortlist_takes(vocab))
        return QR_OK;
    struct shortlists *s = qr_calloc(1, sizeof *s);
    if (!s)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the likeliest ids of rows");
    s->backend = backend;
    s->vocab = vocab;
    s->rows = rows;
    s->left_out = *left_out;
    const qr_status st = allocate(s, err);
    if (st != QR_OK) {
        shortlists_close(s);
        return st;
    }
    shortlists_clear(s);
    *out = s;
    return QR_OK;
}

static void release(struct shortlists *s, void *at)
{
    if (at)
        s->backend->release(s->backend, at);
}

void shortlists_close(struct shortlists *s)
{
    if (!s)
        return;
    release(s, s->device_asks);
    release(s, s->device_parts);
    release(s, s->device_left_out);
    qr_free(s->place);
    qr_free(s->asks);
    qr_free(s->parts);
    qr_free(s);
}

/* ---- a step ---- */

void shortlists_clear(struct shortlists *s)
{
    if (!s)
        return;
    s->asked = 0;
    s->found = false;
    for (int32_t i = 0; i < s->rows; i++)
        s->place[i] = -1;
}

void shortlists_want(struct shortlists *s, int32_t key, const struct sampling_params *params, int64_t position, int32_t row,
                     int32_t added_row)
{
    if (!s || key < 0 || key >= s->rows || s->place[key] >= 0 || !shortlist_helps(params))
        return;
    s->place[key] = s->asked;
    s->asks[s->asked] = shortlist_ask(params, position, row);
    s->asks[s->asked++].added_row = added_row;
}

qr_status shortlists_find(struct shortlists *s, const float *logits, const float *added, qr_error *err)
{
    if (!s || s->asked == 0)
        return QR_OK;
    const struct op_shortlist op = {.rows = s->asked,
                                    .vocab = s->vocab,
                                    .asks = s->device_asks,
                                    .logits = logits,
                                    .added = added,
                                    .left_out = s->device_left_out,
                                    .out = s->device_parts};
    const int64_t parts = (int64_t)s->asked * SHORTLIST_PARTS;
    TRY(s->backend->upload(s->backend, s->device_asks, s->asks, s->asked * (int64_t)sizeof *s->asks, err));
    TRY(s->backend->shortlist(s->backend, &op, err));
    TRY(s->backend->download(s->backend, s->parts, s->device_parts, parts * (int64_t)sizeof *s->parts, err));
    s->found = true;
    return QR_OK;
}

bool shortlists_draw(struct shortlists *s, int32_t key, const struct sampling_params *params, const struct sampling_row *row,
                     int64_t position, struct sampler_scratch *scratch, int32_t *token)
{
    if (!s || !s->found || key < 0 || key >= s->rows || s->place[key] < 0)
        return false;
    const struct shortlist_part *parts = s->parts + (int64_t)s->place[key] * SHORTLIST_PARTS;
    const bool proved = shortlist_draw(params, row, &s->left_out, position, parts, scratch, token);
    *(proved ? &s->drawn : &s->open) += 1;
    return proved;
}

void shortlists_count(const struct shortlists *s, int64_t *drawn, int64_t *open)
{
    *drawn = s ? s->drawn : 0;
    *open = s ? s->open : 0;
}
