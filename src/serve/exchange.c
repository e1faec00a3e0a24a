#include "serve/exchange.h"

#include <stdio.h>
#include <string.h>

#include "serve/server.h"

/* Levels: protocol.md 4.1. A value takes some fifty times its bytes once it is parsed. */
enum { MOST_LEVELS = 128, MOST_VALUES = 1 << 21 };

const char *exchange_header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

static void add_cors(const struct exchange *x, struct MHD_Response *response)
{
    const char *origin = x->server->settings.cors;
    if (!origin)
        return;
    MHD_add_response_header(response, "access-control-allow-origin", origin);
    MHD_add_response_header(response, "access-control-allow-methods", "GET, HEAD, POST, OPTIONS");
    MHD_add_response_header(response, "access-control-allow-headers", "*, authorization");
    MHD_add_response_header(response, "access-control-max-age", "86400");
}

enum MHD_Result exchange_send(struct exchange *x, int status, struct MHD_Response *response)
{
    const enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return queued;
}

enum MHD_Result exchange_queue(struct exchange *x, int status, struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "x-request-id", x->request_id);
    if (server_tongue(x->route) == TONGUE_ANTHROPIC)
        MHD_add_response_header(response, "request-id", x->request_id);
    add_cors(x, response);
    if (x->allow)
        MHD_add_response_header(response, "allow", x->allow);
    if (x->retry_after) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", x->retry_after);
        MHD_add_response_header(response, "retry-after", seconds);
    }
    server_count_answer(x->server, x->route, status);
    if (!x->away)
        return exchange_send(x, status, response);
    x->answer = response;
    x->status = status;
    return MHD_YES;
}

static struct MHD_Response *copied(const char *type, const char *body, size_t length)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(length, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    if (r && type)
        MHD_add_response_header(r, "content-type", type);
    return r;
}

enum MHD_Result exchange_text(struct exchange *x, int status, const char *type, const char *body, size_t length)
{
    return exchange_queue(x, status, copied(type, body, length));
}

/* The writer's text with a newline behind it; NULL: it holds nothing that can be said. */
static struct MHD_Response *json_response(struct json_writer *w)
{
    const char *text;
    size_t length;
    struct buffer body = {0};
    if (!w || json_finish(w, &text, &length, NULL) != QR_OK || !buffer_append(&body, text, length) || !buffer_append(&body, "\n", 1)) {
        buffer_free(&body);
        return NULL;
    }
    struct MHD_Response *r = copied("application/json", body.data, body.length);
    buffer_free(&body);
    return r;
}

enum MHD_Result exchange_json(struct exchange *x, int status, struct json_writer *w)
{
    struct MHD_Response *r = json_response(w);
    if (r)
        return exchange_queue(x, status, r);
    static const char body[] = "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n";
    return exchange_text(x, 500, "application/json", body, sizeof body - 1);
}

enum MHD_Result exchange_refuse(struct exchange *x, const struct refusal *refusal)
{
    struct json_writer *w = json_writer_open(false);
    if (w)
        refusal_write(refusal, server_tongue(x->route), x->request_id, w);
    struct MHD_Response *r = json_response(w);
    json_writer_close(w);
    if (!r)
        return exchange_json(x, 500, NULL);
    x->retry_after = refusal->retry_after;
    return exchange_queue(x, refusal_status(refusal, server_tongue(x->route)), r);
}

/* Of JSON, without parsing it. */
struct extent {
    int levels;    /* brackets that are open at once, at most */
    size_t values; /* as many as there are, and some more */
};

static struct extent measure(const char *text, size_t length)
{
    struct extent e = {0};
    int level = 0;
    bool string = false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (string) {
            i += c == '\\';
            string = c != '"';
        } else if (c == '"') {
            string = true;
        } else if (c == '{' || c == '[') {
            e.levels = ++level > e.levels ? level : e.levels;
            e.values++;
        } else if (c == '}' || c == ']') {
            level--;
        } else if (c == ',') {
            e.values++;
        }
    }
    return e;
}

bool exchange_body(struct exchange *x, struct json_document **out, struct refusal *refusal)
{
    qr_error err = {0};
    *out = NULL;
    if (x->body.failed)
        return refuse(refusal, 500, NULL, NULL, "no memory for the request's body");
    if (x->body.length == 0)
        return refuse(refusal, 400, NULL, NULL, "the request's body is empty, wanted a JSON object");
    const struct extent extent = measure(x->body.data, x->body.length);
    if (extent.values > MOST_VALUES)
        return refuse(refusal, 400, NULL, NULL, "the request's body: JSON of more than %d values", MOST_VALUES);
    if (extent.levels > MOST_LEVELS)
        return refuse(refusal, 400, NULL, NULL, "the request's body: JSON nested deeper than %d", MOST_LEVELS);
    const qr_status st = json_parse(x->body.data, x->body.length, "the request's body", false, out, &err);
    if (st != QR_OK)
        return refuse(refusal, st == QR_NO_MEMORY ? 500 : 400, NULL, NULL, "%s", err.message);
    if (json_root(*out)->kind == JSON_OBJECT)
        return true;
    json_close(*out);
    *out = NULL;
    return refuse(refusal, 400, NULL, NULL, "the request's body: wanted a JSON object");
}
