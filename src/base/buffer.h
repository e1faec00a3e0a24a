/* buffer.h: a growing byte string. */
#ifndef QR_BASE_BUFFER_H
#define QR_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise. `data` is NUL-terminated once anything was appended. `failed` is set by the first append that found
 * no memory; later appends do nothing, so that a caller may check once at the end. */
struct buffer {
    char *data;
    size_t length, capacity;
    bool failed;
};

bool buffer_append(struct buffer *b, const void *data, size_t length);
bool buffer_puts(struct buffer *b, const char *s);
bool buffer_printf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool buffer_reserve(struct buffer *b, size_t capacity);
void buffer_clear(struct buffer *b); /* keeps the memory */
void buffer_free(struct buffer *b);

/* Makes room for one more element of a plain array: grows *array (elements of `size` bytes) so that *capacity > count.
 * false without memory, the array unchanged. */
bool array_grow(void *array_pointer, size_t *capacity, size_t count, size_t size);

#endif
