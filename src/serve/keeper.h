/* keeper.h: the thread that looks after generations whose connection sleeps: it sees clients go away, and wakes those whose
 * time has come (headers, signs of life, queues). */
#ifndef QR_SERVE_KEEPER_H
#define QR_SERVE_KEEPER_H

#include "quire.h"

struct job;
struct keeper;

/* `tick` is called about five times a second, on its thread. */
qr_status keeper_open(void (*tick)(void *user, double now), void *user, struct keeper **out, qr_error *err);
void keeper_close(struct keeper *k); /* NULL is fine; no job may be left */

/* From now on until keeper_remove, the keeper may call job_tick and job_gone (serve/job.h) of the job, of whose connection
 * `socket` is. False without memory. */
bool keeper_add(struct keeper *k, struct job *job, int socket);
/* When it returns no call is going on. */
void keeper_remove(struct keeper *k, struct job *job);

size_t keeper_jobs(struct keeper *k);
/* Ends all of them: job_abort. */
void keeper_abort_all(struct keeper *k, const char *why);

#endif
