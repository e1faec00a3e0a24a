/* display.h: an answer as it appears on standard output. What the model thinks before it answers is dimmed on a terminal;
 * its closing tag becomes an empty line. */
#ifndef QR_CLI_DISPLAY_H
#define QR_CLI_DISPLAY_H

#include <stdbool.h>

#include "base/buffer.h"

struct display {
    bool terminal, reasoning, shown;
    struct buffer held; /* may be the beginning of the tag */
};

/* `reasoning`: the prompt ends inside of it. */
void display_open(struct display *d, bool reasoning);
/* The next piece of the answer; of the form that loaded_answer calls. */
void display_show(void *display, const char *text, size_t length);
/* Shows what is held back, and ends the line where anything was shown. */
void display_close(struct display *d);

#endif
