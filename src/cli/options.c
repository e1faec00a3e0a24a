#define _GNU_SOURCE
#include "cli/options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sentence.h"
#include "cli/nearest.h"
#include "cli/plural.h"

static const struct option help_option = {.name = "help", .letter = 'h', .help = "print this and leave"};

static bool is_last(const struct option *o) { return !o->name && !o->letter; }
static bool takes_value(const struct option *o) { return o->kind != OPTION_FLAG && o->kind != OPTION_SET; }

int options_wrong(const struct command_line *line, const char *format, ...)
{
    char text[SENTENCE_ROOM];
    va_list ap;
    va_start(ap, format);
    sentence_format(text, sizeof text, format, ap);
    va_end(ap);
    fprintf(stderr, "quire %s: %s\nTry 'quire %s --help'.\n", line->command, text, line->command);
    return 2;
}

/* ---- help ---- */

/* "-n, --max-tokens N" */
static int print_names(const struct option *o)
{
    int width = 0;
    if (o->letter)
        width += printf("-%c", o->letter);
    if (o->name)
        width += printf("%s--%s", o->letter ? ", " : "    ", o->name);
    if (takes_value(o))
        width += printf(" %s", o->value ? o->value : "VALUE");
    return width;
}

static void print_option(const struct option *o)
{
    const int column = 32;
    printf("  ");
    int width = 2 + print_names(o);
    if (width + 2 > column) {
        printf("\n");
        width = 0;
    }
    printf("%*s%s\n", column - width, "", o->help ? o->help : "");
}

void options_usage(const struct command_line *line)
{
    printf("Usage: quire %s%s%s\n", line->command, *line->synopsis ? " " : "", line->synopsis);
    if (line->about)
        printf("\n%s\n", line->about);
    printf("\nOptions:\n");
    for (const struct option *o = line->options; !is_last(o); o++)
        if (!o->help || *o->help)
            print_option(o);
    print_option(&help_option);
}

/* ---- finding an option ---- */

static const struct option *find_name(const struct option *options, const char *name, size_t length)
{
    for (const struct option *o = options; !is_last(o); o++)
        if (o->name && strlen(o->name) == length && memcmp(o->name, name, length) == 0)
            return o;
    return strlen(help_option.name) == length && memcmp(help_option.name, name, length) == 0 ? &help_option : NULL;
}

static const struct option *find_letter(const struct option *options, char letter)
{
    for (const struct option *o = options; !is_last(o); o++)
        if (o->letter == letter)
            return o;
    return letter == help_option.letter ? &help_option : NULL;
}

/* The option that `argument` ("--name", "--name=VALUE", "-n", "-nVALUE", "-name") means, or NULL. *value points at a
 * value inside the argument, or is NULL. */
static const struct option *find(const struct option *options, const char *argument, const char **value)
{
    const char *name = argument + (argument[1] == '-' ? 2 : 1);
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct option *o = NULL;
    *value = equals ? equals + 1 : NULL;
    if (argument[1] == '-')
        return find_name(options, name, length);
    if (length == 1)
        return find_letter(options, name[0]);
    o = find_name(options, name, length); /* -tp is written with one dash by custom */
    if (o)
        return o;
    o = find_letter(options, name[0]);
    *value = name + 1;
    return o && takes_value(o) ? o : NULL;
}

/* How far the name of an option is from what was written: the beginning of a name is nearer than any mistake in it. */
static int distance_of(const char *written, const struct option *o)
{
    if (!o->name)
        return 64;
    return *written && strncmp(o->name, written, strlen(written)) == 0 ? 0 : edit_distance(written, o->name);
}

static int unknown_option(const struct command_line *line, const char *argument)
{
    char name[64];
    const char *from = argument + strspn(argument, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(from, "="), from);
    if (*name && !name[1] && find_letter(line->options, *name)) /* a letter with a dash too many */
        return options_wrong(line, "unknown option %s; the nearest is -%c", argument, *name);
    const struct option *nearest = &help_option;
    for (const struct option *o = line->options; !is_last(o); o++)
        if ((!o->help || *o->help) && distance_of(name, o) < distance_of(name, nearest))
            nearest = o; /* one that the help lists */
    if (!near_enough(name, distance_of(name, nearest)))
        return options_wrong(line, "unknown option %s", argument);
    return options_wrong(line, "unknown option %s; the nearest is --%s", argument, nearest->name);
}

/* ---- reading a value ---- */

/* Each reader says what it wanted, or returns NULL. */

/* Wanted: the range of the option. */
static const char in_its_range[] = "";

static bool is_integer(const char *text)
{
    const char *digits = text + (*text == '-' || *text == '+');
    return *digits && digits[strspn(digits, "0123456789")] == '\0';
}

static const char *read_int(const struct option *o, const char *text)
{
    if (!is_integer(text))
        return "an integer";
    errno = 0;
    const long long n = strtoll(text, NULL, 10);
    if (errno || n < INT_MIN || n > INT_MAX)
        return in_its_range;
    *(int *)o->target = (int)n;
    return NULL;
}

static const char *read_uint64(const struct option *o, const char *text)
{
    if (!is_integer(text))
        return "an integer";
    errno = 0;
    const unsigned long long n = strtoull(text, NULL, 10);
    if (*text == '-' || errno)
        return in_its_range;
    *(uint64_t *)o->target = n;
    return NULL;
}

static const char *read_double(const struct option *o, const char *text)
{
    char *end;
    const double d = strtod(text, &end);
    if (end == text || *end || text[strspn(text, "0123456789+-.eE")])
        return "a number";
    if (!isfinite(d))
        return in_its_range;
    *(double *)o->target = d;
    return NULL;
}

static const char *read_device(const struct option *o, const char *text)
{
    static const char *const names[] = {"cpu", "cpu-reference", "cpu-avx512", "cpu-avx2", "cpu-portable", "cuda"};
    const size_t digits = strncmp(text, "cuda:", 5) == 0 ? strspn(text + 5, "0123456789") : 0;
    bool known = digits > 0 && digits < 4 && text[5 + digits] == '\0';
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        known |= strcmp(text, names[i]) == 0;
    *(const char **)o->target = text;
    return known ? NULL : "cpu, cpu-reference, cpu-avx512, cpu-avx2, cpu-portable or cuda[:N] with N from 0 to 999";
}

static const char *read_choice(const struct option *o, const char *text)
{
    size_t length = strlen(text);
    for (const char *word = o->value; *word;) {
        size_t n = strcspn(word, "|");
        if (n == length && memcmp(word, text, n) == 0) {
            *(const char **)o->target = text;
            return NULL;
        }
        word += n + (word[n] == '|');
    }
    return o->value;
}

static const char *read_path(const struct option *o, const char *text)
{
    *(const char **)o->target = text;
    return *text ? NULL : o->value && strcmp(o->value, "DIR") == 0 ? "the name of a folder" : "the name of a file";
}

static const char *read_item(const struct option *o, const char *text)
{
    struct option_list *list = o->target;
    if (!*text)
        return "a text that is not empty";
    const char **items = qr_realloc_array(list->items, list->count + 1, sizeof *items);
    if (!items)
        return "memory";
    list->items = items;
    items[list->count++] = text;
    return NULL;
}

static const char *read_value(const struct option *o, const char *text)
{
    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)o->target = true;
        return NULL;
    case OPTION_SET:
        *(const char **)o->target = o->value;
        return NULL;
    case OPTION_STRING:
        *(const char **)o->target = text;
        return NULL;
    case OPTION_PATH:
        return read_path(o, text);
    case OPTION_CHOICE:
        return read_choice(o, text);
    case OPTION_DEVICE:
        return read_device(o, text);
    case OPTION_INT:
        return read_int(o, text);
    case OPTION_UINT64:
        return read_uint64(o, text);
    case OPTION_DOUBLE:
        return read_double(o, text);
    case OPTION_LIST:
        return read_item(o, text);
    }
    return NULL;
}

static bool in_range(const struct option *o)
{
    double d = o->kind == OPTION_INT      ? *(int *)o->target
               : o->kind == OPTION_UINT64 ? (double)*(uint64_t *)o->target
               : o->kind == OPTION_DOUBLE ? *(double *)o->target
                                          : 0;
    return !(o->least < o->most) || ((o->above ? d > o->least : d >= o->least) && d <= o->most);
}

/* "wanted 1 to 100": of an option without a range, that of its kind. */
static int out_of_range(const struct command_line *line, const struct option *o, int width, const char *written,
                        const char *text)
{
    if (o->least < o->most)
        return options_wrong(line, "%.*s is %s, wanted %s%.15g to %.15g", width, written, text, o->above ? "above " : "",
                             o->least, o->most);
    return options_wrong(line, "%.*s is %s, wanted %s", width, written, text,
                         o->kind == OPTION_INT      ? "-2147483648 to 2147483647"
                         : o->kind == OPTION_UINT64 ? "0 to 18446744073709551615"
                                                    : "a number of 64 bits");
}

/* Stores `text`; 0, or 2 after a message. `written` is the option as it was given. */
static int store(const struct command_line *line, const struct option *o, const char *written, const char *text)
{
    int width = (int)strcspn(written, "=");
    const char *wanted = read_value(o, text);
    if (wanted == in_its_range || (!wanted && !in_range(o)))
        return out_of_range(line, o, width, written, text);
    if (wanted)
        return options_wrong(line, "%.*s is \"%s\", wanted %s", width, written, text, wanted);
    if (o->given)
        *o->given = true;
    return 0;
}

enum { ROWS_NOTED = 128 };

static void note_given(struct command_line *line, const struct option *o)
{
    const ptrdiff_t row = o - line->options;
    if (row < ROWS_NOTED)
        line->given[row / 64] |= (uint64_t)1 << row % 64;
}

const struct option *options_given(const struct command_line *line, const struct option *after)
{
    for (const struct option *o = after ? after + 1 : line->options; !is_last(o); o++) {
        const ptrdiff_t row = o - line->options;
        if (row < ROWS_NOTED && line->given[row / 64] >> row % 64 & 1)
            return o;
    }
    return NULL;
}

bool option_among(const struct option *o, const char *names)
{
    char word[72];
    snprintf(word, sizeof word, " %.68s ", o->name ? o->name : "");
    return o->name && strstr(names, word);
}

/* ---- the line ---- */

static bool wants_help(const struct command_line *line, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *value;
        if (argv[i][0] != '-' || !argv[i][1])
            continue;
        const struct option *o = find(line->options, argv[i], &value);
        if (o == &help_option)
            return true;
        if (o && takes_value(o) && !value)
            i++;
    }
    return false;
}

static int count_arguments(const struct command_line *line)
{
    if (line->argument_count > line->most)
        return options_wrong(line, "argument \"%s\" is one too many", line->arguments[line->most]);
    if (line->argument_count < line->least)
        return options_wrong(line, "%d of %d argument%s given; usage: quire %s %s", line->argument_count, line->least,
                             plural(line->least), line->command, line->synopsis);
    return 0;
}

/* One option, at argv[*i]; moves *i past a value that stands alone. */
static int parse_option(struct command_line *line, int argc, char **argv, int *i)
{
    const char *written = argv[*i], *value;
    const struct option *o = find(line->options, written, &value);
    if (!o)
        return unknown_option(line, written);
    if (!takes_value(o) && value)
        return options_wrong(line, "%.*s takes no value", (int)strcspn(written, "="), written);
    if (takes_value(o) && !value) {
        if (*i + 1 == argc)
            return options_wrong(line, "%s needs a value: %s", written, o->value ? o->value : "VALUE");
        value = argv[++*i];
    }
    note_given(line, o);
    return store(line, o, written, value);
}

bool options_parse(struct command_line *line, int argc, char **argv, int *status)
{
    *status = 0;
    line->arguments = argv;
    line->argument_count = 0;
    memset(line->given, 0, sizeof line->given);
    if (wants_help(line, argc, argv)) {
        options_usage(line);
        return false;
    }
    bool only_arguments = false;
    for (int i = 1; i < argc && *status == 0; i++) {
        if (!only_arguments && strcmp(argv[i], "--") == 0)
            only_arguments = true;
        else if (!only_arguments && argv[i][0] == '-' && argv[i][1])
            *status = parse_option(line, argc, argv, &i);
        else
            line->arguments[line->argument_count++] = argv[i];
    }
    if (*status == 0)
        *status = count_arguments(line);
    return *status == 0;
}

void options_free(const struct option *options)
{
    for (const struct option *o = options; !is_last(o); o++)
        if (o->kind == OPTION_LIST) {
            struct option_list *list = o->target;
            qr_free(list->items);
            *list = (struct option_list){0};
        }
}
