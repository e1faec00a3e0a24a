#include "engine/chats.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/structs.h"
#include "text/call_blocks.h"

qr_status qr_call_blocks_open(size_t most_bytes, qr_call_blocks **out, qr_error *err)
{
    return call_blocks_open(most_bytes, out, err);
}

void qr_call_blocks_close(qr_call_blocks *blocks) { call_blocks_close(blocks); }

qr_status qr_call_blocks_keep(qr_call_blocks *blocks, const qr_kept_call *calls, size_t count, const char *text,
                              size_t length, qr_error *err)
{
    return call_blocks_keep(blocks, calls, count, text, length, err);
}

static qr_status read_options(const qr_model *model, const qr_chat_options *given, qr_chat *chat, struct chat_options *out,
                              qr_error *err)
{
    qr_chat_options options = QR_CHAT_OPTIONS;
    enum chat_profile profile;
    if (given) {
        qr_status st = struct_take("qr_chat_options", given, sizeof options, &options, err);
        if (st != QR_OK)
            return st;
    }
    if (!chat_profile_named(model->prompt_profile, &profile))
        return qr_fail(err, QR_INTERNAL, "prompt profile %s has no rendering", model->prompt_profile);
    const char *thinking = options.thinking ? options.thinking : "on";
    if (strcmp(thinking, "on") != 0 && strcmp(thinking, "off") != 0)
        return qr_fail(err, QR_BAD_ARGUMENT, "qr_chat_options: thinking is \"%s\", wanted on or off", thinking);
    *out = chat_options_default(profile);
    out->images = false;
    out->thinking = strcmp(thinking, "on") == 0;
    out->effort = options.effort;
    out->vendor_extensions = options.vendor_extensions;
    out->call_blocks = options.call_blocks;
    chat->lenient_tools = options.lenient_tools;
    chat->tool_recovery = options.tool_recovery;
    return QR_OK;
}

static void tell_issue(const struct chat_issue *issue, qr_status st, qr_issue *out)
{
    if (!out)
        return;
    *out = (qr_issue){.status = st == QR_BAD_REQUEST ? 400 : 0};
    if (st != QR_BAD_REQUEST)
        return;
    if (issue->status)
        out->status = issue->status;
    snprintf(out->code, sizeof out->code, "%s", issue->code ? issue->code : "");
    snprintf(out->param, sizeof out->param, "%s", issue->param);
}

qr_status qr_chat_open(const qr_model *model, const char *json, size_t length, const qr_chat_options *options, qr_chat **out,
                       qr_issue *issue, qr_error *err)
{
    struct chat_issue found = {0};
    struct chat_options chosen;
    *out = NULL;
    qr_chat *chat = qr_calloc(1, sizeof *chat);
    char *copy = qr_malloc(length + 1);
    if (!chat || !copy) {
        qr_free(chat);
        qr_free(copy);
        tell_issue(&found, QR_NO_MEMORY, issue);
        return qr_fail(err, QR_NO_MEMORY, "no memory for a chat request of %zu bytes", length);
    }
    memcpy(copy, json, length);
    copy[length] = '\0';
    chat->model = model;
    chat->json = copy;
    qr_status st = read_options(model, options, chat, &chosen, err);
    if (st == QR_OK)
        st = rendered_by(model, copy, length, &chosen, &chat->rendered, &found, err);
    if (st == QR_OK)
        st = grammar_of_chat(model, &chat->rendered.chat, &chat->grammar, &found, err);
    tell_issue(&found, st, issue);
    if (st != QR_OK) {
        qr_chat_close(chat);
        return st;
    }
    *out = chat;
    return QR_OK;
}

void qr_chat_close(qr_chat *chat)
{
    if (!chat)
        return;
    qr_grammar_close(chat->grammar);
    rendered_free(&chat->rendered);
    qr_free(chat->json);
    qr_free(chat);
}

void qr_chat_get_info(const qr_chat *chat, qr_chat_info *out)
{
    const struct chat *c = &chat->rendered.chat;
    *out = (qr_chat_info){.tokens = chat->rendered.ids.data,
                          .token_count = chat->rendered.ids.count,
                          .text = c->prompt.text.data,
                          .text_length = c->prompt.text.length,
                          .starts_in_reasoning = c->start == CHAT_REASONING,
                          .thinking = c->thinking.on,
                          .tools = c->tools.count};
}

const char *qr_chat_segment(const qr_chat *chat, size_t index, size_t *length, bool *markup)
{
    const struct prompt *p = &chat->rendered.chat.prompt;
    *length = 0;
    if (index >= p->count)
        return NULL;
    *length = p->segments[index].length;
    *markup = p->segments[index].markup;
    return p->text.data + p->segments[index].offset;
}

const qr_grammar *qr_chat_grammar(const qr_chat *chat) { return chat->grammar; }
