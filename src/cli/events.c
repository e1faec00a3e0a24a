#include "cli/events.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/jsonl.h"
#include "base/status.h"

static const struct {
    const char *name;
    qr_injection what;
    bool of_request;
} ops[] = {{"cancel", QR_INJECT_CANCEL, true},
           {"preempt", QR_INJECT_PREEMPT, true},
           {"drop_images", QR_INJECT_DROP_IMAGES, false},
           {"drop_cache", QR_INJECT_DROP_CACHE, false},
           {"relocate", QR_INJECT_RELOCATE, true},
           {"reverse", QR_INJECT_REVERSE, false}};
enum { OPS = sizeof ops / sizeof *ops };

/* ---- reading ---- */

static qr_status read_id(const struct json *id, char **out, qr_error *err)
{
    const char *text;
    size_t length;
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for an id");
    json_w_value(w, id);
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK && !(*out = qr_strndup(text, length)))
        st = qr_fail(err, QR_NO_MEMORY, "no memory for an id");
    json_writer_close(w);
    return st;
}

static bool is_named(const struct json *member, const char *name)
{
    return member->key_length == strlen(name) && memcmp(member->key, name, member->key_length) == 0;
}

static qr_status read_line(const char *path, uint64_t number, const struct json *root, struct event_line *out, qr_error *err)
{
    const struct json *op = json_get(root, "op"), *id = json_get(root, "id");
    int64_t at;
    int i = 0;
    for (const struct json *m = root->child; m; m = m->next)
        if (!is_named(m, "at_step") && !is_named(m, "op") && !is_named(m, "id"))
            return qr_fail(err, QR_BAD_REQUEST, "%s: line %llu: \"%.*s\" is none of at_step, op and id", path,
                           (unsigned long long)number, (int)(m->key_length < 60 ? m->key_length : 60), m->key);
    if (!json_int64(json_get(root, "at_step"), &at) || at < 0)
        return qr_fail(err, QR_BAD_REQUEST, "%s: line %llu: at_step is no whole number from 0", path,
                       (unsigned long long)number);
    while (i < OPS && !(op && json_equals(op, ops[i].name)))
        i++;
    if (i == OPS)
        return qr_fail(err, QR_BAD_REQUEST,
                       "%s: line %llu: op is none of cancel, preempt, drop_images, drop_cache, relocate, reverse", path,
                       (unsigned long long)number);
    if (ops[i].of_request && !id)
        return qr_fail(err, QR_BAD_REQUEST, "%s: line %llu: %s without the id of a request", path,
                       (unsigned long long)number, ops[i].name);
    *out = (struct event_line){.number = number, .at_step = (uint64_t)at, .what = ops[i].what};
    return ops[i].of_request ? read_id(id, &out->id, err) : QR_OK;
}

static qr_status read_lines(struct jsonl_reader *reader, const char *path, struct event_list *out, qr_error *err)
{
    for (;;) {
        struct json_document *doc = NULL;
        qr_status st = jsonl_next(reader, &doc, err);
        if (st != QR_OK || !doc)
            return st;
        if (array_grow(&out->lines, &out->capacity, out->count, sizeof *out->lines))
            st = read_line(path, reader->number, json_root(doc), &out->lines[out->count], err);
        else
            st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for event %zu", path, out->count + 1);
        json_close(doc);
        if (st != QR_OK)
            return st;
        out->count++;
    }
}

qr_status events_read(const char *path, struct event_list *out, qr_error *err)
{
    struct jsonl_reader reader;
    FILE *file = fopen(path, "re");
    *out = (struct event_list){0};
    if (!file)
        return qr_fail(err, QR_BAD_FILE, "%s: cannot open: %s", path, strerror(errno));
    jsonl_open(&reader, file, path);
    const qr_status st = read_lines(&reader, path, out, err);
    jsonl_close(&reader);
    fclose(file);
    return st;
}

void events_free(struct event_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        qr_free(list->lines[i].id);
    qr_free(list->lines);
}

/* ---- handing over ---- */

qr_status events_start(const struct event_list *list, qr_engine *engine, qr_error *err)
{
    qr_status st = QR_OK;
    for (size_t i = 0; st == QR_OK && i < list->count; i++)
        if (!list->lines[i].id)
            st = qr_inject(engine, list->lines[i].what, 0, list->lines[i].at_step, err);
    return st;
}

qr_status events_of(const struct event_list *list, const char *id, qr_engine *engine, qr_handle handle, qr_error *err)
{
    qr_status st = QR_OK;
    for (size_t i = 0; st == QR_OK && i < list->count; i++)
        if (list->lines[i].id && strcmp(list->lines[i].id, id) == 0)
            st = qr_inject(engine, list->lines[i].what, handle, list->lines[i].at_step, err);
    return st;
}
