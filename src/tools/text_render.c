#include "tools/text.h"

#include "text/chat.h"

struct render {
    struct tokenizer *tok;
    struct chat_options options;
};

static qr_status write_prompt(const struct render *t, const struct chat *chat, struct json_writer *w, qr_error *err)
{
    struct tok_ids ids = {0};
    qr_status st = prompt_ids(&chat->prompt, t->tok, &ids, err);
    if (st == QR_OK) {
        json_w_member_string_n(w, "prompt", chat->prompt.text.data, chat->prompt.text.length);
        text_write_ids(w, "ids", &ids);
        json_w_member_uint(w, "markup_tokens", prompt_markup_count(&chat->prompt));
        json_w_member_uint(w, "image_count", chat->image_count);
        json_w_member_string(w, "start_state", chat->start == CHAT_REASONING ? "reasoning" : "content");
    }
    tok_ids_free(&ids);
    return st;
}

static qr_status answer(void *user, const struct json *line, struct json_writer *w, qr_error *err)
{
    const struct render *t = user;
    struct chat_options options = t->options;
    struct chat chat;
    const struct json *extensions = json_get(line, "vendor_extensions");
    options.vendor_extensions |= extensions && extensions->boolean;
    qr_status st = chat_render(line, &options, &chat, NULL, err);
    if (st != QR_OK)
        return st;
    st = write_prompt(t, &chat, w, err);
    chat_free(&chat);
    return st;
}

int text_render(int argc, char **argv)
{
    struct text_options options = TEXT_OPTIONS_DEFAULT;
    struct render t = {0};
    bool extensions = false;
    enum chat_profile profile;
    int status;
    const struct option table[] = {
        TEXT_OPTIONS(options),
        {.name = "vendor-extensions",
         .kind = OPTION_FLAG,
         .target = &extensions,
         .help = "allow what only the vendor's API has: the role latest_reminder and tasks"},
        {0},
    };
    struct command_line line = {.command = "text render",
                                .synopsis = "--tokenizer DIR [--prompt-profile v41] [--in FILE]",
                                .about =
                                    "Answers {id, members of a chat request} with {id, prompt, ids, markup_tokens, "
                                    "image_count, start_state}.",
                                .options = table};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!chat_profile_named(options.prompt_profile, &profile))
        return options_wrong(&line, "--prompt-profile is none of v4a, v4b, v41");
    if (!text_open_tokenizer(&options, &line, &t.tok, &status))
        return status;
    t.options = chat_options_default(profile);
    t.options.vendor_extensions = extensions;
    status = text_answer(&options, &line, answer, &t);
    tok_close(t.tok);
    return status;
}
