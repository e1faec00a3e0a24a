/* session.c: the sessions of quire.h: a conversation (text/conversation.h) whose requests an engine answers. */
#include <string.h>

#include "base/alloc.h"
#include "engine/grammars.h"
#include "engine/rendered.h"
#include "engine/structs.h"
#include "engine/text.h"
#include "text/conversation.h"
#include "text/parser.h"

struct qr_session {
    qr_engine *engine;
    const qr_model *model;
    struct conversation conversation;
    /* of the answer in progress */
    bool answering;
    qr_handle handle;
    struct rendered rendered; /* the parser looks at its tools */
    struct parser *parser;
    struct parsed_answer answer;
};

static void end_answer(qr_session *s)
{
    parser_close(s->parser);
    parsed_answer_free(&s->answer);
    rendered_free(&s->rendered);
    s->parser = NULL;
    s->answer = (struct parsed_answer){.calls = NULL};
    s->answering = false;
}

static qr_status check_idle(const qr_session *s, qr_error *err)
{
    return s->answering ? qr_fail(err, QR_BUSY, "the session's answer is in progress") : QR_OK;
}

qr_status qr_session_open(qr_engine *engine, qr_session **out, qr_error *err)
{
    *out = qr_calloc(1, sizeof **out);
    if (!*out)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a session");
    (*out)->engine = engine;
    (*out)->model = engine_model(engine);
    return QR_OK;
}

qr_status qr_session_fork(const qr_session *session, qr_session **out, qr_error *err)
{
    *out = NULL;
    qr_status st = check_idle(session, err);
    if (st == QR_OK)
        st = qr_session_open(session->engine, out, err);
    if (st == QR_OK)
        st = conversation_copy(&session->conversation, &(*out)->conversation, err);
    if (st != QR_OK) {
        qr_session_close(*out);
        *out = NULL;
    }
    return st;
}

void qr_session_close(qr_session *session)
{
    if (!session)
        return;
    if (session->answering)
        qr_release(session->engine, session->handle);
    end_answer(session);
    conversation_free(&session->conversation);
    qr_free(session);
}

/* ---- the conversation ---- */

/* Parses JSON and hands its root to `take`. */
static qr_status take_json(qr_session *s, const char *json, size_t length, const char *name,
                           qr_status (*take)(struct conversation *, const struct json *, qr_error *), qr_error *err)
{
    struct json_document *document;
    qr_status st = check_idle(s, err);
    qr_error wrong;
    if (st == QR_OK && (st = json_parse(json, length, name, false, &document, &wrong)) != QR_OK)
        return qr_fail(err, st == QR_BAD_FILE ? QR_BAD_REQUEST : st, "%s", wrong.message); /* there is no file */
    if (st != QR_OK)
        return st;
    st = take(&s->conversation, json_root(document), err);
    json_close(document);
    return st;
}

qr_status qr_session_set(qr_session *session, const char *json, size_t length, qr_error *err)
{
    return take_json(session, json, length, "session members", conversation_set_members, err);
}

qr_status qr_session_append(qr_session *session, const char *json, size_t length, qr_error *err)
{
    return take_json(session, json, length, "message", conversation_add, err);
}

qr_status qr_session_set_system(qr_session *session, const char *text, qr_error *err)
{
    qr_status st = check_idle(session, err);
    return st == QR_OK ? conversation_set_system(&session->conversation, text, err) : st;
}

size_t qr_session_turns(const qr_session *session) { return conversation_turns(&session->conversation); }

bool qr_session_drop_newest(qr_session *session)
{
    return !session->answering && conversation_drop_last(&session->conversation);
}

bool qr_session_drop_oldest(qr_session *session)
{
    return !session->answering && conversation_drop_oldest(&session->conversation);
}

qr_status qr_session_write(const qr_session *session, qr_text *out, qr_error *err)
{
    struct buffer body = {0};
    *out = (qr_text){.data = NULL};
    qr_status st = check_idle(session, err);
    if (st == QR_OK)
        st = conversation_write(&session->conversation, false, &body, err);
    if (st != QR_OK) {
        buffer_free(&body);
        return st;
    }
    return text_from_buffer(&body, out, err);
}

static qr_status render(const qr_session *s, const struct conversation *c, struct rendered *out, qr_error *err)
{
    struct buffer body = {0};
    *out = (struct rendered){.document = NULL};
    qr_status st = conversation_write(c, true, &body, err);
    if (st == QR_OK)
        st = rendered_make(s->model, body.data, body.length, out, err);
    buffer_free(&body);
    return st;
}

/* Reads the messages into a copy that is tried before it takes the place of the conversation. */
static qr_status read_messages(qr_session *s, const struct json *request, qr_error *err)
{
    struct conversation fresh = {0};
    struct rendered rendered = {.document = NULL};
    qr_status st = conversation_copy(&s->conversation, &fresh, err);
    if (st == QR_OK)
        st = conversation_read(&fresh, request, err);
    if (st == QR_OK && fresh.count > 0)
        st = render(s, &fresh, &rendered, err);
    rendered_free(&rendered);
    if (st != QR_OK) {
        conversation_free(&fresh);
        return st;
    }
    conversation_free(&s->conversation);
    s->conversation = fresh;
    return QR_OK;
}

qr_status qr_session_read(qr_session *session, const char *json, size_t length, qr_error *err)
{
    struct json_document *document;
    qr_status st = check_idle(session, err);
    if (st == QR_OK)
        st = json_parse(json, length, "conversation", false, &document, err);
    if (st != QR_OK)
        return st;
    st = read_messages(session, json_root(document), err);
    json_close(document);
    return st;
}

/* ---- answers ---- */

qr_status qr_session_prompt(const qr_session *session, qr_prompt *out, qr_error *err)
{
    struct rendered rendered = {.document = NULL};
    *out = (qr_prompt){0};
    qr_status st = check_idle(session, err);
    if (st == QR_OK)
        st = render(session, &session->conversation, &rendered, err);
    if (st == QR_OK)
        st = prompt_from_rendered(&rendered, out, err);
    rendered_free(&rendered);
    return st;
}

static qr_status open_parser(qr_session *s, const qr_request *how, qr_error *err)
{
    const struct chat *chat = &s->rendered.chat;
    const struct parser_options options = {.tok = s->model->tokenizer,
                                           .tools = &chat->tools,
                                           .start = chat->start,
                                           .continued = chat->continued,
                                           .ignore_eos = how->ignore_eos,
                                           .single_call = !chat->parallel_calls,
                                           .stops = how->stop,
                                           .stop_count = (int32_t)how->stop_count,
                                           .include_stop = how->include_stop,
                                           .min_ids = how->min_tokens};
    return parser_open(&options, &s->parser, err);
}

/* What the conversation's members want the answer to be, unless `how` has a grammar of its own. */
static qr_status constrain(const qr_session *s, qr_request *how, qr_grammar **own, qr_error *err)
{
    struct chat_issue issue = {0};
    if (how->grammar)
        return QR_OK;
    TRY(grammar_of_chat(s->model, &s->rendered.chat, own, &issue, err));
    how->grammar = *own;
    how->grammar_after_reasoning = *own && s->rendered.chat.start == CHAT_REASONING;
    return QR_OK;
}

qr_status qr_session_start(qr_session *session, const qr_request *how, qr_handle *out, qr_error *err)
{
    qr_request request = QR_REQUEST;
    qr_grammar *own = NULL;
    qr_status st = check_idle(session, err);
    if (st == QR_OK && how)
        st = struct_take("qr_request", how, sizeof request, &request, err);
    if (st == QR_OK)
        st = render(session, &session->conversation, &session->rendered, err);
    if (st == QR_OK)
        st = open_parser(session, &request, err);
    if (st == QR_OK)
        st = constrain(session, &request, &own, err);
    request.no_calls |= session->rendered.chat.tools.count == 0;
    request.tokens = session->rendered.ids.data;
    request.token_count = session->rendered.ids.count;
    if (st == QR_OK)
        st = qr_submit(session->engine, &request, NULL, NULL, &session->handle, err);
    qr_grammar_close(own);
    if (st != QR_OK) {
        if (!session->answering)
            end_answer(session);
        return st;
    }
    session->answering = true;
    *out = session->handle;
    return QR_OK;
}

/* Adds what the parser let out to the answer. */
static qr_status add_deltas(qr_session *s, qr_status parsed, struct deltas *deltas, qr_error *err)
{
    if (parsed == QR_OK && (deltas->text.failed || !parsed_answer_add(&s->answer, deltas)))
        parsed = qr_fail(err, QR_NO_MEMORY, "no memory for the answer");
    deltas_free(deltas);
    return parsed;
}

/* The last event has come: what was said becomes a message. */
static qr_status take_answer(qr_session *s, const qr_event *event, qr_error *err)
{
    struct deltas deltas = {0};
    const enum parser_end why = event->finish != QR_FINISH_STOP || event->stop_string >= 0 ? END_LENGTH : END_EOS;
    qr_status st = add_deltas(s, parser_end(s->parser, why, &deltas, err), &deltas, err);
    return st == QR_OK ? conversation_add_answer(&s->conversation, &s->answer, err) : st;
}

qr_status qr_session_poll(qr_session *session, int timeout_ms, qr_event *out, qr_error *err)
{
    struct deltas deltas = {0};
    if (!session->answering)
        return qr_fail(err, QR_BAD_ARGUMENT, "no answer of the session is in progress");
    qr_status st = qr_poll(session->engine, session->handle, timeout_ms, out, err);
    if (st == QR_BUSY)
        return st;
    if (st == QR_OK && out->token >= 0)
        st = add_deltas(session, parser_push(session->parser, out->token, &deltas, err), &deltas, err);
    if (st == QR_OK && out->finish != QR_FINISH_NONE && out->finish != QR_FINISH_ERROR)
        st = take_answer(session, out, err);
    if (st != QR_OK)
        qr_release(session->engine, session->handle); /* nothing more of it will be understood */
    if (st != QR_OK || out->finish != QR_FINISH_NONE)
        end_answer(session);
    return st;
}
