#include "tools/text.h"

#include "text/detokenizer.h"

struct detokenize {
    struct tokenizer *tok;
    bool stream;
};

static qr_status write_whole(const struct detokenize *t, const struct tok_ids *ids, struct buffer *text,
                             struct json_writer *w, qr_error *err)
{
    qr_status st = detok_all(t->tok, ids->data, ids->count, text, err);
    if (st != QR_OK)
        return st;
    json_w_member_string_n(w, "text", text->data, text->length);
    return QR_OK;
}

/* What may be shown after each id, then what the end of the stream adds. */
static qr_status write_stream(const struct detokenize *t, const struct tok_ids *ids, struct buffer *text,
                              struct json_writer *w, qr_error *err)
{
    struct detokenizer d;
    qr_status st;
    detok_start(&d, t->tok);
    json_w_key(w, "emit");
    json_w_array(w);
    for (size_t i = 0; i < ids->count; i++) {
        buffer_clear(text);
        if ((st = detok_push(&d, ids->data[i], text, err)) != QR_OK)
            return st;
        json_w_string_n(w, text->data, text->length);
    }
    json_w_end_array(w);
    buffer_clear(text);
    if ((st = detok_flush(&d, text, err)) != QR_OK)
        return st;
    json_w_member_string_n(w, "flush", text->data, text->length);
    return QR_OK;
}

static qr_status answer(void *user, const struct json *line, struct json_writer *w, qr_error *err)
{
    const struct detokenize *t = user;
    struct tok_ids ids = {0};
    struct buffer text = {0};
    qr_status st = text_read_ids(json_get(line, "ids"), "ids", &ids, err);
    if (st == QR_OK)
        st = t->stream ? write_stream(t, &ids, &text, w, err) : write_whole(t, &ids, &text, w, err);
    buffer_free(&text);
    tok_ids_free(&ids);
    return st;
}

int text_detokenize(int argc, char **argv)
{
    struct text_options options = TEXT_OPTIONS_DEFAULT;
    struct detokenize t = {0};
    const struct option table[] = {
        TEXT_OPTIONS(options),
        {.name = "stream",
         .kind = OPTION_FLAG,
         .target = &t.stream,
         .help = "what may be shown after each id: {id, emit, flush}"},
        {0},
    };
    struct command_line line = {.command = "text detokenize",
                                .synopsis = "--tokenizer DIR [--stream] [--in FILE]",
                                .about = "Answers {id, ids} with {id, text}.",
                                .options = table};
    return text_part(&options, &line, argc, argv, &t.tok, answer, &t);
}
