/* framing.h: whether the head of a request is one that every reader of a connection understands alike, within the limits of
 * protocol.md 4.1. */
#ifndef QR_SERVE_FRAMING_H
#define QR_SERVE_FRAMING_H

#include "serve/exchange.h"

enum { MOST_LINE = 8 << 10, MOST_HEADERS = 64 << 10, MOST_BODY = 64 << 20 };

/* The head has been read; `version` is "HTTP/1.1" or the like. False: 400, 413, 414 or 431. */
bool framing_check(const struct exchange *x, const char *version, struct refusal *refusal);

#endif
