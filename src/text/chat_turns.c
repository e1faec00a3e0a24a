#include "text/chat_turns.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static void append_blocks(struct chat_message *to, const struct chat_message *from)
{
    to->last_block->next = from->blocks;
    to->last_block = from->last_block;
}

/* ---- systems ---- */

static void join_leading_systems(struct chat_messages *m)
{
    size_t leading = 0;
    while (leading < m->count && m->items[leading].role == CHAT_SYSTEM)
        leading++;
    if (leading < 2)
        return;
    for (size_t i = 1; i < leading; i++) {
        append_blocks(&m->items[0], &m->items[i]);
        m->items[0].task = m->items[i].task;
    }
    memmove(m->items + 1, m->items + leading, (m->count - leading) * sizeof *m->items);
    m->count -= leading - 1;
}

static void turn_later_systems_into_users(struct chat_messages *m)
{
    for (size_t i = 1; i < m->count; i++)
        if (m->items[i].role == CHAT_SYSTEM)
            m->items[i].role = CHAT_USER;
}

static qr_status insert_system(struct chat_messages *m, qr_error *err)
{
    struct chat_block *empty = arena_alloc(&m->arena, sizeof *empty);
    if (!empty)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a system message");
    empty->text = "";
    memmove(m->items + 1, m->items, m->count * sizeof *m->items);
    m->items[0] = (struct chat_message){.role = CHAT_SYSTEM, .blocks = empty, .last_block = empty, .reasoning = ""};
    m->count++;
    return QR_OK;
}

/* ---- step 1: merge ---- */

static bool joins(const struct chat_message *before, const struct chat_message *m)
{
    if (!before || before->role != CHAT_USER)
        return false;
    return m->role == CHAT_TOOL || (m->role == CHAT_USER && !before->task);
}

static void merge(struct chat_messages *m)
{
    size_t kept = 0;
    for (size_t i = 0; i < m->count; i++) {
        struct chat_message *before = kept ? &m->items[kept - 1] : NULL, *here = &m->items[i];
        if (joins(before, here)) {
            append_blocks(before, here);
            if (here->role == CHAT_USER)
                before->task = here->task;
            continue;
        }
        if (here->role == CHAT_TOOL) {
            here->role = CHAT_USER;
            here->task = NULL;
        }
        m->items[kept++] = *here;
    }
    m->count = kept;
}

/* ---- step 2: sort tool results by their calls ---- */

struct call_place {
    const struct json *id;
    size_t index;
};

static int compare_ids(const struct json *a, const struct json *b)
{
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    return memcmp(a->text, b->text, a->length);
}

static int compare_places(const void *a, const void *b)
{
    const struct call_place *x = a, *y = b;
    int order = compare_ids(x->id, y->id);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* The calls of the latest assistant message that has any, by id. */
struct call_map {
    struct call_place *places;
    size_t count;
};

static bool map_calls(const struct chat_message *m, struct arena *arena, struct call_map *map)
{
    size_t index = 0;
    map->count = 0;
    map->places = arena_alloc(arena, m->call_count * sizeof *map->places);
    if (!map->places)
        return false;
    for (const struct chat_call *c = m->calls; c; c = c->next, index++)
        if (c->id)
            map->places[map->count++] = (struct call_place){c->id, index};
    qsort(map->places, map->count, sizeof *map->places, compare_places);
    return true;
}

/* Of equal ids the last call counts; an unknown id counts as the first call. */
static size_t place_of(const struct call_map *map, const struct json *id)
{
    size_t low = 0, high = map->count; /* the first place behind `id` is in low..high */
    if (!id)
        return 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_ids(map->places[middle].id, id) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && compare_ids(map->places[low - 1].id, id) == 0 ? map->places[low - 1].index : 0;
}

struct result {
    struct chat_block block;
    size_t place, position;
};

static int compare_results(const void *a, const void *b)
{
    const struct result *x = a, *y = b;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

/* Results change places among themselves; what stands between them stays. */
static bool sort_results(struct chat_message *m, const struct call_map *map)
{
    size_t count = 0, i = 0;
    for (const struct chat_block *b = m->blocks; b; b = b->next)
        count += b->kind == BLOCK_RESULT;
    if (count < 2)
        return true;
    struct result *results = qr_malloc(count * sizeof *results);
    if (!results)
        return false;
    for (const struct chat_block *b = m->blocks; b; b = b->next)
        if (b->kind == BLOCK_RESULT) {
            results[i] = (struct result){*b, place_of(map, b->call_id), i};
            i++;
        }
    qsort(results, count, sizeof *results, compare_results);
    i = 0;
    for (struct chat_block *b = m->blocks; b; b = b->next)
        if (b->kind == BLOCK_RESULT) {
            b->call_id = results[i].block.call_id;
            b->parts = results[i++].block.parts;
        }
    qr_free(results);
    return true;
}

static qr_status sort_all_results(struct chat_messages *m, qr_error *err)
{
    struct call_map map = {0};
    bool ok = true;
    for (size_t i = 0; i < m->count && ok; i++) {
        struct chat_message *here = &m->items[i];
        if (here->role == CHAT_ASSISTANT && here->calls)
            ok = map_calls(here, &m->arena, &map);
        else if (here->role == CHAT_USER)
            ok = sort_results(here, &map);
    }
    return ok ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory to sort tool results");
}

/* ---- all of it ---- */

qr_status chat_turns_arrange(struct chat_messages *m, enum chat_profile profile, bool needs_system, qr_error *err)
{
    if (profile != CHAT_V41) {
        join_leading_systems(m);
        turn_later_systems_into_users(m);
    }
    if (needs_system && m->items[0].role != CHAT_SYSTEM) {
        qr_status st = insert_system(m, err);
        if (st != QR_OK)
            return st;
    }
    merge(m);
    return sort_all_results(m, err);
}

int64_t chat_turns_last_user(const struct chat_messages *m, enum chat_profile profile)
{
    for (size_t i = m->count; i-- > 0;)
        if (m->items[i].role == CHAT_USER || (profile == CHAT_V41 && m->items[i].role == CHAT_SYSTEM && i > 0))
            return (int64_t)i;
    return -1;
}
