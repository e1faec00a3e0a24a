#include "serve/framing.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What is looked for among the headers. */
struct head {
    const char *length;      /* the first Content-Length */
    bool lengths_differ;
    const char *odd_name;    /* a name that is none */
};

/* RFC 9110, 5.6.2 */
static bool is_token(const char *name)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    return *name && strspn(name, token) == strlen(name);
}

static enum MHD_Result see_header(void *user, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct head *h = user;
    (void)kind;
    if (!is_token(name))
        h->odd_name = name;
    if (strcasecmp(name, "content-length") != 0)
        return MHD_YES;
    h->lengths_differ |= h->length && value && strcmp(h->length, value) != 0;
    h->length = value;
    return MHD_YES;
}

static bool check_sizes(const struct exchange *x, struct refusal *refusal)
{
    const union MHD_ConnectionInfo *head = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (x->uri_length > MOST_LINE)
        return refuse(refusal, 414, NULL, NULL, "the path and its query have %zu bytes, at most %d are taken", x->uri_length, MOST_LINE);
    if (head && head->header_size > MOST_HEADERS)
        return refuse(refusal, 431, NULL, NULL, "the request's headers have %zu bytes, at most %d are taken", head->header_size,
                      MOST_HEADERS);
    return true;
}

/* A coding that is not known leaves the end of the body unknown (RFC 9112, 6.1). Not a 501, which clients would repeat
 * (protocol.md 4.11). */
static bool check_coding(const struct exchange *x, struct refusal *refusal)
{
    const char *coding = exchange_header(x, "transfer-encoding");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return refuse(refusal, 400, NULL, NULL, "Transfer-Encoding: %.60s, wanted chunked", coding);
    return true;
}

static bool check_length(const char *length, struct refusal *refusal)
{
    const unsigned long long bytes = length ? strtoull(length, NULL, 10) : 0;
    if (bytes > MOST_BODY)
        return refuse(refusal, 413, NULL, NULL, "the request's body has %llu bytes, at most %d are taken", bytes, MOST_BODY);
    return true;
}

bool framing_check(const struct exchange *x, const char *version, struct refusal *refusal)
{
    struct head h = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, see_header, &h);
    if (!check_sizes(x, refusal) || !check_coding(x, refusal))
        return false;
    if (x->uri_cut)
        return refuse(refusal, 400, NULL, NULL, "the path holds %%00, which is a part of no path here");
    if (h.odd_name)
        return refuse(refusal, 400, NULL, NULL, "the request has a header that has no name, or one with spaces or signs in it");
    if (h.lengths_differ || (h.length && exchange_header(x, "transfer-encoding")))
        return refuse(refusal, 400, NULL, NULL, "the length of the request's body is told in two ways");
    if (strcmp(version, "HTTP/1.1") == 0 && !exchange_header(x, "host"))
        return refuse(refusal, 400, NULL, NULL, "the request has no Host header");
    return check_length(h.length, refusal);
}
