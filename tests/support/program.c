#define _GNU_SOURCE
#include "support/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/support.h"

enum { MOST_WORDS = 64 };

void ran_free(struct ran *r)
{
    free(r->out);
    free(r->err);
    *r = (struct ran){0};
}

static FILE *file_of(const char *text)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    if (text)
        assert_true(fputs(text, file) >= 0);
    rewind(file);
    return file;
}

static char *read_back(FILE *file, size_t *length)
{
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    *length = fread(text, 1, (size_t)size, file);
    text[*length] = 0;
    fclose(file);
    return text;
}

struct ran program_run(const char *input, const char *const *words)
{
    const char *program = getenv("QUIRE_PROGRAM"), *argv[MOST_WORDS] = {"quire"};
    FILE *in = file_of(input), *out = file_of(NULL), *err = file_of(NULL);
    struct ran r = {0};
    int status;
    size_t length;
    if (!program)
        fail_msg("QUIRE_PROGRAM names no program");
    for (int i = 0; words[i]; i++) {
        assert_true(i + 2 < MOST_WORDS);
        argv[i + 1] = words[i];
    }
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (dup2(fileno(in), 0) == 0 && dup2(fileno(out), 1) == 1 && dup2(fileno(err), 2) == 2)
            execv(program, (char *const *)argv);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    r.out = read_back(out, &r.out_length);
    r.err = read_back(err, &length);
    fclose(in);
    return r;
}

void assert_status(const struct ran *r, int status)
{
    if (r->status != status)
        fail_msg("status %d, wanted %d; standard output \"%s\", standard error \"%s\"", r->status, status, r->out, r->err);
}

void assert_says(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("\"%s\" does not say \"%s\"", text, words);
}

void assert_silent(const char *text, const char *words)
{
    if (strstr(text, words))
        fail_msg("\"%s\" says \"%s\"", text, words);
}

struct json_document *whole_json(const char *text, size_t length)
{
    struct json_document *doc;
    qr_error err = {0};
    if (json_parse(text, length, "standard output", true, &doc, &err) != QR_OK)
        fail_msg("%s: %s", err.message, text);
    return doc;
}
