#include "tools/op_dims.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/tensor_table.h"

static int32_t find(const struct op_dims *d, const char *name, size_t length)
{
    for (int32_t i = 0; i < d->count; i++)
        if (d->items[i].length == length && memcmp(d->items[i].name, name, length) == 0)
            return i;
    return -1;
}

static void bind(struct op_dims *d, const char *name, size_t length, int64_t value)
{
    if (find(d, name, length) >= 0 || d->count == DIMS_MAX)
        return;
    d->items[d->count].name = name;
    d->items[d->count].length = length;
    d->items[d->count++].value = value;
}

void dims_bind(struct op_dims *d, const char *name, int64_t value) { bind(d, name, strlen(name), value); }

void dims_set(struct op_dims *d, const char *name, int64_t value)
{
    int32_t i = find(d, name, strlen(name));
    if (i < 0)
        dims_bind(d, name, value);
    else
        d->items[i].value = value;
}

bool dims_has(const struct op_dims *d, const char *name) { return find(d, name, strlen(name)) >= 0; }

/* A number, name, product or quotient; false when a name is free. */
static bool value_of(const struct op_dims *d, const char *word, size_t length, int64_t *out)
{
    int64_t value = 1;
    char before = '*';
    for (size_t at = 0; at < length; at++) {
        size_t n = 0;
        int64_t factor;
        while (at + n < length && word[at + n] != '*' && word[at + n] != '/')
            n++;
        if (isdigit((unsigned char)word[at])) {
            factor = strtoll(word + at, NULL, 10);
        } else {
            int32_t i = find(d, word + at, n);
            if (i < 0)
                return false;
            factor = d->items[i].value;
        }
        if (before == '/')
            value = factor ? value / factor : 0;
        else if (__builtin_mul_overflow(value, factor, &value))
            return false;
        at += n;
        before = at < length ? word[at] : '*';
    }
    *out = value;
    return true;
}

int64_t dims_value(const struct op_dims *d, const char *word)
{
    int64_t value = 0;
    return value_of(d, word, strlen(word), &value) ? value : 0;
}

static bool next_word(const char **words, const char **word, size_t *length)
{
    const char *at = *words + strspn(*words, " ");
    *word = at;
    *length = strcspn(at, " ");
    *words = at + *length;
    return *length > 0;
}

static int32_t count_words(const char *words)
{
    const char *word;
    size_t length;
    int32_t n = 0;
    while (next_word(&words, &word, &length))
        n++;
    return n;
}

/* "[T, H*d] = [8, 512]" */
static void wanted_text(const struct op_dims *d, const char *words, char *out, size_t size)
{
    const char *all = words, *word;
    size_t length, used = 0;
    int64_t value;
    for (int pass = 0; pass < 2; pass++) {
        const char *separator = pass ? " = [" : "[";
        words = all;
        while (next_word(&words, &word, &length) && used < size) {
            if (pass && value_of(d, word, length, &value))
                used += (size_t)snprintf(out + used, size - used, "%s%lld", separator, (long long)value);
            else
                used += (size_t)snprintf(out + used, size - used, "%s%.*s", separator, (int)length, word);
            separator = ", ";
        }
        if (used < size)
            used += (size_t)snprintf(out + used, size - used, "]");
    }
}

qr_status dims_match(struct op_dims *d, const char *array, const char *words, int32_t rank, const int64_t *shape,
                     qr_error *err)
{
    const char *at = words, *word;
    size_t length;
    bool fits = count_words(words) == rank;
    for (int32_t i = 0; fits && next_word(&at, &word, &length); i++) {
        int64_t value;
        if (length == 1 && *word == '*')
            continue;
        if (value_of(d, word, length, &value))
            fits = value == shape[i];
        else if (!memchr(word, '*', length) && !memchr(word, '/', length))
            bind(d, word, length, shape[i]);
        else
            fits = false;
    }
    if (fits)
        return QR_OK;
    char found[128], wanted[256];
    wanted_text(d, words, wanted, sizeof wanted);
    return qr_fail(err, QR_BAD_REQUEST, "bad shape: %s is %s, wanted %s", array, shape_text(rank, shape, found, sizeof found),
                   wanted);
}

int32_t dims_shape(const struct op_dims *d, const char *words, int64_t *shape)
{
    const char *word;
    size_t length;
    int32_t rank = 0;
    while (rank < TENSOR_MAX_RANK && next_word(&words, &word, &length)) {
        int64_t value = 0;
        value_of(d, word, length, &value);
        shape[rank++] = value;
    }
    return rank;
}
