#define _GNU_SOURCE
#include "checkpoint/safetensors_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"

struct declared_metadata {
    const char *key, *value;
};

struct safetensors_writer {
    char *path, *place, *temporary; /* as it was given; where it goes; where it grows */
    int fd;
    struct tensor_table table;
    struct declared_metadata *metadata;
    size_t metadata_count, metadata_capacity;
    uint64_t *offsets; /* of each tensor in the file, from begin on */
};

static qr_status no_memory_for(const char *path, qr_error *err)
{
    return qr_fail(err, QR_NO_MEMORY, "%s: no memory to write it", path);
}

static qr_status no_memory(const struct safetensors_writer *w, qr_error *err) { return no_memory_for(w->path, err); }

qr_status safetensors_create(const char *path, struct safetensors_writer **out, qr_error *err)
{
    *out = NULL;
    struct safetensors_writer *w = qr_calloc(1, sizeof *w);
    if (!w)
        return no_memory_for(path, err);
    w->fd = -1;
    tensor_table_init(&w->table);
    w->path = qr_strdup(path);
    qr_status st = w->path ? file_output(path, &w->place, err) : no_memory_for(path, err);
    if (st != QR_OK)
        goto cleanup;
    size_t room = strlen(w->place) + sizeof ".XXXXXX";
    char *temporary = qr_malloc(room);
    if (!temporary) {
        st = no_memory_for(path, err);
        goto cleanup;
    }
    snprintf(temporary, room, "%s.XXXXXX", w->place);
    w->fd = mkstemp(temporary);
    if (w->fd < 0) {
        st = qr_fail(err, QR_IO, "%s: cannot create: %s", path, strerror(errno));
        qr_free(temporary);
        goto cleanup;
    }
    w->temporary = temporary;
    *out = w;
    return QR_OK;
cleanup:
    safetensors_discard(w);
    return st;
}

void safetensors_discard(struct safetensors_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->temporary)
        unlink(w->temporary);
    qr_free(w->temporary);
    qr_free(w->place);
    qr_free(w->path);
    qr_free(w->offsets);
    qr_free(w->metadata);
    tensor_table_free(&w->table);
    qr_free(w);
}

qr_status safetensors_declare_metadata(struct safetensors_writer *w, const char *key, const char *value, qr_error *err)
{
    for (size_t i = 0; i < w->metadata_count; i++)
        if (!strcmp(w->metadata[i].key, key))
            return qr_fail(err, QR_BAD_ARGUMENT, "%s: metadata entry %s is declared twice", w->path, key);
    char *k = arena_strndup(&w->table.arena, key, strlen(key)),
         *v = arena_strndup(&w->table.arena, value, strlen(value));
    if (!k || !v || !array_grow(&w->metadata, &w->metadata_capacity, w->metadata_count, sizeof *w->metadata))
        return no_memory(w, err);
    w->metadata[w->metadata_count++] = (struct declared_metadata){k, v};
    return QR_OK;
}

qr_status safetensors_declare(struct safetensors_writer *w, const char *name, enum dtype dtype, int32_t rank,
                              const int64_t *shape, int64_t *index, qr_error *err)
{
    char text[160];
    bool fresh;
    int64_t elements = tensor_elements(rank, shape), bytes;
    if (rank < 0 || rank > TENSOR_MAX_RANK || elements < 0 ||
        __builtin_mul_overflow(elements, (int64_t)dtype_size(dtype), &bytes))
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: tensor %s: shape %s of %s overflows or has over %d dimensions",
                       w->path, name, shape_text(rank, shape, text, sizeof text), dtype_name(dtype), TENSOR_MAX_RANK);
    int64_t at = tensor_table_intern(&w->table, name, strlen(name), &fresh);
    if (at >= 0 && !fresh)
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: tensor %s is declared twice", w->path, name);
    int64_t *copy = at < 0 ? NULL : tensor_table_shape(&w->table, rank);
    if (!copy)
        return no_memory(w, err);
    memcpy(copy, shape, (size_t)rank * sizeof *copy);
    struct tensor_view *view = &w->table.views[at];
    view->dtype = dtype;
    view->rank = rank;
    view->shape = copy;
    view->bytes = (uint64_t)bytes;
    if (index)
        *index = at;
    return QR_OK;
}

/* Offsets within the data: by falling element size, stable. Fails when the sum overflows. */
static bool lay_out(struct safetensors_writer *w, uint64_t *total)
{
    *total = 0;
    for (size_t size = 8; size; size /= 2)
        for (size_t i = 0; i < w->table.count; i++) {
            if (dtype_size(w->table.views[i].dtype) != size)
                continue;
            w->offsets[i] = *total;
            if (__builtin_add_overflow(*total, w->table.views[i].bytes, total) || *total > INT64_MAX / 2)
                return false;
        }
    return true;
}

static void write_tensor(struct json_writer *json, const struct tensor_view *view, uint64_t offset)
{
    json_w_key(json, view->name);
    json_w_object(json);
    json_w_member_string(json, "dtype", dtype_name(view->dtype));
    json_w_key(json, "shape");
    json_w_array(json);
    for (int32_t d = 0; d < view->rank; d++)
        json_w_int(json, view->dtype == DTYPE_F4 && d == view->rank - 1 ? view->shape[d] * 2 : view->shape[d]);
    json_w_end_array(json);
    json_w_key(json, "data_offsets");
    json_w_array(json);
    json_w_uint(json, offset);
    json_w_uint(json, offset + view->bytes);
    json_w_end_array(json);
    json_w_end_object(json);
}

static void write_header(const struct safetensors_writer *w, struct json_writer *json)
{
    json_w_object(json);
    if (w->metadata_count) {
        json_w_key(json, "__metadata__");
        json_w_object(json);
        for (size_t i = 0; i < w->metadata_count; i++)
            json_w_member_string(json, w->metadata[i].key, w->metadata[i].value);
        json_w_end_object(json);
    }
    for (size_t size = 8; size; size /= 2)
        for (size_t i = 0; i < w->table.count; i++)
            if (dtype_size(w->table.views[i].dtype) == size)
                write_tensor(json, &w->table.views[i], w->offsets[i]);
    json_w_end_object(json);
}

/* All of `size` bytes at `at`. */
static qr_status write_at(const struct safetensors_writer *w, const void *data, uint64_t size, uint64_t at,
                          qr_error *err)
{
    const char *p = data;
    while (size) {
        ssize_t n = pwrite(w->fd, p, size < 1 << 30 ? size : 1 << 30, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return qr_fail(err, QR_IO, "%s: cannot write %llu bytes at %llu: %s", w->path, (unsigned long long)size,
                           (unsigned long long)at, strerror(n < 0 ? errno : ENOSPC));
        p += n;
        at += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return QR_OK;
}

qr_status safetensors_begin(struct safetensors_writer *w, qr_error *err)
{
    uint64_t total;
    const char *text;
    size_t length;
    qr_status st = QR_OK;
    struct json_writer *json = NULL;
    w->offsets = qr_calloc(w->table.count, sizeof *w->offsets);
    if (!w->offsets)
        return no_memory(w, err);
    if (!lay_out(w, &total))
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: its tensors together overflow", w->path);
    json = json_writer_open(false);
    if (!json)
        return no_memory(w, err);
    write_header(w, json);
    st = json_finish(json, &text, &length, err);
    if (st != QR_OK)
        goto cleanup;

    static const char spaces[8] = "        ";
    uint64_t padded = (length + 7) / 8 * 8;
    uint8_t size[8];
    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)(padded >> (8 * i));
    if (ftruncate(w->fd, (off_t)(8 + padded + total))) {
        st = qr_fail(err, QR_IO, "%s: cannot make it %llu bytes long: %s", w->path,
                     8ULL + padded + total, strerror(errno));
        goto cleanup;
    }
    st = write_at(w, size, sizeof size, 0, err);
    if (st == QR_OK)
        st = write_at(w, text, length, 8, err);
    if (st == QR_OK)
        st = write_at(w, spaces, padded - length, 8 + length, err);
    for (size_t i = 0; i < w->table.count; i++)
        w->offsets[i] += 8 + padded;
cleanup:
    json_writer_close(json);
    return st;
}

qr_status safetensors_put(struct safetensors_writer *w, int64_t index, uint64_t at, const void *data, uint64_t size,
                          qr_error *err)
{
    const struct tensor_view *view = &w->table.views[index];
    if (at > view->bytes || size > view->bytes - at)
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: tensor %s: bytes [%llu, %llu) of %llu", w->path, view->name,
                       (unsigned long long)at, (unsigned long long)at + size, (unsigned long long)view->bytes);
    return write_at(w, data, size, w->offsets[index] + at, err);
}

qr_status safetensors_end(struct safetensors_writer *w, qr_error *err)
{
    int fd = w->fd;
    w->fd = -1;
    if (fchmod(fd, 0644) | close(fd))
        return qr_fail(err, QR_IO, "%s: cannot write it: %s", w->path, strerror(errno));
    if (rename(w->temporary, w->place))
        return qr_fail(err, QR_IO, "%s: cannot rename into place: %s", w->path, strerror(errno));
    qr_free(w->temporary);
    w->temporary = NULL;
    return QR_OK;
}

qr_status safetensors_save(const char *path, const struct tensor_view *tensors, int64_t count,
                           const char *const (*metadata)[2], int64_t metadata_count, qr_error *err)
{
    struct safetensors_writer *w = NULL;
    qr_status st = safetensors_create(path, &w, err);
    for (int64_t i = 0; st == QR_OK && i < metadata_count; i++)
        st = safetensors_declare_metadata(w, metadata[i][0], metadata[i][1], err);
    for (int64_t i = 0; st == QR_OK && i < count; i++)
        st = safetensors_declare(w, tensors[i].name, tensors[i].dtype, tensors[i].rank, tensors[i].shape, NULL, err);
    if (st == QR_OK)
        st = safetensors_begin(w, err);
    for (int64_t i = 0; st == QR_OK && i < count; i++)
        st = safetensors_put(w, i, 0, tensors[i].data, tensors[i].bytes, err);
    if (st == QR_OK)
        st = safetensors_end(w, err);
    safetensors_discard(w);
    return st;
}
