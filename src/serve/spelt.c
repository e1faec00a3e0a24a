#include "serve/spelt.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/utf8.h"
#include "serve/server.h"

enum { MOST_BYTES = 1 << 20 };
static const char dsml[] = "｜DSML｜", thought_end[] = "</think>";

static bool is_text(const uint8_t *bytes, size_t length, const char *text)
{
    return bytes && length == strlen(text) && memcmp(bytes, text, length) == 0;
}

void spelt_take(struct choice *c, int32_t token)
{
    size_t length = 0;
    if (!c->has_tools || c->spelt.length > MOST_BYTES)
        return;
    const uint8_t *bytes = qr_token_bytes(c->job->server->model, token, &length);
    (void)buffer_append(&c->spelt, bytes, length);
    if (is_text(bytes, length, dsml))
        c->spelt_tags++;
    else if (is_text(bytes, length, thought_end) && c->call_count == 0)
        c->spelt_thought = c->spelt.length;
}

/* What a prompt is written in has no tokens but by their texts: one that is quoted cannot be told from one that was
 * drawn. */
static bool can_be_written(const struct choice *c)
{
    const struct buffer *b = &c->spelt;
    size_t tags = 0;
    if (b->failed || b->length == 0 || b->length > MOST_BYTES || memchr(b->data, 0, b->length))
        return false;
    for (const char *at = b->data; (at = strstr(at, dsml)); at += sizeof dsml - 1)
        tags++;
    return tags == c->spelt_tags && utf8_valid_prefix(b->data, b->length) == b->length;
}

static const char *last_of(const char *text, const char *word)
{
    const char *found = NULL;
    for (const char *at = text; (at = strstr(at, word)); at++)
        found = at;
    return found;
}

/* The tag that closes the block which begins at `tag`; only a block's own tag ends so. */
static bool write_closing(const char *tag, struct buffer *out)
{
    static const char name[] = "calls";
    const char *end = strchr(tag, '>');
    return end && (size_t)(end - tag) > sizeof name && memcmp(end - sizeof name + 1, name, sizeof name - 1) == 0 &&
           buffer_puts(out, "</") && buffer_append(out, tag + 1, (size_t)(end - tag));
}

/* Behind the last call's closing tag, with which an answer of one call ends; NULL: it ends otherwise. */
static const char *behind_call(const char *block)
{
    static const char name[] = "invoke>";
    const char *tag = last_of(block, dsml), *at = tag ? tag + sizeof dsml - 1 : NULL;
    if (!tag || memcmp(tag - 2, "</", 2) != 0)
        return NULL;
    at += *at == ' ';
    return strncmp(at, name, sizeof name - 1) == 0 ? at + sizeof name - 1 : NULL;
}

/* Appends the block, from the blank line before its first tag behind the reasoning on. An answer that was to hold one
 * call ends with it: the block is closed as a prompt closes it. False: there is no such block, or another one, whose
 * text was told. */
static bool write_block(const struct choice *c, struct buffer *out)
{
    static const char head[] = "\n\n<";
    const char *text = c->spelt.data + c->spelt_thought, *token = strstr(text, dsml);
    const size_t before = sizeof head - 1;
    struct buffer closing = {0};
    if (!token || (size_t)(token - text) < before || memcmp(token - before, head, before) != 0)
        return false;
    bool found = write_closing(token - 1, &closing);
    const char *begin = token - before, *end = found ? strstr(token, closing.data) : NULL, *last = behind_call(token);
    if (end) {
        end += closing.length;
        found = !strstr(end, dsml) && buffer_append(out, begin, (size_t)(end - begin));
    } else if (found && last) {
        found = buffer_append(out, begin, (size_t)(last - begin)) && buffer_puts(out, "\n") &&
                buffer_append(out, closing.data, closing.length);
    }
    buffer_free(&closing);
    return found && (end || last);
}

static const char *string_of(const struct buffer *b) { return b->data ? b->data : ""; }

void spelt_keep(const struct choice *c)
{
    const struct server *s = c->job->server;
    struct buffer block = {0};
    size_t whole = 0;
    qr_error err;
    while (whole < c->call_count && c->calls[whole].whole)
        whole++;
    if (c->parsed.end != QR_ANSWER_TOOL_CALLS || whole < c->call_count || whole == 0 || !can_be_written(c))
        return;
    qr_kept_call *calls = qr_calloc(c->call_count, sizeof *calls);
    if (calls && write_block(c, &block)) {
        for (size_t i = 0; i < c->call_count; i++)
            calls[i] = (qr_kept_call){c->calls[i].id, string_of(&c->calls[i].name), string_of(&c->calls[i].arguments)};
        (void)qr_call_blocks_keep(s->settings.chat.call_blocks, calls, c->call_count, block.data, block.length, &err);
    }
    buffer_free(&block);
    qr_free(calls);
}
