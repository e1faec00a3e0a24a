#define _GNU_SOURCE
#include "cli/lines.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <histedit.h>

enum { REMEMBERED = 1000 }; /* lines of history */

static char *prompt_of(EditLine *editor)
{
    struct lines *l = NULL;
    el_get(editor, EL_CLIENTDATA, &l);
    return (char *)l->prompt;
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
    /* While a line is edited the interrupt key is a key: no signal races with the editor. */
    el_set(l->editor, EL_SETTY, "-d", "intr=", NULL);
    el_set(l->editor, EL_BIND, "^C", "em-kill-line", NULL);
}

void lines_open(struct lines *l)
{
    *l = (struct lines){.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    if (l->terminal)
        open_editor(l);
}

void lines_close(struct lines *l)
{
    if (l->history)
        history_end(l->history);
    if (l->editor)
        el_end(l->editor);
    free(l->kept);
    *l = (struct lines){.terminal = l->terminal};
}

static char *edited(struct lines *l, const char *prompt)
{
    HistEvent event;
    int length;
    l->prompt = prompt;
    const char *typed = el_gets(l->editor, &length);
    char *line = typed && length > 0 ? strdup(typed) : NULL;
    if (!line)
        return NULL;
    line[strcspn(line, "\r\n")] = 0;
    if (*line)
        history(l->history, &event, H_ENTER, line);
    return line;
}

static char *plain(void)
{
    char *line = NULL;
    size_t room = 0;
    if (getline(&line, &room, stdin) < 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = 0;
    return line;
}

char *lines_next(struct lines *l, const char *prompt)
{
    char *line = l->kept;
    l->kept = NULL;
    if (line)
        return line;
    return l->editor && l->history ? edited(l, prompt) : plain();
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
