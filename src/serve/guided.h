/* guided.h: members of a request that say what its answer has to be (docs/structured.md): guided_json, guided_regex,
 * guided_choice, guided_json_object, structured_outputs {json, regex, choice, json_object}, and on /v1/completions
 * response_format, which a chat reads itself. One of them at most. */
#ifndef QR_SERVE_GUIDED_H
#define QR_SERVE_GUIDED_H

#include "serve/members.h"
#include "serve/refusal.h"

/* Sets out->grammar, which request_text_free closes; leaves it where the request says nothing. `raw`: no chat. */
bool guided_read(const qr_model *model, const struct json *body, bool raw, struct request_text *out, struct refusal *refusal);
/* Refuses what was read so where the chat asks for a grammar of its own. */
bool guided_alone(const struct json *body, const struct request_text *text, const qr_chat *chat, struct refusal *refusal);

#endif
