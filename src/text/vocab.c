#include "text/vocab.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "text/byte_map.h"

enum { MAX_STRING = 64 << 10, FIRST_SLOTS = 1024 };

static uint64_t head_of(const char *s, size_t length)
{
    uint64_t head = 0;
    memcpy(&head, s, length < sizeof head ? length : sizeof head);
    return head;
}

/* The slot that holds the string, or the empty one where it belongs. */
static struct vocab_slot *find_slot(const struct vocab *v, const char *s, size_t length)
{
    uint64_t head = head_of(s, length);
    for (size_t i = XXH3_64bits(s, length) & v->slot_mask;; i = (i + 1) & v->slot_mask) {
        struct vocab_slot *slot = &v->slots[i];
        if (slot->id < 0)
            return slot;
        if (slot->head != head || slot->length != length)
            continue;
        if (length <= sizeof head || memcmp(v->text.data + v->entries[slot->id].string, s, length) == 0)
            return slot;
    }
}

static void fill_slot(struct vocab_slot *slot, int32_t id, const char *s, size_t length)
{
    *slot = (struct vocab_slot){head_of(s, length), (uint32_t)length, id};
}

/* Moves to a table of at least `wanted` slots, a power of two. */
static bool grow_slots(struct vocab *v, size_t wanted)
{
    size_t slots = FIRST_SLOTS;
    while (slots < wanted)
        slots *= 2;
    struct vocab_slot *fresh = qr_malloc(slots * sizeof *fresh);
    if (!fresh)
        return false;
    for (size_t i = 0; i < slots; i++)
        fresh[i] = (struct vocab_slot){.id = -1};
    qr_free(v->slots);
    v->slots = fresh;
    v->slot_mask = slots - 1;
    for (size_t id = 0; id < v->count; id++)
        if (v->entries[id].kind != VOCAB_HOLE) {
            const struct vocab_entry *e = &v->entries[id];
            const char *s = v->text.data + e->string;
            fill_slot(find_slot(v, s, e->string_length), (int32_t)id, s, e->string_length);
        }
    return true;
}

static bool grow_entries(struct vocab *v, size_t capacity)
{
    struct vocab_entry *entries = qr_realloc_array(v->entries, capacity, sizeof *entries);
    if (!entries)
        return false;
    v->entries = entries;
    v->capacity = capacity;
    return true;
}

bool vocab_reserve(struct vocab *v, size_t count)
{
    return (count <= v->capacity || grow_entries(v, count)) &&
           ((v->slots && count * 2 <= v->slot_mask + 1) || grow_slots(v, count * 2));
}

/* Room for one more token, whose id is `id`. The table of slots stays at most half full. */
static bool make_room(struct vocab *v, size_t id)
{
    if ((!v->slots || v->used * 2 > v->slot_mask) && !grow_slots(v, v->used * 4))
        return false;
    if (id >= v->capacity && !grow_entries(v, v->capacity * 2 > id ? v->capacity * 2 : id + 1))
        return false;
    while (v->count <= id)
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
    if (!make_room(v, (size_t)id))
        goto no_memory;
    if (v->entries[id].kind != VOCAB_HOLE)
        return qr_fail(err, QR_BAD_FILE, "id %d belongs to two tokens, \"%.100s\" and \"%.100s\"", id,
                       v->text.data + v->entries[id].string, s);
    struct vocab_slot *slot = find_slot(v, s, length);
    if (slot->id >= 0)
        return qr_fail(err, QR_BAD_FILE, "token \"%.100s\" has two ids, %d and %d", s, slot->id, id);
    if (!store(v, &e, s, length))
        goto no_memory;
    v->entries[id] = e;
    fill_slot(slot, id, s, length);
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
    return v->slots ? find_slot(v, s, length)->id : -1;
}

int32_t vocab_find_likely(const struct vocab *v, const char *s, size_t length, int32_t guess)
{
    if (guess >= 0 && (size_t)guess < v->count && v->entries[guess].kind != VOCAB_HOLE) {
        const struct vocab_entry *e = &v->entries[guess];
        if (e->string_length == length && memcmp(v->text.data + e->string, s, length) == 0)
            return guess;
    }
    return vocab_find(v, s, length);
}

void vocab_expect(const struct vocab *v, const char *s, size_t length)
{
    if (v->slots)
        __builtin_prefetch(&v->slots[XXH3_64bits(s, length) & v->slot_mask]);
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
