#include "serve/spelt.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "serve/server.h"

enum { MOST_BYTES = 1 << 20 };

void spelt_take(struct choice *c, int32_t token)
{
    size_t length = 0;
    if (!c->has_tools || c->spelt.length > MOST_BYTES)
        return;
    const uint8_t *bytes = qr_token_bytes(c->job->server->model, token, &length);
    (void)buffer_append(&c->spelt, bytes, length);
}

static const char *last_of(const char *text, const char *word)
{
    const char *found = NULL;
    for (const char *at = text; (at = strstr(at, word)); at++)
        found = at;
    return found;
}

/* The tag that closes the block which begins at `tag`. */
static bool write_closing(const char *tag, struct buffer *out)
{
    const char *end = strchr(tag, '>');
    return end && buffer_puts(out, "</") && buffer_append(out, tag + 1, (size_t)(end - tag));
}

/* Appends the block, from the blank line before its first tag behind the reasoning on. An answer that was to hold one call ends
 * with it: the block is closed as a prompt closes it. False: there is no such block. */
static bool write_block(const struct choice *c, struct buffer *out)
{
    static const char head[] = "\n\n<", call_end[] = "invoke>";
    const char *text = c->spelt.data, *behind = last_of(text, "</think>");
    const char *token = strstr(behind ? behind : text, "｜DSML｜");
    const size_t before = sizeof head - 1;
    struct buffer closing = {0};
    if (!token || (size_t)(token - text) < before || memcmp(token - before, head, before) != 0)
        return false;
    bool found = write_closing(token - 1, &closing);
    const char *begin = token - before, *end = found ? last_of(token, closing.data) : NULL;
    const char *last = last_of(token, call_end);
    if (end) {
        found = buffer_append(out, begin, (size_t)(end - begin) + closing.length);
    } else if (found && last) {
        found = buffer_append(out, begin, (size_t)(last - begin) + sizeof call_end - 1) && buffer_puts(out, "\n") &&
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
    if (c->parsed.end != QR_ANSWER_TOOL_CALLS || whole < c->call_count || whole == 0 || c->spelt.failed ||
        c->spelt.length == 0 || c->spelt.length > MOST_BYTES || memchr(c->spelt.data, 0, c->spelt.length))
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
