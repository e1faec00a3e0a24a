#include "serve/chat_ask.h"

#include "base/alloc.h"
#include "serve/guided.h"
#include "serve/server.h"

enum { MOST_TOP = 20 };

/* "logprobs": true, and how many beside the chosen one. */
static bool read_logprobs(const struct json *body, qr_request *q, struct refusal *refusal)
{
    const struct json *top = member_of(body, "top_logprobs");
    int64_t n = 0;
    if (!top)
        return true;
    if (!json_int64(top, &n) || n < 0 || n > MOST_TOP)
        return refuse(refusal, 400, NULL, "top_logprobs", "top_logprobs: wanted a whole number from 0 to %d", MOST_TOP);
    if (q->logprobs < 0 && n > 0)
        return refuse(refusal, 400, NULL, "top_logprobs", "top_logprobs: wanted with logprobs true");
    if (q->logprobs >= 0)
        q->logprobs = (int32_t)n;
    return true;
}

/* The vendor's service passes over what a client says of sampling while the model thinks (protocol.md 4.2). */
static void sample_as_vendor(const struct server *s, const qr_chat_info *info, qr_sampling *sampling)
{
    if (!s->settings.vendor_sampling || !info->thinking)
        return;
    sampling->temperature = s->info.temperature;
    sampling->presence_penalty = sampling->frequency_penalty = 0;
    sampling->repetition_penalty = 1;
    sampling->top_p = sampling->top_p < 0.95 ? 0.95 : sampling->top_p;
}

static bool open_chat(struct exchange *x, const struct json *body, const char *text, size_t length, struct asked *a, qr_chat **out,
                      struct refusal *refusal)
{
    const struct serve_settings *settings = &x->server->settings;
    qr_error err = {0};
    qr_issue issue = {0};
    qr_chat_info info;
    const qr_status st = qr_chat_open(x->server->model, text, length, &settings->chat, out, &issue, &err);
    if (st != QR_OK)
        return refuse_for(refusal, st, &err, &issue);
    if (!guided_alone(body, &a->text, *out, refusal)) {
        qr_chat_close(*out);
        return false;
    }
    qr_chat_get_info(*out, &info);
    sample_as_vendor(x->server, &info, &a->text.sampling);
    const int32_t by_default = settings->default_max_tokens ? settings->default_max_tokens : info.thinking ? 65536 : 8192;
    if (asked_fit(x, info.token_count, by_default, a, refusal))
        return true;
    qr_chat_close(*out);
    return false;
}

bool chat_ask(struct exchange *x, const struct json *body, const char *text, size_t length, struct asked *a, qr_chat **chat,
              struct refusal *refusal)
{
    if (!asked_read(x, body, false, a, refusal))
        return false;
    if (read_logprobs(body, &a->text.request, refusal) && open_chat(x, body, text, length, a, chat, refusal))
        return true;
    request_text_free(&a->text);
    return false;
}

bool translation_ask(struct exchange *x, const struct translation *t, struct chat_asked *out, struct refusal *refusal)
{
    qr_error err = {0};
    *out = (struct chat_asked){.chat = qr_calloc(1, sizeof *out->chat)};
    if (!out->chat)
        return refuse(refusal, 500, NULL, NULL, "no memory for the request");
    const qr_status st = json_parse(t->text, t->length, "the request as a chat", false, &out->document, &err);
    if (st != QR_OK)
        refuse(refusal, st == QR_NO_MEMORY ? 500 : 400, NULL, NULL, "%s", err.message);
    else if (chat_ask(x, json_root(out->document), t->text, t->length, &out->asked, out->chat, refusal))
        return true;
    translation_locate(t, refusal);
    json_close(out->document);
    qr_free(out->chat);
    *out = (struct chat_asked){.chat = NULL};
    return false;
}
