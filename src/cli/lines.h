/* lines.h: what a person or a script types, a line at a time: from a terminal with editing and history, else plainly.
 * Everything a command asks goes through one of these, so that no two readers share the input. */
#ifndef QR_CLI_LINES_H
#define QR_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct lines {
    bool terminal;           /* both ends are */
    struct editline *editor; /* NULL: off a terminal */
    struct history *history;
    const char *prompt;
    char *kept;              /* handed out next */
    size_t length;           /* of the line handed out last: beyond strlen where it holds a NUL */
    int descriptor;          /* characters come from here: the terminal, never waited for by reading */
    bool dropped;            /* the line in the editor */
};

/* Stays at its address until lines_close. Without an editor (no memory, an odd terminal) lines are read plainly. While it
 * is open a signal that ends the program gives the terminal back as it was (cli/terminal.h). */
void lines_open(struct lines *l);
void lines_close(struct lines *l);

/* The next line without its end; free() it. NULL at the end of the input. `prompt` is shown on a terminal, where an
 * interrupt (noted as cli/interrupt.h says) drops what was typed and prompts again; one that comes when the line has been
 * read stays noted. Off a terminal an interrupt while a line is waited for is nothing. */
char *lines_next(struct lines *l, const char *prompt);

/* Asks a question; an empty line is a yes, the end of the input a no. A line that is no answer is a no too, and is the
 * next line. Off a terminal the question goes to standard error. */
bool lines_yes(struct lines *l, const char *question);

#endif
