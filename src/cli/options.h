/* options.h: the command line of every command, read by a table. Long options `--name VALUE` or `--name=VALUE`, letters
 * `-n VALUE` or `-nVALUE`, arguments anywhere, `--` before arguments that begin with a dash, `-` alone an argument. */
#ifndef QR_CLI_OPTIONS_H
#define QR_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_kind {
    OPTION_FLAG,   /* bool: true when given; takes no value */
    OPTION_SET,    /* const char *: becomes `value`; takes no value (aliases of another option's value) */
    OPTION_STRING, /* const char * */
    OPTION_DEVICE, /* const char *: the name of a device, "cpu" or "cuda:1"; whether it is there is not asked */
    OPTION_PATH,   /* const char *, not empty: the name of a file or folder */
    OPTION_CHOICE, /* const char *: one of the words of `value`, "off|low|high" */
    OPTION_INT,    /* int */
    OPTION_UINT64, /* uint64_t */
    OPTION_DOUBLE, /* double, finite */
    OPTION_LIST    /* struct option_list: every occurrence adds one, not empty */
};

struct option_list {
    const char **items; /* options_free releases them */
    size_t count;
};

/* A row of the table; the last row is all zero. `name` without dashes (may be NULL when there is a letter), `letter`
 * may be 0. `target` is left alone when the option is absent, so it holds the default. `value` is the placeholder in
 * the help ("DIR", "N"); an option whose `help` is empty is taken, but not listed. */
struct option {
    const char *name;
    char letter;
    enum option_kind kind;
    void *target;
    const char *value;
    const char *help;
    bool *given;        /* set when the option occurs; may be NULL */
    double least, most; /* the range of a number, checked when least < most */
    bool above;         /* `least` itself is not in it */
};

/* A command's line: the first five are filled in by the caller, the rest by options_parse. */
struct command_line {
    const char *command;  /* "run": stands in messages as "quire run" */
    const char *synopsis; /* "--model DIR [PROMPT]" */
    const char *about;    /* a sentence or more for --help */
    const struct option *options;
    int least, most; /* how many arguments there may be */
    char **arguments;
    int argument_count;
    uint64_t given[2]; /* a bit for each row of the table, the first 128 */
};

/* Reads argv[1..argc-1] (argv[0] is the command's name). True: go on. False: leave with *status, after --help (0) or a
 * wrong line (2, one sentence was printed on standard error). The order of argv is changed. */
bool options_parse(struct command_line *line, int argc, char **argv, int *status);
void options_free(const struct option *options);
/* The first row behind `after` (NULL: of all) that the line gives, in the table's order; NULL: there is none. */
const struct option *options_given(const struct command_line *line, const struct option *after);
/* Whether its name is one of `names`, each with a blank before and after it. */
bool option_among(const struct option *o, const char *names);

/* Prints the usage as --help does. */
void options_usage(const struct command_line *line);

/* Prints "quire COMMAND: sentence" and where help is; returns 2. For what a table cannot check. */
int options_wrong(const struct command_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
