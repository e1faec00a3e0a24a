#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

static qr_status open_regular(const char *path, int *fd, uint64_t *size, qr_error *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
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

qr_status file_write_atomic(const char *path, const void *data, size_t size, qr_error *err)
{
    qr_status st = QR_OK;
    size_t n = strlen(path);
    char *tmp = qr_malloc(n + 8);
    if (!tmp)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the path", path);
    memcpy(tmp, path, n);
    memcpy(tmp + n, ".XXXXXX", 8);
    int fd = mkstemp(tmp);
    if (fd < 0) {
        st = qr_fail(err, QR_IO, "%s: cannot create: %s", path, strerror(errno));
        qr_free(tmp);
        return st;
    }
    const char *p = data;
    size_t left = size;
    while (left) {
        ssize_t w = write(fd, p, left);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            break;
        p += w;
        left -= (size_t)w;
    }
    if (left || fchmod(fd, 0644) || fsync(fd) || close(fd)) {
        st = qr_fail(err, QR_IO, "%s: cannot write %zu bytes: %s", path, size, strerror(errno));
        unlink(tmp);
    } else if (rename(tmp, path)) {
        st = qr_fail(err, QR_IO, "%s: cannot rename into place: %s", path, strerror(errno));
        unlink(tmp);
    }
    qr_free(tmp);
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
