#include "serve/logprobs.h"

#include <math.h>
#include <stdio.h>

#include "serve/server.h"

static const double LOWEST = -9999.0;

void logprob_number(struct json_writer *w, float logprob)
{
    json_w_double(w, isfinite(logprob) ? (double)logprob : LOWEST);
}

void logprob_value(struct json_writer *w, const char *key, float logprob)
{
    json_w_key(w, key);
    logprob_number(w, logprob);
}

qr_text logprob_text(const qr_model *model, int32_t token)
{
    qr_text text = {0};
    (void)qr_detokenize(model, &token, 1, &text, NULL);
    return text;
}

/* The members of a token: token, logprob, bytes. */
static void write_token(struct json_writer *w, const qr_model *model, const qr_token_logprob *t)
{
    size_t length;
    const unsigned char *bytes = qr_token_bytes(model, t->token, &length);
    qr_text text = logprob_text(model, t->token);
    json_w_member_string_n(w, "token", text.data ? text.data : "", text.length);
    logprob_value(w, "logprob", t->logprob);
    json_w_key(w, "bytes");
    json_w_array(w);
    for (size_t i = 0; i < length; i++)
        json_w_int(w, bytes[i]);
    json_w_end_array(w);
    qr_text_free(&text);
}

static void write_entry(struct json_writer *w, const qr_model *model, const qr_event *e)
{
    json_w_object(w);
    write_token(w, model, &e->logprob);
    json_w_key(w, "top_logprobs");
    json_w_array(w);
    for (size_t i = 0; i < e->top_count; i++) {
        json_w_object(w);
        write_token(w, model, &e->top[i]);
        json_w_end_object(w);
    }
    json_w_end_array(w);
    json_w_end_object(w);
}

/* Where entries of a place are kept; NULL: nowhere. */
static struct buffer *list_of(struct choice *c, qr_place place)
{
    switch (place) {
    case QR_PLACE_REASONING: return &c->reasoning_logprobs;
    case QR_PLACE_CONTENT: return &c->content_logprobs;
    case QR_PLACE_HELD: return &c->held_logprobs;
    case QR_PLACE_HIDDEN: break;
    }
    return NULL;
}

void logprobs_take(struct choice *c, const qr_event *event)
{
    struct buffer *list = list_of(c, c->job->logprobs_all || !c->parser ? QR_PLACE_CONTENT : c->parsed.place);
    struct json_writer *w = list ? json_writer_open(false) : NULL;
    const char *text;
    size_t length;
    if (!w)
        return;
    write_entry(w, c->job->server->model, event);
    if (json_finish(w, &text, &length, NULL) == QR_OK) {
        buffer_append(list, ",", 1);
        buffer_append(list, text, length);
    }
    json_writer_close(w);
}

void logprobs_settle(struct choice *c)
{
    struct buffer *held = &c->held_logprobs, *list = list_of(c, c->parsed.place_of_held);
    if (held->length == 0 || list == held)
        return;
    if (list)
        buffer_append(list, held->data, held->length);
    buffer_clear(held);
}

bool logprobs_waiting(const struct choice *c)
{
    return c->content_logprobs.length > c->content_logprobs_said || c->reasoning_logprobs.length > c->reasoning_logprobs_said;
}

void list_write_between(struct json_writer *w, const char *key, const struct buffer *list, size_t from, size_t to)
{
    struct buffer text = {0};
    json_w_key(w, key);
    buffer_append(&text, "[", 1);
    if (to > from)
        buffer_append(&text, list->data + from + 1, to - from - 1);
    buffer_append(&text, "]", 1);
    if (text.failed)
        json_w_null(w);
    else
        json_w_raw(w, text.data, text.length);
    buffer_free(&text);
}

void list_write(struct json_writer *w, const char *key, const struct buffer *list, size_t *said)
{
    list_write_between(w, key, list, *said, list->length);
    *said = list->length;
}

void logprobs_write(struct choice *c, struct json_writer *w)
{
    json_w_key(w, "logprobs");
    json_w_object(w);
    list_write(w, "content", &c->content_logprobs, &c->content_logprobs_said);
    if (c->reasoning_logprobs.length)
        list_write(w, "reasoning_content", &c->reasoning_logprobs, &c->reasoning_logprobs_said);
    else
        json_w_member_null(w, "reasoning_content");
    json_w_end_object(w);
}

/* ---- of prompts ---- */

static void write_ranked(struct json_writer *w, const qr_model *model, const qr_token_logprob *t)
{
    char key[16];
    snprintf(key, sizeof key, "%d", t->token);
    qr_text text = logprob_text(model, t->token);
    json_w_key(w, key);
    json_w_object(w);
    logprob_value(w, "logprob", t->logprob);
    json_w_member_int(w, "rank", t->rank);
    json_w_member_string_n(w, "decoded_token", text.data ? text.data : "", text.length);
    json_w_end_object(w);
    qr_text_free(&text);
}

void prompt_logprobs_write(const qr_model *model, const qr_event *e, struct json_writer *w)
{
    json_w_array(w);
    for (size_t i = 0; i < e->prompt_count; i++) {
        if (i == 0) {
            json_w_null(w);
            continue;
        }
        const qr_token_logprob *top = e->prompt_top + i * e->prompt_top_count;
        bool among = false;
        json_w_object(w);
        for (size_t k = 0; k < e->prompt_top_count; k++) {
            write_ranked(w, model, &top[k]);
            among |= top[k].token == e->prompt[i].token;
        }
        if (!among)
            write_ranked(w, model, &e->prompt[i]);
        json_w_end_object(w);
    }
    json_w_end_array(w);
}
