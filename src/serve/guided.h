/* guided.h: members of a request that say what its answer has to be (docs/structured.md): guided_json, guided_regex,
 * guided_choice, guided_json_object, structured_outputs {json, regex, choice, json_object}, and on /v1/completions
 * response_format, which a chat reads itself. One of them at most. */
#ifndef QR_SERVE_GUIDED_H
#define QR_SERVE_GUIDED_H

#include "serve/members.h"
#include "serve/refusal.h"

/* What is said where a chat already has a grammar of its own. */
#define GUIDED_TWICE "structured_outputs and guided members: not with response_format, a forced tool_choice or strict tools"

/* Sets out->grammar, which request_text_free closes; leaves it where the request says nothing. `raw`: no chat. */
bool guided_read(const qr_model *model, const struct json *body, bool raw, struct request_text *out, struct refusal *refusal);

#endif
