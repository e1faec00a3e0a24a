#include "text/prompt.h"

#include <string.h>

#include "text/chat_json.h"

void prompt_free(struct prompt *p)
{
    buffer_free(&p->text);
    qr_free(p->segments);
    *p = (struct prompt){0};
}

bool prompt_failed(const struct prompt *p) { return p->text.failed; }

/* Makes a segment of everything behind the last one. */
static void close_segment(struct prompt *p, size_t offset, bool markup)
{
    if (p->text.failed || p->text.length == offset)
        return;
    if (!array_grow(&p->segments, &p->capacity, p->count, sizeof *p->segments)) {
        p->text.failed = true;
        return;
    }
    p->segments[p->count++] = (struct prompt_segment){offset, p->text.length - offset, markup};
}

void prompt_markup(struct prompt *p, const char *token)
{
    size_t offset = p->text.length;
    buffer_puts(&p->text, token);
    close_segment(p, offset, true);
}

/* The text has grown by literal bytes since it was `offset` long. */
static void account_literal(struct prompt *p, size_t offset)
{
    if (p->count > 0 && !p->segments[p->count - 1].markup)
        p->segments[p->count - 1].length += p->text.length - offset;
    else
        close_segment(p, offset, false);
}

void prompt_literal(struct prompt *p, const char *text, size_t length)
{
    size_t offset = p->text.length;
    buffer_append(&p->text, text, length);
    account_literal(p, offset);
}

void prompt_puts(struct prompt *p, const char *text) { prompt_literal(p, text, strlen(text)); }

void prompt_json(struct prompt *p, const struct json *value)
{
    size_t offset = p->text.length;
    chat_json_write(&p->text, value);
    account_literal(p, offset);
}

size_t prompt_markup_count(const struct prompt *p)
{
    size_t markup = 0;
    for (size_t i = 0; i < p->count; i++)
        markup += p->segments[i].markup;
    return markup;
}

static qr_status markup_id(const char *token, size_t length, const struct tokenizer *tok, struct tok_ids *ids,
                           qr_error *err)
{
    char name[64];
    if (length >= sizeof name)
        return qr_fail(err, QR_INTERNAL, "a markup segment of %zu bytes", length);
    memcpy(name, token, length);
    name[length] = 0;
    int32_t id = tok_find(tok, name);
    if (id < 0)
        return qr_fail(err, QR_UNSUPPORTED, "the tokenizer has no added token %s, which this prompt needs", name);
    if (!tok_ids_push(ids, id))
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu ids", ids->count + 1);
    return QR_OK;
}

qr_status prompt_ids(const struct prompt *p, const struct tokenizer *tok, struct tok_ids *ids, qr_error *err)
{
    qr_status st = QR_OK;
    for (size_t i = 0; i < p->count && st == QR_OK; i++) {
        const struct prompt_segment *s = &p->segments[i];
        const char *text = p->text.data + s->offset;
        st = s->markup ? markup_id(text, s->length, tok, ids, err)
                       : tok_encode_literal(tok, text, s->length, ids, err);
    }
    return st;
}
