/* text.h: `quire text WHAT`, tools over text and ids that answer JSON lines. What its parts share; a part is a file
 * text_WHAT.c with one function, which gets a row in the table of text.c. */
#ifndef QR_TOOLS_TEXT_H
#define QR_TOOLS_TEXT_H

#include "cli/model_options.h"
#include "text/tokenizer.h"
#include "tools/answer.h"

/* argv[0] is the part's name; as a command (cli/commands.h) otherwise. */
int text_tokenize(int argc, char **argv);
int text_detokenize(int argc, char **argv);
int text_render(int argc, char **argv);
int text_parse(int argc, char **argv);
int text_sample(int argc, char **argv);

/* What every part takes. */
struct text_options {
    const char *tokenizer; /* folder of tokenizer.json; NULL when absent */
    const char *prompt_profile;
    const char *in, *out; /* NULL or "-": standard input and output */
    const char *log_level;
    bool quiet;
};

/* clang-format off: rows of a table */
#define TEXT_OPTIONS_DEFAULT                         \
    {                                                \
        .prompt_profile = "v41", .log_level = "warn" \
    }

/* Rows for a part's table; `t` is a struct text_options. */
#define TEXT_OPTIONS(t)                                                                                               \
    {.name = "tokenizer",                                                                                             \
     .kind = OPTION_PATH,                                                                                             \
     .target = &(t).tokenizer,                                                                                        \
     .value = "DIR",                                                                                                  \
     .help = "the folder of tokenizer.json"},                                                                         \
        {.name = "prompt-profile",                                                                                    \
         .kind = OPTION_CHOICE,                                                                                       \
         .target = &(t).prompt_profile,                                                                               \
         .value = "v4a|v4b|v41",                                                                                      \
         .help = "the form of chat text; default: v41"},                                                              \
        {.name = "in", .kind = OPTION_PATH, .target = &(t).in, .value = "FILE", .help = "default: standard input"},   \
        {.name = "out",                                                                                               \
         .kind = OPTION_PATH,                                                                                         \
         .target = &(t).out,                                                                                          \
         .value = "FILE",                                                                                             \
         .help = "default: standard output"},                                                                         \
        {.name = "log-level",                                                                                         \
         .kind = OPTION_CHOICE,                                                                                       \
         .target = &(t).log_level,                                                                                    \
         .value = "error|warn|info|debug",                                                                            \
         .help = "what is said on standard error; default: warn"},                                                    \
    {                                                                                                                 \
        .name = "quiet", .kind = OPTION_FLAG, .target = &(t).quiet, .help = "errors only"                             \
    }
/* clang-format on */

/* Opens the tokenizer that the options name. `line` is the part's, for messages. false: leave with *status; a sentence
 * was printed. Close with tok_close. */
bool text_open_tokenizer(const struct text_options *options, const struct command_line *line, struct tokenizer **out,
                         int *status);

/* The whole of a part that needs no more than its options and a tokenizer: parses them, opens it as *tok, answers. */
int text_part(struct text_options *options, struct command_line *line, int argc, char **argv,
              struct tokenizer **tok, answer_line answer, void *user);

/* Answers every line (tools/answer.h) and returns the exit status. */
int text_answer(const struct text_options *options, const struct command_line *line, answer_line answer, void *user);

/* Reads the list of ids in `array`, appended to `ids`. QR_BAD_REQUEST names `member` when it is no list of integers
 * that fit an id. */
qr_status text_read_ids(const struct json *array, const char *member, struct tok_ids *ids, qr_error *err);

/* Writes member `key`, the list of ids. */
void text_write_ids(struct json_writer *w, const char *key, const struct tok_ids *ids);

#endif
