#include "serve/legacy_logprobs.h"

#include <string.h>

#include "base/utf8.h"
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

/* Whether the character that tokens have begun goes on with this byte. */
static bool goes_on(const struct legacy_logprobs *l, unsigned char byte)
{
    return l->held_count == 1 ? utf8_second_fits(l->held[0], byte) : (byte & 0xC0) == 0x80;
}

void legacy_break(struct legacy_logprobs *l)
{
    l->characters += l->held_count != 0;
    l->held_count = 0;
}

/* Counts as text is decoded: one U+FFFD for each run of bytes that can become no character (protocol.md 1.7). */
static void count_byte(struct legacy_logprobs *l, unsigned char byte)
{
    if (l->held_count && !goes_on(l, byte))
        legacy_break(l);
    const size_t length = utf8_length(l->held_count ? l->held[0] : byte);
    l->held[l->held_count++] = byte;
    if (l->held_count < length)
        return;
    l->characters++;
    l->held_count = 0;
}

/* Where a token begins; one in the middle of a character: where that begins. */
static size_t offset_of(const struct legacy_logprobs *l, const unsigned char *bytes, size_t length)
{
    return l->characters + (l->held_count && length && !goes_on(l, bytes[0]));
}

static void count_token(struct legacy_logprobs *l, const qr_model *model, int32_t token, struct json_writer *w)
{
    size_t length = 0;
    const unsigned char *bytes = qr_token_bytes(model, token, &length);
    json_w_uint(w, offset_of(l, bytes, length));
    for (size_t i = 0; i < length; i++)
        count_byte(l, bytes[i]);
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
    count_token(l, model, token, w);
    append(&l->offsets, w);
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
