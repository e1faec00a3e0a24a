/* POST /v1/chat/completions (protocol.md 4.2). */
#include "base/alloc.h"
#include "serve/api.h"
#include "serve/chat_ask.h"
#include "serve/chat_say.h"
#include "serve/server.h"

static const double KEEPALIVE = 5.0;

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
    if (!chat_ask(x, json_root(document), x->body.data, x->body.length, &a, chat, &refusal)) {
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
