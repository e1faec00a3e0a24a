/* verify_sums.h: a list of checksums as sha256sum writes it, against the files of a folder. */
#ifndef QR_TOOLS_VERIFY_SUMS_H
#define QR_TOOLS_VERIFY_SUMS_H

#include "tools/verify_files.h"

/* Reads `list` ("<64 hex>  name" or "<64 hex> *name" a line) and hashes every file that it names, whole. Adds to `found`: a
 * line of another form; a name that is absolute or leaves the folder, or stands twice; a file that cannot be read; one whose
 * hash is another; a file of the folder that the list lacks (hidden ones, subfolders and the list itself apart). Fails where
 * the list or the folder cannot be read, or without memory. */
qr_status verify_sums(const char *dir, const char *list, struct worker_pool *pool, bool quiet, struct files_report *out,
                      struct findings *found, qr_error *err);

#endif
