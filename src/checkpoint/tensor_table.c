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

/* The slot of the name, or the empty slot where it belongs. */
static size_t slot_of(const struct tensor_table *t, const char *name, size_t length)
{
    size_t mask = t->slot_count - 1, slot = (size_t)XXH3_64bits(name, length) & mask;
    for (; t->slots[slot]; slot = (slot + 1) & mask) {
        const char *other = t->views[t->slots[slot] - 1].name;
        if (!strncmp(other, name, length) && !other[length])
            break;
    }
    return slot;
}

int64_t tensor_table_find(const struct tensor_table *t, const char *name, size_t length)
{
    if (!t->slot_count)
        return -1;
    return (int64_t)t->slots[slot_of(t, name, length)] - 1;
}

/* Twice the slots, at most half full. */
static bool grow_slots(struct tensor_table *t)
{
    size_t wanted = t->slot_count ? t->slot_count * 2 : FIRST_SLOTS;
    uint32_t *fresh = qr_calloc(wanted, sizeof *fresh);
    if (!fresh)
        return false;
    qr_free(t->slots);
    t->slots = fresh;
    t->slot_count = wanted;
    for (size_t i = 0; i < t->count; i++) {
        const char *name = t->views[i].name;
        t->slots[slot_of(t, name, strlen(name))] = (uint32_t)i + 1;
    }
    return true;
}

int64_t tensor_table_add(struct tensor_table *t, const char *name, size_t length)
{
    if (t->count >= UINT32_MAX / 2 || !array_grow(&t->views, &t->capacity, t->count, sizeof *t->views))
        return -1;
    if (2 * (t->count + 1) > t->slot_count && !grow_slots(t))
        return -1;
    char *copy = arena_strndup(&t->arena, name, length);
    if (!copy)
        return -1;
    t->slots[slot_of(t, name, length)] = (uint32_t)t->count + 1;
    t->views[t->count] = (struct tensor_view){.name = copy, .dtype = DTYPE_COUNT};
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
