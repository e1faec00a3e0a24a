#define _GNU_SOURCE
#include "cli/display.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What ends the reasoning in raw text. */
static const char end_tag[] = "</think>";
enum { TAG_LENGTH = sizeof end_tag - 1 };

static void write_out(const char *text, size_t length)
{
    if (length)
        fwrite(text, 1, length, stdout);
}

static void dim(const struct display *d, bool on)
{
    if (d->terminal)
        fputs(on ? "\033[2m" : "\033[0m", stdout);
}

void display_open(struct display *d, bool reasoning)
{
    *d = (struct display){.terminal = isatty(STDOUT_FILENO), .reasoning = reasoning};
    if (reasoning)
        dim(d, true);
}

/* The tag at `at` of what is held ends the reasoning. */
static void end_reasoning(struct display *d, size_t at)
{
    const char *rest = d->held.data + at + TAG_LENGTH;
    write_out(d->held.data, at);
    dim(d, false);
    fputs("\n\n", stdout);
    write_out(rest, d->held.length - at - TAG_LENGTH);
    buffer_clear(&d->held);
    d->reasoning = false;
}

void display_show(void *display, const char *text, size_t length)
{
    struct display *d = display;
    d->shown = d->shown || length;
    if (!d->reasoning) {
        write_out(text, length);
    } else if (buffer_append(&d->held, text, length)) {
        const char *tag = memmem(d->held.data, d->held.length, end_tag, TAG_LENGTH);
        if (tag) {
            end_reasoning(d, (size_t)(tag - d->held.data));
        } else if (d->held.length >= TAG_LENGTH) {
            const size_t ready = d->held.length - (TAG_LENGTH - 1);
            write_out(d->held.data, ready);
            memmove(d->held.data, d->held.data + ready, d->held.length - ready + 1);
            d->held.length -= ready;
        }
    }
    fflush(stdout);
}

void display_close(struct display *d)
{
    if (d->reasoning) {
        write_out(d->held.data, d->held.length);
        dim(d, false);
    }
    buffer_free(&d->held);
    if (d->shown)
        putchar('\n');
    fflush(stdout);
}
