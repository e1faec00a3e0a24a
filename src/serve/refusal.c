#include "serve/refusal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* What a client sent may be no UTF-8: such bytes become question marks, but for a character that the end cuts. */
static void copy_text(char *to, size_t size, const char *text)
{
    snprintf(to, size, "%s", text ? text : "");
    const size_t length = strlen(to);
    for (size_t good = utf8_valid_prefix(to, length); good < length; good += utf8_valid_prefix(to + good, length - good)) {
        const bool cut = length + 1 == size && length - good < 4;
        to[good] = cut ? '\0' : '?';
        if (cut)
            return;
    }
}

bool refuse(struct refusal *out, int status, const char *code, const char *param, const char *format, ...)
{
    va_list args;
    char message[sizeof out->message];
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    *out = (struct refusal){.status = status};
    copy_text(out->message, sizeof out->message, message);
    copy_text(out->code, sizeof out->code, code);
    copy_text(out->param, sizeof out->param, param);
    return false;
}

static int http_status(qr_status st)
{
    switch (st) {
    case QR_BAD_REQUEST:
    case QR_BAD_ARGUMENT: return 400;
    case QR_UNSUPPORTED: return 400;
    case QR_BUSY: return 429;
    default: return 500;
    }
}

bool refuse_for(struct refusal *out, qr_status st, const qr_error *err, const qr_issue *issue)
{
    const bool known = issue && issue->status;
    refuse(out, known ? issue->status : http_status(st), known ? issue->code : NULL, known ? issue->param : NULL, "%s",
           err->message[0] ? err->message : qr_status_name(st));
    if (out->status == 429)
        out->retry_after = 1;
    return false;
}

bool refuse_ending(struct refusal *out)
{
    refuse(out, 503, NULL, NULL, SHUTS_DOWN);
    out->retry_after = 5;
    return false;
}

bool refuse_member(struct refusal *out, qr_status st, const qr_error *err)
{
    char param[sizeof out->param] = "";
    const char *colon = strstr(err->message, ": ");
    if (st == QR_BAD_REQUEST && colon && (size_t)(colon - err->message) < sizeof param)
        memcpy(param, err->message, (size_t)(colon - err->message));
    return refuse(out, http_status(st), NULL, param, "%s", err->message);
}

int refusal_status(const struct refusal *r, enum tongue tongue)
{
    return r->status == 503 && tongue == TONGUE_ANTHROPIC ? 529 : r->status;
}

const char *refusal_type(const struct refusal *r, enum tongue tongue)
{
    const bool anthropic = tongue == TONGUE_ANTHROPIC;
    switch (r->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return anthropic ? "not_found_error" : "invalid_request_error";
    case 413: return anthropic ? "request_too_large" : "invalid_request_error";
    case 429: return "rate_limit_error";
    case 503: return anthropic ? "overloaded_error" : "server_error";
    default: return r->status < 500 ? "invalid_request_error" : anthropic ? "api_error" : "server_error";
    }
}

static void write_optional(struct json_writer *w, const char *key, const char *text)
{
    json_w_member_string(w, key, text[0] ? text : NULL);
}

void refusal_write(const struct refusal *r, enum tongue tongue, const char *request_id, struct json_writer *w)
{
    json_w_object(w);
    if (tongue == TONGUE_ANTHROPIC)
        json_w_member_string(w, "type", "error");
    json_w_key(w, "error");
    json_w_object(w);
    if (tongue == TONGUE_ANTHROPIC)
        json_w_member_string(w, "type", refusal_type(r, tongue));
    json_w_member_string(w, "message", r->message);
    if (tongue == TONGUE_OPENAI) {
        json_w_member_string(w, "type", refusal_type(r, tongue));
        write_optional(w, "param", r->param);
        write_optional(w, "code", r->code);
        if (r->context) {
            json_w_member_int(w, "n_prompt_tokens", r->prompt_tokens);
            json_w_member_int(w, "n_ctx", r->context);
        }
    }
    json_w_end_object(w);
    if (tongue == TONGUE_ANTHROPIC)
        json_w_member_string(w, "request_id", request_id);
    json_w_end_object(w);
}
