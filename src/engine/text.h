/* text.h: bytes of the library handed to a caller. */
#ifndef QR_ENGINE_TEXT_H
#define QR_ENGINE_TEXT_H

#include "base/buffer.h"
#include "base/status.h"
#include "engine/rendered.h"

/* Gives a buffer's bytes away as a qr_text; an empty one becomes an empty string. The buffer is freed on failure. */
qr_status text_from_buffer(struct buffer *buffer, qr_text *out, qr_error *err);

/* Gives the prompt of what was rendered away; the rest of it stays. */
qr_status prompt_from_rendered(struct rendered *rendered, qr_prompt *out, qr_error *err);

#endif
