#include "tools/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"

void findings_add(struct findings *f, const char *format, ...)
{
    char text[1200];
    qr_error printable = {0}; /* UTF-8, whatever was quoted */
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    qr_fail(&printable, QR_BAD_FILE, "%s", text);
    char *kept = arena_strndup(&f->arena, printable.message, strlen(printable.message));
    if (!kept || !array_grow(&f->items, &f->capacity, f->count, sizeof *f->items)) {
        f->no_memory = true;
        return;
    }
    f->items[f->count++] = kept;
}

void findings_free(struct findings *f)
{
    qr_free(f->items);
    arena_free(&f->arena);
    *f = (struct findings){0};
}
