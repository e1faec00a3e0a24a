/* program.h: the built program, run as a person or a script runs it. */
#ifndef QR_TESTS_PROGRAM_H
#define QR_TESTS_PROGRAM_H

#include "base/json.h"

/* What a run left behind: its exit status (128 and the signal, where one ended it), and both streams. */
struct ran {
    int status;
    char *out, *err;
    size_t out_length;
};
void ran_free(struct ran *r);

/* Runs quire with the words up to NULL; `input` (NULL: none) is its standard input. The run must end by itself. */
struct ran program_run(const char *input, const char *const *words);
#define QUIRE(...) program_run(NULL, (const char *const[]){__VA_ARGS__, NULL})
#define QUIRE_INPUT(input, ...) program_run(input, (const char *const[]){__VA_ARGS__, NULL})

/* Options of a run that takes a moment: the bundled model, a small cache, the likeliest token. */
#define TINY "--model", source_path("models/tiny-v41"), "--kv-ram-bytes", "50000000"
#define GREEDY "--temperature", "0"

/* Fails, showing both streams, unless the status is that one. */
void assert_status(const struct ran *r, int status);
/* Fails, showing it, unless the text holds the words. */
void assert_says(const char *text, const char *words);
void assert_silent(const char *text, const char *words);

/* The text as one JSON value and nothing else; json_close it. */
struct json_document *whole_json(const char *text, size_t length);

#endif
