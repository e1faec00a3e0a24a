#include "engine/rendered.h"

void rendered_free(struct rendered *r)
{
    if (r->understood)
        chat_free(&r->chat);
    tok_ids_free(&r->ids);
    json_close(r->document);
    *r = (struct rendered){.document = NULL};
}

qr_status rendered_by(const qr_model *model, const char *json, size_t length, const struct chat_options *options,
                      struct rendered *out, struct chat_issue *issue, qr_error *err)
{
    *out = (struct rendered){.document = NULL};
    qr_status st = json_parse(json, length, "chat request", false, &out->document, err);
    if (st == QR_BAD_FILE) /* what is no JSON is the request's fault here */
        st = err ? err->status = QR_BAD_REQUEST : QR_BAD_REQUEST;
    if (st == QR_OK)
        st = chat_render(json_root(out->document), options, &out->chat, issue, err);
    out->understood = st == QR_OK;
    if (st == QR_OK)
        st = prompt_ids(&out->chat.prompt, model->tokenizer, &out->ids, err);
    if (st != QR_OK)
        rendered_free(out);
    return st;
}

qr_status rendered_make(const qr_model *model, const char *json, size_t length, struct rendered *out, qr_error *err)
{
    enum chat_profile profile;
    *out = (struct rendered){.document = NULL};
    if (!chat_profile_named(model->prompt_profile, &profile))
        return qr_fail(err, QR_INTERNAL, "prompt profile %s has no rendering", model->prompt_profile);
    struct chat_options options = chat_options_default(profile);
    options.images = false;
    return rendered_by(model, json, length, &options, out, NULL, err);
}
