#include "checkpoint/checkpoint_index.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"

/* Published folders have some dozens. The list is searched from its end, so that the bound keeps a hostile index cheap. */
enum { LARGEST_SHARD_COUNT = 4096 };

static bool is_named(const struct shard_list *list, size_t i, const char *name, size_t length)
{
    return !strncmp(list->names[i], name, length) && !list->names[i][length];
}

int32_t shard_list_find(struct shard_list *list, const char *name, size_t length)
{
    if (list->count && is_named(list, list->latest, name, length)) /* names arrive in runs */
        return (int32_t)list->latest;
    for (size_t i = list->count; i-- > 0;)
        if (is_named(list, i, name, length)) {
            list->latest = i;
            return (int32_t)i;
        }
    return -1;
}

int32_t shard_list_add(struct shard_list *list, struct arena *arena, const char *name, size_t length)
{
    if (list->count >= LARGEST_SHARD_COUNT ||
        !array_grow(&list->names, &list->capacity, list->count, sizeof *list->names))
        return -1;
    const char *copy = arena_strndup(arena, name, length);
    if (!copy)
        return -1;
    list->names[list->count] = copy;
    list->latest = list->count++;
    return (int32_t)list->latest;
}

void shard_list_free(struct shard_list *list)
{
    qr_free(list->names);
    *list = (struct shard_list){0};
}

enum place { AT_START, IN_ROOT, AT_WEIGHT_MAP, IN_WEIGHT_MAP, AT_OTHER, AT_END };

/* The pass so far. `depth` counts the objects and arrays of a member other than weight_map, which is skipped. */
struct pass {
    const char *name;
    struct tensor_table *table;
    struct shard_list *shards;
    qr_error *err;
    qr_status status;
    enum place place;
    int depth;
    bool map_seen;
    int64_t current;
};

#define REFUSE(p, ...) ((p)->status = qr_fail((p)->err, QR_BAD_FILE, __VA_ARGS__), false)

static bool no_memory(struct pass *p)
{
    p->status = qr_fail(p->err, QR_NO_MEMORY, "%s: no memory for its names", p->name);
    return false;
}

/* A value that is neither a string of weight_map nor part of a skipped member is refused. */
static bool scalar(struct pass *p, const char *what)
{
    switch (p->place) {
    case AT_OTHER:
        if (!p->depth)
            p->place = IN_ROOT;
        return true;
    case AT_START:
        return REFUSE(p, "%s: is %s, wanted an object", p->name, what);
    case AT_WEIGHT_MAP:
        return REFUSE(p, "%s: weight_map is %s, wanted an object", p->name, what);
    default:
        return REFUSE(p, "%s: weight_map: %s is %s, wanted a file name", p->name, p->table->views[p->current].name,
                      what);
    }
}

static bool on_null(void *user) { return scalar(user, "null"); }

static bool on_boolean(void *user, bool value) { return scalar(user, value ? "true" : "false"); }

static bool on_number(void *user, const char *text, size_t length)
{
    (void)text;
    (void)length;
    return scalar(user, "a number");
}

/* A plain relative path below the folder: not empty, not absolute, no "..", no NUL. */
static bool stays_inside(const char *file, size_t length)
{
    if (!length || file[0] == '/' || memchr(file, 0, length))
        return false;
    for (size_t begin = 0; begin <= length;) {
        size_t end = begin;
        while (end < length && file[end] != '/')
            end++;
        if (end - begin == 2 && file[begin] == '.' && file[begin + 1] == '.')
            return false;
        begin = end + 1;
    }
    return true;
}

static bool on_string(void *user, const char *text, size_t length)
{
    struct pass *p = user;
    if (p->place != IN_WEIGHT_MAP)
        return scalar(p, "a string");
    int32_t shard = shard_list_find(p->shards, text, length);
    if (shard < 0 && !stays_inside(text, length))
        return REFUSE(p, "%s: weight_map: %s is in \"%.*s\", which is no file of the folder", p->name,
                      p->table->views[p->current].name, (int)(length < 200 ? length : 200), text);
    if (shard < 0)
        shard = shard_list_add(p->shards, &p->table->arena, text, length);
    if (shard < 0)
        return p->shards->count >= LARGEST_SHARD_COUNT
                   ? REFUSE(p, "%s: weight_map names more than %d files", p->name, LARGEST_SHARD_COUNT)
                   : no_memory(p);
    p->table->views[p->current].shard = shard;
    return true;
}

static bool on_key(void *user, const char *key, size_t length)
{
    struct pass *p = user;
    if (p->place == AT_OTHER)
        return true;
    if (p->place == IN_ROOT) {
        bool map = length == strlen("weight_map") && !memcmp(key, "weight_map", length);
        if (map && p->map_seen)
            return REFUSE(p, "%s: weight_map occurs twice", p->name);
        p->map_seen = p->map_seen || map;
        p->place = map ? AT_WEIGHT_MAP : AT_OTHER;
        return true;
    }
    if (!length || memchr(key, 0, length))
        return REFUSE(p, "%s: weight_map: a tensor's name is empty or holds a NUL", p->name);
    bool fresh;
    p->current = tensor_table_intern(p->table, key, length, &fresh);
    if (p->current < 0)
        return no_memory(p);
    if (!fresh)
        return REFUSE(p, "%s: weight_map: tensor %.*s occurs twice", p->name, (int)(length < 200 ? length : 200), key);
    return true;
}

static bool on_start_object(void *user)
{
    struct pass *p = user;
    switch (p->place) {
    case AT_START:
        p->place = IN_ROOT;
        return true;
    case AT_WEIGHT_MAP:
        p->place = IN_WEIGHT_MAP;
        return true;
    case AT_OTHER:
        p->depth++;
        return true;
    default:
        return scalar(p, "an object");
    }
}

static bool on_end_object(void *user)
{
    struct pass *p = user;
    if (p->place == AT_OTHER) {
        p->depth--;
        if (!p->depth)
            p->place = IN_ROOT;
    } else {
        p->place = p->place == IN_WEIGHT_MAP ? IN_ROOT : AT_END;
    }
    return true;
}

static bool on_start_array(void *user)
{
    struct pass *p = user;
    if (p->place != AT_OTHER)
        return scalar(p, "an array");
    p->depth++;
    return true;
}

static bool on_end_array(void *user) { return on_end_object(user); }

qr_status checkpoint_index_parse(const char *data, size_t size, const char *name, struct tensor_table *table,
                                 struct shard_list *shards, qr_error *err)
{
    static const struct json_events events = {on_null,         on_boolean,    on_number,      on_string,   on_key,
                                              on_start_object, on_end_object, on_start_array, on_end_array};
    struct pass p = {.name = name, .table = table, .shards = shards, .err = err};
    qr_status st = json_scan(data, size, name, &events, &p, err);
    if (p.status != QR_OK)
        return p.status;
    if (st == QR_OK && !p.map_seen)
        return qr_fail(err, QR_BAD_FILE, "%s: has no weight_map", name);
    return st;
}

qr_status checkpoint_index_read(const char *path, struct tensor_table *table, struct shard_list *shards, qr_error *err)
{
    struct mapped_file file;
    qr_status st = file_map(path, &file, err);
    if (st != QR_OK)
        return st;
    st = checkpoint_index_parse(file.data ? (const char *)file.data : "", file.size, path, table, shards, err);
    file_unmap(&file);
    return st;
}
