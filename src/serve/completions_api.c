/* POST /v1/completions (protocol.md 4.4): text that goes on, without template or parser. */
#include <string.h>

#include "base/alloc.h"
#include "serve/api.h"
#include "serve/asked.h"
#include "serve/chat_say.h"
#include "serve/choice.h"
#include "serve/completions.h"
#include "serve/legacy_logprobs.h"
#include "serve/server.h"
#include "serve/usage.h"

enum { MOST_PROMPTS = 256 };
static const double KEEPALIVE = 5.0;

/* ---- prompts ---- */

static bool one_list(const struct server *s, const struct json *list, qr_tokens *out, struct refusal *refusal)
{
    out->data = qr_calloc(list->count + 1, sizeof *out->data);
    if (!out->data)
        return refuse(refusal, 500, NULL, NULL, "no memory for the prompt");
    for (const struct json *item = list->child; item; item = item->next) {
        int64_t id;
        if (!json_int64(item, &id) || id < 0 || id >= s->info.vocab_size)
            return refuse(refusal, 400, NULL, "prompt", "prompt: wanted strings or lists of token ids from 0 to %d",
                          s->info.vocab_size - 1);
        out->data[out->count++] = (int32_t)id;
    }
    return out->count || refuse(refusal, 400, NULL, "prompt", "prompt: no token in it");
}

/* One string, or one list of ids: a single prompt. */
static bool is_single(const struct json *prompt)
{
    return prompt->kind == JSON_STRING || (prompt->kind == JSON_ARRAY && prompt->child && prompt->child->kind == JSON_NUMBER);
}

static bool read_prompts(const struct server *s, const struct json *body, struct completion *c, struct refusal *refusal)
{
    const struct json *prompt = member_of(body, "prompt");
    struct prompt_how as;
    if (!prompt_how_read(body, &as, refusal))
        return false;
    if (!prompt || (prompt->kind != JSON_STRING && prompt->kind != JSON_ARRAY) || (prompt->kind == JSON_ARRAY && !prompt->child))
        return refuse(refusal, 400, NULL, "prompt", "prompt: wanted a string, a list of strings, a list of token ids or a list of such lists");
    const size_t count = is_single(prompt) ? 1 : prompt->count;
    if (count > MOST_PROMPTS)
        return refuse(refusal, 400, NULL, "prompt", "prompt: %zu of them, wanted at most %d", count, MOST_PROMPTS);
    c->prompts = qr_calloc(count, sizeof *c->prompts);
    c->begun = qr_calloc(count, sizeof *c->begun);
    if (!c->prompts || !c->begun)
        return refuse(refusal, 500, NULL, NULL, "no memory for %zu prompts", count);
    for (const struct json *item = is_single(prompt) ? prompt : prompt->child; c->prompt_count < count; item = item->next) {
        bool *begun = &c->begun[c->prompt_count];
        qr_tokens *to = &c->prompts[c->prompt_count++];
        const bool good = item->kind == JSON_STRING  ? prompt_tokens(s, item, &as, to, begun, refusal)
                          : item->kind == JSON_ARRAY ? one_list(s, item, to, refusal)
                                                     : refuse(refusal, 400, NULL, "prompt", "prompt: wanted strings or lists of token ids");
        if (!good)
            return false;
    }
    return true;
}

/* ---- members ---- */

/* "logprobs": a number, or true for 1; with echo of the prompt too. */
static void settle_logprobs(const struct json *body, struct completion *c, qr_request *q)
{
    bool flag;
    if (json_bool(member_of(body, "logprobs"), &flag) && flag)
        q->logprobs = 1;
    c->logprobs = q->logprobs >= 0;
    if (c->echo && c->logprobs && q->prompt_logprobs < q->logprobs)
        q->prompt_logprobs = q->logprobs;
}

static bool fit(struct exchange *x, struct asked *a, struct completion *c, struct refusal *refusal)
{
    const struct server *s = x->server;
    const int32_t by_default = s->settings.default_max_tokens ? s->settings.default_max_tokens : 16;
    for (size_t p = 0; p < c->prompt_count; p++) { /* the shortest room counts for all */
        if (!asked_fit(x, c->prompts[p].count, by_default, a, refusal))
            return false;
        a->limited = true;
    }
    return true;
}

/* Of which the prompt alone is said; the engine makes one token all the same. */
static bool wants_no_answer(const struct json *body)
{
    int64_t most;
    return json_int64(member_of(body, "max_tokens"), &most) && most == 0;
}

static bool read_request(struct exchange *x, const struct json *body, struct asked *a, struct completion *c, struct refusal *refusal)
{
    qr_error err = {0};
    if (!asked_read(x, body, true, a, refusal))
        return false;
    const qr_status st = member_bool(body, "echo", &c->echo, &err);
    bool good = st == QR_OK || refuse_member(refusal, st, &err);
    if (wants_no_answer(body)) {
        if (good && !c->echo)
            good = refuse(refusal, 400, NULL, "max_tokens", "max_tokens: 0, wanted 1 or more without echo");
        a->limited = true;
        a->text.request.max_tokens = 1;
    }
    settle_logprobs(body, c, &a->text.request);
    return good && read_prompts(x->server, body, c, refusal) && fit(x, a, c, refusal);
}

static enum MHD_Result give_up(struct exchange *x, struct json_document *document, struct asked *a, struct completion *c,
                               const struct refusal *refusal)
{
    request_text_free(&a->text);
    completion_free(c);
    json_close(document);
    return exchange_refuse(x, refusal);
}

enum MHD_Result api_completions(struct exchange *x)
{
    struct refusal refusal = {0};
    struct json_document *document = NULL;
    struct asked a = {.answers = 1};
    struct completion *c = qr_calloc(1, sizeof *c);
    if (!c) {
        refuse(&refusal, 500, NULL, NULL, "no memory for the request");
        return exchange_refuse(x, &refusal);
    }
    if (!exchange_body(x, &document, &refusal) || !read_request(x, json_root(document), &a, c, &refusal))
        return give_up(x, document, &a, c, &refusal);
    qr_tokens *prompts = c->prompts;
    c->prompts = NULL;
    const struct job_request request = {.dialect = &completions_dialect, .stream = a.stream, .include_usage = a.include_usage,
                                        .usage_always = a.usage_always, .return_token_ids = a.return_token_ids,
                                        .no_answer = wants_no_answer(json_root(document)),
                                        .answers = a.answers, .document = document, .text = &a.text, .prompts = prompts,
                                        .prompt_count = c->prompt_count, .keepalive = KEEPALIVE, .own = c};
    return job_start(x, &request);
}
