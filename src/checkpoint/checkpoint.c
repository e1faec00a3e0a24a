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

/* Reads the index, or stands in for one when there is a single file. `*listed`: there was an index. */
static qr_status read_names(struct checkpoint *ck, bool *listed, qr_error *err)
{
    qr_status st = QR_NO_MEMORY;
    char *index = path_join(ck->dir, "model.safetensors.index.json");
    char *single = path_join(ck->dir, "model.safetensors");
    if (!index || !single) {
        qr_fail(err, QR_NO_MEMORY, "%s: no memory for its path", ck->dir);
        goto cleanup;
    }
    *listed = access(index, F_OK) == 0;
    if (*listed)
        st = checkpoint_index_read(index, &ck->table, &ck->names, err);
    else if (access(single, F_OK) == 0)
        st = shard_list_add(&ck->names, &ck->table.arena, "model.safetensors", strlen("model.safetensors")) < 0
                 ? qr_fail(err, QR_NO_MEMORY, "%s: no memory to open it", ck->dir)
                 : QR_OK;
    else
        st = qr_fail(err, QR_BAD_FILE, "%s: holds neither model.safetensors.index.json nor model.safetensors", ck->dir);
cleanup:
    qr_free(index);
    qr_free(single);
    return st;
}

static qr_status read_shards(struct checkpoint *ck, bool listed, qr_error *err)
{
    ck->files = qr_calloc(ck->names.count, sizeof *ck->files);
    if (!ck->files)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for %zu shards", ck->dir, ck->names.count);
    for (size_t i = 0; i < ck->names.count; i++) {
        struct header_sink sink = {&ck->table, (int32_t)i, listed, shard_name, ck, NULL};
        char *path = path_join(ck->dir, ck->names.names[i]);
        if (!path)
            return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its path", ck->dir);
        qr_status st = file_map(path, &ck->files[i], err);
        qr_free(path);
        if (st == QR_OK)
            st = safetensors_header_read(&ck->files[i], &sink, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}

qr_status checkpoint_open(const char *dir, struct checkpoint **out, qr_error *err)
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
        st = read_shards(ck, listed, err);
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

const char *checkpoint_shard_path(const struct checkpoint *ck, int32_t shard) { return ck->files[shard].path; }

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
