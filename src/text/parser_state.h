/* parser_state.h: what the parts of the parser share: its state, and the ways in which text leaves it. For parser*.c
 * only. */
#ifndef QR_TEXT_PARSER_STATE_H
#define QR_TEXT_PARSER_STATE_H

#include "text/detokenizer.h"
#include "text/parser.h"
#include "text/parser_call.h"
#include "text/parser_recovery.h"
#include "text/parser_tag.h"

/* What the machine reads: bytes 0..255 of whole characters, and three tokens. */
enum { SYMBOL_DSML = 256, SYMBOL_THINK, SYMBOL_END_THINK };

enum state {
    IN_REASONING,
    IN_CONTENT,
    IN_BLOCK, /* from here to IN_BODY: inside a block of calls */
    IN_NAME,
    IN_CALL,
    IN_VALUE,
    IN_BODY,
    IN_RAW, /* a refused block, read as content */
    AFTER_BLOCK,
    ENDED
};

/* A tag of which the DSML token has come. */
enum tag { NO_TAG, TAG_OPENS, TAG_CLOSES, TAG_SWALLOWED };

struct parser {
    struct parser_options options;
    bool tools_on;
    int32_t dsml, think, end_think, eos, roles[5];
    struct detokenizer detokenizer;
    struct stop_matcher *stops;
    struct deltas *out; /* during a call */
    enum state state;
    enum parser_finish finish;

    size_t newlines; /* held before the next byte, in a section */
    int bracket;     /* held behind them: 1 `<`, 2 `</` */
    enum tag tag;
    bool tag_opened;                 /* the swallowed tag is an opener */
    struct buffer tag_text;          /* of the tag, behind the token */
    bool has_reasoning, has_content; /* something of this section was let out */

    struct buffer block; /* text of the block until its first call is accepted */
    bool keeps_block;
    struct buffer body; /* of a call */
    struct call call;
    uint32_t next_call;
    int ids_after_block;

    struct recovery recovery;
    struct buffer characters; /* scratch: text of an id */
    struct buffer shown;      /* scratch: what passed the stop strings */
    enum parser_place place, place_of_held;
    bool holds_ids;                /* of which place_of_held speaks */
    size_t let_out;                /* bytes of text by the id in progress, and */
    enum parser_place let_out_as;  /* of which section */
    struct parser_counts counts;
};

/* ---- where ids belong ---- */

/* Bytes that have come and may still be text or not. */
size_t parser_held(const struct parser *p);
/* An id has been taken, before which `held` bytes were: settles where it belongs, and those that were held. `silent`: it is no text
 * itself, whatever becomes of what was held. */
void parser_settle(struct parser *p, size_t held, bool silent);

/* ---- text leaves; nothing does once the parser has ended ---- */

void parser_finish_with(struct parser *p, enum parser_finish finish);
/* Content passes the stop strings, and may end the parser there; parser_flush_stops lets out what they hold. */
void parser_emit_content(struct parser *p, const char *text, size_t length);
void parser_flush_stops(struct parser *p);
/* Text of the section that the parser is in: reasoning or content. */
void parser_emit(struct parser *p, const char *text, size_t length);
void parser_emit_string(struct parser *p, const char *text);

/* ---- symbols as text ---- */

/* Bytes are their own text; `byte` holds one meanwhile. */
const char *parser_symbol_text(int symbol, char byte[2], size_t *length);
void parser_append_symbol(struct buffer *b, int symbol);
const char *parser_bracket_text(int bracket);

/* ---- tags ---- */

/* Follows `<`, `</` and the token behind them; true when a tag begins with this symbol. */
bool parser_follow_bracket(struct parser *p, int symbol);
/* Adds a symbol to the tag in progress. A token is no part of one: false, and the tag can only be swallowed or be text.
 */
bool parser_add_to_tag(struct parser *p, int symbol);
/* Takes the last byte out of a tag that it did not fit. */
void parser_drop_last_of_tag(struct parser *p);
/* The tag in progress is of no use: whatever comes goes with it, up to its `>`. */
void parser_swallow_tag(struct parser *p);

/* Hands a symbol to the part for the state; also one that ended something and must be looked at again (parser.c). */
void parser_dispatch(struct parser *p, int symbol);

#endif
