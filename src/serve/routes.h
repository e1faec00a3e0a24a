/* routes.h: which path is answered by what. */
#ifndef QR_SERVE_ROUTES_H
#define QR_SERVE_ROUTES_H

#include "serve/exchange.h"

/* Who may ask: with a key; everybody; everybody where the operator opens the list of models; with an admin's key; everybody, and
 * while the model is loaded too. */
enum route_door { DOOR_KEY, DOOR_OPEN, DOOR_MODELS, DOOR_ADMIN, DOOR_WELL };

struct route {
    const char *method; /* "GET" (HEAD too) or "POST" */
    const char *path;   /* behind its prefix; a star at the end takes any rest */
    enum tongue tongue;
    enum route_door door;
    enum MHD_Result (*handle)(struct exchange *x); /* the request is complete */
    /* called again for every wake of an exchange that waits; NULL: it never waits */
    enum MHD_Result (*resume)(struct exchange *x);
};

/* The route of a path without its query, whose prefix may be missing or "/v1", "/beta", "/anthropic/v1" (protocol.md 4.1).
 * NULL: none of that path; `*known`: there is one with another method, which `*other` names. */
const struct route *route_find(const char *method, const char *path, const char **rest, bool *known, const char **other);
size_t route_count(void);
size_t route_number(const struct route *route);
const struct route *route_at(size_t number);

#endif
