#define _GNU_SOURCE
#include "tools/fresh_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the folder ---- */

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* The first entry of a folder that is not empty, and how many stand beside it. */
static qr_status refuse_full(const char *path, qr_error *err)
{
    char first[256] = "";
    int others = -1;
    DIR *dir = opendir(path);
    if (!dir)
        return qr_fail(err, QR_IO, "%s: cannot open the folder: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));) {
        if (is_dots(e->d_name))
            continue;
        if (others++ < 0)
            snprintf(first, sizeof first, "%s", e->d_name);
    }
    closedir(dir);
    if (others < 0)
        return QR_OK;
    if (others == 0)
        return qr_fail(err, QR_IO, "%s: is not empty, it holds %s; remove the folder or name another", path, first);
    return qr_fail(err, QR_IO, "%s: is not empty, it holds %s and %d more; remove the folder or name another", path, first,
                   others);
}

qr_status fresh_folder(const char *path, bool *made, qr_error *err)
{
    const bool new = mkdir(path, 0755) == 0;
    if (made)
        *made = new;
    if (!new && errno != EEXIST)
        return qr_fail(err, QR_IO, "%s: cannot create the folder: %s", path, strerror(errno));
    return new ? QR_OK : refuse_full(path, err);
}

/* ---- signals ---- */

static const int wishes[] = {SIGINT, SIGTERM, SIGHUP};
enum { WISHES = sizeof wishes / sizeof *wishes };

static volatile sig_atomic_t noted;
static struct sigaction before[WISHES];

static void note(int signal) { noted = signal; }

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART | (int)SA_RESETHAND}; /* another one ends at once */
    for (int i = 0; i < WISHES; i++) {
        sigaction(wishes[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(wishes[i], &action, NULL);
    }
}

static void release_signals(void)
{
    for (int i = 0; i < WISHES; i++)
        sigaction(wishes[i], &before[i], NULL);
}

void filling_obey_signal(void)
{
    if (noted)
        raise(noted);
}

/* ---- filling ---- */

/* What the tools write, under its name or a temporary one beside it. */
static bool is_of_a_checkpoint(const char *name)
{
    return strstr(name, ".safetensors") || strstr(name, ".json") || strstr(name, ".py");
}

static void remove_files(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));)
        if (is_of_a_checkpoint(e->d_name))
            unlinkat(fd, e->d_name, 0);
    closedir(dir);
}

qr_status filling_open(struct filling *f, const char *path, qr_error *err)
{
    const qr_status st = fresh_folder(path, &f->made, err);
    if (st != QR_OK)
        return st;
    f->path = path;
    catch_signals();
    return QR_OK;
}

qr_status filling_check(const struct filling *f, qr_error *err)
{
    return noted ? qr_fail(err, QR_CANCELLED, "%s: interrupted by the signal \"%s\"; what was written is removed", f->path,
                           strsignal(noted))
                 : QR_OK;
}

void filling_close(struct filling *f, bool whole)
{
    char encoding[4096];
    if (!f->path)
        return;
    if (!whole) {
        snprintf(encoding, sizeof encoding, "%s/encoding", f->path);
        remove_files(encoding);
        rmdir(encoding);
        remove_files(f->path);
        if (f->made)
            rmdir(f->path);
    }
    release_signals();
    *f = (struct filling){0};
}
