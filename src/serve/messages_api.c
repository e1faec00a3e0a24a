/* POST /v1/messages and /v1/messages/count_tokens (protocol.md 4.5). */
#include "base/alloc.h"
#include "serve/api.h"
#include "serve/chat_ask.h"
#include "serve/members.h"
#include "serve/messages_read.h"
#include "serve/messages_say.h"
#include "serve/server.h"

static const double KEEPALIVE = 5.0;

static bool check_model(const struct server *s, const struct json *model, struct refusal *refusal)
{
    if (!model || model->kind != JSON_STRING || server_knows(s, model->text, model->length, true))
        return true;
    return refuse(refusal, 404, "model_not_found", "model", "the model \"%.200s\" is not served here, but \"%s\" is", model->text,
                  s->name);
}

/* The body as a chat request. `t` is to be freed also when it fails. */
static bool read_body(struct exchange *x, struct translation *t, struct messages_asked *asked, struct refusal *refusal)
{
    struct json_document *document;
    const struct server *s = x->server;
    if (!exchange_body(x, &document, refusal))
        return false;
    const bool good = check_model(s, member_of(json_root(document), "model"), refusal) &&
                      messages_read(json_root(document), s->settings.ignore_server_tools, s->settings.log, t, asked, refusal);
    json_close(document);
    return good;
}

static enum MHD_Result start(struct exchange *x, const struct translation *t, struct messages_way *way, struct refusal *refusal)
{
    struct chat_asked c;
    if (!translation_ask(x, t, &c, refusal)) {
        qr_free(way);
        return exchange_refuse(x, refusal);
    }
    const struct job_request request = {.dialect = &messages_dialect, .stream = c.asked.stream, .answers = 1, .text = &c.asked.text,
                                        .chats = c.chat, .prompt_count = 1, .keepalive = KEEPALIVE, .document = c.document,
                                        .own = way};
    return job_start(x, &request);
}

enum MHD_Result api_messages(struct exchange *x)
{
    struct refusal refusal = {0};
    struct translation t = {0};
    struct messages_asked asked;
    struct messages_way *way = NULL;
    bool good = read_body(x, &t, &asked, &refusal);
    if (good) {
        way = qr_calloc(1, sizeof *way);
        good = way || refuse(&refusal, 500, NULL, NULL, "no memory for the request");
    }
    if (way)
        way->hides_thinking = asked.hides_thinking;
    const enum MHD_Result r = good ? start(x, &t, way, &refusal) : exchange_refuse(x, &refusal);
    translation_free(&t);
    return r;
}

static enum MHD_Result say_count(struct exchange *x, size_t count)
{
    struct json_writer *w = json_writer_open(false);
    if (w) {
        json_w_object(w);
        json_w_member_uint(w, "input_tokens", count);
        json_w_end_object(w);
    }
    const enum MHD_Result r = exchange_json(x, 200, w);
    json_writer_close(w);
    return r;
}

enum MHD_Result api_count_tokens(struct exchange *x)
{
    struct refusal refusal = {0};
    struct translation t = {0};
    struct messages_asked asked;
    qr_chat *chat = NULL;
    qr_chat_info info = {0};
    qr_error err = {0};
    qr_issue issue = {0};
    bool good = read_body(x, &t, &asked, &refusal);
    if (good) {
        const qr_status st = qr_chat_open(x->server->model, t.text, t.length, &x->server->settings.chat, &chat, &issue, &err);
        good = st == QR_OK || refuse_for(&refusal, st, &err, &issue);
    }
    if (chat)
        qr_chat_get_info(chat, &info);
    else
        translation_locate(&t, &refusal);
    const enum MHD_Result r = good ? say_count(x, info.token_count) : exchange_refuse(x, &refusal);
    qr_chat_close(chat);
    translation_free(&t);
    return r;
}
