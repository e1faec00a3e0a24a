/* Bodies of /v1/messages and /v1/responses of any bytes, the first of them saying which: each is refused by a sentence, or
 * becomes a chat request that can be read, with a place in the body for every message and tool. What remains of a free-form
 * call does not depend on how its JSON arrives. */
#include "fuzz.h"

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "serve/custom_input.h"
#include "serve/messages_read.h"
#include "serve/responses_read.h"

static size_t count_of(const struct json *chat, const char *name)
{
    const struct json *list = json_get(chat, name);
    must(!list || list->kind == JSON_ARRAY);
    return list ? list->count : 0;
}

static void check_chat(const struct translation *t)
{
    struct json_document *chat;
    must(json_parse(t->text, t->length, "chat", false, &chat, NULL) == QR_OK);
    must(json_root(chat)->kind == JSON_OBJECT && json_get(json_root(chat), "messages"));
    must(count_of(json_root(chat), "messages") * sizeof(struct place) == t->messages.length);
    must(count_of(json_root(chat), "tools") * sizeof(struct place) == t->tools.length);
    json_close(chat);
}

static void check_refusal(const struct translation *t, struct refusal *refusal)
{
    must(refusal->status == 400 && refusal->message[0]);
    must(utf8_valid_prefix(refusal->message, strlen(refusal->message)) == strlen(refusal->message));
    if (!t->list)
        return;
    refuse(refusal, 400, NULL, "messages[1].content[0]", "messages[1].content[0]: x");
    translation_locate(t, refusal);
    must(refusal->param[0] && strncmp(refusal->message, refusal->param, strlen(refusal->param)) == 0);
}

static void translate(bool anthropic, const struct json *body)
{
    struct translation t = {0};
    struct refusal refusal = {0};
    struct messages_asked messages;
    struct responses_asked responses = {0};
    const bool good = anthropic ? messages_read(body, body->count % 2, NULL, &t, &messages, &refusal)
                                : responses_read(body, NULL, &t, &responses, &refusal);
    if (good)
        check_chat(&t);
    else
        check_refusal(&t, &refusal);
    response_tools_free(&responses.tools);
    translation_free(&t);
}

static void check_splits(const char *json, size_t length)
{
    const size_t split = length / 3;
    struct custom_input whole = {0}, pieces = {0};
    struct buffer text = {0};
    custom_input_push(&whole, json, length);
    custom_input_push(&pieces, json, split);
    custom_input_push(&pieces, json + split, length - split);
    must(whole.state == pieces.state && whole.text.length == pieces.text.length);
    must(!whole.text.length || memcmp(whole.text.data, pieces.text.data, whole.text.length) == 0);
    custom_input_of(json, length, &text);
    must(utf8_valid_prefix(json, length) != length || !text.length || utf8_valid_prefix(text.data, text.length) == text.length);
    buffer_free(&whole.text);
    buffer_free(&pieces.text);
    buffer_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_document *body;
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    check_splits(text, size - 1);
    if (json_parse(text, size - 1, "body", false, &body, NULL) != QR_OK)
        return 0;
    if (json_root(body)->kind == JSON_OBJECT)
        translate(data[0] % 2, json_root(body));
    json_close(body);
    return 0;
}
