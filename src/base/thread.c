#define _GNU_SOURCE
#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

int thread_start(pthread_t *out, void *(*body)(void *argument), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited */
    const int failure = pthread_create(out, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}
