#include "text/vocab.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "text/byte_map.h"

enum { MAX_STRING = 64 << 10, FIRST_SLOTS = 1024 };

/* The slot that holds the string, or the empty one where it belongs. */
static size_t find_slot(const struct vocab *v, const char *s, size_t length)
{
    size_t slot = XXH3_64bits(s, length) & v->slot_mask;
    for (;; slot = (slot + 1) & v->slot_mask) {
        if (v->slots[slot] < 0)
            return slot;
        const struct vocab_entry *e = &v->entries[v->slots[slot]];
        if (e->string_length == length && memcmp(v->text.data + e->string, s, length) == 0)
            return slot;
    }
}

/* Keeps the table at most half full. */
static bool grow_slots(struct vocab *v)
{
    size_t slots = v->slots ? (v->slot_mask + 1) * 2 : FIRST_SLOTS;
    int32_t *old = v->slots;
    if (old && v->used * 2 <= v->slot_mask)
        return true;
    int32_t *fresh = qr_malloc(slots * sizeof *fresh);
    if (!fresh)
        return false;
    memset(fresh, 0xFF, slots * sizeof *fresh);
    v->slots = fresh;
    v->slot_mask = slots - 1;
    for (size_t id = 0; id < v->count; id++)
        if (v->entries[id].kind != VOCAB_HOLE) {
            const struct vocab_entry *e = &v->entries[id];
            v->slots[find_slot(v, v->text.data + e->string, e->string_length)] = (int32_t)id;
        }
    qr_free(old);
    return true;
}

static bool grow_entries(struct vocab *v, size_t count)
{
    if (count > v->capacity) {
        size_t capacity = v->capacity * 2 > count ? v->capacity * 2 : count;
        struct vocab_entry *entries = qr_realloc_array(v->entries, capacity, sizeof *entries);
        if (!entries)
            return false;
        v->entries = entries;
        v->capacity = capacity;
    }
    while (v->count < count)
        v->entries[v->count++] = (struct vocab_entry){0};
    return true;
}

/* Stores the string and, where they differ, the bytes. */
static bool store(struct vocab *v, struct vocab_entry *e, const char *s, size_t length)
{
    size_t mapped;
    e->string = e->bytes = (uint32_t)v->text.length;
    e->string_length = e->bytes_length = (uint32_t)length;
    if (!buffer_append(&v->text, s, length) || !buffer_append(&v->text, "", 1))
        return false;
    if (e->kind != VOCAB_BASE)
        return true;
    if (!buffer_reserve(&v->text, v->text.length + length))
        return false;
    uint8_t *bytes = (uint8_t *)v->text.data + v->text.length;
    if (!byte_map_to_bytes(s, length, bytes, &mapped) || (mapped == length && memcmp(bytes, s, length) == 0))
        return true;
    e->bytes = (uint32_t)v->text.length;
    e->bytes_length = (uint32_t)mapped;
    v->text.length += mapped;
    return true;
}

qr_status vocab_add(struct vocab *v, int32_t id, const char *s, size_t length, enum vocab_kind kind, qr_error *err)
{
    struct vocab_entry e = {.kind = (uint8_t)kind};
    if (id < 0 || id > VOCAB_MAX_ID)
        return qr_fail(err, QR_BAD_FILE, "token \"%.100s\" has id %d, ids are 0 to %d", s, id, VOCAB_MAX_ID);
    if (length > MAX_STRING || v->text.length > UINT32_MAX / 2)
        return qr_fail(err, QR_BAD_FILE, "token %d has a string of %zu bytes, at most %d are possible", id, length,
                       MAX_STRING);
    if (!grow_slots(v) || !grow_entries(v, (size_t)id + 1 > v->count ? (size_t)id + 1 : v->count))
        goto no_memory;
    if (v->entries[id].kind != VOCAB_HOLE)
        return qr_fail(err, QR_BAD_FILE, "id %d belongs to two tokens, \"%.100s\" and \"%.100s\"", id,
                       v->text.data + v->entries[id].string, s);
    size_t slot = find_slot(v, s, length);
    if (v->slots[slot] >= 0)
        return qr_fail(err, QR_BAD_FILE, "token \"%.100s\" has two ids, %d and %d", s, v->slots[slot], id);
    if (!store(v, &e, s, length))
        goto no_memory;
    v->entries[id] = e;
    v->slots[slot] = id;
    v->used++;
    return QR_OK;

no_memory:
    return qr_fail(err, QR_NO_MEMORY, "no memory for token %d", id);
}

void vocab_promote(struct vocab *v, int32_t id, enum vocab_kind kind)
{
    struct vocab_entry *e = &v->entries[id];
    e->kind = (uint8_t)kind;
    e->bytes = e->string;
    e->bytes_length = e->string_length;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t length)
{
    return v->slots ? v->slots[find_slot(v, s, length)] : -1;
}

const char *vocab_string(const struct vocab *v, int32_t id, size_t *length)
{
    *length = v->entries[id].string_length;
    return v->text.data + v->entries[id].string;
}

const uint8_t *vocab_bytes(const struct vocab *v, int32_t id, size_t *length)
{
    *length = v->entries[id].bytes_length;
    return (const uint8_t *)v->text.data + v->entries[id].bytes;
}

void vocab_free(struct vocab *v)
{
    qr_free(v->entries);
    qr_free(v->slots);
    buffer_free(&v->text);
    *v = (struct vocab){0};
}
