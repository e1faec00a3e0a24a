/* exchange.h: one HTTP request and its answer, whatever it is about. It belongs to the thread of its connection. */
#ifndef QR_SERVE_EXCHANGE_H
#define QR_SERVE_EXCHANGE_H

#include <microhttpd.h>

#include "base/buffer.h"
#include "serve/refusal.h"

struct server;
struct aside;
struct change;
struct job;
struct route;

struct exchange {
    struct server *server;
    struct MHD_Connection *connection;
    const struct route *route;
    const char *rest;          /* of the path, behind a route that ends in a star */
    char request_id[64];
    size_t uri_length;         /* of the path and its query, as they came */
    bool uri_cut;              /* the path holds %00, behind which a C string of it ends */
    struct buffer body;
    size_t dropped;            /* bytes of a body that is too large */
    double whole_at;           /* when all of the request was here */
    bool met;                  /* its headers have been looked at */
    bool too_large, asked;     /* asked: the whole request is here and its handler was called */
    struct refusal refused;    /* by its headers; status 0: it is not */
    struct job *job;           /* the generation that it waits for, or NULL */
    struct change *change;     /* the sleep or wake that it waits for, or NULL */
    /* of a request that is read aside (aside.h) */
    struct aside *aside;       /* NULL: it is none */
    bool away;                 /* it is there; what is queued meanwhile is kept: */
    struct MHD_Response *answer;
    int status;                /* of it */
    enum MHD_Result handled;   /* what its handler has returned */
    struct exchange *next;     /* that waits to be read */
    int retry_after;           /* seconds, as the answer tells it; 0: it does not */
    const char *allow;         /* methods, as the answer tells them; NULL: it does not */
};

/* Answers, each exactly once; what they return is for the access handler to return. */

/* What the writer holds, as application/json, with a newline behind it. */
enum MHD_Result exchange_json(struct exchange *x, int status, struct json_writer *w);
/* `body` is copied. */
enum MHD_Result exchange_text(struct exchange *x, int status, const char *type, const char *body, size_t length);
enum MHD_Result exchange_refuse(struct exchange *x, const struct refusal *refusal);
/* Puts the headers that every answer has on `response`, queues it and gives it up. */
enum MHD_Result exchange_queue(struct exchange *x, int status, struct MHD_Response *response);
/* The last step of it alone. */
enum MHD_Result exchange_send(struct exchange *x, int status, struct MHD_Response *response);

/* A header of the request, or NULL. */
const char *exchange_header(const struct exchange *x, const char *name);

/* The body as one JSON object of at most 128 levels. On failure `refusal` says why. json_close. */
bool exchange_body(struct exchange *x, struct json_document **out, struct refusal *refusal);

#endif
