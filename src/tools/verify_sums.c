#define _GNU_SOURCE
#include "tools/verify_sums.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/sha256.h"
#include "tools/progress.h"

enum { LARGEST_LIST = 64 << 20, HEX = SHA256_HEX - 1 };

/* A file that the list names, and how its hash came out. */
struct entry {
    const char *name;
    char wanted[SHA256_HEX], is[SHA256_HEX];
    uint64_t size;
    qr_error error;
};

struct sums {
    const char *dir, *list;
    struct findings *found;
    char *text; /* of the list; names point into it */
    struct entry *entries;
    size_t count, capacity;
};

/* ---- the list ---- */

/* Every component is a name: nothing leads out of the folder. */
static bool stays_inside(const char *name)
{
    if (*name == '/' || !*name)
        return false;
    for (const char *at = name; *at;) {
        size_t n = strcspn(at, "/");
        if (n == 2 && at[0] == '.' && at[1] == '.')
            return false;
        at += n + (at[n] == '/');
    }
    return true;
}

static const struct entry *find_entry(const struct sums *s, const char *name)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->entries[i].name, name) == 0)
            return &s->entries[i];
    return NULL;
}

/* The name on a line of the right form, or NULL: 64 hexadecimal digits, a space, a space or an asterisk, the name. */
static char *name_on(char *line)
{
    size_t digits = strspn(line, "0123456789abcdefABCDEF");
    if (digits != HEX || line[HEX] != ' ' || (line[HEX + 1] != ' ' && line[HEX + 1] != '*') || !line[HEX + 2])
        return NULL;
    char *name = line + HEX + 2;
    while (name[0] == '.' && name[1] == '/')
        name += 2;
    return name;
}

static qr_status read_line(struct sums *s, char *line, int64_t number, qr_error *err)
{
    char *name = name_on(line);
    if (!name) {
        findings_add(s->found, "%s: line %lld is not \"<64 hexadecimal digits>  name\"", s->list, (long long)number);
        return QR_OK;
    }
    if (!stays_inside(name)) {
        findings_add(s->found, "%s: line %lld names %s, wanted a file of the folder", s->list, (long long)number, name);
        return QR_OK;
    }
    if (find_entry(s, name)) {
        findings_add(s->found, "%s: line %lld names %s, which stands there already", s->list, (long long)number, name);
        return QR_OK;
    }
    if (!array_grow(&s->entries, &s->capacity, s->count, sizeof *s->entries))
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its entries", s->list);
    struct entry *e = &s->entries[s->count++];
    *e = (struct entry){.name = name};
    for (int i = 0; i < HEX; i++)
        e->wanted[i] = (char)tolower((unsigned char)line[i]);
    return QR_OK;
}

static qr_status read_list(struct sums *s, qr_error *err)
{
    size_t size;
    int64_t number = 0;
    TRY(file_read(s->list, LARGEST_LIST, &s->text, &size, err));
    for (char *at = s->text, *end = s->text + size; at < end;) {
        char *line = at, *stop = memchr(at, '\n', (size_t)(end - at));
        at = stop ? stop + 1 : end;
        if (stop)
            *stop = 0;
        size_t length = strlen(line);
        if (length && line[length - 1] == '\r')
            line[--length] = 0;
        number++;
        if (length)
            TRY(read_line(s, line, number, err));
    }
    return QR_OK;
}

/* ---- the files ---- */

static void hash_entry(const struct sums *s, struct entry *e)
{
    struct mapped_file file;
    char *path = path_join(s->dir, e->name);
    if (!path) {
        qr_fail(&e->error, QR_NO_MEMORY, "%s: no memory for the path of %s", s->dir, e->name);
        return;
    }
    if (file_map(path, &file, &e->error) == QR_OK) {
        sha256_hex(file.data, file.size, e->is);
        e->size = file.size;
        file_unmap(&file);
    }
    qr_free(path);
}

/* A round of files, one for each worker. */
struct round {
    const struct sums *sums;
    size_t first;
};

static void hash_item(void *user, int64_t item, int thread)
{
    const struct round *r = user;
    (void)thread;
    hash_entry(r->sums, &r->sums->entries[r->first + (size_t)item]);
}

static uint64_t size_of(const struct sums *s, const char *name)
{
    struct stat st;
    char *path = path_join(s->dir, name);
    uint64_t size = path && stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    qr_free(path);
    return size;
}

static qr_status hash_files(struct sums *s, struct worker_pool *pool, bool quiet, struct files_report *out, qr_error *err)
{
    struct progress progress;
    uint64_t total = 0;
    for (size_t i = 0; i < s->count; i++)
        total += size_of(s, s->entries[i].name);
    progress_start(&progress, "checksums", total, quiet);
    for (size_t at = 0; at < s->count;) {
        size_t n = (size_t)pool_threads(pool) < s->count - at ? (size_t)pool_threads(pool) : s->count - at;
        pool_run(pool, (int64_t)n, hash_item, &(struct round){s, at});
        for (size_t i = at; i < at + n; i++) {
            out->hashed_bytes += s->entries[i].size;
            progress_add(&progress, s->entries[i].size);
        }
        at += n;
    }
    progress_end(&progress);
    for (size_t i = 0; i < s->count; i++) {
        const struct entry *e = &s->entries[i];
        if (e->error.status == QR_NO_MEMORY)
            return qr_fail(err, QR_NO_MEMORY, "%s", e->error.message);
        if (e->error.status != QR_OK)
            findings_add(s->found, "%s", e->error.message);
        else if (memcmp(e->is, e->wanted, HEX) != 0)
            findings_add(s->found, "%s/%s: SHA-256 is %s, wanted %s", s->dir, e->name, e->is, e->wanted);
        out->hashed_files += e->error.status == QR_OK;
    }
    return QR_OK;
}

/* ---- what the list lacks ---- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_the_list(const struct sums *s, const struct stat *file)
{
    struct stat list;
    return stat(s->list, &list) == 0 && list.st_dev == file->st_dev && list.st_ino == file->st_ino;
}

/* Regular files of the folder that the list does not name, sorted. */
static qr_status tell_unlisted(struct sums *s, qr_error *err)
{
    qr_status st = QR_OK;
    char **names = NULL;
    size_t count = 0, capacity = 0;
    struct dirent *item;
    DIR *folder = opendir(s->dir);
    if (!folder)
        return qr_fail(err, QR_IO, "%s: cannot list: %s", s->dir, strerror(errno));
    while (st == QR_OK && (item = readdir(folder))) {
        struct stat file;
        if (item->d_name[0] == '.' || fstatat(dirfd(folder), item->d_name, &file, 0) || !S_ISREG(file.st_mode) ||
            is_the_list(s, &file) || find_entry(s, item->d_name))
            continue;
        char *name = qr_strdup(item->d_name);
        if (name && array_grow(&names, &capacity, count, sizeof *names)) {
            names[count++] = name;
        } else {
            qr_free(name);
            st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for the names of its files", s->dir);
        }
    }
    closedir(folder);
    if (count)
        qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        findings_add(s->found, "%s: does not name %s, a file of the folder", s->list, names[i]);
        qr_free(names[i]);
    }
    qr_free(names);
    return st;
}

qr_status verify_sums(const char *dir, const char *list, struct worker_pool *pool, bool quiet, struct files_report *out,
                      struct findings *found, qr_error *err)
{
    struct sums s = {.dir = dir, .list = list, .found = found};
    qr_status st = read_list(&s, err);
    if (st == QR_OK)
        st = hash_files(&s, pool, quiet, out, err);
    if (st == QR_OK)
        st = tell_unlisted(&s, err);
    if (st == QR_OK && found->no_memory)
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for a list of its defects", dir);
    qr_free(s.entries);
    qr_free(s.text);
    return st;
}
