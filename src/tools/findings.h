/* findings.h: sentences about what is wrong, collected in the order found. */
#ifndef QR_TOOLS_FINDINGS_H
#define QR_TOOLS_FINDINGS_H

#include "base/arena.h"
#include "base/status.h"

/* Zero-initialise, then arena_init; free with findings_free. */
struct findings {
    struct arena arena;
    const char **items;
    size_t count, capacity;
    bool no_memory; /* some sentence was lost */
};

void findings_add(struct findings *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
void findings_free(struct findings *f);

#endif
