/* parser.h: what a model samples, id by id, becomes reasoning, content and tool calls (protocol.md 3). Control tokens
 * are recognised by id alone: text that spells one is text. The result does not depend on how the ids arrive. */
#ifndef QR_TEXT_PARSER_H
#define QR_TEXT_PARSER_H

#include "text/chat.h"
#include "text/deltas.h"
#include "text/stop.h"

struct parser_options {
    const struct tokenizer *tok;
    const struct tool_list *tools; /* NULL or empty: DSML ids are text. Must outlive the parser */
    enum chat_section start;
    bool continued;     /* a non-empty prefix of `start` is in the prompt (2.9) */
    bool ignore_eos;    /* the end token is swallowed */
    bool lenient_tools; /* calls of tools that are not declared are let through */
    bool single_call;   /* the first whole call is the end (parallel_tool_calls: false) */
    bool
        recovery; /* misspelled tags are tags: `|DSML|` in ASCII, calls without a block, a bare `<invoke name=` (3.5) */
    const char *const *stops; /* stop strings of visible content */
    int32_t stop_count;
    bool include_stop;
    int64_t min_ids; /* until so many ids came, stop strings are text */
};

struct parser;

enum parser_finish { FINISH_NONE, FINISH_STOP, FINISH_TOOL_CALLS, FINISH_LENGTH };

/* What the caller knows of the end of the ids: the model's end token (also when it was not pushed), a stop id of the
 * request, or no more room. */
enum parser_end { END_EOS, END_STOP_ID, END_LENGTH };

/* Of an id, for logprobs: text of which section? Control tokens that are no text, calls, what is dropped before and behind them
 * are hidden. Held: what the id says may still become one or the other. */
enum parser_place { PLACE_HIDDEN, PLACE_REASONING, PLACE_CONTENT, PLACE_HELD };

struct parser_counts {
    int64_t ids, reasoning_ids;
    int64_t calls;         /* whole ones */
    int64_t refused_calls; /* whose text became content, or that were dropped after another was accepted */
    int64_t cut_calls;     /* cut off by the end */
    int64_t repeated_keys;
    int64_t discarded_ids; /* behind a finished block */
};

/* Copies the stop strings; QR_BAD_REQUEST when stop_open refuses them. */
qr_status parser_open(const struct parser_options *options, struct parser **out, qr_error *err);
void parser_close(struct parser *p); /* NULL is fine */

/* Takes the next id and appends to `out` what it lets out. Nothing happens once the parser is finished.
 * QR_BAD_REQUEST: an id outside the vocabulary; QR_NO_MEMORY. The parser is of no more use then. */
qr_status parser_push(struct parser *p, int32_t id, struct deltas *out, qr_error *err);

/* No more ids come: lets out what was held, completes or drops an open call. Does nothing once finished. */
qr_status parser_end(struct parser *p, enum parser_end why, struct deltas *out, qr_error *err);

/* FINISH_NONE until the end is known: by parser_end, an end or role token, a stop string, or the last of a few ids
 * behind a finished block of calls. */
enum parser_finish parser_finish(const struct parser *p);
const char *parser_finish_name(enum parser_finish finish); /* "stop", "tool_calls", "length" */

/* Which stop string ended the content, by its place in the options; -1 when none did. */
int32_t parser_matched_stop(const struct parser *p);
enum parser_place parser_place(const struct parser *p); /* of the last id pushed */
/* Of the ids before it that were held: what has become of them by the last push or the end. PLACE_HELD: nothing yet. */
enum parser_place parser_place_of_held(const struct parser *p);
const struct parser_counts *parser_counts(const struct parser *p);

#endif
