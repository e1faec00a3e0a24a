/* rendered.h: a chat request that has become a prompt, with what the parser of its answer needs of it. */
#ifndef QR_ENGINE_RENDERED_H
#define QR_ENGINE_RENDERED_H

#include "engine/model.h"
#include "text/chat.h"

/* Zero-initialise; free with rendered_free. */
struct rendered {
    struct json_document *document; /* `chat` points into it */
    struct chat chat;
    bool understood;                /* `chat` holds something */
    struct tok_ids ids;
};

/* Renders the JSON of a chat request, which is read while `out` lives, by the model's template. `issue` as chat_render's. On
 * failure `out` is empty. */
qr_status rendered_by(const qr_model *model, const char *json, size_t length, const struct chat_options *options,
                      struct rendered *out, struct chat_issue *issue, qr_error *err);
/* The same by the defaults of the model's template. */
qr_status rendered_make(const qr_model *model, const char *json, size_t length, struct rendered *out, qr_error *err);
void rendered_free(struct rendered *r);

#endif
