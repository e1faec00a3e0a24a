#include "checkpoint/safetensors.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/safetensors_header.h"

struct safetensors {
    struct mapped_file file;
    struct tensor_table table;
    struct metadata_list metadata;
};

qr_status safetensors_open(const char *path, struct safetensors **out, qr_error *err)
{
    *out = NULL;
    struct safetensors *f = qr_calloc(1, sizeof *f);
    if (!f)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory to open it", path);
    tensor_table_init(&f->table);
    struct header_sink sink = {.table = &f->table, .metadata = &f->metadata};
    qr_status st = file_map(path, &f->file, err);
    if (st == QR_OK)
        st = safetensors_header_read(&f->file, &sink, err);
    if (st != QR_OK) {
        safetensors_close(f);
        return st;
    }
    *out = f;
    return QR_OK;
}

void safetensors_close(struct safetensors *file)
{
    if (!file)
        return;
    tensor_table_free(&file->table);
    qr_free(file->metadata.entries);
    file_unmap(&file->file);
    qr_free(file);
}

const char *safetensors_path(const struct safetensors *file) { return file->file.path; }

int64_t safetensors_count(const struct safetensors *file) { return (int64_t)file->table.count; }

const struct tensor_view *safetensors_at(const struct safetensors *file, int64_t index)
{
    return &file->table.views[index];
}

const struct tensor_view *safetensors_find(const struct safetensors *file, const char *name)
{
    int64_t index = tensor_table_find(&file->table, name, strlen(name));
    return index < 0 ? NULL : &file->table.views[index];
}

qr_status safetensors_get(const struct safetensors *file, const char *name, const struct tensor_view **out,
                          qr_error *err)
{
    *out = safetensors_find(file, name);
    return *out ? QR_OK : qr_fail(err, QR_BAD_FILE, "%s: tensor %s is missing", file->file.path, name);
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
    for (size_t i = 0; i < file->metadata.count; i++)
        if (!strcmp(file->metadata.entries[i].key, key))
            return file->metadata.entries[i].value;
    return NULL;
}

int64_t safetensors_metadata_count(const struct safetensors *file) { return (int64_t)file->metadata.count; }

const char *safetensors_metadata_at(const struct safetensors *file, int64_t index, const char **value)
{
    *value = file->metadata.entries[index].value;
    return file->metadata.entries[index].key;
}
