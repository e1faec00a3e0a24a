/* POST /v1/responses (protocol.md 4.6). */
#include "base/alloc.h"
#include "serve/api.h"
#include "serve/chat_ask.h"
#include "serve/responses_output.h"
#include "serve/responses_say.h"
#include "serve/server.h"

/* Clients take an event for a sign of life, not a comment. */
static const double KEEPALIVE = 15.0;

static enum MHD_Result give_up(struct exchange *x, struct responses_way *way, struct translation *t, const struct refusal *refusal)
{
    responses_way_free(way);
    translation_free(t);
    return exchange_refuse(x, refusal);
}

enum MHD_Result api_responses(struct exchange *x)
{
    struct refusal refusal = {0};
    struct translation t = {0};
    struct chat_asked c;
    struct responses_way *way = qr_calloc(1, sizeof *way);
    if (!way) {
        refuse(&refusal, 500, NULL, NULL, "no memory for the request");
        return exchange_refuse(x, &refusal);
    }
    if (!exchange_body(x, &way->document, &refusal))
        return give_up(x, way, &t, &refusal);
    way->body = json_root(way->document);
    if (!responses_read(way->body, x->server->settings.log, &t, &way->asked, &refusal) || !translation_ask(x, &t, &c, &refusal))
        return give_up(x, way, &t, &refusal);
    translation_free(&t);
    const struct job_request request = {.dialect = &responses_dialect, .stream = c.asked.stream, .answers = 1, .text = &c.asked.text,
                                        .chats = c.chat, .prompt_count = 1, .keepalive = KEEPALIVE, .document = c.document,
                                        .own = way};
    return job_start(x, &request);
}
