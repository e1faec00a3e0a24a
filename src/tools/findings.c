#include "tools/findings.h"

#include <stdarg.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/sentence.h"

void findings_add(struct findings *f, const char *format, ...)
{
    char text[1000];
    va_list ap;
    va_start(ap, format);
    size_t length = sentence_format(text, sizeof text, format, ap);
    va_end(ap);
    char *kept = arena_strndup(&f->arena, text, length);
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
