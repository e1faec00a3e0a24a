#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/jsonl.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/events.h"
#include "cli/interrupt.h"
#include "cli/loaded.h"
#include "cli/plural.h"
#include "cli/request_members.h"
#include "cli/sampling_options.h"

struct generate_options {
    struct model_options model;
    struct sampling_options sampling;
    const char *requests, *events;
    int concurrency;
    uint64_t shuffle;
    bool has_shuffle;
};

/* One line of the requests' file and what came of it. */
struct item {
    struct json_document *doc;
    const struct json *id_value; /* NULL: it has none, and its number from 0 is its id */
    struct json_writer *id;     /* the id as JSON text */
    const char *id_text;
    size_t id_length;
    struct request_text request;
    qr_handle handle;
    bool submitted, done;
    qr_tokens tokens;           /* generated */
    size_t room;
    struct buffer text;
    struct buffer logprobs;     /* JSON numbers, when asked for */
    qr_finish finish;
    qr_usage usage;
    qr_error error;
};

struct work {
    struct loaded loaded;
    struct event_list events;
    struct item *items;
    size_t count, capacity;
    bool quiet, warned;
    bool interrupted;           /* no request is begun any more */
};

/* ---- reading ---- */

static qr_status read_items(struct work *w, const char *path, qr_error *err)
{
    struct jsonl_reader reader;
    qr_status st = QR_OK;
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!file)
        return qr_fail(err, QR_BAD_FILE, "%s: cannot open: %s", path, strerror(errno));
    jsonl_open(&reader, file, path);
    for (;;) {
        struct json_document *doc = NULL;
        qr_error line_error = {0};
        st = jsonl_next(&reader, &doc, &line_error);
        if (st == QR_OK && !doc)
            break;
        if (st != QR_OK && st != QR_BAD_REQUEST) {
            if (err)
                *err = line_error;
            break;
        }
        if (!array_grow(&w->items, &w->capacity, w->count, sizeof *w->items)) {
            json_close(doc);
            st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for request %zu", path, w->count + 1);
            break;
        }
        w->items[w->count++] = (struct item){.doc = doc, .error = line_error};
    }
    jsonl_close(&reader);
    if (file != stdin)
        fclose(file);
    return st;
}

/* The id as it is written back: the member's own JSON text; of a line that is no JSON null. */
static qr_status note_id(struct item *item, size_t number, qr_error *err)
{
    item->id = json_writer_open(false);
    if (!item->id)
        return qr_fail(err, QR_NO_MEMORY, "no memory for an id");
    item->id_value = item->doc ? json_get(json_root(item->doc), "id") : NULL;
    if (item->id_value)
        json_w_value(item->id, item->id_value);
    else if (item->doc)
        json_w_uint(item->id, number);
    else
        json_w_null(item->id);
    return json_finish(item->id, &item->id_text, &item->id_length, err);
}

static int by_id_text(const void *a, const void *b)
{
    const struct item *x = *(const struct item *const *)a, *y = *(const struct item *const *)b;
    const int order = strcmp(x->id_text, y->id_text);
    return order ? order : (x > y) - (x < y);
}

/* Answers are told apart by id, and so are events: a line whose id stands on an earlier one fails. */
static qr_status refuse_twins(struct work *w, qr_error *err)
{
    struct item **sorted = qr_calloc(w->count + 1, sizeof *sorted), *first = NULL;
    if (!sorted)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu requests", w->count);
    for (size_t i = 0; i < w->count; i++)
        sorted[i] = &w->items[i];
    qsort(sorted, w->count, sizeof *sorted, by_id_text);
    for (size_t i = 0; i < w->count; i++) {
        struct item *item = sorted[i];
        if (!item->doc)
            continue;
        if (first && strcmp(first->id_text, item->id_text) == 0)
            qr_fail(&item->error, QR_BAD_REQUEST, "id: %s stands on line %td already", item->id_text, first - w->items + 1);
        else
            first = item;
    }
    qr_free(sorted);
    return QR_OK;
}

/* Every event of a request must find it. */
static qr_status check_events(const struct work *w, const char *path, qr_error *err)
{
    for (size_t e = 0; e < w->events.count; e++) {
        const struct event_line *event = &w->events.lines[e];
        bool found = !event->id;
        for (size_t i = 0; !found && i < w->count; i++)
            found = w->items[i].doc && strcmp(w->items[i].id_text, event->id) == 0;
        if (!found)
            return qr_fail(err, QR_BAD_REQUEST, "%s: line %llu: id %s is that of no request", path,
                           (unsigned long long)event->number, event->id);
    }
    return QR_OK;
}

static void shuffle(size_t *order, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n; i > 1; i--) {
        seed += 0x9E3779B97F4A7C15u; /* splitmix64 */
        uint64_t z = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        const size_t j = (size_t)((z ^ z >> 31) % i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

/* ---- running ---- */

/* A warning for the first line with a member that nobody reads; one is enough for a file of such lines. */
static void warn_of_members(struct work *w, const struct item *item)
{
    char sentence[200];
    if (w->warned || w->quiet || !request_members_ignored(json_root(item->doc), sentence, sizeof sentence))
        return;
    fprintf(stderr, "quire: warn: request %s: %s\n", item->id_text, sentence);
    w->warned = true;
}

static qr_status submit(struct work *w, struct item *item, const struct sampling_options *defaults)
{
    warn_of_members(w, item);
    qr_status st = request_from_json(w->loaded.model, json_root(item->doc), defaults, &item->request, &item->error);
    if (st == QR_OK)
        st = qr_submit(w->loaded.engine, &item->request.request, NULL, NULL, &item->handle, &item->error);
    if (st == QR_OK)
        st = events_of(&w->events, item->id_text, w->loaded.engine, item->handle, &item->error);
    item->submitted = st == QR_OK;
    item->done = st != QR_OK;
    return st;
}

static bool keep_event(struct item *item, const qr_event *event)
{
    if (event->token >= 0) {
        if (!array_grow(&item->tokens.data, &item->room, item->tokens.count, sizeof *item->tokens.data))
            return false;
        item->tokens.data[item->tokens.count++] = event->token;
        if (event->logprob.rank > 0)
            buffer_printf(&item->logprobs, "%s%.9g", item->logprobs.length ? "," : "", (double)event->logprob.logprob);
    }
    return buffer_append(&item->text, event->text, event->text ? event->text_length : 0);
}

/* Takes what has come for a request, waiting a little; true when it has ended. */
static bool drain(struct work *w, struct item *item, int timeout_ms)
{
    qr_event event;
    qr_error err = {0};
    while (qr_poll(w->loaded.engine, item->handle, timeout_ms, &event, &err) == QR_OK) {
        timeout_ms = 0;
        if (!keep_event(item, &event)) {
            qr_fail(&item->error, QR_NO_MEMORY, "no memory for the answer");
            qr_release(w->loaded.engine, item->handle);
            return true;
        }
        if (event.finish == QR_FINISH_NONE)
            continue;
        item->finish = event.finish;
        if (event.error)
            item->error = *event.error;
        qr_get_usage(w->loaded.engine, item->handle, &item->usage, NULL);
        qr_release(w->loaded.engine, item->handle);
        return true;
    }
    return err.status != QR_BUSY;
}

/* Ends what runs; what was not begun says why. */
static void interrupt(struct work *w)
{
    w->interrupted = true;
    for (size_t i = 0; i < w->count; i++) {
        struct item *item = &w->items[i];
        if (item->submitted && !item->done)
            qr_cancel(w->loaded.engine, item->handle);
        else if (!item->submitted && item->error.status == QR_OK)
            qr_fail(&item->error, QR_CANCELLED, "interrupted before it was begun");
    }
}

/* One more than runs at once waits for each that runs, so that no step lacks a request for want of a poll. */
static void run_items(struct work *w, const struct generate_options *o, const size_t *order)
{
    size_t next = 0, running = 0, first = 0;
    const size_t ahead = o->concurrency > 1 ? 2 * (size_t)o->concurrency : 1;
    while (first < w->count) {
        if (!w->interrupted && interrupt_taken())
            interrupt(w);
        while (next < w->count && running < ahead) {
            struct item *item = &w->items[order[next++]];
            if (item->error.status != QR_OK)
                item->done = true;
            else if (submit(w, item, &o->sampling) == QR_OK)
                running++;
        }
        while (first < next && w->items[order[first]].done)
            first++;
        for (size_t i = first; i < next; i++) {
            struct item *item = &w->items[order[i]];
            if (item->done || !drain(w, item, i == first ? 50 : 0))
                continue;
            item->done = true;
            running--;
        }
        if (!o->model.quiet && isatty(STDERR_FILENO))
            fprintf(stderr, "\r%zu of %zu", first, w->count);
    }
    if (!o->model.quiet && isatty(STDERR_FILENO))
        fprintf(stderr, "\n");
}

/* ---- writing ---- */

static void write_item(struct json_writer *w, const struct item *item)
{
    json_w_object(w);
    json_w_key(w, "id");
    json_w_raw(w, item->id_text, item->id_length);
    if (item->error.status != QR_OK) {
        json_w_member_string(w, "error", item->error.message);
        json_w_end_object(w);
        return;
    }
    json_w_key(w, "tokens");
    json_w_array(w);
    for (size_t i = 0; i < item->tokens.count; i++)
        json_w_int(w, item->tokens.data[i]);
    json_w_end_array(w);
    json_w_member_string_n(w, "text", item->text.data, item->text.length);
    json_w_member_string(w, "finish_reason", qr_finish_name(item->finish));
    json_w_member_int(w, "cached_tokens", item->usage.cached_tokens);
    json_w_key(w, "draft");
    json_w_object(w);
    json_w_member_int(w, "steps", item->usage.draft_steps);
    json_w_member_int(w, "proposed", item->usage.draft_proposed);
    json_w_member_int(w, "accepted", item->usage.draft_accepted);
    json_w_end_object(w);
    if (item->logprobs.length) {
        json_w_key(w, "logprobs");
        json_w_array(w);
        json_w_raw(w, item->logprobs.data, item->logprobs.length);
        json_w_end_array(w);
    }
    json_w_end_object(w);
}

enum id_class { ID_NUMBER, ID_STRING, ID_OTHER };

static enum id_class id_class(const struct item *item)
{
    if (!item->doc)
        return ID_OTHER;
    if (!item->id_value || item->id_value->kind == JSON_NUMBER)
        return ID_NUMBER;
    return item->id_value->kind == JSON_STRING ? ID_STRING : ID_OTHER;
}

static int compare_numbers(const char *a, const char *b)
{
    const long double x = strtold(a, NULL), y = strtold(b, NULL); /* holds every 64-bit integer on the machines we know */
    return (x > y) - (x < y);
}

static int compare_bytes(const struct json *a, const struct json *b)
{
    const int order = memcmp(a->text, b->text, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* "In order of id": numbers by value, then strings by the bytes they stand for, then what is neither by its JSON text;
 * equal ones as they came. */
static int by_id(const void *a, const void *b)
{
    const struct item *x = *(const struct item *const *)a, *y = *(const struct item *const *)b;
    const enum id_class class_x = id_class(x), class_y = id_class(y);
    int order = (int)class_x - (int)class_y;
    if (order == 0)
        order = class_x == ID_NUMBER   ? compare_numbers(x->id_text, y->id_text)
                : class_x == ID_STRING ? compare_bytes(x->id_value, y->id_value)
                                       : strcmp(x->id_text, y->id_text);
    return order ? order : (x > y) - (x < y);
}

static qr_status write_items(const struct work *w, qr_error *err)
{
    const char *text;
    size_t length;
    qr_status st = QR_OK;
    struct item **sorted = qr_calloc(w->count + 1, sizeof *sorted);
    struct json_writer *out = json_writer_open(false);
    if (!sorted || !out)
        st = qr_fail(err, QR_NO_MEMORY, "no memory for the answers");
    for (size_t i = 0; st == QR_OK && i < w->count; i++)
        sorted[i] = &w->items[i];
    if (st == QR_OK)
        qsort(sorted, w->count, sizeof *sorted, by_id);
    for (size_t i = 0; st == QR_OK && i < w->count; i++) {
        json_writer_reset(out);
        write_item(out, sorted[i]);
        st = json_finish(out, &text, &length, err);
        if (st == QR_OK && (fwrite(text, 1, length, stdout) != length || putchar('\n') == EOF))
            st = qr_fail(err, QR_IO, "standard output: cannot be written");
    }
    json_writer_close(out);
    qr_free(sorted);
    return st;
}

/* Requests with a whole answer. */
static size_t answered(const struct work *w)
{
    size_t count = 0;
    for (size_t i = 0; i < w->count; i++)
        count += w->items[i].error.status == QR_OK && w->items[i].finish != QR_FINISH_CANCELLED;
    return count;
}

static void free_work(struct work *w)
{
    loaded_close(&w->loaded);
    events_free(&w->events);
    for (size_t i = 0; i < w->count; i++) {
        struct item *item = &w->items[i];
        request_text_free(&item->request);
        json_close(item->doc);
        json_writer_close(item->id);
        qr_tokens_free(&item->tokens);
        buffer_free(&item->text);
        buffer_free(&item->logprobs);
    }
    qr_free(w->items);
}

static qr_status generate_all(const struct generate_options *o, size_t *failed, qr_error *err)
{
    struct work w = {.quiet = o->model.quiet};
    size_t *order = NULL;
    qr_status st = read_items(&w, o->requests, err);
    for (size_t i = 0; st == QR_OK && i < w.count; i++)
        st = note_id(&w.items[i], i, err);
    if (st == QR_OK)
        st = refuse_twins(&w, err);
    if (st == QR_OK && o->events)
        st = events_read(o->events, &w.events, err);
    if (st == QR_OK)
        st = check_events(&w, o->events, err);
    if (st == QR_OK)
        st = loaded_open(&o->model, &w.loaded, err);
    if (st == QR_OK)
        st = events_start(&w.events, w.loaded.engine, err);
    order = qr_calloc(w.count + 1, sizeof *order);
    if (st == QR_OK && !order)
        st = qr_fail(err, QR_NO_MEMORY, "no memory for %zu requests", w.count);
    if (st == QR_OK) {
        for (size_t i = 0; i < w.count; i++)
            order[i] = i;
        if (o->has_shuffle)
            shuffle(order, w.count, o->shuffle);
        interrupt_catch(true);
        run_items(&w, o, order);
        st = write_items(&w, err);
    }
    if (st == QR_OK && w.interrupted)
        st = qr_fail(err, QR_CANCELLED, "interrupted: %zu of %zu requests have their answer, what there is of the others is "
                     "written too", answered(&w), w.count);
    for (size_t i = 0; i < w.count; i++)
        *failed += w.items[i].error.status != QR_OK;
    qr_free(order);
    free_work(&w);
    return st;
}

int command_generate(int argc, char **argv)
{
    struct generate_options o = {.model = MODEL_OPTIONS_DEFAULT, .sampling = SAMPLING_OPTIONS_DEFAULT, .concurrency = 1};
    qr_error err = {0};
    size_t failed = 0;
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(o.model),
        ENGINE_OPTIONS(o.model),
        SAMPLING_OPTIONS(o.sampling),
        {.name = "requests", .kind = OPTION_PATH, .target = &o.requests, .value = "FILE",
         .help = "JSON lines with id, one of tokens, prompt and messages, sampling members and what holds answers to a grammar; - for standard input"},
        {.name = "concurrency", .kind = OPTION_INT, .target = &o.concurrency, .value = "N",
         .help = "requests running at once (--max-num-seqs, where that is not given); default 1", .least = 1, .most = 4096},
        {.name = "shuffle", .kind = OPTION_UINT64, .target = &o.shuffle, .value = "SEED",
         .help = "hand the requests in in another order", .given = &o.has_shuffle},
        {.name = "events", .kind = OPTION_PATH, .target = &o.events, .value = "FILE",
         .help = "JSON lines {at_step, op, id}: cancel, preempt, drop_images, drop_cache before a step"},
        {0}};
    struct command_line line = {.command = "generate", .synopsis = "--model DIR --requests FILE.jsonl",
                                .about = "Runs every request of a file and writes the answers in order of id. A request that "
                                         "cannot be done gets {\"id\", \"error\"}, with the id null where its line is no JSON.",
                                .options = options};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!o.model.model || !o.requests) {
        status = options_wrong(&line, "%s is missing", o.model.model ? "--requests FILE" : "--model DIR");
    } else {
        if (o.model.max_num_seqs == 0)
            o.model.max_num_seqs = o.concurrency;
        qr_status st = generate_all(&o, &failed, &err);
        status = st == QR_OK ? failed > 0 : report_failure("generate", &err);
        if (st == QR_OK && failed)
            fprintf(stderr, "quire generate: %zu request%s failed\n", failed, plural((int64_t)failed));
    }
    options_free(options);
    return status;
}
