#define _GNU_SOURCE
#include "tools/fresh_folder.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

qr_status fresh_folder(const char *path, qr_error *err)
{
    if (mkdir(path, 0755) == 0)
        return QR_OK;
    if (errno != EEXIST)
        return qr_fail(err, QR_IO, "%s: cannot create the folder: %s", path, strerror(errno));
    DIR *dir = opendir(path);
    if (!dir)
        return qr_fail(err, QR_IO, "%s: cannot open the folder: %s", path, strerror(errno));
    bool empty = true;
    for (struct dirent *e; empty && (e = readdir(dir));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(dir);
    return empty ? QR_OK : qr_fail(err, QR_IO, "%s: is not empty", path);
}
