/* The text calls of quire.h: thin, over text/. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/describe.h"
#include "engine/model.h"
#include "engine/text.h"
#include "ops/device.h"
#include "text/chat.h"
#include "text/detokenizer.h"

void qr_text_free(qr_text *text)
{
    if (!text)
        return;
    qr_free(text->data);
    *text = (qr_text){0};
}

void qr_tokens_free(qr_tokens *tokens)
{
    if (!tokens)
        return;
    qr_free(tokens->data);
    *tokens = (qr_tokens){0};
}

qr_status text_from_buffer(struct buffer *buffer, qr_text *out, qr_error *err)
{
    if (!buffer_append(buffer, "", 0)) {
        buffer_free(buffer);
        return qr_fail(err, QR_NO_MEMORY, "no memory for the text");
    }
    *out = (qr_text){.data = buffer->data, .length = buffer->length};
    return QR_OK;
}

qr_status qr_tokenize(const qr_model *model, const char *text, size_t length, bool markup, qr_tokens *out, qr_error *err)
{
    struct tok_ids ids = {0};
    *out = (qr_tokens){0};
    qr_status st = markup ? tok_encode_markup(model->tokenizer, text, length, &ids, err)
                          : tok_encode_literal(model->tokenizer, text, length, &ids, err);
    if (st != QR_OK) {
        tok_ids_free(&ids);
        return st;
    }
    *out = (qr_tokens){.data = ids.data, .count = ids.count};
    return QR_OK;
}

qr_status qr_detokenize(const qr_model *model, const int32_t *ids, size_t count, qr_text *out, qr_error *err)
{
    struct buffer text = {0};
    *out = (qr_text){0};
    qr_status st = detok_all(model->tokenizer, ids, count, &text, err);
    if (st != QR_OK) {
        buffer_free(&text);
        return st;
    }
    return text_from_buffer(&text, out, err);
}

const unsigned char *qr_token_bytes(const qr_model *model, int32_t id, size_t *length)
{
    return tok_bytes(model->tokenizer, id, length);
}

/* ---- chat ---- */

qr_status prompt_from_rendered(struct rendered *rendered, qr_prompt *out, qr_error *err)
{
    struct chat *chat = &rendered->chat;
    *out = (qr_prompt){0};
    qr_status st = text_from_buffer(&chat->prompt.text, &out->text, err);
    chat->prompt.text = (struct buffer){0}; /* given away, or freed */
    if (st != QR_OK)
        return st;
    out->tokens = (qr_tokens){.data = rendered->ids.data, .count = rendered->ids.count};
    rendered->ids = (struct tok_ids){0};
    out->starts_in_reasoning = chat->start == CHAT_REASONING;
    return QR_OK;
}

qr_status qr_render_chat(const qr_model *model, const char *json, size_t length, qr_prompt *out, qr_error *err)
{
    struct rendered rendered;
    *out = (qr_prompt){0};
    qr_status st = rendered_make(model, json, length, &rendered, err);
    if (st == QR_OK)
        st = prompt_from_rendered(&rendered, out, err);
    rendered_free(&rendered);
    return st;
}

void qr_prompt_free(qr_prompt *prompt)
{
    if (!prompt)
        return;
    qr_tokens_free(&prompt->tokens);
    qr_text_free(&prompt->text);
}

/* ---- what a program asks about a model ---- */

void qr_model_get_info(const qr_model *model, qr_model_info *out)
{
    const struct qr_config *c = &model->config;
    *out = (qr_model_info){.vocab_size = c->vocab_size, .layers = c->num_hidden_layers,
                           .max_positions = c->max_position_embeddings, .bos = tok_bos(model->tokenizer),
                           .eos = tok_eos(model->tokenizer), .pad = tok_pad(model->tokenizer),
                           .temperature = model->generation.temperature, .top_p = model->generation.top_p,
                           .thinking_levels = true};
    snprintf(out->name, sizeof out->name, "%s", model->name);
    snprintf(out->family, sizeof out->family, "%s", config_family_title(c));
    (void)backend_name(model->device, out->backend, sizeof out->backend, NULL); /* it was there when the model was opened */
    snprintf(out->prompt_profile, sizeof out->prompt_profile, "%s", model->prompt_profile);
    snprintf(out->profile, sizeof out->profile, "%s", config_profile_name(model->plan.profile));
}
