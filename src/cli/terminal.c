#define _GNU_SOURCE
#include "cli/terminal.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <termios.h>
#include <unistd.h>

static const int fatal[] = {SIGHUP, SIGQUIT, SIGTERM, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};
enum { FATAL = sizeof fatal / sizeof *fatal };

static struct termios found;
static struct sigaction before[FATAL];
static bool kept;

/* Another group in the foreground has modes of its own, and setting them from behind would stop this one. */
static void give_back(int signal)
{
    if (tcgetpgrp(STDIN_FILENO) == getpgrp())
        tcsetattr(STDIN_FILENO, TCSANOW, &found);
    raise(signal); /* SA_RESETHAND: this time it ends the program */
}

void terminal_keep(void)
{
    struct sigaction action = {.sa_handler = give_back, .sa_flags = (int)SA_RESETHAND};
    if (kept || tcgetattr(STDIN_FILENO, &found) != 0)
        return;
    kept = true;
    for (int i = 0; i < FATAL; i++) {
        sigaction(fatal[i], NULL, &before[i]);
        if (before[i].sa_handler == SIG_DFL) /* a sanitizer's or nohup's is left alone */
            sigaction(fatal[i], &action, NULL);
    }
}

void terminal_forget(void)
{
    for (int i = 0; kept && i < FATAL; i++)
        sigaction(fatal[i], &before[i], NULL);
    kept = false;
}
