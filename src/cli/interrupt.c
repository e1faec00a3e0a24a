#define _GNU_SOURCE
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

/* The note, and a pipe that only wakes who waits for one: a byte in it says nothing by itself. */
static volatile sig_atomic_t interrupted;
static bool ends;
static int wake[2] = {-1, -1};

static void note(int signal)
{
    const int kept = errno;
    (void)signal;
    if (interrupted && ends)
        _exit(130);
    interrupted = 1;
    if (write(wake[1], "", 1) < 0) /* full: it wakes all the same */
        errno = kept;
}

void interrupt_catch(bool second_ends)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART}; /* a line half read is not lost */
    ends = second_ends;
    if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
        wake[0] = wake[1] = -1;
    sigaction(SIGINT, &action, NULL);
}

bool interrupt_taken(void)
{
    const bool was = interrupted;
    interrupted = 0;
    return was;
}

bool interrupt_before_input(int descriptor)
{
    char bytes[64];
    struct pollfd either[2] = {{.fd = descriptor, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    for (;;) {
        if (interrupt_taken())
            return true;
        const int ready = poll(either, 2, -1);
        if (ready < 0 && errno != EINTR)
            return false; /* what reads next says why */
        if (ready <= 0)
            continue;
        if (either[1].revents && read(wake[0], bytes, sizeof bytes) > 0)
            continue;
        if (either[0].revents)
            return interrupt_taken();
    }
}
