#define _GNU_SOURCE
#include "text/token_map.h"

#include <string.h>
#include <utf8proc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/utf8.h"
#include "text/byte_map.h"
#include "text/utf8.h"

/* Stands for a text that is one space while the ends are trimmed; the specification's own choice. */
enum { KEPT_SPACE = 0xE000 };

/* The longest decomposition of one character is 18 characters (U+FDFA); a character in UTF-8 has one byte at least. */
enum { MAX_DECOMPOSITION = 18 };

/* What one token needs, kept from token to token. */
struct work {
    struct buffer text;     /* the token's bytes as text */
    struct buffer composed; /* that in NFKC */
    utf8proc_int32_t *points;
    size_t capacity;
};

/* A key and its number, in open addressing; number -1: empty. */
struct key_slot {
    uint32_t start, length; /* in `keys` */
    int32_t number;
};

struct dictionary {
    struct buffer keys;
    struct key_slot *slots;
    size_t slot_mask;
    int32_t count;
};

/* ---- the key of a token ---- */

static bool reserve_points(struct work *w, size_t n)
{
    if (n <= w->capacity)
        return true;
    utf8proc_int32_t *points = qr_realloc_array(w->points, n, sizeof *points);
    if (!points)
        return false;
    w->points = points;
    w->capacity = n;
    return true;
}

/* Decomposes `text` into w->points, composing again when the options say so. */
static qr_status normalize(struct work *w, const struct buffer *text, utf8proc_option_t options, size_t *count,
                           qr_error *err)
{
    if (!reserve_points(w, text->length * MAX_DECOMPOSITION))
        return qr_fail(err, QR_NO_MEMORY, "token map: no memory to normalise %zu bytes", text->length);
    utf8proc_ssize_t found = utf8proc_decompose((const utf8proc_uint8_t *)text->data, (utf8proc_ssize_t)text->length,
                                                w->points, (utf8proc_ssize_t)w->capacity, options);
    if (found >= 0 && (options & UTF8PROC_COMPOSE))
        found = utf8proc_normalize_utf32(w->points, found, options);
    if (found < 0 || (size_t)found > w->capacity)
        return qr_fail(err, QR_INTERNAL, "token map: %s", utf8proc_errmsg(found));
    *count = (size_t)found;
    return QR_OK;
}

static bool append_point(struct buffer *out, uint32_t cp)
{
    uint8_t bytes[4];
    return buffer_append(out, bytes, utf8_encode(cp, bytes));
}

static bool is_mark(utf8proc_int32_t cp)
{
    utf8proc_category_t category = utf8proc_category(cp);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

static bool is_blank(utf8proc_int32_t cp) { return cp == ' ' || cp == '\t' || cp == '\r' || cp == '\n'; }

/* Deletes marks, lowers the case and makes each run of blanks one space, in place. Returns what is left. */
static size_t fold(utf8proc_int32_t *points, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (is_mark(points[i]))
            continue;
        utf8proc_int32_t cp = is_blank(points[i]) ? ' ' : utf8proc_tolower(points[i]);
        if (cp != ' ' || n == 0 || points[n - 1] != ' ')
            points[n++] = cp;
    }
    return n;
}

/* Step 5: appends the normal form of w->text to `key`; nothing when none is left of it. */
static qr_status append_normal_form(struct work *w, struct buffer *key, qr_error *err)
{
    size_t count, from = 0;
    qr_status st = normalize(w, &w->text, UTF8PROC_COMPAT | UTF8PROC_COMPOSE | UTF8PROC_STABLE, &count, err);
    if (st != QR_OK)
        return st;
    buffer_clear(&w->composed);
    for (size_t i = 0; i < count; i++)
        if (!append_point(&w->composed, (uint32_t)w->points[i]))
            return qr_fail(err, QR_NO_MEMORY, "token map: no memory for a text of %zu bytes", w->text.length);
    if ((st = normalize(w, &w->composed, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &count, err)) != QR_OK)
        return st;
    count = fold(w->points, count);
    if (count == 1 && w->points[0] == ' ')
        w->points[0] = KEPT_SPACE;
    while (from < count && char_is_space((uint32_t)w->points[from]))
        from++;
    while (count > from && char_is_space((uint32_t)w->points[count - 1]))
        count--;
    for (size_t i = from; i < count; i++)
        append_point(key, w->points[i] == KEPT_SPACE ? ' ' : (uint32_t)w->points[i]);
    return key->failed ? qr_fail(err, QR_NO_MEMORY, "token map: no memory for a key") : QR_OK;
}

/* Steps 1 and 2: the bytes that the string stands for, or the string's own. */
static bool string_bytes(const char *s, size_t length, struct buffer *out)
{
    size_t n;
    buffer_clear(out);
    if (!buffer_reserve(out, length))
        return false;
    if (!byte_map_to_bytes(s, length, (uint8_t *)out->data, &n))
        return buffer_append(out, s, length);
    out->length = n;
    return true;
}

/* Appends the key of token `id` to `key`. */
static qr_status append_key(struct work *w, const struct tokenizer *tok, int32_t id, struct buffer *key, qr_error *err)
{
    size_t length, start = key->length;
    const char *s = tok_string(tok, id, &length);
    if (!string_bytes(s, length, &w->text))
        return qr_fail(err, QR_NO_MEMORY, "token map: no memory for token %d", id);
    const struct buffer *text = &w->text;
    if (utf8_valid_prefix(text->data, text->length) < text->length ||
        memmem(text->data, text->length, "\xEF\xBF\xBD", 3)) {
        buffer_append(key, s, length); /* step 4 */
    } else {
        qr_status st = append_normal_form(w, key, err);
        if (st != QR_OK)
            return st;
        if (key->length == start)
            buffer_append(key, text->data, text->length);
    }
    return key->failed ? qr_fail(err, QR_NO_MEMORY, "token map: no memory for the key of token %d", id) : QR_OK;
}

/* ---- numbers ---- */

static bool dictionary_open(struct dictionary *d, size_t keys)
{
    size_t slots = 16;
    while (slots < keys * 2)
        slots *= 2;
    d->slots = qr_malloc(slots * sizeof *d->slots);
    if (!d->slots)
        return false;
    memset(d->slots, 0xFF, slots * sizeof *d->slots);
    d->slot_mask = slots - 1;
    return true;
}

static void dictionary_close(struct dictionary *d)
{
    buffer_free(&d->keys);
    qr_free(d->slots);
}

/* The number of the key that was appended to d->keys from `start` on; one that is known already is taken off again. */
static int32_t dictionary_number(struct dictionary *d, size_t start)
{
    const char *key = d->keys.data + start;
    size_t length = d->keys.length - start;
    for (size_t i = XXH3_64bits(key, length) & d->slot_mask;; i = (i + 1) & d->slot_mask) {
        struct key_slot *slot = &d->slots[i];
        if (slot->number < 0) {
            *slot = (struct key_slot){(uint32_t)start, (uint32_t)length, d->count};
            return d->count++;
        }
        if (slot->length == length && memcmp(d->keys.data + slot->start, key, length) == 0) {
            d->keys.length = start;
            return slot->number;
        }
    }
}

static qr_status allocate(struct token_map *map, int32_t count, qr_error *err)
{
    *map = (struct token_map){.count = count};
    map->number = qr_malloc((size_t)count * sizeof *map->number);
    return map->number ? QR_OK : qr_fail(err, QR_NO_MEMORY, "token map: no memory for %d ids", count);
}

qr_status token_map_build(const struct tokenizer *tok, struct token_map *out, qr_error *err)
{
    struct work work = {0};
    struct dictionary numbers = {0};
    qr_status st = allocate(out, tok_count(tok), err);
    if (st == QR_OK && !dictionary_open(&numbers, (size_t)out->count))
        st = qr_fail(err, QR_NO_MEMORY, "token map: no memory for %d keys", out->count);
    for (int32_t id = 0; id < out->count && st == QR_OK; id++) {
        size_t start = numbers.keys.length;
        if ((st = append_key(&work, tok, id, &numbers.keys, err)) != QR_OK)
            break;
        if (numbers.keys.length > UINT32_MAX)
            st = qr_fail(err, QR_BAD_FILE, "token map: its keys have more than 4 GiB");
        else
            out->number[id] = (uint32_t)dictionary_number(&numbers, start);
    }
    out->keys = numbers.count;
    buffer_free(&work.text);
    buffer_free(&work.composed);
    qr_free(work.points);
    dictionary_close(&numbers);
    if (st != QR_OK)
        token_map_free(out);
    return st;
}

qr_status token_map_identity(int32_t count, struct token_map *out, qr_error *err)
{
    qr_status st = allocate(out, count, err);
    for (int32_t id = 0; st == QR_OK && id < count; id++)
        out->number[id] = (uint32_t)id;
    out->keys = st == QR_OK ? count : 0;
    return st;
}

void token_map_free(struct token_map *map)
{
    qr_free(map->number);
    *map = (struct token_map){0};
}
