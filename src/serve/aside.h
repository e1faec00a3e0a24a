/* aside.h: the thread where large requests are read (parsed, rendered, cut into tokens), one after the other, so that the threads
 * that hold the connections have time for the others meanwhile (protocol.md 1.9). Connections of such requests are suspended. */
#ifndef QR_SERVE_ASIDE_H
#define QR_SERVE_ASIDE_H

#include "serve/exchange.h"

struct aside;

qr_status aside_open(struct aside **out, qr_error *err);
/* Refuses what it has not begun; when it returns nothing is read. */
void aside_end(struct aside *a);
/* Behind aside_end, when no exchange is left. NULL is fine. */
void aside_close(struct aside *a);

/* Whether the exchange's request is so large, and one that its handler answers or makes a job of. */
bool aside_takes(const struct exchange *x);
/* Has the route's handler called there, which may answer or start a job; then the connection goes on with aside_resume. What
 * it returns is for the access handler to return, as that of the next. */
enum MHD_Result aside_handle(struct aside *a, struct exchange *x);
enum MHD_Result aside_resume(struct exchange *x);
/* The exchange is over, whether it was here or not. */
void aside_leave(struct exchange *x);

size_t aside_exchanges(struct aside *a); /* that have been here and are not over */

#endif
