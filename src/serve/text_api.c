/* POST /tokenize, /detokenize and /v1/render (protocol.md 4.8): prompts as tokens and as text, without the engine. */
#include <string.h>

#include "base/alloc.h"
#include "serve/api.h"
#include "serve/asked.h"
#include "serve/chat_say.h"
#include "serve/members.h"
#include "serve/server.h"

/* The prompt of a chat request, or of a text. Exactly one of `chat` and `tokens` is filled. */
static bool read_prompt(struct exchange *x, const struct json *body, qr_chat **chat, qr_tokens *tokens, struct refusal *refusal)
{
    const struct json *prompt = member_of(body, "prompt");
    qr_error err = {0};
    qr_issue issue = {0};
    struct prompt_how how;
    bool added;
    if (!prompt_how_read(body, &how, refusal))
        return false;
    if (!prompt) {
        const qr_status st = qr_chat_open(x->server->model, x->body.data, x->body.length, &x->server->settings.chat, chat, &issue, &err);
        return st == QR_OK || refuse_for(refusal, st, &err, &issue);
    }
    if (prompt->kind != JSON_STRING)
        return refuse(refusal, 400, NULL, "prompt", "prompt: wanted a string");
    return prompt_tokens(x->server, prompt, &how, tokens, &added, refusal);
}

static void write_texts(const qr_model *model, const int32_t *ids, size_t count, struct json_writer *w)
{
    json_w_key(w, "token_strs");
    json_w_array(w);
    for (size_t i = 0; i < count; i++) {
        qr_text text = {0};
        (void)qr_detokenize(model, &ids[i], 1, &text, NULL);
        json_w_string_n(w, text.data ? text.data : "", text.length);
        qr_text_free(&text);
    }
    json_w_end_array(w);
}

static enum MHD_Result say_tokens(struct exchange *x, const int32_t *ids, size_t count, bool texts)
{
    struct json_writer *w = json_writer_open(false);
    if (w) {
        json_w_object(w);
        json_w_member_uint(w, "count", count);
        json_w_member_int(w, "max_model_len", x->server->plan.max_model_len);
        ids_write(w, "tokens", ids, count);
        if (texts)
            write_texts(x->server->model, ids, count, w);
        json_w_end_object(w);
    }
    const enum MHD_Result r = exchange_json(x, 200, w);
    json_writer_close(w);
    return r;
}

enum MHD_Result api_tokenize(struct exchange *x)
{
    struct refusal refusal = {0};
    struct json_document *document;
    qr_chat *chat = NULL;
    qr_tokens tokens = {0};
    qr_error err = {0};
    bool texts = false;
    if (!exchange_body(x, &document, &refusal))
        return exchange_refuse(x, &refusal);
    const qr_status st = member_bool(json_root(document), "return_token_strs", &texts, &err);
    const bool good = (st == QR_OK || refuse_member(&refusal, st, &err)) &&
                      read_prompt(x, json_root(document), &chat, &tokens, &refusal);
    qr_chat_info info = {.tokens = tokens.data, .token_count = tokens.count};
    if (chat)
        qr_chat_get_info(chat, &info);
    const enum MHD_Result r = good ? say_tokens(x, info.tokens, info.token_count, texts) : exchange_refuse(x, &refusal);
    qr_chat_close(chat);
    qr_tokens_free(&tokens);
    json_close(document);
    return r;
}

static void write_special(struct json_writer *w, const qr_model *model, const char *key, int32_t id)
{
    size_t length = 0;
    const unsigned char *bytes = id >= 0 ? qr_token_bytes(model, id, &length) : NULL;
    if (length)
        json_w_member_string_n(w, key, (const char *)bytes, length);
    else
        json_w_member_null(w, key);
}

/* What lm-eval's remote tokenizer wants to know. Chat templates are not text here: /v1/render makes prompts. */
enum MHD_Result api_tokenizer_info(struct exchange *x)
{
    const struct server *s = x->server;
    struct json_writer *w = json_writer_open(false);
    if (w) {
        json_w_object(w);
        json_w_member_string(w, "tokenizer_class", "quire");
        json_w_member_int(w, "vocab_size", s->info.vocab_size);
        json_w_member_int(w, "model_max_length", s->plan.max_model_len);
        write_special(w, s->model, "bos_token", s->info.bos);
        write_special(w, s->model, "eos_token", s->info.eos);
        write_special(w, s->model, "pad_token", s->info.pad);
        json_w_member_null(w, "chat_template");
        json_w_end_object(w);
    }
    const enum MHD_Result r = exchange_json(x, 200, w);
    json_writer_close(w);
    return r;
}

enum MHD_Result api_detokenize(struct exchange *x)
{
    struct refusal refusal = {0};
    struct json_document *document;
    qr_error err = {0};
    qr_text text = {0};
    int32_t *ids = NULL;
    size_t count = 0;
    if (!exchange_body(x, &document, &refusal))
        return exchange_refuse(x, &refusal);
    qr_status st = member_ids(json_root(document), "tokens", &ids, &count, &err);
    if (st == QR_OK && !ids)
        st = member_wrong(&err, "tokens", NULL, "a list of token ids");
    if (st == QR_OK)
        st = qr_detokenize(x->server->model, ids, count, &text, &err);
    struct json_writer *w = st == QR_OK ? json_writer_open(false) : NULL;
    if (w) {
        json_w_object(w);
        json_w_member_string_n(w, "prompt", text.data ? text.data : "", text.length);
        json_w_end_object(w);
    }
    if (st != QR_OK)
        refuse_member(&refusal, st, &err);
    const enum MHD_Result r = st == QR_OK ? exchange_json(x, 200, w) : exchange_refuse(x, &refusal);
    json_writer_close(w);
    qr_text_free(&text);
    qr_free(ids);
    json_close(document);
    return r;
}

/* [{"text", "markup"}]: control tokens, and what was tokenized as plain text between them. */
static void write_segments(const qr_chat *chat, struct json_writer *w)
{
    const char *text;
    size_t length;
    bool markup = false;
    json_w_key(w, "segments");
    json_w_array(w);
    for (size_t i = 0; (text = qr_chat_segment(chat, i, &length, &markup)); i++) {
        json_w_object(w);
        json_w_member_string_n(w, "text", text, length);
        json_w_member_bool(w, "markup", markup);
        json_w_end_object(w);
    }
    json_w_end_array(w);
}

/* What ends the answer beside max_tokens: the model's own end, and what the request names. */
static void write_stops(const struct server *s, const qr_request *q, struct json_writer *w)
{
    size_t length = 0;
    const unsigned char *end = s->info.eos >= 0 ? qr_token_bytes(s->model, s->info.eos, &length) : NULL;
    json_w_key(w, "stop");
    json_w_array(w);
    if (length && !q->ignore_eos)
        json_w_string_n(w, (const char *)end, length);
    for (size_t i = 0; i < q->stop_count; i++)
        json_w_string_n(w, q->stop[i], strlen(q->stop[i]));
    json_w_end_array(w);
    json_w_key(w, "stop_token_ids");
    json_w_array(w);
    if (length && !q->ignore_eos)
        json_w_int(w, s->info.eos);
    for (size_t i = 0; i < q->stop_token_count; i++)
        json_w_int(w, q->stop_tokens[i]);
    json_w_end_array(w);
}

static enum MHD_Result say_render(struct exchange *x, const qr_chat *chat, const qr_request *q)
{
    qr_chat_info info;
    qr_chat_get_info(chat, &info);
    struct json_writer *w = json_writer_open(false);
    if (w) {
        json_w_object(w);
        json_w_member_string_n(w, "prompt", info.text, info.text_length);
        write_segments(chat, w);
        json_w_member_uint(w, "token_count", info.token_count);
        json_w_member_int(w, "image_count", 0); /* pictures are refused */
        write_stops(x->server, q, w);
        json_w_member_bool(w, "thinking", info.thinking);
        json_w_member_bool(w, "starts_in_reasoning", info.starts_in_reasoning);
        json_w_end_object(w);
    }
    const enum MHD_Result r = exchange_json(x, 200, w);
    json_writer_close(w);
    return r;
}

/* A chat request with all its members; its prompt may be longer than the context. */
enum MHD_Result api_render(struct exchange *x)
{
    struct refusal refusal = {0};
    struct json_document *document;
    struct asked a;
    qr_chat *chat = NULL;
    qr_error err = {0};
    qr_issue issue = {0};
    if (!exchange_body(x, &document, &refusal))
        return exchange_refuse(x, &refusal);
    if (!asked_read(x, json_root(document), false, &a, &refusal)) {
        json_close(document);
        return exchange_refuse(x, &refusal);
    }
    const qr_status st = qr_chat_open(x->server->model, x->body.data, x->body.length, &x->server->settings.chat, &chat, &issue, &err);
    if (st != QR_OK)
        refuse_for(&refusal, st, &err, &issue);
    const enum MHD_Result r = st == QR_OK ? say_render(x, chat, &a.text.request) : exchange_refuse(x, &refusal);
    request_text_free(&a.text);
    qr_chat_close(chat);
    json_close(document);
    return r;
}
