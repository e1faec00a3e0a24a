/* A chat request of any bytes (the first chooses the options): refused with a sentence and a place, or a prompt whose
 * control tokens are its markup segments and no others. Reads models/tiny-v41: run it in the project's folder. */
#include "fuzz.h"

#include <string.h>

#include "models.h"
#include "text/chat.h"

static struct tokenizer *tok;

static void check_segments(const struct prompt *p)
{
    size_t end = 0;
    for (size_t i = 0; i < p->count; i++) {
        must(p->segments[i].offset == end && p->segments[i].length > 0);
        must(i == 0 || p->segments[i].markup || p->segments[i - 1].markup);
        end += p->segments[i].length;
    }
    must(end == p->text.length);
}

static void check_ids(const struct prompt *p)
{
    struct tok_ids ids = {0};
    size_t added = 0;
    must(prompt_ids(p, tok, &ids, NULL) == QR_OK);
    for (size_t i = 0; i < ids.count; i++)
        added += tok_is_added(tok, ids.data[i]);
    must(added == prompt_markup_count(p));
    tok_ids_free(&ids);
}

static size_t count_images(const struct prompt *p)
{
    size_t count = 0;
    for (size_t i = 0; i < p->count; i++)
        count += p->segments[i].markup && p->segments[i].length == strlen(TOKEN_IMAGE) &&
                 memcmp(p->text.data + p->segments[i].offset, TOKEN_IMAGE, p->segments[i].length) == 0;
    return count;
}

static void render(const struct json *request, uint8_t choice)
{
    struct chat_options options = chat_options_default((enum chat_profile)(choice % 3));
    struct chat chat;
    struct chat_issue issue = {0};
    qr_error err = {0};
    options.thinking = choice & 4;
    options.vendor_extensions = choice & 8;
    options.images = choice & 16;
    qr_status st = chat_render(request, &options, &chat, &issue, &err);
    must(st == QR_OK || st == QR_BAD_REQUEST);
    if (st != QR_OK) {
        must(issue.status == 400 && issue.param[0] && err.message[0]);
        return;
    }
    must(!err.message[0]);
    check_segments(&chat.prompt);
    check_ids(&chat.prompt);
    must(count_images(&chat.prompt) == chat.image_count);
    chat_free(&chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_document *doc;
    if (!tok)
        tok = fuzz_tokenizer(SPLIT_AUTO);
    if (size == 0 || json_parse((const char *)data + 1, size - 1, "request", false, &doc, NULL) != QR_OK)
        return 0;
    render(json_root(doc), data[0]);
    json_close(doc);
    return 0;
}
