#define _GNU_SOURCE
#include "serve/job.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "serve/choice.h"
#include "serve/event_copy.h"
#include "serve/server.h"

/* A stream's headers are sent at the first output, at the latest after HEADERS_AFTER; the first newline of a whole answer, where
 * the operator wants them, and each further one after NEWLINE_AFTER (protocol.md 4.11). */
static const double HEADERS_AFTER = 1.0, NEWLINE_AFTER = 5.0;
enum { BLOCK = 32 * 1024, SLOW_SECONDS = 120, MOST_QUEUED = 4 << 20 };

/* ---- waking and sleeping ---- */

/* Under the lock. */
static void wake(struct job *job)
{
    if (!job->asleep)
        return;
    job->asleep = false;
    MHD_resume_connection(job->exchange->connection);
}

/* Lets the connection sleep unless something has come meanwhile. */
static bool fall_asleep(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    const bool sleeps = !job->first && !job->due && !job->gone && !job->aborted;
    if (sleeps) {
        job->asleep = true;
        MHD_suspend_connection(job->exchange->connection);
    }
    pthread_mutex_unlock(&job->lock);
    return sleeps;
}

/* Under the lock. A reader that is slower than the model lets its answers rest (protocol.md 4.11). */
static void pace(struct job *job, bool paused)
{
    if (job->paused == paused)
        return;
    job->paused = paused;
    for (int i = 0; i < job->count; i++)
        qr_pause(job->server->engine, job->choices[i].handle, paused);
}

/* On the engine's thread. */
static void on_event(void *user, const qr_event *event)
{
    struct choice *c = user;
    struct job *job = c->job;
    struct event_copy *copy = event_copy_make(c, event);
    if (copy)
        (void)qr_get_usage(job->server->engine, event->handle, &copy->usage, NULL);
    pthread_mutex_lock(&job->lock);
    if (copy) {
        *job->last = copy;
        job->last = &copy->next;
        job->queued += sizeof *copy + event->text_length + event->top_count * sizeof *event->top;
        if (job->queued > MOST_QUEUED)
            pace(job, true);
    } else {
        job->aborted = true; /* an answer with a hole in it is worse than none */
        job->why = "no memory for the answer";
    }
    wake(job);
    pthread_mutex_unlock(&job->lock);
}

/* Its turn has not come for too long. */
static bool overdue(const struct job *job, double now)
{
    const double most = job->server->settings.most_seconds_waiting;
    if (most <= 0 || now - job->began < most)
        return false;
    for (int i = 0; i < job->count; i++) {
        qr_usage usage;
        if (qr_get_usage(job->server->engine, job->choices[i].handle, &usage, NULL) != QR_OK || usage.begun)
            return false;
    }
    return true;
}

void job_tick(struct job *job, double now)
{
    if (overdue(job, now))
        job_abort(job, "the request has waited for its turn longer than this server lets it");
    pthread_mutex_lock(&job->lock);
    const double silence = now - job->last_said;
    const bool due = job->stream ? (job->begun ? silence > job->keepalive : now - job->began > HEADERS_AFTER)
                                 : job->server->settings.nonstream_keepalive && silence > NEWLINE_AFTER;
    if (due) {
        job->due = true;
        wake(job);
    }
    pthread_mutex_unlock(&job->lock);
}

void job_gone(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    job->gone = true;
    wake(job);
    pthread_mutex_unlock(&job->lock);
    for (int i = 0; i < job->count; i++)
        qr_cancel(job->server->engine, job->choices[i].handle);
}

void job_abort(struct job *job, const char *why)
{
    pthread_mutex_lock(&job->lock);
    if (!job->aborted)
        job->why = why;
    job->aborted = true;
    wake(job);
    pthread_mutex_unlock(&job->lock);
}

/* ---- life ---- */

static void free_request(struct job *job)
{
    for (size_t i = 0; i < job->prompt_count; i++) {
        if (job->chats)
            qr_chat_close(job->chats[i]);
        if (job->prompts)
            qr_tokens_free(&job->prompts[i]);
    }
    qr_free(job->chats);
    qr_free(job->prompts);
    request_text_free(&job->text);
    json_close(job->document);
}

static enum gone_phase phase_of(const struct job *job)
{
    for (int i = 0; i < job->count; i++)
        if (job->choices[i].tokens)
            return GONE_OUTPUT;
    for (int i = 0; i < job->count; i++)
        if (job->choices[i].submitted)
            return GONE_PREFILL;
    return GONE_QUEUE;
}

void job_close(struct job *job)
{
    if (!job)
        return;
    keeper_remove(job->server->keeper, job);
    if (job->gone || (!job->ended && !job->failed))
        count_gone(job->server->counters, phase_of(job));
    for (int i = 0; i < job->count; i++) {
        if (job->choices[i].submitted && !job->choices[i].done && !job->failed)
            count_ended(job->server->counters, ENDED_CANCELLED, clock_seconds() - job->began, NULL, 0);
        if (job->choices[i].submitted)
            qr_release(job->server->engine, job->choices[i].handle);
    }
    while (job->first) {
        struct event_copy *next = job->first->next;
        qr_free(job->first);
        job->first = next;
    }
    if (job->dialect->close)
        job->dialect->close(job);
    for (int i = 0; i < job->count; i++)
        choice_free(&job->choices[i]);
    qr_free(job->choices);
    free_request(job);
    buffer_free(&job->out);
    pthread_mutex_destroy(&job->lock);
    qr_free(job);
}

static struct job *make_job(struct exchange *x, const struct job_request *r)
{
    struct job *job = qr_calloc(1, sizeof *job);
    if (!job)
        return NULL;
    *job = (struct job){.server = x->server, .exchange = x, .dialect = r->dialect, .stream = r->stream,
                        .include_usage = r->include_usage, .usage_always = r->usage_always, .logprobs_all = r->logprobs_all,
                        .return_token_ids = r->return_token_ids, .no_answer = r->no_answer, .answers = r->answers,
                        .document = r->document, .text = *r->text, .chats = r->chats, .prompts = r->prompts, .prompt_count = r->prompt_count, .own = r->own, .keepalive = r->keepalive,
                        .began = clock_seconds(), .created = (long long)time(NULL)};
    job->last = &job->first;
    job->last_said = job->began;
    *r->text = (struct request_text){0};
    pthread_mutex_init(&job->lock, NULL);
    request_text_point(&job->text);
    return job;
}

static void prompt_of(const struct job *job, size_t p, const int32_t **tokens, size_t *count)
{
    qr_chat_info info;
    *tokens = job->prompts ? job->prompts[p].data : NULL;
    *count = job->prompts ? job->prompts[p].count : 0;
    if (!job->chats)
        return;
    qr_chat_get_info(job->chats[p], &info);
    *tokens = info.tokens;
    *count = info.token_count;
}

/* The parser sees the stop strings of a chat's content; raw text is the engine's. */
static qr_status open_parser(struct job *job, struct choice *c, size_t p, qr_error *err)
{
    const qr_request *q = &job->text.request;
    qr_parser_options options = QR_PARSER_OPTIONS;
    qr_chat_info info;
    if (!job->chats || job->dialect->text_only)
        return QR_OK;
    qr_chat_get_info(job->chats[p], &info);
    c->has_tools = info.tools > 0;
    options.stop = q->stop;
    options.stop_count = q->stop_count;
    options.include_stop = q->include_stop;
    options.ignore_eos = q->ignore_eos;
    options.min_tokens = q->min_tokens;
    return qr_parser_open(job->chats[p], &options, &c->parser, err);
}

static qr_status submit(struct job *job, int i, qr_error *err)
{
    struct choice *c = &job->choices[i];
    const size_t p = (size_t)(i / job->answers);
    qr_request q = job->text.request;
    qr_sampling sampling = job->text.sampling;
    sampling.seed = (int64_t)((uint64_t)sampling.seed + (uint64_t)(i % job->answers));
    q.sampling = &sampling;
    prompt_of(job, p, &q.tokens, &q.token_count);
    if (job->chats)
        request_hold(&q, job->chats[p]);
    *c = (struct choice){.job = job, .index = i, .stop_string = -1, .stop_token = -1};
    job->prompt_tokens += i % job->answers == 0 ? (int64_t)q.token_count : 0;
    TRY(open_parser(job, c, p, err));
    if (c->parser)
        q.stop_count = 0;
    if (i % job->answers)
        q.after = job->choices[i - i % job->answers].handle;
    q.id = job->id;
    TRY(qr_submit(job->server->engine, &q, on_event, c, &c->handle, err));
    c->submitted = true;
    return QR_OK;
}

static qr_status submit_all(struct job *job, qr_error *err)
{
    const size_t count = job->prompt_count * (size_t)job->answers;
    job->choices = qr_calloc(count, sizeof *job->choices);
    if (!job->choices)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu answers", count);
    for (size_t i = 0; i < count; i++) {
        job->count = (int)i + 1;
        TRY(submit(job, (int)i, err));
    }
    return QR_OK;
}

static void fail(struct job *job, qr_status st, const qr_error *err)
{
    if (job->failed)
        return;
    job->failed = true;
    refuse_for(&job->refusal, st, err, NULL);
    if (st == QR_CANCELLED) {
        job->refusal.status = 503;
        job->refusal.retry_after = 1;
    }
    for (int i = 0; i < job->count; i++)
        if (job->choices[i].submitted && !job->choices[i].done) {
            qr_cancel(job->server->engine, job->choices[i].handle);
            count_ended(job->server->counters, st == QR_CANCELLED ? ENDED_CANCELLED : ENDED_ERROR, 0, NULL, 0);
        }
}

/* A server that sleeps, or whose queue is full, takes no more (runtime.md 12.2, protocol.md 4.11). */
static bool has_room(const struct server *s, struct refusal *refusal)
{
    qr_metrics m = {.size = sizeof m};
    if (atomic_load(&s->asleep)) {
        refuse(refusal, 503, "asleep", NULL, "the server is asleep, nothing is computed until it is woken");
        refusal->retry_after = 5;
        return false;
    }
    qr_get_metrics(s->engine, &m);
    if (m.requests_waiting < (uint64_t)s->settings.most_waiting)
        return true;
    refuse(refusal, 429, NULL, NULL, "%d requests wait already, this server lets no more wait", s->settings.most_waiting);
    refusal->retry_after = 1;
    return false;
}

enum MHD_Result job_start(struct exchange *x, const struct job_request *request)
{
    qr_error err = {0};
    struct refusal refusal = {0};
    struct job *job = make_job(x, request);
    if (!job) {
        struct job given = {.chats = request->chats, .prompts = request->prompts, .prompt_count = request->prompt_count,
                            .document = request->document, .text = *request->text, .own = request->own};
        if (request->dialect->close)
            request->dialect->close(&given);
        free_request(&given);
        refuse(&refusal, 500, NULL, NULL, "no memory for the request");
        return exchange_refuse(x, &refusal);
    }
    const union MHD_ConnectionInfo *socket = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    server_make_id(x->server, job->dialect->id_prefix, job->id, sizeof job->id);
    bool good = has_room(x->server, &refusal);
    if (good) {
        qr_status st = submit_all(job, &err);
        if (st == QR_OK && (!socket || !keeper_add(x->server->keeper, job, socket->connect_fd)))
            st = qr_fail(&err, QR_NO_MEMORY, "no memory for the request");
        good = st == QR_OK || refuse_for(&refusal, st, &err, NULL);
    }
    if (!good) {
        job->failed = true;
        job_close(job);
        return exchange_refuse(x, &refusal);
    }
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)SLOW_SECONDS);
    x->job = job;
    return x->away ? MHD_YES : job_resume(x);
}

/* ---- at work ---- */

static struct event_copy *take_queue(struct job *job, bool *gone, bool *aborted, bool *due)
{
    pthread_mutex_lock(&job->lock);
    struct event_copy *list = job->first;
    job->first = NULL;
    job->last = &job->first;
    job->queued = 0;
    pace(job, false);
    *gone = job->gone;
    *aborted = job->aborted;
    *due = job->due;
    job->due = false;
    pthread_mutex_unlock(&job->lock);
    return list;
}

/* What stands before everything that a stream says. */
static void open_stream(struct job *job)
{
    if (!job->stream || job->opened)
        return;
    job->opened = true;
    if (job->dialect->begin)
        job->dialect->begin(job);
}

/* Whether anything has come that a stream can say. */
static bool has_output(const struct job *job)
{
    for (int i = 0; i < job->count; i++)
        if (job->choices[i].tokens)
            return true;
    return false;
}

static void note_first_byte(struct job *job)
{
    if (job->answered || job->failed || !(job->stream ? has_output(job) : job->done == job->count))
        return;
    job->answered = true;
    count_first_byte(job->server->counters, clock_seconds() - job->exchange->whole_at);
}

/* Takes what has come. False: the client is gone. */
static bool work(struct job *job, bool *due)
{
    bool gone, aborted;
    qr_error err = {0};
    struct event_copy *list = take_queue(job, &gone, &aborted, due), *next;
    for (; list; list = next) {
        next = list->next;
        struct choice *c = list->choice;
        if (!c->done)
            c->usage = list->usage;
        open_stream(job);
        qr_status st = job->failed || c->done ? QR_OK : choice_take(c, &list->event, &err);
        if (list->event.finish != QR_FINISH_NONE)
            job->over++;
        if (st != QR_OK)
            fail(job, st, &err);
        qr_free(list);
    }
    if (aborted && job->done < job->count)
        fail(job, qr_fail(&err, QR_CANCELLED, "%s", job->why), &err);
    note_first_byte(job);
    return !gone;
}

/* The whole answer, or the refusal, as the rest of one that has begun with newlines. */
static void append_body(struct job *job)
{
    struct json_writer *w = json_writer_open(false);
    const char *text;
    size_t length;
    if (w && job->failed)
        refusal_write(&job->refusal, server_tongue(job->exchange->route), job->exchange->request_id, w);
    else if (w)
        job->dialect->body(job, w);
    if (w && json_finish(w, &text, &length, NULL) == QR_OK)
        buffer_append(&job->out, text, length);
    else
        job->out.failed = true;
    buffer_puts(&job->out, "\n");
    json_writer_close(w);
}

static void say_end(struct job *job)
{
    if (job->ended)
        return;
    job->ended = true;
    if (!job->stream)
        append_body(job);
    else if (job->failed && job->dialect->fail)
        job->dialect->fail(job, &job->refusal);
    else if (job->dialect->end)
        job->dialect->end(job);
}

static void say_alive(struct job *job)
{
    if (!job->stream)
        buffer_puts(&job->out, "\n");
    else if (job->dialect->alive)
        job->dialect->alive(job);
}

static void note_said(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    job->last_said = clock_seconds();
    pthread_mutex_unlock(&job->lock);
}

/* The bytes of a stream, or of a whole answer behind newlines, as the connection can take them. */
static ssize_t read_stream(void *user, uint64_t position, char *out, size_t room)
{
    struct job *job = user;
    bool due;
    (void)position;
    for (;;) {
        const bool there = work(job, &due);
        if (!there || job->out.failed)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (job->failed || job->done == job->count)
            say_end(job);
        else if (due && job->sent == job->out.length)
            say_alive(job);
        if (job->sent < job->out.length) {
            const size_t left = job->out.length - job->sent, n = left < room ? left : room;
            memcpy(out, job->out.data + job->sent, n);
            job->sent += n;
            if (job->sent == job->out.length) {
                buffer_clear(&job->out);
                job->sent = 0;
            }
            note_said(job);
            return (ssize_t)n;
        }
        if (job->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (fall_asleep(job))
            return 0;
    }
}

static enum MHD_Result begin_stream(struct job *job)
{
    struct exchange *x = job->exchange;
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, job, NULL);
    if (!r)
        return MHD_NO;
    pthread_mutex_lock(&job->lock);
    job->begun = true;
    pthread_mutex_unlock(&job->lock);
    open_stream(job);
    if (!job->stream)
        say_alive(job);
    MHD_add_response_header(r, "content-type", job->stream ? "text/event-stream; charset=utf-8" : "application/json");
    MHD_add_response_header(r, "cache-control", "no-cache");
    MHD_add_response_header(r, "x-accel-buffering", "no");
    return exchange_queue(x, 200, r);
}

static enum MHD_Result say_body(struct job *job)
{
    struct json_writer *w = json_writer_open(false);
    job->ended = true;
    if (w)
        job->dialect->body(job, w);
    const enum MHD_Result queued = exchange_json(job->exchange, 200, w);
    json_writer_close(w);
    return queued;
}

enum MHD_Result job_resume(struct exchange *x)
{
    struct job *job = x->job;
    bool due;
    for (;;) {
        if (!work(job, &due))
            return MHD_NO; /* closes the connection */
        if (job->failed)
            return exchange_refuse(x, &job->refusal);
        if (!job->stream && job->done == job->count)
            return say_body(job);
        if (job->stream ? due || has_output(job) || job->done == job->count : due)
            return begin_stream(job);
        if (fall_asleep(job))
            return MHD_YES;
    }
}

void job_event(struct job *job, const char *name, struct json_writer *w)
{
    const char *text;
    size_t length;
    if (name)
        buffer_printf(&job->out, "event: %s\n", name);
    if (!w || json_finish(w, &text, &length, NULL) != QR_OK) {
        job->out.failed = true;
        return;
    }
    buffer_puts(&job->out, "data: ");
    buffer_append(&job->out, text, length);
    buffer_puts(&job->out, "\n\n");
    json_writer_reset(w);
}

int64_t job_output_tokens(const struct job *job)
{
    int64_t sum = 0;
    for (int i = 0; i < job->count && !job->no_answer; i++)
        sum += job->choices[i].tokens;
    return sum;
}
