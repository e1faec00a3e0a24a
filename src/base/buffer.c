#define _GNU_SOURCE
#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

bool buffer_reserve(struct buffer *b, size_t capacity)
{
    if (b->failed)
        return false;
    if (capacity < b->capacity)
        return true;
    size_t want = b->capacity ? b->capacity * 2 : 64;
    if (want <= capacity)
        want = capacity + 1;
    char *data = qr_realloc(b->data, want);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = want;
    return true;
}

bool buffer_append(struct buffer *b, const void *data, size_t length)
{
    if (!buffer_reserve(b, b->length + length))
        return false;
    if (length)
        memcpy(b->data + b->length, data, length);
    b->length += length;
    b->data[b->length] = 0;
    return true;
}

bool buffer_puts(struct buffer *b, const char *s) { return buffer_append(b, s, strlen(s)); }

bool buffer_printf(struct buffer *b, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n < 0 || !buffer_reserve(b, b->length + (size_t)n))
        return false;
    va_start(ap, format);
    vsnprintf(b->data + b->length, (size_t)n + 1, format, ap);
    va_end(ap);
    b->length += (size_t)n;
    return true;
}

void buffer_clear(struct buffer *b)
{
    b->length = 0;
    if (b->data)
        b->data[0] = 0;
}

void buffer_free(struct buffer *b)
{
    qr_free(b->data);
    *b = (struct buffer){0};
}

bool array_grow(void *array_pointer, size_t *capacity, size_t count, size_t size)
{
    void **array = array_pointer;
    if (count < *capacity)
        return true;
    size_t want = *capacity ? *capacity * 2 : 16;
    if (want <= count)
        want = count + 1;
    void *p = qr_realloc_array(*array, want, size);
    if (!p)
        return false;
    *array = p;
    *capacity = want;
    return true;
}
