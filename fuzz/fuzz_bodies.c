/* Bodies of POST requests of any bytes, the first of them saying to which path: each is refused by a status, a sentence and JSON
 * that says so, or is a generation that the engine could run. Opens models/tiny-v41: run it in the project's folder. */
#include "fuzz.h"

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "models.h"
#include "serve/chat_ask.h"
#include "serve/messages_read.h"
#include "serve/responses_read.h"
#include "serve/server.h"

enum { CONTEXT = 512 };

static struct server server = {.settings = SERVE_SETTINGS_DEFAULT, .name = "tiny-v41", .plan = {.max_model_len = CONTEXT}};

static void check_refusal(const struct refusal *refusal, enum tongue tongue)
{
    struct json_writer *w = json_writer_open(false);
    struct json_document *doc;
    const char *text;
    size_t length;
    must(refusal->status == 400 || refusal->status == 404);
    must(refusal->message[0] && utf8_valid_prefix(refusal->message, strlen(refusal->message)) == strlen(refusal->message));
    refusal_write(refusal, tongue, "req_1", w);
    must(json_finish(w, &text, &length, NULL) == QR_OK);
    must(json_parse(text, length, "refusal", false, &doc, NULL) == QR_OK);
    must(json_get(json_get(json_root(doc), "error"), "message"));
    json_close(doc);
    json_writer_close(w);
}

static void check_asked(const struct asked *a, size_t prompt)
{
    const qr_sampling *s = &a->text.sampling;
    const qr_request *q = &a->text.request;
    must(a->answers >= 1 && prompt < CONTEXT && q->max_tokens >= 1 && (size_t)q->max_tokens + prompt <= CONTEXT);
    must(q->min_tokens <= q->max_tokens && q->logprobs <= 20 && q->prompt_logprobs <= 20);
    must(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    for (size_t i = 0; i < q->stop_count; i++)
        must(q->stop[i][0]);
}

static void check_chat(struct asked *a, qr_chat *chat)
{
    qr_chat_info info;
    qr_chat_get_info(chat, &info);
    check_asked(a, info.token_count);
    qr_chat_close(chat);
    request_text_free(&a->text);
}

static bool ask_chat(struct exchange *x, const struct json *body, struct refusal *refusal)
{
    struct asked a;
    qr_chat *chat;
    if (!chat_ask(x, body, x->body.data, x->body.length, &a, &chat, refusal))
        return false;
    check_chat(&a, chat);
    return true;
}

static bool ask_text(struct exchange *x, const struct json *body, struct refusal *refusal)
{
    struct asked a;
    qr_tokens tokens = {0};
    bool added;
    const struct json *prompt = member_of(body, "prompt");
    if (!asked_read(x, body, true, &a, refusal))
        return false;
    bool good = !prompt || prompt->kind != JSON_STRING || prompt_tokens(&server, prompt, &(struct prompt_how){true, true}, &tokens, &added, refusal);
    good = good && asked_fit(x, tokens.count, 16, &a, refusal);
    if (good)
        check_asked(&a, tokens.count);
    qr_tokens_free(&tokens);
    request_text_free(&a.text);
    return good;
}

static bool ask_translated(struct exchange *x, const struct translation *t, struct refusal *refusal)
{
    struct chat_asked c;
    if (!translation_ask(x, t, &c, refusal))
        return false;
    check_chat(&c.asked, *c.chat);
    json_close(c.document);
    qr_free(c.chat);
    return true;
}

static bool ask_messages(struct exchange *x, const struct json *body, struct refusal *refusal)
{
    struct translation t = {0};
    struct messages_asked asked;
    const bool good = messages_read(body, false, NULL, &t, &asked, refusal) && ask_translated(x, &t, refusal);
    translation_free(&t);
    return good;
}

static bool ask_responses(struct exchange *x, const struct json *body, struct refusal *refusal)
{
    struct translation t = {0};
    struct responses_asked asked = {0};
    const bool good = responses_read(body, NULL, &t, &asked, refusal) && ask_translated(x, &t, refusal);
    response_tools_free(&asked.tools);
    translation_free(&t);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool (*const paths[])(struct exchange *, const struct json *, struct refusal *) = {ask_chat, ask_text, ask_messages, ask_responses};
    struct exchange x = {.server = &server};
    struct json_document *doc;
    struct refusal refusal = {0};
    if (!server.model) {
        server.model = fuzz_model();
        qr_model_get_info(server.model, &server.info);
    }
    if (size < 1)
        return 0;
    const int path = data[0] % 4;
    must(buffer_append(&x.body, data + 1, size - 1));
    bool good = exchange_body(&x, &doc, &refusal);
    if (good) {
        good = paths[path](&x, json_root(doc), &refusal);
        json_close(doc);
    }
    must(good == (refusal.status == 0));
    if (!good)
        check_refusal(&refusal, path == 2 ? TONGUE_ANTHROPIC : TONGUE_OPENAI);
    buffer_free(&x.body);
    return 0;
}
