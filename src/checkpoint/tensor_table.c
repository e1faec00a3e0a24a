#include "checkpoint/tensor_table.h"

#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/alloc.h"
#include "base/buffer.h"

enum { FIRST_SLOTS = 64 };

void tensor_table_init(struct tensor_table *t)
{
    *t = (struct tensor_table){0};
    arena_init(&t->arena, 0);
}

void tensor_table_free(struct tensor_table *t)
{
    arena_free(&t->arena);
    qr_free(t->views);
    qr_free(t->slots);
    tensor_table_init(t);
}

static uint32_t hash_of(const char *name, size_t length) { return (uint32_t)XXH3_64bits(name, length); }

/* The slot of the name, or the empty slot where it belongs. */
static struct tensor_slot *slot_of(const struct tensor_table *t, uint32_t hash, const char *name, size_t length)
{
    size_t mask = t->slot_count - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct tensor_slot *slot = &t->slots[i];
        if (!slot->index)
            return slot;
        if (slot->hash != hash)
            continue;
        const char *other = t->views[slot->index - 1].name;
        if (!strncmp(other, name, length) && !other[length])
            return slot;
    }
}

int64_t tensor_table_find_after(const struct tensor_table *t, int64_t before, const char *name, size_t length)
{
    for (int64_t i = before + 1; i < (int64_t)t->count && i <= before + 2; i++)
        if (!strncmp(t->views[i].name, name, length) && !t->views[i].name[length])
            return i;
    return tensor_table_find(t, name, length);
}

int64_t tensor_table_find(const struct tensor_table *t, const char *name, size_t length)
{
    if (!t->slot_count)
        return -1;
    return (int64_t)slot_of(t, hash_of(name, length), name, length)->index - 1;
}

/* Twice the slots. */
static bool grow_slots(struct tensor_table *t)
{
    size_t wanted = t->slot_count ? t->slot_count * 2 : FIRST_SLOTS;
    struct tensor_slot *fresh = qr_calloc(wanted, sizeof *fresh);
    if (!fresh)
        return false;
    for (size_t i = 0; i < t->slot_count; i++) {
        if (!t->slots[i].index)
            continue;
        size_t at = t->slots[i].hash & (wanted - 1);
        while (fresh[at].index)
            at = (at + 1) & (wanted - 1);
        fresh[at] = t->slots[i];
    }
    qr_free(t->slots);
    t->slots = fresh;
    t->slot_count = wanted;
    return true;
}

int64_t tensor_table_intern(struct tensor_table *t, const char *name, size_t length, bool *fresh)
{
    *fresh = false;
    if (t->count >= UINT32_MAX / 2 || !array_grow(&t->views, &t->capacity, t->count, sizeof *t->views))
        return -1;
    if (4 * (t->count + 1) > 3 * t->slot_count && !grow_slots(t)) /* at most three quarters full */
        return -1;
    uint32_t hash = hash_of(name, length);
    struct tensor_slot *slot = slot_of(t, hash, name, length);
    if (slot->index)
        return (int64_t)slot->index - 1;
    char *copy = arena_strndup(&t->arena, name, length);
    if (!copy)
        return -1;
    t->views[t->count] = (struct tensor_view){.name = copy, .dtype = DTYPE_COUNT};
    *slot = (struct tensor_slot){hash, (uint32_t)t->count + 1};
    *fresh = true;
    return (int64_t)t->count++;
}

int64_t *tensor_table_shape(struct tensor_table *t, int32_t rank)
{
    return arena_alloc(&t->arena, (size_t)(rank ? rank : 1) * sizeof(int64_t));
}

const char *shape_text(int32_t rank, const int64_t *shape, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int32_t i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
    return out;
}
