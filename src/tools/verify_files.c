#include "tools/verify_files.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/checkpoint_check.h"
#include "checkpoint/generation_config.h"
#include "engine/model.h"
#include "model/route_table.h"
#include "plan/schema.h"
#include "plan/settle.h"
#include "tools/progress.h"

/* Bad values that are named, of one tensor. */
enum { MOST_NAMED = 64 };
/* Elements that one worker looks at, and pieces that are handed out at once: bounds what is kept of them. */
enum { PIECE_ELEMENTS = 16 << 20, PIECES_AT_ONCE = 64 };
enum { MOST_ACTIVE = 64 };

struct survey {
    const char *dir;
    struct findings *found;
    struct files_report *report;
    struct qr_config config;
    bool configured;
    struct checkpoint *checkpoint;
    uint8_t *refused; /* [shards] 1: its tensors cannot be looked at */
    int32_t refused_room;
    bool no_memory;
};

/* ---- headers and names ---- */

static void shard_refused(void *user, int32_t shard, const qr_error *why)
{
    struct survey *s = user;
    findings_add(s->found, "%s", why->message);
    if (shard >= s->refused_room) {
        int32_t room = shard + 64;
        uint8_t *grown = qr_realloc(s->refused, (size_t)room);
        if (!grown) {
            s->no_memory = true;
            return;
        }
        memset(grown + s->refused_room, 0, (size_t)(room - s->refused_room));
        s->refused = grown;
        s->refused_room = room;
    }
    s->refused[shard] = 1;
}

static bool was_refused(const struct survey *s, int32_t shard) { return shard < s->refused_room && s->refused[shard]; }

/* A tensor of a shard that was refused is not missing: nobody knows. */
static void tell_missing(const struct survey *s, const struct tensor_spec *spec)
{
    int64_t at = checkpoint_index_of(s->checkpoint, spec->name);
    const struct tensor_view *view = at < 0 ? NULL : checkpoint_at(s->checkpoint, at);
    if (view && was_refused(s, view->shard))
        return;
    if (view)
        findings_add(s->found, "%s: tensor %s is missing: the index places it in this file, which does not hold it",
                     checkpoint_shard_path(s->checkpoint, view->shard), spec->name);
    else if (checkpoint_shards(s->checkpoint) > 1 || !was_refused(s, 0))
        findings_add(s->found, "%s: tensor %s is missing: no shard is said to hold it", s->dir, spec->name);
}

static void tell_mismatch(void *user, enum mismatch kind, const struct tensor_spec *spec, const struct tensor_view *view)
{
    struct survey *s = user;
    char is[160], should[160];
    if (kind == MISMATCH_MISSING) {
        tell_missing(s, spec);
        return;
    }
    if (was_refused(s, view->shard))
        return;
    const char *path = checkpoint_shard_path(s->checkpoint, view->shard);
    if (kind == MISMATCH_UNEXPECTED)
        findings_add(s->found, "%s: tensor %s is not expected", path, view->name);
    else
        findings_add(s->found, "%s: tensor %s: found %s of shape %s, wanted %s of shape %s", path, spec->name,
                     dtype_name(view->dtype), shape_text(view->rank, view->shape, is, sizeof is), dtype_name(spec->dtype),
                     shape_text(spec->rank, spec->shape, should, sizeof should));
}

static qr_status compare_names(struct survey *s, qr_error *err)
{
    struct schema *schema = NULL;
    struct checkpoint_diff diff;
    TRY(schema_make(&s->config, &schema, err));
    qr_status st = checkpoint_compare(s->checkpoint, schema_tensors(schema), schema_count(schema), tell_mismatch, s, &diff, err);
    schema_free(schema);
    return st;
}

/* A defect that is a finding, after which there is more to look at; without memory there is not. */
static qr_status note(struct survey *s, qr_status st, const qr_error *why, qr_error *err)
{
    if (st == QR_NO_MEMORY)
        return qr_fail(err, st, "%s", why->message);
    if (st != QR_OK)
        findings_add(s->found, "%s", why->message);
    return QR_OK;
}

static qr_status read_config(struct survey *s, qr_error *err)
{
    qr_error why = {0};
    char *path = path_join(s->dir, "config.json");
    if (!path)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its path", s->dir);
    qr_status st = config_read(path, &s->config, &why);
    qr_free(path);
    s->configured = st == QR_OK;
    s->report->config = st;
    return note(s, st, &why, err);
}

static qr_status read_headers(struct survey *s, qr_error *err)
{
    qr_error why = {0};
    TRY(checkpoint_survey(s->dir, shard_refused, s, &s->checkpoint, err));
    if (s->no_memory)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for a list of its shards", s->dir);
    if (!s->configured)
        return QR_OK;
    qr_status st = config_settle(s->checkpoint, &s->config, &why);
    s->configured = st == QR_OK;
    TRY(note(s, st, &why, err));
    if (!s->configured)
        return QR_OK;
    why = (qr_error){0};
    st = compare_names(s, &why);
    return note(s, st, &why, err);
}

/* ---- values ---- */

/* A stretch of one tensor, and what is bad in it. */
struct piece {
    const struct tensor_view *view;
    int64_t first, count, bad;
    int64_t at[MOST_NAMED];
};

static void look(void *user, int64_t item, int thread)
{
    struct piece *p = (struct piece *)user + item;
    int64_t end = p->first + p->count;
    (void)thread;
    for (int64_t i = p->first; i < end; i++) {
        i = tensor_first_bad(p->view, i, end - i);
        if (i < 0)
            return;
        if (p->bad < MOST_NAMED)
            p->at[p->bad] = i;
        p->bad++;
    }
}

static bool has_bad_values(enum dtype dtype)
{
    return dtype == DTYPE_F8_E8M0 || dtype == DTYPE_F8_E4M3 || dtype == DTYPE_BF16 || dtype == DTYPE_F32;
}

/* The reading of all values: pieces wait until there are enough of them for the workers. */
struct reading {
    struct survey *survey;
    struct worker_pool *pool;
    struct progress progress;
    struct piece *pieces;
    int64_t count;
    const struct tensor_view *told; /* the tensor that the last sentence was about, */
    int64_t named, more;            /* and how many of its bad values were named, and were not */
};

static void end_tensor(struct reading *r)
{
    if (r->more)
        findings_add(r->survey->found, "%s: tensor %s: %lld more such values",
                     checkpoint_shard_path(r->survey->checkpoint, r->told->shard), r->told->name, (long long)r->more);
    r->named = r->more = 0;
}

static void tell_values(struct reading *r, const struct piece *p)
{
    qr_error why = {0};
    if (p->view != r->told)
        end_tensor(r);
    r->told = p->view;
    for (int64_t i = 0; i < p->bad; i++) {
        if (r->named == MOST_NAMED) {
            r->more += p->bad - i;
            return;
        }
        tensor_bad_value(checkpoint_shard_path(r->survey->checkpoint, p->view->shard), p->view, p->at[i], &why);
        findings_add(r->survey->found, "%s", why.message);
        r->named++;
    }
}

static void look_at_pieces(struct reading *r)
{
    pool_run(r->pool, r->count, look, r->pieces);
    for (int64_t i = 0; i < r->count; i++) {
        tell_values(r, &r->pieces[i]);
        progress_add(&r->progress, (uint64_t)r->pieces[i].count * dtype_size(r->pieces[i].view->dtype));
    }
    r->count = 0;
}

static void add_tensor(struct reading *r, const struct tensor_view *view)
{
    int64_t elements = tensor_elements(view->rank, view->shape);
    for (int64_t first = 0; first < elements; first += PIECE_ELEMENTS) {
        int64_t left = elements - first;
        struct piece *p = &r->pieces[r->count++];
        p->view = view;
        p->first = first;
        p->count = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
        p->bad = 0;
        if (r->count == PIECES_AT_ONCE)
            look_at_pieces(r);
    }
}

static bool readable(const struct survey *s, const struct tensor_view *view)
{
    return view->dtype != DTYPE_COUNT && !was_refused(s, view->shard);
}

static qr_status read_values(struct survey *s, struct worker_pool *pool, bool quiet, qr_error *err)
{
    struct reading r = {.survey = s, .pool = pool};
    int64_t count = checkpoint_count(s->checkpoint);
    for (int64_t i = 0; i < count; i++) {
        const struct tensor_view *view = checkpoint_at(s->checkpoint, i);
        if (readable(s, view) && has_bad_values(view->dtype))
            s->report->values_bytes += view->bytes;
    }
    r.pieces = qr_calloc(PIECES_AT_ONCE, sizeof *r.pieces);
    if (!r.pieces)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory to look at its values", s->dir);
    progress_start(&r.progress, "values", s->report->values_bytes, quiet);
    for (int64_t i = 0; i < count; i++) {
        const struct tensor_view *view = checkpoint_at(s->checkpoint, i);
        if (!readable(s, view))
            continue;
        s->report->tensors++;
        s->report->bytes += view->bytes;
        s->report->scales += view->dtype == DTYPE_F8_E8M0;
        if (has_bad_values(view->dtype))
            add_tensor(&r, view);
    }
    look_at_pieces(&r);
    end_tensor(&r);
    progress_end(&r.progress);
    qr_free(r.pieces);
    return QR_OK;
}

/* ---- hash tables ---- */

static bool is_hash_table(const char *name)
{
    size_t n = strlen(name), m = strlen("tid2eid");
    return n >= m && strcmp(name + n - m, "tid2eid") == 0;
}

/* Rows that are used: all of an official table [vocab][active]; of an INT8 folder's [layers][vocab][active] those of the
 * layers that hash. */
static int64_t used_rows(const struct survey *s, const struct tensor_view *view)
{
    int64_t layers = view->rank == 3 ? view->shape[0] : 1;
    if (view->rank == 3 && s->config.num_hash_layers < layers)
        layers = s->config.num_hash_layers;
    return layers * view->shape[view->rank - 2];
}

static void check_hash_table(struct survey *s, const struct tensor_view *view)
{
    int32_t row[MOST_ACTIVE];
    int64_t named = 0, more = 0;
    if (view->rank < 2 || view->rank > 3 || view->shape[view->rank - 1] > MOST_ACTIVE)
        return; /* named already: another shape than wanted */
    const char *path = checkpoint_shard_path(s->checkpoint, view->shard);
    for (int64_t i = 0; i < used_rows(s, view); i++) {
        qr_error why = {0};
        if (route_table_row(path, view->name, view->dtype, view->data, i, view->shape[view->rank - 1],
                            s->config.n_routed_experts, row, &why) == QR_OK)
            continue;
        if (named++ < MOST_NAMED)
            findings_add(s->found, "%s", why.message);
        else
            more++;
    }
    if (more)
        findings_add(s->found, "%s: %s: %lld more such rows", path, view->name, (long long)more);
}

static void check_hash_tables(struct survey *s)
{
    for (int64_t i = 0; s->configured && i < checkpoint_count(s->checkpoint); i++) {
        const struct tensor_view *view = checkpoint_at(s->checkpoint, i);
        if (readable(s, view) && is_hash_table(view->name) && (view->dtype == DTYPE_I64 || view->dtype == DTYPE_I32))
            check_hash_table(s, view);
    }
}

/* ---- text ---- */

/* What `quire run` reads beside the weights; without a config nothing is known of the ids that may be named. */
static qr_status check_text(struct survey *s, qr_error *err)
{
    struct generation_config generation;
    struct tokenizer *tok = NULL;
    struct token_map map = {0};
    qr_error why = {0};
    qr_status st = generation_config_read(s->dir, s->configured ? s->config.vocab_size : INT32_MAX, &generation, &why);
    TRY(note(s, st, &why, err));
    why = (qr_error){0};
    st = s->configured ? model_tokenizer_open(s->dir, &s->config, NULL, &tok, &why) : tok_open(s->dir, NULL, &tok, &why);
    if (st == QR_OK && s->configured)
        st = model_map_make(s->dir, &s->config, tok, &map, &why);
    token_map_free(&map);
    tok_close(tok);
    return note(s, st, &why, err);
}

qr_status verify_files(const char *dir, struct worker_pool *pool, bool quiet, struct files_report *out,
                       struct findings *found, qr_error *err)
{
    struct survey s = {.dir = dir, .found = found, .report = out};
    qr_status st = read_config(&s, err);
    if (st == QR_OK)
        st = read_headers(&s, err);
    if (st == QR_OK)
        st = check_text(&s, err);
    if (st == QR_OK)
        st = read_values(&s, pool, quiet, err);
    if (st == QR_OK)
        check_hash_tables(&s);
    if (s.checkpoint)
        out->shards = checkpoint_shards(s.checkpoint);
    if (st == QR_OK && found->no_memory)
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for a list of its defects", dir);
    checkpoint_close(s.checkpoint);
    qr_free(s.refused);
    return st;
}
