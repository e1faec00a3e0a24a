/* fresh_folder.h: the folder that a tool fills: whole at the end, or as it was found. */
#ifndef QR_TOOLS_FRESH_FOLDER_H
#define QR_TOOLS_FRESH_FOLDER_H

#include <stdbool.h>

#include "base/status.h"

/* Makes the folder, or accepts an empty one. *made (may be NULL): it was not there. The refusal of one that is not empty
 * says what it holds, and how to go on. */
qr_status fresh_folder(const char *path, bool *made, qr_error *err);

/* A folder being filled. One at a time: the signals are the program's. Zero-initialise. */
struct filling {
    const char *path;
    bool made;
};

/* As fresh_folder. From here on the signals that end a program by a wish (SIGINT, SIGTERM, SIGHUP) are noted, once. */
qr_status filling_open(struct filling *f, const char *path, qr_error *err);

/* QR_CANCELLED once a signal is noted; to be asked between pieces of work. */
qr_status filling_check(const struct filling *f, qr_error *err);

/* The end. Without `whole` it removes the files that checkpoints are made of, and the folder where it made it. Does
 * nothing to one that was not opened. */
void filling_close(struct filling *f, bool whole);

/* Ends the program as a noted signal would have; returns when there was none. */
void filling_obey_signal(void);

#endif
