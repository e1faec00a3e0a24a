#include "tools/bench_serve.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/status.h"
#include "cli/plan.h"
#include "cli/plural.h"
#include "cli/print_json.h"

enum { SHORT_PROMPT = 16, WARM_TOKENS = 4, ROOM = 64 };

struct serving;

/* A request that is being answered. */
struct stream {
    struct serving *of;
    qr_handle handle;
    double last; /* when its last token came */
    int tokens;
    bool due; /* the gap in which the long prompt ended is not over yet */
};

struct serving {
    const struct bench_serve *o;
    qr_engine *engine;
    int32_t vocab;
    struct stream *streams;
    pthread_mutex_t lock;
    pthread_cond_t warm;
    /* locked */
    int warm_streams, due_streams;
    bool entering; /* the long prompt is on its way */
    bool failed;
    double *gaps; /* seconds between tokens of one stream, while it is */
    size_t gap_count, gap_room;
};

/* ---- streams ---- */

static void note_gap(struct serving *s, double seconds)
{
    if (array_grow(&s->gaps, &s->gap_room, s->gap_count, sizeof *s->gaps))
        s->gaps[s->gap_count++] = seconds;
    else
        s->failed = true;
}

static void on_event(void *user, const qr_event *event)
{
    struct stream *stream = user;
    struct serving *s = stream->of;
    const double now = clock_seconds();
    pthread_mutex_lock(&s->lock);
    s->failed |= event->finish == QR_FINISH_ERROR || event->finish == QR_FINISH_LENGTH;
    if (event->token >= 0) {
        if (s->entering)
            note_gap(s, now - stream->last);
        stream->last = now;
        s->warm_streams += ++stream->tokens == WARM_TOKENS;
        s->due_streams -= stream->due;
        stream->due = false;
    }
    pthread_cond_signal(&s->warm);
    pthread_mutex_unlock(&s->lock);
}

static qr_status submit(struct serving *s, int number, int32_t count, int32_t most, struct stream *stream, qr_handle *out,
                        qr_error *err)
{
    qr_sampling sampling = QR_SAMPLING;
    qr_request request = QR_REQUEST;
    int32_t *tokens = qr_calloc((size_t)count, sizeof *tokens);
    if (!tokens)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a prompt of %d tokens", count);
    for (int32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(((int64_t)i * 7919 + number * 104729) % s->vocab);
    sampling.seed = number;
    request.tokens = tokens;
    request.token_count = (size_t)count;
    request.sampling = &sampling;
    request.max_tokens = most;
    request.ignore_eos = true;
    const qr_status st = qr_submit(s->engine, &request, stream ? on_event : NULL, stream, out, err);
    qr_free(tokens);
    return st;
}

static qr_status start_streams(struct serving *s, qr_error *err)
{
    qr_status st = QR_OK;
    for (int i = 0; st == QR_OK && i < s->o->streams; i++) {
        s->streams[i].of = s;
        st = submit(s, i + 1, SHORT_PROMPT, s->o->tokens, &s->streams[i], &s->streams[i].handle, err);
    }
    pthread_mutex_lock(&s->lock);
    while (st == QR_OK && s->warm_streams < s->o->streams && !s->failed)
        pthread_cond_wait(&s->warm, &s->lock);
    s->entering = true;
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Seconds from its submission to the first token of the long prompt. */
static qr_status enter(struct serving *s, double *seconds, qr_error *err)
{
    qr_handle handle;
    qr_event event;
    const double start = clock_seconds();
    qr_status st = submit(s, 0, s->o->tokens, 1, NULL, &handle, err);
    if (st == QR_OK)
        st = qr_poll(s->engine, handle, -1, &event, err);
    if (st != QR_OK)
        return st;
    *seconds = clock_seconds() - start;
    if (event.error)
        st = qr_fail(err, event.error->status, "%s", event.error->message);
    qr_release(s->engine, handle);
    return st;
}

/* The gaps in which it ended count too. */
static void finish_gaps(struct serving *s)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->o->streams; i++)
        s->streams[i].due = true;
    s->due_streams = s->o->streams;
    while (s->due_streams > 0 && !s->failed)
        pthread_cond_wait(&s->warm, &s->lock);
    s->entering = false;
    pthread_mutex_unlock(&s->lock);
}

/* ---- figures ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(const struct serving *s, double part) { return s->gaps[(size_t)(part * (double)(s->gap_count - 1))]; }

static void write_report(struct json_writer *w, const struct serving *s, bool mixed, double seconds)
{
    json_w_key(w, mixed ? "mixed" : "unmixed");
    json_w_object(w);
    json_w_member_number(w, "first_token_seconds", seconds);
    json_w_member_uint(w, "tokens", s->gap_count);
    json_w_member_number(w, "gap_p50_seconds", at(s, 0.5));
    json_w_member_number(w, "gap_p90_seconds", at(s, 0.9));
    json_w_member_number(w, "gap_max_seconds", at(s, 1));
    json_w_end_object(w);
}

/* To the object in `w`, or as a line. */
static qr_status report(struct serving *s, bool mixed, double seconds, struct json_writer *w, qr_error *err)
{
    const struct bench_serve *o = s->o;
    if (s->failed || s->gap_count == 0)
        return qr_fail(err, QR_INTERNAL, "bench serve: %zu tokens came while the prompt of %d entered", s->gap_count,
                       o->tokens);
    qsort(s->gaps, s->gap_count, sizeof *s->gaps, ascending);
    if (w)
        write_report(w, s, mixed, seconds);
    else
        printf("serve, %-8s %d stream%s beside a prompt of %d token%s: first token after %.2f s; between tokens p50 %.1f ms, "
               "p90 %.1f ms, longest %.1f ms (%zu token%s)\n",
               mixed ? "mixed:" : "unmixed:", o->streams, plural(o->streams), o->tokens, plural(o->tokens), seconds, at(s, 0.5) * 1e3, at(s, 0.9) * 1e3,
               at(s, 1) * 1e3, s->gap_count, plural((int64_t)s->gap_count));
    return QR_OK;
}

/* ---- a run ---- */

static qr_status run(qr_model *model, const qr_engine_options *options, const struct bench_serve *o, bool mixed,
                     struct json_writer *w, qr_error *err)
{
    struct serving s = {.o = o};
    qr_model_info info;
    double seconds = 0;
    qr_model_get_info(model, &info);
    s.vocab = info.vocab_size;
    s.streams = qr_calloc((size_t)o->streams, sizeof *s.streams);
    if (!s.streams)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d streams", o->streams);
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.warm, NULL);
    qr_status st = qr_engine_create(model, options, &s.engine, err);
    if (st == QR_OK)
        st = start_streams(&s, err);
    if (st == QR_OK)
        st = enter(&s, &seconds, err);
    if (st == QR_OK)
        finish_gaps(&s);
    for (int i = 0; s.engine && i < o->streams; i++)
        qr_release(s.engine, s.streams[i].handle);
    qr_engine_destroy(s.engine);
    if (st == QR_OK)
        st = report(&s, mixed, seconds, w, err);
    pthread_cond_destroy(&s.warm);
    pthread_mutex_destroy(&s.lock);
    qr_free(s.gaps);
    qr_free(s.streams);
    return st;
}

/* Both ways, one after the other; figures go to the object in `w` where there is one. */
static qr_status run_both(qr_model *model, qr_engine_options *options, const struct bench_serve *o, struct json_writer *w,
                          qr_error *err)
{
    qr_status st = QR_OK;
    for (int mixed = 1; st == QR_OK && mixed >= 0; mixed--) {
        options->max_prefill_tokens_per_step = mixed ? o->model.max_prefill_rows : 0;
        st = run(model, options, o, mixed, w, err);
    }
    return st;
}

static qr_status run_json(qr_model *model, qr_engine_options *options, const struct bench_serve *o, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    json_w_object(w);
    json_w_member_string(w, "what", "serve");
    json_w_member_int(w, "streams", o->streams);
    json_w_member_int(w, "prompt_tokens", o->tokens);
    qr_status st = run_both(model, options, o, w, err);
    json_w_end_object(w);
    if (st == QR_OK)
        return print_json(w, err);
    json_writer_close(w);
    return st;
}

qr_status bench_serve_run(const struct bench_serve *o, qr_error *err)
{
    struct model_options m = o->model;
    m.max_num_seqs = o->streams + 1;
    m.max_model_len = o->tokens + SHORT_PROMPT + ROOM;
    m.no_prefix_caching = true;
    const qr_model_options model_options = model_options_model(&m);
    qr_engine_options options = model_options_engine(&m);
    qr_model *model;
    qr_status st = plan_before_loading(&m, &options, err);
    if (st == QR_OK)
        st = qr_model_open(m.model, &model_options, &model, err);
    if (st != QR_OK)
        return st;
    st = o->json ? run_json(model, &options, o, err) : run_both(model, &options, o, NULL, err);
    qr_model_close(model);
    return st;
}
