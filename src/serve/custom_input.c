#include "serve/custom_input.h"

#include <string.h>

#include "base/json.h"

static const uint32_t REPLACEMENT = 0xFFFD;

static void append_character(struct custom_input *c, uint32_t code)
{
    char out[4];
    size_t n = 0;
    if (code < 0x80) {
        out[n++] = (char)code;
    } else if (code < 0x800) {
        out[n++] = (char)(0xC0 | code >> 6);
        out[n++] = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        out[n++] = (char)(0xE0 | code >> 12);
        out[n++] = (char)(0x80 | (code >> 6 & 0x3F));
        out[n++] = (char)(0x80 | (code & 0x3F));
    } else {
        out[n++] = (char)(0xF0 | code >> 18);
        out[n++] = (char)(0x80 | (code >> 12 & 0x3F));
        out[n++] = (char)(0x80 | (code >> 6 & 0x3F));
        out[n++] = (char)(0x80 | (code & 0x3F));
    }
    buffer_append(&c->text, out, n);
}

/* A first half of a pair that nothing follows stands for no character. */
static void drop_half(struct custom_input *c)
{
    if (c->high)
        append_character(c, REPLACEMENT);
    c->high = 0;
}

/* ---- the beginning: {"input":" with white space anywhere between ---- */

static void take_start(struct custom_input *c, char byte)
{
    static const char start[] = "{\"input\":\"";
    const bool in_name = c->matched > 1 && c->matched < strlen("{\"input\"");
    if (!in_name && strchr(" \t\r\n", byte) && byte)
        return;
    if (byte != start[c->matched])
        c->state = CUSTOM_OTHER;
    else if (++c->matched == strlen(start))
        c->state = CUSTOM_TEXT;
}

/* ---- the string ---- */

static void take_text(struct custom_input *c, char byte)
{
    if (byte == '\\') {
        c->state = CUSTOM_ESCAPE;
        return;
    }
    drop_half(c);
    if (byte == '"')
        c->state = CUSTOM_OVER;
    else
        buffer_append(&c->text, &byte, 1);
}

static void take_escape(struct custom_input *c, char byte)
{
    static const char letters[] = "bfnrt", meanings[] = "\b\f\n\r\t";
    if (byte == 'u') {
        c->state = CUSTOM_HEX;
        c->unit = 0;
        c->digits = 0;
        return;
    }
    drop_half(c);
    const char *letter = byte ? strchr(letters, byte) : NULL;
    buffer_append(&c->text, letter ? &meanings[letter - letters] : &byte, 1);
    c->state = CUSTOM_TEXT;
}

static void take_unit(struct custom_input *c)
{
    const bool first = c->unit >= 0xD800 && c->unit < 0xDC00, second = c->unit >= 0xDC00 && c->unit < 0xE000;
    if (c->high && second) {
        append_character(c, 0x10000 + ((c->high - 0xD800) << 10) + (c->unit - 0xDC00));
        c->high = 0;
        return;
    }
    drop_half(c);
    if (first)
        c->high = c->unit;
    else
        append_character(c, second ? REPLACEMENT : c->unit);
}

static void take_hex(struct custom_input *c, char byte)
{
    static const char digits[] = "0123456789abcdef";
    const char lower = byte >= 'A' && byte <= 'F' ? (char)(byte + 32) : byte;
    const char *digit = lower ? strchr(digits, lower) : NULL;
    if (!digit) { /* this is no JSON: what is cut stays cut */
        append_character(c, REPLACEMENT);
        c->state = CUSTOM_TEXT;
        take_text(c, byte);
        return;
    }
    c->unit = c->unit * 16 + (uint32_t)(digit - digits);
    if (++c->digits < 4)
        return;
    c->state = CUSTOM_TEXT;
    take_unit(c);
}

void custom_input_push(struct custom_input *c, const char *json, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        switch (c->state) {
        case CUSTOM_START: take_start(c, json[i]); break;
        case CUSTOM_TEXT: take_text(c, json[i]); break;
        case CUSTOM_ESCAPE: take_escape(c, json[i]); break;
        case CUSTOM_HEX: take_hex(c, json[i]); break;
        case CUSTOM_OVER:
        case CUSTOM_OTHER: return;
        }
    }
}

void custom_input_of(const char *json, size_t length, struct buffer *out)
{
    struct custom_input c = {0};
    struct json_document *document = NULL;
    custom_input_push(&c, json, length);
    const bool found = c.state != CUSTOM_OTHER && c.state != CUSTOM_START;
    if (!found && length)
        (void)json_parse(json, length, "arguments", false, &document, NULL);
    const struct json *input = document ? json_get(json_root(document), "input") : NULL;
    if (found)
        buffer_append(out, c.text.data ? c.text.data : "", c.text.length);
    else if (input && input->kind == JSON_STRING)
        buffer_append(out, input->text, input->length);
    else
        buffer_append(out, length ? json : "", length);
    out->failed |= c.text.failed;
    json_close(document);
    buffer_free(&c.text);
}
