#define _GNU_SOURCE
#include "serve/keys.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"

enum { MOST_BYTES = 1 << 20 };

void keys_free(struct keys *keys)
{
    qr_free(keys->text);
    qr_free(keys->items);
    *keys = (struct keys){0};
}

static size_t count_lines(const char *text)
{
    size_t lines = 1;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

qr_status keys_read(const char *path, struct keys *out, qr_error *err)
{
    size_t size;
    char *rest = NULL;
    *out = (struct keys){0};
    TRY(file_read(path, MOST_BYTES, &out->text, &size, err));
    out->items = qr_calloc(count_lines(out->text), sizeof *out->items);
    if (!out->items) {
        keys_free(out);
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the keys", path);
    }
    for (char *line = strtok_r(out->text, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest)) {
        line += strspn(line, " \t");
        line[strcspn(line, " \t")] = '\0';
        if (*line && *line != '#')
            out->items[out->count++] = line;
    }
    if (out->count)
        return QR_OK;
    keys_free(out);
    return qr_fail(err, QR_BAD_FILE, "%s: no key in it, wanted one a line", path);
}

/* Looks at every byte of the given key whatever the other holds. */
static unsigned differs(const char *given, size_t length, const char *key)
{
    const size_t wanted = strlen(key);
    unsigned difference = length != wanted;
    for (size_t i = 0; i < length; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)key[wanted ? i % wanted : 0];
    return difference;
}

bool keys_allow(const struct keys *keys, const char *key)
{
    unsigned matches = keys->count == 0;
    const size_t length = key ? strlen(key) : 0;
    for (size_t i = 0; key && i < keys->count; i++)
        matches += differs(key, length, keys->items[i]) == 0;
    return matches > 0;
}
