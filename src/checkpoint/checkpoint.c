#define _GNU_SOURCE
#include "checkpoint/checkpoint.h"

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/checkpoint_index.h"
#include "checkpoint/safetensors_header.h"

struct checkpoint {
    char *dir;
    struct tensor_table table;
    struct shard_list names;
    struct mapped_file *files; /* [names.count] */
};

static const char *shard_name(const void *user, int32_t shard)
{
    const struct checkpoint *ck = user;
    return ck->names.names[shard];
}

/* Whether the folder holds a file of that name: 1 or 0; -1 without memory. */
static int holds(const struct checkpoint *ck, const char *name)
{
    char *path = path_join(ck->dir, name);
    int there = !path ? -1 : access(path, F_OK) == 0;
    qr_free(path);
    return there;
}

static qr_status read_index(struct checkpoint *ck, const char *name, qr_error *err)
{
    char *path = path_join(ck->dir, name);
    qr_status st = path ? checkpoint_index_read(path, &ck->table, &ck->names, err)
                        : qr_fail(err, QR_NO_MEMORY, "%s: no memory for its path", ck->dir);
    qr_free(path);
    return st;
}

/* Reads the index, or stands in for one when there is a single file; an INT8 folder (v4-model.md 7.1) has another stem.
 * `*listed`: there was an index. */
static qr_status read_names(struct checkpoint *ck, bool *listed, qr_error *err)
{
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors",
                                        "w8a8.safetensors.index.json", "w8a8.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int there = holds(ck, names[i]);
        *listed = i % 2 == 0;
        if (there > 0 && *listed)
            return read_index(ck, names[i], err);
        if (there < 0 || (there > 0 && shard_list_add(&ck->names, &ck->table.arena, names[i], strlen(names[i])) < 0))
            return qr_fail(err, QR_NO_MEMORY, "%s: no memory to open it", ck->dir);
        if (there > 0)
            return QR_OK;
    }
    return qr_fail(err, QR_BAD_FILE, "%s: holds neither model.safetensors.index.json nor model.safetensors", ck->dir);
}

/* What becomes of a shard that is refused: NULL: the folder is. */
struct survey {
    void (*refused)(void *user, int32_t shard, const qr_error *why);
    void *user;
};

static qr_status read_shard(struct checkpoint *ck, int32_t shard, bool listed, qr_error *err)
{
    struct header_sink sink = {&ck->table, shard, listed, shard_name, ck, NULL};
    char *path = path_join(ck->dir, ck->names.names[shard]);
    if (!path)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its path", ck->dir);
    qr_status st = file_map(path, &ck->files[shard], err);
    qr_free(path);
    return st == QR_OK ? safetensors_header_read(&ck->files[shard], &sink, err) : st;
}

/* What was read of a refused shard before it was. */
static void forget_tensors(struct checkpoint *ck, int32_t shard)
{
    for (size_t i = 0; i < ck->table.count; i++)
        if (ck->table.views[i].shard == shard) {
            ck->table.views[i].dtype = DTYPE_COUNT;
            ck->table.views[i].bytes = 0;
        }
}

static qr_status read_shards(struct checkpoint *ck, bool listed, const struct survey *survey, qr_error *err)
{
    ck->files = qr_calloc(ck->names.count, sizeof *ck->files);
    if (!ck->files)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for %zu shards", ck->dir, ck->names.count);
    for (int32_t i = 0; i < (int32_t)ck->names.count; i++) {
        qr_error why = {0};
        qr_status st = read_shard(ck, i, listed, &why);
        if (st == QR_OK)
            continue;
        if (!survey || st == QR_NO_MEMORY)
            return qr_fail(err, st, "%s", why.message);
        forget_tensors(ck, i);
        survey->refused(survey->user, i, &why);
    }
    return QR_OK;
}

static qr_status open_folder(const char *dir, const struct survey *survey, struct checkpoint **out, qr_error *err)
{
    bool listed = false;
    *out = NULL;
    struct checkpoint *ck = qr_calloc(1, sizeof *ck);
    if (!ck)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory to open it", dir);
    tensor_table_init(&ck->table);
    ck->dir = qr_strdup(dir);
    qr_status st = ck->dir ? QR_OK : qr_fail(err, QR_NO_MEMORY, "%s: no memory to open it", dir);
    if (st == QR_OK)
        st = read_names(ck, &listed, err);
    if (st == QR_OK)
        st = read_shards(ck, listed, survey, err);
    if (st != QR_OK) {
        checkpoint_close(ck);
        return st;
    }
    *out = ck;
    return QR_OK;
}

qr_status checkpoint_open(const char *dir, struct checkpoint **out, qr_error *err)
{
    return open_folder(dir, NULL, out, err);
}

qr_status checkpoint_survey(const char *dir, void (*refused)(void *user, int32_t shard, const qr_error *why), void *user,
                            struct checkpoint **out, qr_error *err)
{
    return open_folder(dir, &(struct survey){refused, user}, out, err);
}

static qr_status add_views(struct checkpoint *ck, const struct tensor_view *views, int64_t count, qr_error *err)
{
    for (int64_t i = 0; i < count; i++) {
        bool fresh;
        int64_t at = tensor_table_intern(&ck->table, views[i].name, strlen(views[i].name), &fresh);
        if (at < 0)
            return qr_fail(err, QR_NO_MEMORY, "%s: no memory for %lld tensors", ck->dir, (long long)count);
        if (!fresh)
            return qr_fail(err, QR_BAD_FILE, "%s: tensor %s is there twice", ck->dir, views[i].name);
        const char *name = ck->table.views[at].name;
        ck->table.views[at] = views[i];
        ck->table.views[at].name = name;
        ck->table.views[at].shard = 0;
    }
    return QR_OK;
}

qr_status checkpoint_over(const char *path, const struct tensor_view *views, int64_t count, struct checkpoint **out,
                          qr_error *err)
{
    *out = NULL;
    struct checkpoint *ck = qr_calloc(1, sizeof *ck);
    if (!ck)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory to open it", path);
    tensor_table_init(&ck->table);
    ck->dir = qr_strdup(path);
    qr_status st = ck->dir ? add_views(ck, views, count, err) : qr_fail(err, QR_NO_MEMORY, "%s: no memory to open it", path);
    if (st != QR_OK) {
        checkpoint_close(ck);
        return st;
    }
    *out = ck;
    return QR_OK;
}

void checkpoint_close(struct checkpoint *ck)
{
    if (!ck)
        return;
    for (size_t i = 0; ck->files && i < ck->names.count; i++)
        file_unmap(&ck->files[i]);
    qr_free(ck->files);
    shard_list_free(&ck->names);
    tensor_table_free(&ck->table);
    qr_free(ck->dir);
    qr_free(ck);
}

const char *checkpoint_path(const struct checkpoint *ck) { return ck->dir; }

int64_t checkpoint_shards(const struct checkpoint *ck) { return (int64_t)ck->names.count; }

const char *checkpoint_shard_path(const struct checkpoint *ck, int32_t shard) { return ck->files ? ck->files[shard].path : ck->dir; }

int64_t checkpoint_count(const struct checkpoint *ck) { return (int64_t)ck->table.count; }

const struct tensor_view *checkpoint_at(const struct checkpoint *ck, int64_t index) { return &ck->table.views[index]; }

uint64_t checkpoint_bytes(const struct checkpoint *ck)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < ck->table.count; i++)
        bytes += ck->table.views[i].bytes;
    return bytes;
}

int64_t checkpoint_index_of(const struct checkpoint *ck, const char *name)
{
    return tensor_table_find(&ck->table, name, strlen(name));
}

const struct tensor_view *checkpoint_find(const struct checkpoint *ck, const char *name)
{
    int64_t i = checkpoint_index_of(ck, name);
    return i < 0 || ck->table.views[i].dtype == DTYPE_COUNT ? NULL : &ck->table.views[i];
}

qr_status checkpoint_get(const struct checkpoint *ck, const char *name, const struct tensor_view **out, qr_error *err)
{
    *out = checkpoint_find(ck, name);
    return *out ? QR_OK : qr_fail(err, QR_BAD_FILE, "%s: tensor %s is missing", ck->dir, name);
}
