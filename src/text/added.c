#define _GNU_SOURCE
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static int compare_bytes(const uint8_t *a, size_t n, const uint8_t *b, size_t m)
{
    int order = memcmp(a, b, n < m ? n : m);
    if (order)
        return order;
    return n < m ? -1 : n > m;
}

static int compare_ids(const void *a, const void *b, void *user)
{
    const struct vocab *vocab = user;
    size_t n, m;
    const uint8_t *left = vocab_bytes(vocab, *(const int32_t *)a, &n);
    const uint8_t *right = vocab_bytes(vocab, *(const int32_t *)b, &m);
    return compare_bytes(left, n, right, m);
}

qr_status added_open(const struct vocab *vocab, struct added *out, qr_error *err)
{
    *out = (struct added){.vocab = vocab};
    for (size_t id = 0; id < vocab->count; id++)
        out->count += vocab->entries[id].kind >= VOCAB_ADDED;
    out->by_content = qr_malloc(out->count * sizeof *out->by_content);
    if (!out->by_content)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu added tokens", out->count);
    size_t n = 0;
    for (size_t id = 0; id < vocab->count; id++)
        if (vocab->entries[id].kind >= VOCAB_ADDED)
            out->by_content[n++] = (int32_t)id;
    qsort_r(out->by_content, n, sizeof *out->by_content, compare_ids, (void *)(uintptr_t)vocab);
    size_t i = 0;
    for (int byte = 0; byte <= 256; byte++) {
        size_t length;
        while (i < n && byte < 256 && vocab_bytes(vocab, out->by_content[i], &length)[0] < byte)
            i++;
        out->first[byte] = byte < 256 ? (int32_t)i : (int32_t)n;
    }
    return QR_OK;
}

void added_free(struct added *added)
{
    qr_free(added->by_content);
    *added = (struct added){0};
}

int32_t added_find(const struct added *added, const char *content, size_t length)
{
    size_t low = 0, high = added->count;
    while (low < high) {
        size_t middle = (low + high) / 2, n;
        const uint8_t *bytes = vocab_bytes(added->vocab, added->by_content[middle], &n);
        int order = compare_bytes((const uint8_t *)content, length, bytes, n);
        if (order == 0)
            return added->by_content[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

/* The first of by_content[low .. high) whose byte `depth` is at least `byte`. All of them are equal before `depth` and
 * longer than it. */
static size_t lower_bound(const struct added *added, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        size_t middle = (low + high) / 2, n;
        if (vocab_bytes(added->vocab, added->by_content[middle], &n)[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest added token that the text starts with, or -1. Walks the sorted contents as one would a trie: byte by
 * byte, the range of those that agree so far shrinks; the one that ends here is the first of the range. */
static int32_t longest_prefix(const struct added *added, const uint8_t *text, size_t n, size_t *length)
{
    int32_t found = -1;
    size_t low = (size_t)added->first[text[0]], high = (size_t)added->first[text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        size_t bytes;
        vocab_bytes(added->vocab, added->by_content[low], &bytes);
        if (bytes == depth) {
            found = added->by_content[low++];
            *length = depth;
        }
        if (depth == n)
            break;
        low = lower_bound(added, low, high, depth, text[depth]);
        high = lower_bound(added, low, high, depth, text[depth] + 1);
    }
    return found;
}

int32_t added_search(const struct added *added, const uint8_t *text, size_t n, size_t from, size_t *at, size_t *length)
{
    for (size_t i = from; i < n; i++) {
        if (added->first[text[i]] == added->first[text[i] + 1])
            continue;
        int32_t id = longest_prefix(added, text + i, n - i, length);
        if (id >= 0) {
            *at = i;
            return id;
        }
    }
    return -1;
}
