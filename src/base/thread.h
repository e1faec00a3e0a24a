/* thread.h: threads of the library. */
#ifndef QR_BASE_THREAD_H
#define QR_BASE_THREAD_H

#include <pthread.h>

/* Starts a thread that takes no signals: those are the program's, and its own threads wait for them. Returns what
 * pthread_create does. */
int thread_start(pthread_t *out, void *(*body)(void *argument), void *argument);

#endif
