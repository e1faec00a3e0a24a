#include "tools/text.h"

#include <string.h>

struct tokenize {
    struct tokenizer *tok;
    bool markup;
};

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static qr_status read_hex(const struct json *hex, struct buffer *bytes, qr_error *err)
{
    if (hex->kind != JSON_STRING || hex->length % 2)
        return qr_fail(err, QR_BAD_REQUEST, "bytes_hex is no string of pairs of hexadecimal digits");
    for (size_t i = 0; i < hex->length; i += 2) {
        int high = digit_of(hex->text[i]), low = digit_of(hex->text[i + 1]);
        if (high < 0 || low < 0)
            return qr_fail(err, QR_BAD_REQUEST, "bytes_hex has \"%.2s\" at %zu, wanted two hexadecimal digits",
                           hex->text + i, i);
        char byte = (char)(high << 4 | low);
        if (!buffer_append(bytes, &byte, 1))
            return qr_fail(err, QR_NO_MEMORY, "no memory for the bytes of bytes_hex");
    }
    return QR_OK;
}

static qr_status answer(void *user, const struct json *line, struct json_writer *w, qr_error *err)
{
    struct tokenize *t = user;
    const struct json *text = json_get(line, "text"), *hex = json_get(line, "bytes_hex");
    struct buffer bytes = {0};
    struct tok_ids ids = {0};
    qr_status st = QR_OK;
    if ((text != NULL) == (hex != NULL))
        st = qr_fail(err, QR_BAD_REQUEST, "wanted either text or bytes_hex");
    else if (hex)
        st = read_hex(hex, &bytes, err);
    else if (text->kind != JSON_STRING)
        st = qr_fail(err, QR_BAD_REQUEST, "text is no string");
    else if (!buffer_append(&bytes, text->text, text->length))
        st = qr_fail(err, QR_NO_MEMORY, "no memory for a text of %zu bytes", text->length);
    if (st == QR_OK)
        st = t->markup ? tok_encode_markup(t->tok, bytes.data ? bytes.data : "", bytes.length, &ids, err)
                       : tok_encode_literal(t->tok, bytes.data ? bytes.data : "", bytes.length, &ids, err);
    if (st == QR_OK)
        text_write_ids(w, "ids", &ids);
    buffer_free(&bytes);
    tok_ids_free(&ids);
    return st;
}

int text_tokenize(int argc, char **argv)
{
    struct text_options options = TEXT_OPTIONS_DEFAULT;
    struct tokenize t = {0};
    const struct option table[] = {
        TEXT_OPTIONS(options),
        {.name = "markup", .kind = OPTION_FLAG, .target = &t.markup, .help = "recognise added tokens"},
        {0},
    };
    struct command_line line = {.command = "text tokenize",
                                .synopsis = "--tokenizer DIR [--markup] [--in FILE]",
                                .about = "Answers {id, text} or {id, bytes_hex} with {id, ids}. The text is literal "
                                         "unless --markup is given.",
                                .options = table};
    return text_part(&options, &line, argc, argv, &t.tok, answer, &t);
}
