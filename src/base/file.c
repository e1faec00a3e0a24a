#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

/* Without waiting: a named pipe that nobody writes to is refused, not waited for. */
static qr_status open_regular(const char *path, int *fd, uint64_t *size, qr_error *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return qr_fail(err, QR_BAD_FILE, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(*fd, &st) || !S_ISREG(st.st_mode)) {
        close(*fd);
        return qr_fail(err, QR_BAD_FILE, "%s: not a regular file", path);
    }
    *size = (uint64_t)st.st_size;
    return QR_OK;
}

qr_status file_map(const char *path, struct mapped_file *out, qr_error *err)
{
    int fd;
    *out = (struct mapped_file){0};
    qr_status st = open_regular(path, &fd, &out->size, err);
    if (st != QR_OK)
        return st;
    out->path = qr_strdup(path);
    if (!out->path)
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for the path", path);
    if (st == QR_OK && out->size) {
        void *p = mmap(NULL, out->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = qr_fail(err, QR_IO, "%s: cannot map %llu bytes: %s", path, (unsigned long long)out->size,
                         strerror(errno));
        else
            out->data = p;
    }
    close(fd);
    if (st != QR_OK)
        file_unmap(out);
    return st;
}

void file_unmap(struct mapped_file *file)
{
    if (file->data)
        munmap((void *)(uintptr_t)file->data, file->size);
    qr_free(file->path);
    *file = (struct mapped_file){0};
}

void file_advise(const void *data, uint64_t size, enum file_advice advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data / page * page;
    if (size)
        madvise((void *)begin, (uintptr_t)data + size - begin, advice == FILE_RANDOM ? MADV_RANDOM : MADV_WILLNEED);
}

qr_status file_read(const char *path, uint64_t limit, char **data, size_t *size, qr_error *err)
{
    int fd;
    uint64_t bytes;
    *data = NULL;
    *size = 0;
    qr_status st = open_regular(path, &fd, &bytes, err);
    if (st != QR_OK)
        return st;
    if (bytes > limit) {
        close(fd);
        return qr_fail(err, QR_BAD_FILE, "%s: %llu bytes, at most %llu are read", path, (unsigned long long)bytes,
                       (unsigned long long)limit);
    }
    char *p = qr_malloc((size_t)bytes + 1);
    if (!p) {
        close(fd);
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its %llu bytes", path, (unsigned long long)bytes);
    }
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = read(fd, p + got, (size_t)bytes - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    close(fd);
    if (got < bytes) {
        qr_free(p);
        return qr_fail(err, QR_IO, "%s: %zu of %llu bytes could be read", path, got, (unsigned long long)bytes);
    }
    p[got] = 0;
    *data = p;
    *size = got;
    return QR_OK;
}

qr_status file_output(const char *path, char **out, qr_error *err)
{
    char led_to[PATH_MAX];
    struct stat st;
    *out = NULL;
    if (!*path)
        return qr_fail(err, QR_IO, "the name of a file to write is empty");
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        if (!realpath(path, led_to))
            return qr_fail(err, QR_IO, "%s: cannot follow the link: %s", path, strerror(errno));
        path = led_to;
    }
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return qr_fail(err, QR_IO, "%s: not a regular file, and no file can take its place", path);
    *out = qr_strdup(path);
    return *out ? QR_OK : qr_fail(err, QR_NO_MEMORY, "%s: no memory for the path", path);
}

static bool write_all(int fd, const char *data, size_t size)
{
    while (size) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        size -= (size_t)n;
    }
    return true;
}

qr_status file_write_atomic(const char *path, const void *data, size_t size, qr_error *err)
{
    char *place = NULL, *temporary = NULL;
    int fd = -1;
    qr_status st = file_output(path, &place, err);
    if (st != QR_OK)
        return st;
    size_t room = strlen(place) + sizeof ".XXXXXX";
    temporary = qr_malloc(room);
    if (!temporary) {
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for the path", path);
        goto cleanup;
    }
    snprintf(temporary, room, "%s.XXXXXX", place);
    fd = mkstemp(temporary);
    if (fd < 0) {
        st = qr_fail(err, QR_IO, "%s: cannot create: %s", path, strerror(errno));
        goto cleanup;
    }
    if (!write_all(fd, data, size) || fchmod(fd, 0644) || fsync(fd) || rename(temporary, place)) {
        st = qr_fail(err, QR_IO, "%s: cannot write %zu bytes: %s", path, size, strerror(errno));
        unlink(temporary);
    }
cleanup:
    if (fd >= 0)
        close(fd);
    qr_free(temporary);
    qr_free(place);
    return st;
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), m = strlen(name);
    char *p = qr_malloc(n + m + 2);
    if (!p)
        return NULL;
    memcpy(p, dir, n);
    p[n] = '/';
    memcpy(p + n + 1, name, m + 1);
    return p;
}
