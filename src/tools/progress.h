/* progress.h: how far a long reading is, on standard error, and only where that is a terminal. */
#ifndef QR_TOOLS_PROGRESS_H
#define QR_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "values", "checksums" */
    uint64_t done, total; /* bytes */
    bool shown;
};

/* `quiet`: nothing is shown anywhere. */
void progress_start(struct progress *p, const char *what, uint64_t total, bool quiet);
void progress_add(struct progress *p, uint64_t bytes);
/* Takes the line away. */
void progress_end(struct progress *p);

#endif
