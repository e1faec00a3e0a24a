#include "text/detokenizer.h"

#include "text/utf8.h"

void detok_start(struct detokenizer *d, const struct tokenizer *tok) { *d = (struct detokenizer){.tok = tok}; }

static void give_up_held(struct detokenizer *d, struct buffer *out)
{
    if (d->held_count)
        buffer_puts(out, "\xEF\xBF\xBD");
    d->held_count = 0;
}

static void push_byte(struct detokenizer *d, uint8_t byte, struct buffer *out)
{
    enum utf8_state state = utf8_step(d->held, d->held_count, byte);
    if (state == UTF8_BAD && d->held_count) {
        give_up_held(d, out);
        state = utf8_step(d->held, 0, byte);
    }
    if (state == UTF8_BAD) {
        buffer_puts(out, "\xEF\xBF\xBD");
    } else if (state == UTF8_PARTIAL) {
        d->held[d->held_count++] = byte;
    } else {
        buffer_append(out, d->held, d->held_count);
        buffer_append(out, &byte, 1);
        d->held_count = 0;
    }
}

/* Undoes a push that found no memory. */
static qr_status fail(struct detokenizer *d, struct detokenizer before, struct buffer *out, size_t length,
                      qr_error *err)
{
    *d = before;
    out->length = length;
    out->failed = false;
    if (out->data)
        out->data[length] = 0;
    return qr_fail(err, QR_NO_MEMORY, "no memory for the text of a token");
}

qr_status detok_push(struct detokenizer *d, int32_t id, struct buffer *out, qr_error *err)
{
    struct detokenizer before = *d;
    size_t length = out->length, n;
    if (id < 0 || id >= tok_count(d->tok))
        return qr_fail(err, QR_BAD_REQUEST, "id %d is outside the vocabulary, 0 to %d", id, tok_count(d->tok) - 1);
    const uint8_t *bytes = tok_bytes(d->tok, id, &n);
    if (tok_is_added(d->tok, id))
        give_up_held(d, out);
    for (size_t i = 0; i < n; i++)
        push_byte(d, bytes[i], out);
    return out->failed ? fail(d, before, out, length, err) : QR_OK;
}

qr_status detok_flush(struct detokenizer *d, struct buffer *out, qr_error *err)
{
    struct detokenizer before = *d;
    size_t length = out->length;
    give_up_held(d, out);
    return out->failed ? fail(d, before, out, length, err) : QR_OK;
}

qr_status detok_all(const struct tokenizer *tok, const int32_t *ids, size_t n, struct buffer *out, qr_error *err)
{
    struct detokenizer d;
    detok_start(&d, tok);
    for (size_t i = 0; i < n; i++) {
        qr_status st = detok_push(&d, ids[i], out, err);
        if (st != QR_OK)
            return st;
    }
    return detok_flush(&d, out, err);
}
