/* sleeper.h: lets the engine sleep and wakes it (runtime.md 12.2), one change after the other, on a thread of its own: weights
 * may take minutes to come back. Who asked for a change waits for it with his connection suspended; the change is made to its
 * end when he goes away meanwhile. */
#ifndef QR_SERVE_SLEEPER_H
#define QR_SERVE_SLEEPER_H

#include "serve/exchange.h"

struct change;
struct sleeper;

/* The server outlives it. */
qr_status sleeper_open(struct server *server, struct sleeper **out, qr_error *err);
/* Starts no further change and ends a wake that goes on; who waits is answered. When it returns no change goes on. */
void sleeper_end(struct sleeper *s);
/* Behind sleeper_end, when no exchange is left. NULL is fine. */
void sleeper_close(struct sleeper *s);

/* Of a handler: makes the change when its turn comes and suspends the connection, which then asks change_answer. A sleep counts
 * from now on: the server takes nothing more. */
enum MHD_Result sleeper_change(struct sleeper *s, struct exchange *x, unsigned tags, bool sleeps);
/* What became of the exchange's change. True: it is done, and `asleep` says whether the server sleeps behind it. */
bool change_result(const struct exchange *x, bool *asleep, struct refusal *refusal);
/* The exchange is over. NULL is fine. */
void change_close(struct change *c);

size_t sleeper_changes(struct sleeper *s); /* whose exchanges are not over */

#endif
