/* POST /v1/chat/completions (protocol.md 4.2). */
#include "base/alloc.h"
#include "serve/api.h"
#include "serve/asked.h"
#include "serve/chat_say.h"
#include "serve/server.h"

enum { MOST_TOP = 20 };
static const double KEEPALIVE = 5.0;

/* "logprobs": true, and how many beside the chosen one. */
static bool read_logprobs(const struct json *body, qr_request *q, struct refusal *refusal)
{
    const struct json *top = member(body, "top_logprobs");
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

static bool open_chat(struct exchange *x, struct asked *a, qr_chat **out, struct refusal *refusal)
{
    const struct serve_settings *settings = &x->server->settings;
    qr_error err = {0};
    qr_issue issue = {0};
    qr_chat_info info;
    const qr_status st = qr_chat_open(x->server->model, x->body.data, x->body.length, &settings->chat, out, &issue, &err);
    if (st != QR_OK)
        return refuse_for(refusal, st, &err, &issue);
    qr_chat_get_info(*out, &info);
    sample_as_vendor(x->server, &info, &a->text.sampling);
    const int32_t by_default = settings->default_max_tokens ? settings->default_max_tokens : info.thinking ? 65536 : 8192;
    if (asked_fit(x, info.token_count, by_default, a, refusal))
        return true;
    qr_chat_close(*out);
    return false;
}

static bool read_request(struct exchange *x, const struct json *body, struct asked *a, qr_chat **chat, struct refusal *refusal)
{
    if (!asked_read(x, body, false, a, refusal))
        return false;
    if (read_logprobs(body, &a->text.request, refusal) && open_chat(x, a, chat, refusal))
        return true;
    request_text_free(&a->text);
    return false;
}

enum MHD_Result api_chat(struct exchange *x)
{
    struct refusal refusal = {0};
    struct json_document *document;
    struct asked a;
    qr_chat **chat = qr_calloc(1, sizeof *chat);
    if (!chat) {
        refuse(&refusal, 500, NULL, NULL, "no memory for the request");
        return exchange_refuse(x, &refusal);
    }
    if (!exchange_body(x, &document, &refusal)) {
        qr_free(chat);
        return exchange_refuse(x, &refusal);
    }
    if (!read_request(x, json_root(document), &a, chat, &refusal)) {
        json_close(document);
        qr_free(chat);
        return exchange_refuse(x, &refusal);
    }
    const struct job_request request = {.dialect = &chat_dialect, .stream = a.stream, .include_usage = a.include_usage,
                                        .usage_always = a.usage_always, .logprobs_all = a.logprobs_all,
                                        .return_token_ids = a.return_token_ids, .answers = a.answers, .text = &a.text,
                                        .chats = chat, .prompt_count = 1, .keepalive = KEEPALIVE, .document = document};
    return job_start(x, &request);
}
