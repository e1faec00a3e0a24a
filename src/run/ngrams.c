#include "run/ngrams.h"

#include <string.h>

#include "base/alloc.h"
#include "checkpoint/engram.h"
#include "checkpoint/engram_hash.h"

struct ngrams {
    int32_t tables; /* 0: the model has no Engram layer */
    int32_t columns, width, max_rows;
    struct engram_table table[QR_MAX_ENGRAM];
    struct engram_hash hash;
    const struct token_map *map;
    int32_t *ids;     /* [max_rows] compressed, of the batch staged last */
    int64_t *rows;    /* [tables][staged][columns] */
    uint16_t *values; /* [tables][staged][columns * width] bf16 */
    int32_t staged;
};

static qr_status check_map(const struct checkpoint *ck, const struct qr_config *c, const struct token_map *map,
                           qr_error *err)
{
    if (!map)
        return qr_fail(err, QR_INTERNAL, "Engram layers want the token map, found none");
    if (map->count != c->vocab_size)
        return qr_fail(err, QR_BAD_FILE, "%s: the tokenizer has %d ids, config vocab_size is %d", checkpoint_path(ck),
                       map->count, c->vocab_size);
    if (map->keys != c->engram_compressed_vocab_size)
        return qr_fail(err, QR_BAD_FILE,
                       "%s: the tokenizer's ids have %d keys, config engram_compressed_vocab_size is %d",
                       checkpoint_path(ck), map->keys, c->engram_compressed_vocab_size);
    return QR_OK;
}

static qr_status open_tables(struct ngrams *n, const struct checkpoint *ck, const struct qr_config *c, qr_error *err)
{
    size_t lookups = (size_t)n->tables * (size_t)n->max_rows * (size_t)engram_columns(c);

    n->columns = engram_columns(c);
    n->width = c->engram_head_dim;
    n->rows = qr_calloc(lookups, sizeof *n->rows);
    n->values = qr_calloc(lookups * (size_t)n->width, sizeof *n->values);
    if (!n->rows || !n->values)
        return qr_fail(err, QR_NO_MEMORY, "Engram: no memory to stage %d rows of %d layers", n->max_rows, n->tables);

    for (int32_t i = 0; i < n->tables; i++)
        TRY(engram_open(ck, c, i, &n->table[i], err));
    return engram_hash_make(c, n->map->number[c->engram_pad_token_id], &n->hash, err);
}

qr_status ngrams_open(const struct checkpoint *ck, const struct model_plan *plan, const struct token_map *map,
                      int32_t max_rows, struct ngrams **out, qr_error *err)
{
    struct ngrams *n = qr_calloc(1, sizeof *n);
    qr_status st = QR_OK;
    if (n)
        n->ids = qr_calloc((size_t)max_rows, sizeof *n->ids);
    if (!n || !n->ids)
        st = qr_fail(err, QR_NO_MEMORY, "Engram: no memory for the ids of %d rows", max_rows);
    if (st == QR_OK) {
        n->tables = plan->config.n_engram;
        n->max_rows = max_rows;
        n->map = map;
        if (n->tables > 0)
            st = check_map(ck, &plan->config, map, err);
        if (st == QR_OK && n->tables > 0)
            st = open_tables(n, ck, &plan->config, err);
    }
    if (st != QR_OK) {
        ngrams_close(n);
        return st;
    }
    *out = n;
    return QR_OK;
}

int64_t ngrams_bytes_for(const struct model_plan *plan, int32_t max_rows)
{
    const struct qr_config *c = &plan->config;
    const int64_t row = (int64_t)sizeof(int64_t) + c->engram_head_dim * (int64_t)sizeof(uint16_t);
    const int64_t lookups = c->n_engram > 0 ? (int64_t)c->n_engram * max_rows * engram_columns(c) : 0;
    return (int64_t)sizeof(struct ngrams) + max_rows * (int64_t)sizeof(int32_t) + lookups * row;
}

void ngrams_close(struct ngrams *n)
{
    if (!n)
        return;
    engram_hash_free(&n->hash);
    qr_free(n->ids);
    qr_free(n->rows);
    qr_free(n->values);
    qr_free(n);
}

void ngrams_compress(const struct ngrams *n, const int32_t *tokens, const uint8_t *mask, int64_t count, int32_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = mask && mask[i] ? CURSOR_DEAD : n->tables > 0 ? (int32_t)n->map->number[tokens[i]] : 0;
}

static int64_t *rows_at(const struct ngrams *n, int32_t table, int32_t row)
{
    return n->rows + ((int64_t)table * n->staged + row) * n->columns;
}

/* Row numbers of the tokens of one span; `first` is their first row in the step. A window of ids slides over them. */
static void hash_span(struct ngrams *n, const struct cursor *start, int32_t first, int32_t count)
{
    int64_t window[QR_MAX_NGRAM];
    int32_t length = n->hash.ngram;

    for (int32_t i = 0; i < length - 1; i++)
        window[i + 1] = start->history[i];
    for (int32_t row = first; row < first + count; row++) {
        memmove(window, window + 1, (size_t)(length - 1) * sizeof *window);
        window[length - 1] = n->ids[row];
        for (int32_t t = 0; t < n->tables; t++)
            engram_hash_rows(&n->hash, t, window, rows_at(n, t, row));
    }
}

qr_status ngrams_stage(struct ngrams *n, const struct batch *batch, const struct cursor *start, qr_error *err)
{
    int32_t rows = 0;
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *s = &batch->spans[b];
        ngrams_compress(n, s->tokens, s->image_mask, s->count, n->ids + rows);
        rows += s->count;
    }
    n->staged = rows;
    if (n->tables == 0)
        return QR_OK;
    if (start->history_count != n->hash.ngram - 1)
        return qr_fail(err, QR_INTERNAL, "cursors keep %d ids of history, Engram wants %d", start->history_count,
                       n->hash.ngram - 1);

    rows = 0;
    for (int32_t b = 0; b < batch->count; b++) {
        hash_span(n, &start[b], rows, batch->spans[b].count);
        rows += batch->spans[b].count;
    }
    int64_t lookups = (int64_t)rows * n->columns;
    for (int32_t t = 0; t < n->tables; t++)
        engram_prefetch(&n->table[t], rows_at(n, t, 0), lookups);
    for (int32_t t = 0; t < n->tables; t++)
        TRY(engram_gather(&n->table[t], rows_at(n, t, 0), lookups, n->values + t * lookups * n->width, err));
    return QR_OK;
}

qr_status ngrams_upload(struct ngrams *n, struct backend *backend, const struct workspace *ws, qr_error *err)
{
    int64_t values = (int64_t)n->staged * n->columns * n->width;
    for (int32_t t = 0; t < n->tables; t++)
        TRY(backend->upload(backend, ws->engram[t].codes, n->values + t * values, values * (int64_t)sizeof *n->values,
                            err));
    return QR_OK;
}

const int32_t *ngrams_ids(const struct ngrams *n) { return n->ids; }

const int64_t *ngrams_rows(const struct ngrams *n) { return n->tables > 0 ? n->rows : NULL; }
