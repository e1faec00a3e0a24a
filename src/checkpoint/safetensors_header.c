#include "checkpoint/safetensors_header.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/json.h"

/* The published format bounds a header at this size. */
#define LARGEST_HEADER 100000000u

enum place { AT_START, IN_ROOT, IN_TENSOR, IN_SHAPE, IN_OFFSETS, AT_METADATA, IN_METADATA, AT_END };
enum field { FIELD_NONE = 0, FIELD_DTYPE = 1, FIELD_SHAPE = 2, FIELD_OFFSETS = 4, FIELD_ALL = 7 };

/* The pass so far. */
struct pass {
    const struct mapped_file *file;
    const struct header_sink *sink;
    qr_error *err;
    qr_status status;
    uint64_t data_at, data_size; /* where tensor bytes begin in the file, and how many there are */

    enum place place;
    bool metadata_seen;
    const char *metadata_key;

    int64_t current; /* the tensor being read, as an index of the table */
    unsigned seen;   /* fields of it */
    enum field field;
    enum dtype dtype;
    int32_t rank, offset_count;
    int64_t shape[TENSOR_MAX_RANK];
    uint64_t offsets[2];

    uint32_t *found; /* tensors of this file, in header order */
    size_t found_count, found_capacity;
};

static const char *current_name(const struct pass *p) { return p->sink->table->views[p->current].name; }

#define REFUSE(p, ...) ((p)->status = qr_fail((p)->err, QR_BAD_FILE, __VA_ARGS__), false)

static bool no_memory(struct pass *p)
{
    p->status = qr_fail(p->err, QR_NO_MEMORY, "%s: no memory for its header", p->file->path);
    return false;
}

/* A value of a kind that does not belong where it stands. */
static bool misplaced(struct pass *p, const char *what)
{
    const char *path = p->file->path;
    switch (p->place) {
    case AT_START:
        return REFUSE(p, "%s: header is %s, wanted an object", path, what);
    case AT_METADATA:
        return REFUSE(p, "%s: header: __metadata__ is %s, wanted an object", path, what);
    case IN_METADATA:
        return REFUSE(p, "%s: header: __metadata__: %s is %s, wanted a string", path, p->metadata_key, what);
    case IN_ROOT:
        return REFUSE(p, "%s: header: tensor %s is %s, wanted an object", path, current_name(p), what);
    default:
        break;
    }
    const char *field = p->field == FIELD_DTYPE ? "dtype" : p->field == FIELD_SHAPE ? "shape" : "data_offsets";
    const char *wanted = p->field == FIELD_DTYPE ? "a string" : p->place == IN_TENSOR ? "an array" : "a whole number";
    return REFUSE(p, "%s: header: tensor %s: %s holds %s, wanted %s", path, current_name(p), field, what, wanted);
}

static bool on_null(void *user) { return misplaced(user, "null"); }

static bool on_boolean(void *user, bool value) { return misplaced(user, value ? "true" : "false"); }

static bool parse_whole(const char *text, size_t length, uint64_t *out)
{
    uint64_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(text[i] - '0'), &n))
            return false;
    }
    *out = n;
    return length > 0;
}

static bool on_number(void *user, const char *text, size_t length)
{
    struct pass *p = user;
    uint64_t n;
    if (p->place != IN_SHAPE && p->place != IN_OFFSETS)
        return misplaced(p, "a number");
    const char *field = p->place == IN_SHAPE ? "shape" : "data_offsets";
    if (!parse_whole(text, length, &n) || n > INT64_MAX)
        return REFUSE(p, "%s: header: tensor %s: %s holds %.*s, wanted a whole number below 2^63", p->file->path,
                      current_name(p), field, (int)(length < 40 ? length : 40), text);
    if (p->place == IN_OFFSETS) {
        if (p->offset_count == 2)
            return REFUSE(p, "%s: header: tensor %s: data_offsets holds more than 2 numbers", p->file->path,
                          current_name(p));
        p->offsets[p->offset_count++] = n;
        return true;
    }
    if (p->rank == TENSOR_MAX_RANK)
        return REFUSE(p, "%s: header: tensor %s has more than %d dimensions", p->file->path, current_name(p),
                      TENSOR_MAX_RANK);
    p->shape[p->rank++] = (int64_t)n;
    return true;
}

static bool on_string(void *user, const char *text, size_t length)
{
    struct pass *p = user;
    if (p->place == IN_METADATA) {
        struct metadata_list *list = p->sink->metadata;
        if (!list)
            return true;
        char *copy = arena_strndup(&p->sink->table->arena, text, length);
        if (!copy || !array_grow(&list->entries, &list->capacity, list->count, sizeof *list->entries))
            return no_memory(p);
        list->entries[list->count++] = (struct metadata_entry){p->metadata_key, copy};
        return true;
    }
    if (p->place != IN_TENSOR || p->field != FIELD_DTYPE)
        return misplaced(p, "a string");
    if (!dtype_parse(text, length, &p->dtype))
        return REFUSE(p, "%s: header: tensor %s: dtype \"%.*s\" is not known", p->file->path, current_name(p),
                      (int)(length < 40 ? length : 40), text);
    return true;
}

/* A new tensor begins: finds or makes its entry. */
static bool begin_tensor(struct pass *p, const char *name, size_t length)
{
    struct tensor_table *table = p->sink->table;
    const char *path = p->file->path;
    int shown = (int)(length < 200 ? length : 200);
    if (!length || memchr(name, 0, length))
        return REFUSE(p, "%s: header: a tensor's name is empty or holds a NUL", path);
    if (!p->sink->listed) {
        bool fresh;
        p->current = tensor_table_intern(table, name, length, &fresh);
        if (p->current < 0)
            return no_memory(p);
        if (!fresh)
            return REFUSE(p, "%s: header: tensor %.*s occurs twice", path, shown, name);
    } else {
        p->current = tensor_table_find_after(table, p->current, name, length);
        if (p->current < 0)
            return REFUSE(p, "%s: tensor %.*s is not listed by the index", path, shown, name);
        int32_t shard = table->views[p->current].shard;
        if (shard != p->sink->shard)
            return REFUSE(p, "%s: holds tensor %.*s, which the index places in %s", path, shown, name,
                          p->sink->shard_name(p->sink->user, shard));
        if (table->views[p->current].dtype != DTYPE_COUNT)
            return REFUSE(p, "%s: header: tensor %.*s occurs twice", path, shown, name);
    }
    if (!array_grow(&p->found, &p->found_capacity, p->found_count, sizeof *p->found))
        return no_memory(p);
    p->found[p->found_count++] = (uint32_t)p->current;
    p->seen = 0;
    return true;
}

static bool begin_metadata_entry(struct pass *p, const char *key, size_t length)
{
    const struct metadata_list *list = p->sink->metadata;
    char *copy = arena_strndup(&p->sink->table->arena, key, length);
    if (!copy)
        return no_memory(p);
    p->metadata_key = copy;
    for (size_t i = 0; list && i < list->count; i++)
        if (!strcmp(list->entries[i].key, copy))
            return REFUSE(p, "%s: header: __metadata__: %s occurs twice", p->file->path, copy);
    return true;
}

static bool begin_field(struct pass *p, const char *key, size_t length)
{
    static const struct {
        const char *name;
        enum field field;
    } fields[] = {{"dtype", FIELD_DTYPE}, {"shape", FIELD_SHAPE}, {"data_offsets", FIELD_OFFSETS}};
    for (size_t i = 0; i < 3; i++) {
        if (strlen(fields[i].name) != length || memcmp(fields[i].name, key, length) != 0)
            continue;
        if (p->seen & fields[i].field)
            return REFUSE(p, "%s: header: tensor %s: %s occurs twice", p->file->path, current_name(p), fields[i].name);
        p->seen |= fields[i].field;
        p->field = fields[i].field;
        return true;
    }
    return REFUSE(p, "%s: header: tensor %s: field \"%.*s\" is not known", p->file->path, current_name(p),
                  (int)(length < 40 ? length : 40), key);
}

static bool on_key(void *user, const char *key, size_t length)
{
    struct pass *p = user;
    if (p->place == IN_METADATA)
        return begin_metadata_entry(p, key, length);
    if (p->place == IN_TENSOR)
        return begin_field(p, key, length);
    if (length == strlen("__metadata__") && !memcmp(key, "__metadata__", length)) {
        if (p->metadata_seen)
            return REFUSE(p, "%s: header: __metadata__ occurs twice", p->file->path);
        p->metadata_seen = true;
        p->place = AT_METADATA;
        return true;
    }
    return begin_tensor(p, key, length);
}

static bool on_start_object(void *user)
{
    struct pass *p = user;
    switch (p->place) {
    case AT_START:
        p->place = IN_ROOT;
        return true;
    case AT_METADATA:
        p->place = IN_METADATA;
        return true;
    case IN_ROOT:
        p->place = IN_TENSOR;
        return true;
    default:
        return misplaced(p, "an object");
    }
}

static bool on_start_array(void *user)
{
    struct pass *p = user;
    if (p->place != IN_TENSOR || p->field == FIELD_DTYPE)
        return misplaced(p, "an array");
    if (p->field == FIELD_SHAPE) {
        p->place = IN_SHAPE;
        p->rank = 0;
    } else {
        p->place = IN_OFFSETS;
        p->offset_count = 0;
    }
    return true;
}

static bool on_end_array(void *user)
{
    struct pass *p = user;
    if (p->place == IN_OFFSETS && p->offset_count != 2)
        return REFUSE(p, "%s: header: tensor %s: data_offsets holds %d numbers, wanted 2", p->file->path,
                      current_name(p), p->offset_count);
    p->place = IN_TENSOR;
    return true;
}

/* The bytes that dtype and shape ask for; -1 when they overflow. F4 counts nibbles in files and bytes here: its last
 * dimension is halved, unless the file already counts bytes. */
static int64_t bytes_wanted(struct pass *p, uint64_t held)
{
    int64_t elements = tensor_elements(p->rank, p->shape), bytes;
    if (elements < 0 || __builtin_mul_overflow(elements, (int64_t)dtype_size(p->dtype), &bytes))
        return -1;
    if (p->dtype == DTYPE_F4 && p->rank && p->shape[p->rank - 1] % 2 == 0 && held == (uint64_t)bytes / 2) {
        p->shape[p->rank - 1] /= 2;
        bytes /= 2;
    }
    return bytes;
}

static bool end_tensor(struct pass *p)
{
    const char *path = p->file->path, *name = current_name(p);
    if (p->seen != FIELD_ALL)
        return REFUSE(p, "%s: header: tensor %s has no %s", path, name,
                      !(p->seen & FIELD_DTYPE)   ? "dtype"
                      : !(p->seen & FIELD_SHAPE) ? "shape"
                                                 : "data_offsets");
    uint64_t begin = p->offsets[0], end = p->offsets[1];
    if (begin > end)
        return REFUSE(p, "%s: tensor %s: data_offsets [%llu, %llu] run backwards", path, name,
                      (unsigned long long)begin, (unsigned long long)end);
    if (end > p->data_size)
        return REFUSE(p, "%s: tensor %s ends at data byte %llu, the file holds %llu (truncated?)", path, name,
                      (unsigned long long)end, (unsigned long long)p->data_size);
    char text[200];
    int64_t wanted = bytes_wanted(p, end - begin);
    if (wanted < 0)
        return REFUSE(p, "%s: tensor %s: shape %s of %s overflows", path, name,
                      shape_text(p->rank, p->shape, text, sizeof text), dtype_name(p->dtype));
    if ((uint64_t)wanted != end - begin)
        return REFUSE(p, "%s: tensor %s: data_offsets hold %llu bytes, %s of shape %s wants %lld", path, name,
                      (unsigned long long)(end - begin), dtype_name(p->dtype),
                      shape_text(p->rank, p->shape, text, sizeof text), (long long)wanted);
    int64_t *shape = tensor_table_shape(p->sink->table, p->rank);
    if (!shape)
        return no_memory(p);
    memcpy(shape, p->shape, (size_t)p->rank * sizeof *shape);
    struct tensor_view *view = &p->sink->table->views[p->current];
    view->dtype = p->dtype;
    view->rank = p->rank;
    view->shape = shape;
    view->data = p->file->data + p->data_at + begin;
    view->bytes = end - begin;
    view->shard = p->sink->shard;
    return true;
}

static bool on_end_object(void *user)
{
    struct pass *p = user;
    if (p->place == IN_TENSOR) {
        p->place = IN_ROOT;
        return end_tensor(p);
    }
    p->place = p->place == IN_METADATA ? IN_ROOT : AT_END;
    return true;
}

static int by_place(const void *left, const void *right)
{
    const struct tensor_view *a = *(const struct tensor_view *const *)left,
                             *b = *(const struct tensor_view *const *)right;
    if (a->data != b->data)
        return (const uint8_t *)a->data < (const uint8_t *)b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* The tensors must tile the data: no overlap, no gap, nothing left over. */
static bool check_tiling(struct pass *p)
{
    const struct tensor_view *views = p->sink->table->views, **order = NULL;
    const uint8_t *base = p->file->data + p->data_at;
    bool sorted = true, ok = false;
    order = qr_malloc(p->found_count * sizeof *order);
    if (!order)
        return no_memory(p);
    for (size_t i = 0; i < p->found_count; i++) {
        order[i] = &views[p->found[i]];
        sorted = sorted && (!i || by_place(&order[i - 1], &order[i]) <= 0);
    }
    if (!sorted)
        qsort(order, p->found_count, sizeof *order, by_place);
    uint64_t at = 0;
    for (size_t i = 0; i < p->found_count; i++) {
        uint64_t begin = (uint64_t)((const uint8_t *)order[i]->data - base);
        if (begin != at) {
            ok = REFUSE(p, "%s: tensor %s begins at data byte %llu, %s ends at %llu: %s", p->file->path, order[i]->name,
                        (unsigned long long)begin, i ? order[i - 1]->name : "nothing", (unsigned long long)at,
                        begin < at ? "they overlap" : "a gap");
            goto cleanup;
        }
        at = begin + order[i]->bytes;
    }
    if (at != p->data_size) {
        ok = REFUSE(p, "%s: the tensors end at data byte %llu, the file holds %llu", p->file->path,
                    (unsigned long long)at, (unsigned long long)p->data_size);
        goto cleanup;
    }
    ok = true;
cleanup:
    qr_free(order);
    return ok;
}

/* Gives every tensor data that its element type can be read from. */
static bool align_data(struct pass *p)
{
    struct tensor_table *table = p->sink->table;
    for (size_t i = 0; i < p->found_count; i++) {
        struct tensor_view *view = &table->views[p->found[i]];
        if ((uintptr_t)view->data % dtype_size(view->dtype) == 0)
            continue;
        void *copy = arena_alloc(&table->arena, view->bytes);
        if (!copy)
            return no_memory(p);
        memcpy(copy, view->data, view->bytes);
        view->data = copy;
    }
    return true;
}

qr_status safetensors_header_read(const struct mapped_file *file, const struct header_sink *sink, qr_error *err)
{
    static const struct json_events events = {on_null,         on_boolean,    on_number,      on_string,   on_key,
                                              on_start_object, on_end_object, on_start_array, on_end_array};
    struct pass p = {.file = file, .sink = sink, .err = err, .status = QR_OK};
    uint64_t length = 0;
    if (file->size < 8)
        return qr_fail(err, QR_BAD_FILE, "%s: %llu bytes, a safetensors file has at least 8", file->path,
                       (unsigned long long)file->size);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | file->data[i];
    if (length > LARGEST_HEADER)
        return qr_fail(err, QR_BAD_FILE, "%s: header of %llu bytes, at most %u are allowed", file->path,
                       (unsigned long long)length, LARGEST_HEADER);
    if (length > file->size - 8)
        return qr_fail(err, QR_BAD_FILE, "%s: header of %llu bytes, the file holds %llu after its length (truncated?)",
                       file->path, (unsigned long long)length, (unsigned long long)(file->size - 8));
    p.data_at = 8 + length;
    p.data_size = file->size - p.data_at;
    if (!length || file->data[8] != '{')
        return qr_fail(err, QR_BAD_FILE, "%s: header does not begin with {", file->path);

    qr_status st = json_scan((const char *)file->data + 8, length, file->path, &events, &p, err);
    if (p.status != QR_OK)
        st = p.status;
    if (st == QR_OK && !(check_tiling(&p) && align_data(&p)))
        st = p.status;
    qr_free(p.found);
    return st;
}
