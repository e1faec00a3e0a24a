/* parser_cases.h: lines of golden/parser: their options, and what came out compared with what they want. */
#ifndef QR_TESTS_PARSER_CASES_H
#define QR_TESTS_PARSER_CASES_H

#include "base/json.h"
#include "text/parser.h"

struct parser_case {
    const struct json *line;
    const char *id;
    struct arena arena;
    struct tool_list tools;
    const char *stops[16];
    struct parser_options options;
    enum parser_end end;
};

/* Reads the options of a golden line; parser_case_close frees them. */
void parser_case_open(struct parser_case *c, const struct json *line, const struct tokenizer *tok);
void parser_case_close(struct parser_case *c);

/* Feeds `ids` and compares the sum of the deltas with the line, failing the test when they differ: with the deltas
 * taken after every id, taken once at the end, and taken at every place once (at 256 of them when there are more). No
 * delta may end inside a character. `cut` names the cutting in messages. */
void parser_case_check(const struct parser_case *c, const struct tok_ids *ids, const char *cut);

#endif
