#define _GNU_SOURCE
#include "cli/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <wchar.h>

#include <histedit.h>

#include "cli/interrupt.h"
#include "cli/terminal.h"

enum { REMEMBERED = 1000 }; /* lines of history */
enum { INTERRUPT_KEY = 3 };

static struct lines *lines_of(EditLine *editor)
{
    struct lines *l = NULL;
    el_get(editor, EL_CLIENTDATA, &l);
    return l;
}

static char *prompt_of(EditLine *editor) { return (char *)lines_of(editor)->prompt; }

/* The editor's next character. An interrupt is one too: the terminal forgets what was typed before it by itself, so
 * that it stands where it came. */
static int next_character(EditLine *editor, wchar_t *out)
{
    const struct lines *l = lines_of(editor);
    mbstate_t state = {0};
    for (;;) {
        char byte;
        if (interrupt_before_input(l->descriptor)) {
            *out = INTERRUPT_KEY;
            return 1;
        }
        const ssize_t got = read(l->descriptor, &byte, 1);
        if (got == 0)
            return 0;
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return -1;
        const size_t used = got < 0 ? (size_t)-2 : mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-1)
            state = (mbstate_t){0}; /* of no character */
        else if (used != (size_t)-2)
            return 1;
    }
}

/* What the interrupt key does: leaves the line as it stands and begins another. */
static unsigned char drop_line(EditLine *editor, int key)
{
    struct lines *l = lines_of(editor);
    const LineInfo *line = el_line(editor);
    (void)key;
    if (line->cursor != line->lastchar) { /* the cursor first goes behind its end, where the key comes again */
        el_cursor(editor, (int)(line->lastchar - line->cursor));
        el_push(editor, "\003");
        return CC_CURSOR;
    }
    fputs("^C\n", stdout);
    l->dropped = true;
    return CC_NEWLINE;
}

/* The editor reads characters by the locale: it must be one of UTF-8, as the messages are. */
static void choose_characters(void)
{
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static void open_editor(struct lines *l)
{
    HistEvent event;
    choose_characters();
    l->editor = el_init("quire", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->editor || !l->history)
        return;
    history(l->history, &event, H_SETSIZE, REMEMBERED);
    el_set(l->editor, EL_CLIENTDATA, l);
    el_set(l->editor, EL_PROMPT, prompt_of);
    el_set(l->editor, EL_EDITOR, "emacs");
    el_set(l->editor, EL_HIST, history, l->history);
    el_set(l->editor, EL_GETCFN, next_character);
    el_set(l->editor, EL_ADDFN, "drop-line", "Drop the line", drop_line);
    el_set(l->editor, EL_BIND, "^C", "drop-line", NULL);
    el_set(l->editor, EL_BIND, "^[^C", "drop-line", NULL);
}

/* The terminal opened once more: so that reading never waits where an interrupt has emptied the input, and what
 * other programs share with standard input stays as it is. */
static int open_input(void)
{
    const char *name = ttyname(STDIN_FILENO);
    const int descriptor = name ? open(name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    return descriptor < 0 ? STDIN_FILENO : descriptor;
}

void lines_open(struct lines *l)
{
    *l = (struct lines){.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    if (!l->terminal)
        return;
    terminal_keep();
    l->descriptor = open_input();
    open_editor(l);
}

void lines_close(struct lines *l)
{
    if (l->history)
        history_end(l->history);
    if (l->editor)
        el_end(l->editor);
    if (l->descriptor != STDIN_FILENO)
        close(l->descriptor);
    terminal_forget();
    free(l->kept);
    *l = (struct lines){.terminal = l->terminal};
}

static char *edited(struct lines *l, const char *prompt)
{
    HistEvent event;
    int length;
    const char *typed;
    l->prompt = prompt;
    do {
        l->dropped = false;
        el_set(l->editor, EL_PREP_TERM, 1); /* before the prompt: what is typed on seeing it is echoed once */
        typed = el_gets(l->editor, &length);
    } while (l->dropped);
    char *line = typed && length > 0 ? strdup(typed) : NULL;
    if (!line)
        return NULL;
    line[strcspn(line, "\r\n")] = 0;
    l->length = strlen(line);
    if (*line)
        history(l->history, &event, H_ENTER, line);
    return line;
}

static char *plain(struct lines *l)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length = getline(&line, &room, stdin);
    if (length < 0) {
        free(line);
        return NULL;
    }
    interrupt_taken();
    length -= length > 0 && line[length - 1] == '\n';
    length -= length > 0 && line[length - 1] == '\r';
    line[length] = 0;
    l->length = (size_t)length;
    return line;
}

char *lines_next(struct lines *l, const char *prompt)
{
    char *line = l->kept;
    l->kept = NULL;
    if (line)
        return line;
    return l->editor && l->history ? edited(l, prompt) : plain(l);
}

bool lines_yes(struct lines *l, const char *question)
{
    if (!l->terminal)
        fprintf(stderr, "%s\n", question);
    char *line = lines_next(l, question);
    const bool yes = line && (!*line || strcasecmp(line, "y") == 0 || strcasecmp(line, "yes") == 0);
    const bool no = !line || strcasecmp(line, "n") == 0 || strcasecmp(line, "no") == 0;
    if (yes || no)
        free(line);
    else
        l->kept = line;
    return yes;
}
