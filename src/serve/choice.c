#include "serve/choice.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/status.h"
#include "serve/logprobs.h"
#include "serve/server.h"
#include "serve/spelt.h"

void choice_free(struct choice *c)
{
    qr_parser_close(c->parser);
    buffer_free(&c->ids);
    buffer_free(&c->prompt_logprobs);
    buffer_free(&c->reasoning);
    buffer_free(&c->content);
    buffer_free(&c->content_logprobs);
    buffer_free(&c->reasoning_logprobs);
    buffer_free(&c->held_logprobs);
    buffer_free(&c->spelt);
    for (size_t i = 0; i < c->call_count; i++) {
        buffer_free(&c->calls[i].name);
        buffer_free(&c->calls[i].arguments);
    }
    qr_free(c->calls);
}

const char *choice_reason(const struct choice *c)
{
    if (c->parser && c->parsed.end != QR_ANSWER_OPEN)
        return qr_answer_end_name(c->parsed.end);
    return c->finish == QR_FINISH_LENGTH ? "length" : "stop";
}

static bool open_call(struct choice *c)
{
    if (!array_grow(&c->calls, &c->call_room, c->call_count, sizeof *c->calls))
        return false;
    c->calls[c->call_count] = (struct said_call){.whole = false};
    server_make_call_id(c->job->server, c->calls[c->call_count].id, sizeof c->calls->id);
    c->call_count++;
    return true;
}

static bool take_delta(struct choice *c, const qr_delta *d)
{
    switch (d->kind) {
    case QR_DELTA_REASONING: return buffer_append(&c->reasoning, d->text, d->length);
    case QR_DELTA_CONTENT: return buffer_append(&c->content, d->text, d->length);
    case QR_DELTA_CALL:
        return (d->call < c->call_count || open_call(c)) && buffer_append(&c->calls[d->call].name, d->text, d->length);
    case QR_DELTA_ARGUMENTS: return buffer_append(&c->calls[d->call].arguments, d->text, d->length);
    case QR_DELTA_CALL_END: c->calls[d->call].whole = true; return true;
    case QR_DELTA_CALL_LOST: break;
    }
    return true;
}

static qr_status take_deltas(struct choice *c, const qr_delta *deltas, size_t count, qr_error *err)
{
    const struct dialect *dialect = c->job->dialect;
    for (size_t i = 0; i < count; i++) {
        const qr_delta *d = &deltas[i];
        if (!take_delta(c, d))
            return qr_fail(err, QR_NO_MEMORY, "no memory for the answer");
        if (dialect->delta)
            dialect->delta(c->job, c, d->kind, d->call, d->text, d->length);
    }
    return QR_OK;
}

/* Whether the token belongs to the answer: not one that ended it. */
static bool is_said(const qr_event *e) { return e->finish != QR_FINISH_STOP || e->stop_token < 0; }

/* Text that no one will see. */
static void note_discarded(struct choice *c, int32_t token)
{
    size_t length = 0;
    (void)qr_token_bytes(c->job->server->model, token, &length);
    c->discarded_bytes += length;
}

static qr_status take_token(struct choice *c, const qr_event *e, qr_error *err)
{
    const qr_delta *deltas = NULL;
    size_t count = 0;
    c->tokens++;
    if (c->job->return_token_ids && !buffer_append(&c->ids, &e->token, sizeof e->token))
        return qr_fail(err, QR_NO_MEMORY, "no memory for the answer's tokens");
    if (c->parser) {
        const int64_t discarded = c->parsed.discarded_tokens;
        TRY(qr_parser_push(c->parser, e->token, &deltas, &count, err));
        qr_parser_get_state(c->parser, &c->parsed);
        if (c->parsed.discarded_tokens > discarded)
            note_discarded(c, e->token);
        else if (is_said(e))
            spelt_take(c, e->token);
    }
    logprobs_settle(c);
    if (e->logprob.rank && (is_said(e) || c->job->logprobs_all))
        logprobs_take(c, e);
    if (c->job->dialect->token)
        c->job->dialect->token(c->job, c, e);
    return take_deltas(c, deltas, count, err);
}

/* Clients show nothing of such an answer, or call it a fault of ours: the log says whose it is (protocol.md 5, 10). */
static void note_bare_reasoning(const struct choice *c)
{
    if (c->parser && c->parsed.end == QR_ANSWER_STOP && c->parsed.stop_string < 0 && c->reasoning.length && !c->content.length && !c->call_count)
        qr_logf(c->job->server->settings.log, QR_LOG_WARN, "%s: the answer ended with its reasoning of %lld tokens, and has neither content nor a call",
                c->job->id, (long long)c->parsed.reasoning_tokens);
}

/* Nothing of it will be looked at any more. */
static void finish(struct choice *c, const qr_event *e)
{
    struct job *job = c->job;
    static const enum ended_by reasons[] = {[QR_ANSWER_OPEN] = ENDED_STOP, [QR_ANSWER_STOP] = ENDED_STOP,
                                            [QR_ANSWER_TOOL_CALLS] = ENDED_TOOL_CALLS, [QR_ANSWER_LENGTH] = ENDED_LENGTH};
    c->done = true;
    c->finish = e->finish;
    c->stop_token = e->stop_token;
    c->stop_string = c->parser ? c->parsed.stop_string : e->stop_string;
    if (e->finish == QR_FINISH_NONE)
        qr_cancel(job->server->engine, c->handle);
    enum ended_by how = c->finish == QR_FINISH_LENGTH ? ENDED_LENGTH : ENDED_STOP;
    if (c->parser)
        how = reasons[c->parsed.end];
    count_ended(job->server->counters, how, c->usage.seconds, c->parser ? &c->parsed : NULL, c->discarded_bytes);
    note_bare_reasoning(c);
    spelt_keep(c);
    job->done++;
    if (job->dialect->done)
        job->dialect->done(job, c);
}

static qr_status take_end(struct choice *c, const qr_event *e, qr_error *err)
{
    const qr_delta *deltas;
    size_t count;
    if (!c->parser)
        return QR_OK;
    TRY(qr_parser_finish(c->parser, e, &deltas, &count, err));
    qr_parser_get_state(c->parser, &c->parsed);
    logprobs_settle(c);
    return take_deltas(c, deltas, count, err);
}

qr_status choice_take(struct choice *c, const qr_event *e, qr_error *err)
{
    if (e->finish == QR_FINISH_ERROR) {
        *err = *e->error;
        return e->error->status;
    }
    if (e->finish == QR_FINISH_CANCELLED)
        return qr_fail(err, QR_CANCELLED, SHUTS_DOWN);
    if (e->prompt_count && c->job->dialect->prompt)
        c->job->dialect->prompt(c->job, c, e);
    if (e->token >= 0)
        TRY(take_token(c, e, err));
    if (!c->parser && e->text_length) {
        const qr_delta text = {.kind = QR_DELTA_CONTENT, .text = e->text, .length = e->text_length};
        TRY(take_deltas(c, &text, 1, err));
    }
    const bool ended = c->parser && c->parsed.end != QR_ANSWER_OPEN;
    if (e->finish != QR_FINISH_NONE && !ended)
        TRY(take_end(c, e, err));
    if (e->finish != QR_FINISH_NONE || ended)
        finish(c, e);
    return QR_OK;
}
