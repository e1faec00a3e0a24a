/* file.h: files, whole or mapped. */
#ifndef QR_BASE_FILE_H
#define QR_BASE_FILE_H

#include "base/status.h"

/* A file mapped read-only. `data` is NULL for an empty file. */
struct mapped_file {
    const uint8_t *data;
    uint64_t size;
    char *path; /* owned */
};

/* Maps `path` (a regular file; nothing else is waited for) read-only and private. Fails with QR_BAD_FILE when it cannot be opened or is no
 * regular file. A file that is cut short afterwards is the operating system's business, not ours. */
qr_status file_map(const char *path, struct mapped_file *out, qr_error *err);
void file_unmap(struct mapped_file *file);

/* Hints about a part of a mapping: read at random (no reading ahead), soon needed. Never fails, may do nothing. */
enum file_advice { FILE_RANDOM, FILE_WILL_NEED };
void file_advise(const void *data, uint64_t size, enum file_advice advice);

/* Reads a whole file of at most `limit` bytes into a fresh NUL-terminated buffer (qr_free). `*size` excludes the NUL. */
qr_status file_read(const char *path, uint64_t limit, char **data, size_t *size, qr_error *err);

/* Where a new file may take the place of `path`, in a fresh string (qr_free): `path` itself, or what it leads to when it
 * is a symbolic link. Fails with QR_IO when something stands there that is no regular file: a file renamed over a device,
 * a pipe or a folder would destroy it. */
qr_status file_output(const char *path, char **out, qr_error *err);

/* Writes `size` bytes to file_output's place through a temporary file beside it and a rename, so that a reader or a kill sees the
 * old file or the new one, never half of it. */
qr_status file_write_atomic(const char *path, const void *data, size_t size, qr_error *err);

/* "dir/name" in a fresh string (qr_free); NULL without memory. */
char *path_join(const char *dir, const char *name);

#endif
