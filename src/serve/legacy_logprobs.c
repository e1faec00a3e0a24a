#include "serve/legacy_logprobs.h"

#include <string.h>

#include "serve/logprobs.h"

void legacy_free(struct legacy_logprobs *l)
{
    buffer_free(&l->tokens);
    buffer_free(&l->values);
    buffer_free(&l->top);
    buffer_free(&l->offsets);
}

/* One more element: what `w` holds. Empties it. */
static void append(struct buffer *list, struct json_writer *w)
{
    const char *text;
    size_t length;
    if (json_finish(w, &text, &length, NULL) == QR_OK) {
        buffer_append(list, ",", 1);
        buffer_append(list, text, length);
    } else {
        list->failed = true;
    }
    json_writer_reset(w);
}

static size_t characters(const qr_text *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->length; i++)
        n += ((unsigned char)text->data[i] & 0xC0) != 0x80;
    return n;
}

/* Of two ids with one text the likelier counts, which stands first. */
static bool stands_before(const qr_model *model, const qr_token_logprob *top, size_t i, const qr_text *text)
{
    bool same = false;
    for (size_t k = 0; k < i && !same; k++) {
        qr_text other = logprob_text(model, top[k].token);
        same = other.length == text->length && other.data && text->data && memcmp(other.data, text->data, text->length) == 0;
        qr_text_free(&other);
    }
    return same;
}

static void write_one(struct json_writer *w, const qr_text *text, const qr_token_logprob *t)
{
    logprob_value(w, text->data ? text->data : "", t->logprob);
}

static void write_top(struct json_writer *w, const qr_model *model, const qr_text *chosen, const qr_token_logprob *value,
                      const qr_token_logprob *top, size_t count)
{
    bool has_chosen = false;
    json_w_object(w);
    for (size_t i = 0; i < count; i++) {
        qr_text text = logprob_text(model, top[i].token);
        if (!stands_before(model, top, i, &text)) {
            write_one(w, &text, &top[i]);
            has_chosen |= text.length == chosen->length && text.data && memcmp(text.data, chosen->data, text.length) == 0;
        }
        qr_text_free(&text);
    }
    if (!has_chosen)
        write_one(w, chosen, value);
    json_w_end_object(w);
}

void legacy_add(struct legacy_logprobs *l, const qr_model *model, int32_t token, const qr_token_logprob *value,
                const qr_token_logprob *top, size_t top_count)
{
    struct json_writer *w = json_writer_open(false);
    qr_text text = logprob_text(model, token);
    if (!w || !text.data) {
        l->tokens.failed = true;
        json_writer_close(w);
        qr_text_free(&text);
        return;
    }
    json_w_string_n(w, text.data, text.length);
    append(&l->tokens, w);
    if (value)
        logprob_number(w, value->logprob);
    else
        json_w_null(w);
    append(&l->values, w);
    if (value)
        write_top(w, model, &text, value, top, top_count);
    else
        json_w_null(w);
    append(&l->top, w);
    json_w_uint(w, l->characters);
    append(&l->offsets, w);
    l->characters += characters(&text);
    json_writer_close(w);
    qr_text_free(&text);
}

void legacy_write(struct legacy_logprobs *l, struct json_writer *w)
{
    json_w_key(w, "logprobs");
    json_w_object(w);
    list_write(w, "tokens", &l->tokens, &l->said[0]);
    list_write(w, "token_logprobs", &l->values, &l->said[1]);
    list_write(w, "top_logprobs", &l->top, &l->said[2]);
    list_write(w, "text_offset", &l->offsets, &l->said[3]);
    json_w_end_object(w);
}
