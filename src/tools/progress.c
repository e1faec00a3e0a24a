#define _GNU_SOURCE
#include "tools/progress.h"

#include <stdio.h>
#include <unistd.h>

void progress_start(struct progress *p, const char *what, uint64_t total, bool quiet)
{
    *p = (struct progress){.what = what, .total = total, .shown = !quiet && isatty(STDERR_FILENO)};
}

void progress_add(struct progress *p, uint64_t bytes)
{
    p->done += bytes;
    if (p->shown)
        fprintf(stderr, "\r\033[K%s: %.2f of %.2f GB", p->what, (double)p->done / 1e9, (double)p->total / 1e9);
}

void progress_end(struct progress *p)
{
    if (p->shown)
        fprintf(stderr, "\r\033[K");
}
