#include "text/parser.h"

#include <string.h>

#include "base/alloc.h"
#include "text/detokenizer.h"
#include "text/parser_call.h"
#include "text/parser_tag.h"

/* How many ids behind a finished block are waited for the end token in. */
#define IDS_AFTER_BLOCK 4

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
    struct stop_filter stops;
    struct deltas *out; /* during a call */
    enum state state;
    enum parser_finish finish;

    size_t newlines; /* held before the next byte, in a section */
    int bracket;     /* held behind them: 1 `<`, 2 `</` */
    enum tag tag;
    bool tag_opened; /* the swallowed tag is an opener */
    struct buffer tag_text; /* of the tag, behind the token */
    bool has_reasoning, has_content; /* something of this section was let out */

    struct buffer block; /* text of the block until its first call is accepted */
    bool keeps_block;
    struct buffer body; /* of a call */
    struct call call;
    uint32_t next_call;
    int ids_after_block;

    struct buffer characters; /* scratch: text of an id */
    struct buffer shown;      /* scratch: what passed the stop strings */
    enum parser_place place;
    struct parser_counts counts;
};

/* ---- letting text out ---- */

static void end_parsing(struct parser *p, enum parser_finish finish)
{
    p->finish = finish;
    p->state = ENDED;
}

static void flush_stops(struct parser *p)
{
    buffer_clear(&p->shown);
    stop_filter_flush(&p->stops, &p->shown);
    if (p->shown.length)
        deltas_add(p->out, DELTA_CONTENT, 0, p->shown.data, p->shown.length);
}

static void emit_content(struct parser *p, const char *text, size_t length)
{
    if (length == 0 || p->state == ENDED)
        return;
    p->has_content = true;
    buffer_clear(&p->shown);
    stop_filter_push(&p->stops, text, length, p->counts.ids >= p->options.min_ids, &p->shown);
    if (p->shown.length)
        deltas_add(p->out, DELTA_CONTENT, 0, p->shown.data, p->shown.length);
    if (p->stops.matched)
        end_parsing(p, FINISH_STOP);
}

/* Text of the section that the parser is in. */
static void emit(struct parser *p, const char *text, size_t length)
{
    if (p->state != IN_REASONING) {
        emit_content(p, text, length);
    } else if (length > 0) {
        p->has_reasoning = true;
        deltas_add(p->out, DELTA_REASONING, 0, text, length);
    }
}

static void emit_string(struct parser *p, const char *text) { emit(p, text, strlen(text)); }

static const char *bracket_text(int bracket) { return bracket == 0 ? "" : bracket == 1 ? "<" : "</"; }

/* The held newlines turn out to be text. */
static void release_newlines(struct parser *p)
{
    for (; p->newlines > 0; p->newlines--)
        emit(p, "\n", 1);
}

static void release_bracket(struct parser *p)
{
    int bracket = p->bracket;
    if (bracket == 0)
        return;
    p->bracket = 0;
    release_newlines(p);
    emit_string(p, bracket_text(bracket));
}

/* What a symbol is as text. Bytes are their own; `byte` holds one meanwhile. */
static const char *symbol_text(int symbol, char byte[2], size_t *length)
{
    const char *text = symbol == SYMBOL_DSML ? TOKEN_DSML : symbol == SYMBOL_THINK ? TOKEN_THINK : TOKEN_END_THINK;
    if (symbol > 255) {
        *length = strlen(text);
        return text;
    }
    byte[0] = (char)symbol;
    *length = 1;
    return byte;
}

static void append_symbol(struct buffer *b, int symbol)
{
    char byte[2];
    size_t length;
    const char *text = symbol_text(symbol, byte, &length);
    buffer_append(b, text, length);
}

/* Follows `<`, `</` and the token behind them; tells whether a tag begins with this symbol. */
static bool follow_bracket(struct parser *p, int symbol)
{
    int bracket = p->bracket;
    p->bracket = 0;
    if (symbol == '<') {
        p->bracket = 1;
    } else if (symbol == '/' && bracket == 1) {
        p->bracket = 2;
    } else if (symbol == SYMBOL_DSML && bracket > 0) {
        p->tag = bracket == 1 ? TAG_OPENS : TAG_CLOSES;
        buffer_clear(&p->tag_text);
        return true;
    }
    return false;
}

/* Adds a symbol to the tag in progress. A token is no part of one: false, and the tag can only be swallowed or be text. */
static bool add_to_tag(struct parser *p, int symbol)
{
    if (symbol > 255)
        return false;
    append_symbol(&p->tag_text, symbol);
    return !p->tag_text.failed;
}

/* Takes the last byte out of a tag that it did not fit. */
static void drop_last_of_tag(struct parser *p) { p->tag_text.length--; }

static void swallow_tag(struct parser *p)
{
    p->tag_opened = p->tag == TAG_OPENS;
    p->tag = TAG_SWALLOWED;
}

static void dispatch(struct parser *p, int symbol);

/* ---- reasoning and content ---- */

static void open_block(struct parser *p)
{
    buffer_clear(&p->block);
    for (; p->newlines > 0; p->newlines--)
        if (p->state == IN_CONTENT)
            buffer_append(&p->block, "\n", 1);
    buffer_puts(&p->block, "<" TOKEN_DSML);
    buffer_append(&p->block, p->tag_text.data, p->tag_text.length);
    p->keeps_block = true;
    p->tag = NO_TAG;
    p->state = IN_BLOCK;
}

/* The opener of a block, as far as it came, is text. */
static void release_opener(struct parser *p)
{
    p->tag = NO_TAG;
    release_newlines(p);
    emit_string(p, "<" TOKEN_DSML);
    emit(p, p->tag_text.data, p->tag_text.length);
}

static void section_opener(struct parser *p, int symbol)
{
    enum tag_match match = MATCH_NONE;
    if (add_to_tag(p, symbol)) {
        match = tag_block(p->tag_text.data, p->tag_text.length);
        if (match == MATCH_NONE)
            drop_last_of_tag(p);
    }
    if (match == MATCH_BLOCK) {
        open_block(p);
    } else if (match == MATCH_NONE) {
        release_opener(p);
        dispatch(p, symbol);
    }
}

static void section_end_think(struct parser *p)
{
    release_bracket(p);
    if (p->state != IN_REASONING)
        return;
    p->newlines = 0;
    p->state = IN_CONTENT;
}

static void section_think(struct parser *p)
{
    release_bracket(p);
    if (p->state != IN_CONTENT || p->has_content)
        return;
    p->newlines = 0;
    p->has_reasoning = false;
    p->state = IN_REASONING;
}

static void section_byte(struct parser *p, int symbol)
{
    char byte = (char)symbol;
    if (symbol == '\n') {
        release_bracket(p);
        if (p->state == IN_REASONING ? p->has_reasoning : p->has_content)
            p->newlines++;
    } else if (p->tools_on && symbol == '/' && p->bracket == 1) {
        p->bracket = 2;
    } else if (p->tools_on && symbol == '<') {
        release_bracket(p);
        p->bracket = 1;
    } else {
        release_bracket(p);
        release_newlines(p);
        emit(p, &byte, 1);
    }
}

static void section_dsml(struct parser *p)
{
    if (p->tools_on && follow_bracket(p, SYMBOL_DSML)) {
        if (p->tag == TAG_CLOSES)
            swallow_tag(p);
        return;
    }
    release_newlines(p);
    emit_string(p, TOKEN_DSML);
}

static void take_in_section(struct parser *p, int symbol)
{
    if (p->tag == TAG_OPENS)
        section_opener(p, symbol);
    else if (symbol == SYMBOL_THINK)
        section_think(p);
    else if (symbol == SYMBOL_END_THINK)
        section_end_think(p);
    else if (symbol == SYMBOL_DSML)
        section_dsml(p);
    else
        section_byte(p, symbol);
}

/* ---- inside a block ---- */

static void close_block(struct parser *p)
{
    p->tag = NO_TAG;
    p->keeps_block = false;
    p->state = p->counts.calls > 0 ? AFTER_BLOCK : IN_CONTENT;
}

static void take_in_block(struct parser *p, int symbol)
{
    if (p->tag == NO_TAG) {
        follow_bracket(p, symbol);
        return;
    }
    enum tag_match match = MATCH_NONE;
    if (add_to_tag(p, symbol))
        match = p->tag == TAG_OPENS ? tag_call_opener(p->tag_text.data, p->tag_text.length)
                                    : tag_block(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_NONE) {
        swallow_tag(p);
        dispatch(p, symbol);
    } else if (match == MATCH_BLOCK) {
        close_block(p);
    } else if (match == MATCH_CALL) {
        p->tag = NO_TAG;
        p->state = IN_NAME;
        buffer_clear(&p->call.name);
    }
}

/* A call was accepted: what came before it in its block is no text any more, and content is at its end. */
static void accept_call(struct parser *p)
{
    if (!p->call.lost && p->keeps_block) {
        flush_stops(p);
        p->keeps_block = false;
    }
}

/* The call of the block is refused: the whole block is text when it is the first, else the call is dropped. */
static void refuse_call(struct parser *p, enum state then)
{
    p->counts.refused_calls++;
    p->tag = NO_TAG;
    p->bracket = 0;
    if (!p->keeps_block) {
        p->state = then == IN_RAW ? IN_BLOCK : AFTER_BLOCK;
        return;
    }
    p->keeps_block = false;
    p->state = then;
    emit_content(p, p->block.data, p->block.length);
}

static void finish_call(struct parser *p)
{
    if (p->call.lost) /* it was counted when it was refused */
        return;
    p->counts.calls++;
    p->next_call++;
    if (p->options.single_call)
        end_parsing(p, FINISH_TOOL_CALLS);
}

static void take_in_name(struct parser *p, int symbol)
{
    struct buffer *name = &p->call.name;
    append_symbol(name, symbol);
    if (symbol != '>' || name->length < 2 || name->failed || name->data[name->length - 2] != '"')
        return;
    name->length -= 2;
    const struct tool *tool = tool_list_find(p->options.tools, name->data, name->length);
    bool refused = name->length == 0 || (!tool && !p->options.lenient_tools);
    if (refused && p->keeps_block) {
        refuse_call(p, IN_RAW);
        return;
    }
    p->counts.refused_calls += refused;
    call_begin(&p->call, tool, p->next_call, refused);
    p->bracket = 0;
    p->state = IN_CALL;
}

/* ---- inside a call ---- */

/* Ends the call at its own closer or at that of the block. */
static void close_call(struct parser *p, enum tag_match closer)
{
    accept_call(p);
    call_end(&p->call, p->out);
    p->tag = NO_TAG;
    p->state = IN_BLOCK;
    finish_call(p);
    if (closer == MATCH_BLOCK && p->state != ENDED)
        close_block(p);
}

static void open_parameter(struct parser *p)
{
    const char *key;
    size_t length;
    enum string_attribute attribute = tag_parameter_read(p->tag_text.data, p->tag_text.length, &key, &length);
    accept_call(p);
    call_parameter(&p->call, key, length, attribute, p->out);
    p->counts.repeated_keys += p->call.mode == VALUE_SKIPPED;
    p->tag = NO_TAG;
    p->state = IN_VALUE;
}

/* Adds a symbol to an opener that may be a parameter's; its key takes in tokens too. */
static enum tag_match add_to_parameter(struct parser *p, int symbol)
{
    if (symbol > 255 && !tag_parameter_in_key(p->tag_text.data ? p->tag_text.data : "", p->tag_text.length))
        return MATCH_NONE;
    append_symbol(&p->tag_text, symbol);
    if (p->tag_text.failed)
        return MATCH_PARTIAL;
    enum tag_match match = tag_parameter_opener(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_NONE)
        drop_last_of_tag(p);
    return match;
}

static void call_opener(struct parser *p, int symbol)
{
    enum tag_match match = add_to_parameter(p, symbol);
    if (match == MATCH_PARAMETER) {
        open_parameter(p);
    } else if (match == MATCH_NONE) {
        swallow_tag(p);
        dispatch(p, symbol);
    }
}

static void call_closer(struct parser *p, int symbol)
{
    enum tag_match match = MATCH_NONE;
    if (add_to_tag(p, symbol))
        match = tag_closer(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_CALL || match == MATCH_BLOCK) {
        close_call(p, match);
    } else if (match == MATCH_PARAMETER) {
        p->tag = NO_TAG;
    } else if (match == MATCH_NONE) {
        swallow_tag(p);
        dispatch(p, symbol);
    }
}

static bool is_space(int symbol) { return symbol == ' ' || symbol == '\t' || symbol == '\r' || symbol == '\n'; }

static void begin_body(struct parser *p)
{
    buffer_clear(&p->body);
    p->state = IN_BODY;
}

static void take_in_call(struct parser *p, int symbol)
{
    if (p->tag == TAG_OPENS) {
        call_opener(p, symbol);
        return;
    }
    if (p->tag == TAG_CLOSES) {
        call_closer(p, symbol);
        return;
    }
    bool may_be_body = p->call.parameters == 0;
    int bracket = p->bracket;
    if (follow_bracket(p, symbol) || p->bracket > bracket)
        return;
    if (may_be_body && (bracket > 0 || (symbol < 256 && symbol != '<' && !is_space(symbol)))) {
        begin_body(p);
        p->bracket = bracket;
        dispatch(p, symbol);
    }
}

/* ---- a value ---- */

static void add_to_value(struct parser *p, const char *text, size_t length)
{
    call_value(&p->call, text, length, p->out);
}

static void take_in_value(struct parser *p, int symbol)
{
    char byte[2];
    size_t length;
    int bracket = p->bracket;
    if (follow_bracket(p, symbol)) {
        if (p->tag == TAG_CLOSES) {
            call_value_end(&p->call, p->out);
            p->state = IN_CALL;
            return;
        }
        p->tag = NO_TAG;
    }
    if (p->bracket > bracket) /* `<` or `</`: wait */
        return;
    add_to_value(p, bracket_text(bracket), strlen(bracket_text(bracket)));
    if (p->bracket == 0) {
        const char *text = symbol_text(symbol, byte, &length);
        add_to_value(p, text, length);
    }
}

/* ---- a body ---- */

/* The tag in progress, as far as it came, is part of the body. */
static void release_tag_into_body(struct parser *p)
{
    buffer_puts(&p->body, p->tag == TAG_OPENS ? "<" TOKEN_DSML : "</" TOKEN_DSML);
    buffer_append(&p->body, p->tag_text.data, p->tag_text.length);
    p->tag = NO_TAG;
}

/* True when the body is an object: it makes the call. */
static bool accept_body(struct parser *p)
{
    bool is_object;
    if (call_body_check(p->body.data ? p->body.data : "", p->body.length, &is_object) != QR_OK)
        p->body.failed = true;
    if (!is_object)
        return false;
    accept_call(p);
    call_body(&p->call, p->body.data, p->body.length, p->out);
    return true;
}

static void end_body(struct parser *p, enum tag_match closer)
{
    if (accept_body(p)) {
        p->state = IN_BLOCK;
        finish_call(p);
    } else if (p->call.lost) {
        p->state = IN_BLOCK;
    } else {
        refuse_call(p, closer == MATCH_CALL ? IN_RAW : IN_CONTENT);
        return;
    }
    p->tag = NO_TAG;
    if (closer == MATCH_BLOCK && p->state != ENDED)
        close_block(p);
}

static void body_closer(struct parser *p, int symbol)
{
    enum tag_match match = MATCH_NONE;
    if (add_to_tag(p, symbol)) {
        match = tag_closer(p->tag_text.data, p->tag_text.length);
        if (match == MATCH_NONE)
            drop_last_of_tag(p);
    }
    if (match == MATCH_CALL || match == MATCH_BLOCK)
        end_body(p, match);
    else if (match != MATCH_PARTIAL)
        release_tag_into_body(p);
    if (match == MATCH_NONE)
        dispatch(p, symbol);
}

static void body_opener(struct parser *p, int symbol)
{
    enum tag_match match = add_to_parameter(p, symbol);
    if (match == MATCH_PARAMETER) {
        open_parameter(p);
    } else if (match == MATCH_NONE) {
        release_tag_into_body(p);
        dispatch(p, symbol);
    }
}

static void take_in_body(struct parser *p, int symbol)
{
    int bracket = p->bracket;
    if (p->tag == TAG_CLOSES) {
        body_closer(p, symbol);
    } else if (p->tag == TAG_OPENS) {
        body_opener(p, symbol);
    } else if (follow_bracket(p, symbol)) {
        if (p->tag == TAG_OPENS && p->body.length && p->body.data[0] == '{')
            release_tag_into_body(p);
    } else if (p->bracket <= bracket) {
        buffer_puts(&p->body, bracket_text(bracket));
        if (p->bracket == 0)
            append_symbol(&p->body, symbol);
    }
}

/* ---- a refused block ---- */

static void take_in_raw(struct parser *p, int symbol)
{
    char byte[2];
    size_t length;
    const char *text = symbol_text(symbol, byte, &length);
    emit_content(p, text, length);
    if (p->state == ENDED)
        return;
    enum tag_match match = MATCH_NONE;
    if (p->tag == TAG_CLOSES && add_to_tag(p, symbol))
        match = tag_block(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_PARTIAL)
        return;
    p->tag = NO_TAG;
    if (match == MATCH_BLOCK)
        p->state = IN_CONTENT;
    else if (follow_bracket(p, symbol) && p->tag == TAG_OPENS)
        p->tag = NO_TAG;
}

/* ---- all states ---- */

static void dispatch(struct parser *p, int symbol)
{
    if (p->tag == TAG_SWALLOWED) {
        if (symbol == '>')
            p->tag = NO_TAG;
        return;
    }
    switch (p->state) {
    case IN_REASONING:
    case IN_CONTENT:
        take_in_section(p, symbol);
        break;
    case IN_BLOCK:
        take_in_block(p, symbol);
        break;
    case IN_NAME:
        take_in_name(p, symbol);
        break;
    case IN_CALL:
        take_in_call(p, symbol);
        break;
    case IN_VALUE:
        take_in_value(p, symbol);
        break;
    case IN_BODY:
        take_in_body(p, symbol);
        break;
    case IN_RAW:
        take_in_raw(p, symbol);
        break;
    case AFTER_BLOCK:
    case ENDED:
        break;
    }
}

static void take_symbol(struct parser *p, int symbol)
{
    if (p->keeps_block && p->state >= IN_BLOCK && p->state <= IN_BODY)
        append_symbol(&p->block, symbol);
    dispatch(p, symbol);
}

/* ---- the end ---- */

static void cut_call(struct parser *p)
{
    p->counts.cut_calls++;
    if (p->call.started && !p->call.lost)
        deltas_add(p->out, DELTA_CALL_LOST, p->call.index, "", 0);
}

static void end_section(struct parser *p)
{
    if (p->tag == TAG_OPENS) { /* the opener of a block that did not come to its end */
        p->newlines = 0;
        return;
    }
    release_bracket(p);
    release_newlines(p);
}

static void end_in_call(struct parser *p, bool completes)
{
    bool opener_begun = p->tag == TAG_OPENS || (p->tag == TAG_SWALLOWED && p->tag_opened);
    if (completes && p->call.parameters > 0 && !opener_begun)
        close_call(p, MATCH_CALL);
    else
        cut_call(p);
}

static void end_in_body(struct parser *p, bool completes)
{
    buffer_puts(&p->body, bracket_text(p->bracket));
    if (p->tag == TAG_OPENS)
        release_tag_into_body(p);
    if (completes && accept_body(p))
        finish_call(p);
    else
        cut_call(p);
}

/* `completes`: an open call that lacks nothing but its closer counts. */
static void end_state(struct parser *p, bool completes)
{
    switch (p->state) {
    case IN_REASONING:
    case IN_CONTENT:
        end_section(p);
        break;
    case IN_NAME:
        p->counts.cut_calls++;
        break;
    case IN_VALUE:
        cut_call(p);
        break;
    case IN_CALL:
        end_in_call(p, completes);
        break;
    case IN_BODY:
        end_in_body(p, completes);
        break;
    default:
        break;
    }
}

static void end_with(struct parser *p, bool completes, enum parser_finish without_calls, bool calls_count)
{
    bool after_block = p->state == AFTER_BLOCK;
    end_state(p, completes);
    if (p->state == ENDED)
        return;
    flush_stops(p);
    bool calls = p->counts.calls > 0 && (calls_count || after_block);
    end_parsing(p, calls ? FINISH_TOOL_CALLS : without_calls);
}

/* ---- ids ---- */

static void take_characters(struct parser *p)
{
    for (size_t i = 0; i < p->characters.length && p->state != ENDED; i++)
        take_symbol(p, (unsigned char)p->characters.data[i]);
    buffer_clear(&p->characters);
}

/* An added token ends a character that lacks bytes. */
static qr_status flush_characters(struct parser *p, qr_error *err)
{
    qr_status st = detok_flush(&p->detokenizer, &p->characters, err);
    if (st == QR_OK)
        take_characters(p);
    return st;
}

static bool is_role(const struct parser *p, int32_t id)
{
    for (size_t i = 0; i < sizeof p->roles / sizeof *p->roles; i++)
        if (p->roles[i] == id)
            return true;
    return false;
}

/* The symbol of a control token, or -1. */
static int symbol_of(const struct parser *p, int32_t id)
{
    if (id == p->dsml)
        return SYMBOL_DSML;
    if (id == p->think)
        return SYMBOL_THINK;
    return id == p->end_think ? SYMBOL_END_THINK : -1;
}

static void take_place(struct parser *p, bool is_text)
{
    p->place = PLACE_HIDDEN;
    if (!is_text || p->tag != NO_TAG)
        return;
    if (p->state == IN_REASONING)
        p->place = PLACE_REASONING;
    else if (p->state == IN_CONTENT || p->state == IN_RAW)
        p->place = PLACE_CONTENT;
}

static qr_status take_token(struct parser *p, int32_t id, qr_error *err)
{
    int symbol = symbol_of(p, id);
    bool ends = id >= 0 && (id == p->eos || is_role(p, id));
    qr_status st;
    take_place(p, symbol < 0 && !ends);
    if (symbol < 0 && !ends) {
        st = detok_push(&p->detokenizer, id, &p->characters, err);
        if (st == QR_OK)
            take_characters(p);
        return st;
    }
    if ((st = flush_characters(p, err)) != QR_OK || p->state == ENDED)
        return st;
    if (symbol >= 0)
        take_symbol(p, symbol);
    else if (id != p->eos)
        end_with(p, false, FINISH_STOP, true);
    else if (!p->options.ignore_eos)
        end_with(p, true, FINISH_STOP, true);
    return QR_OK;
}

static qr_status check_memory(const struct parser *p, qr_error *err)
{
    if (p->out->text.failed || p->tag_text.failed || p->block.failed || p->body.failed || call_failed(&p->call) ||
        p->characters.failed || p->shown.failed)
        return qr_fail(err, QR_NO_MEMORY, "no memory to parse what the model said");
    return QR_OK;
}

qr_status parser_push(struct parser *p, int32_t id, struct deltas *out, qr_error *err)
{
    if (p->state == ENDED)
        return QR_OK;
    bool after_block = p->state == AFTER_BLOCK;
    p->out = out;
    p->counts.ids++;
    p->counts.reasoning_ids += p->state == IN_REASONING;
    p->counts.discarded_ids += after_block;
    qr_status st = take_token(p, id, err);
    if (st == QR_OK)
        st = check_memory(p, err);
    if (st != QR_OK)
        end_parsing(p, FINISH_NONE);
    if (after_block && p->state != ENDED && !p->options.ignore_eos && ++p->ids_after_block == IDS_AFTER_BLOCK)
        end_parsing(p, FINISH_TOOL_CALLS);
    return st;
}

qr_status parser_end(struct parser *p, enum parser_end why, struct deltas *out, qr_error *err)
{
    if (p->state == ENDED)
        return QR_OK;
    p->out = out;
    qr_status st = flush_characters(p, err);
    if (st != QR_OK || p->state == ENDED)
        return st;
    end_with(p, why == END_EOS, why == END_LENGTH ? FINISH_LENGTH : FINISH_STOP, why == END_EOS);
    return check_memory(p, err);
}

/* ---- opening and asking ---- */

static void find_tokens(struct parser *p)
{
    const struct tokenizer *tok = p->options.tok;
    p->dsml = tok_find(tok, TOKEN_DSML);
    p->think = tok_find(tok, TOKEN_THINK);
    p->end_think = tok_find(tok, TOKEN_END_THINK);
    p->eos = tok_eos(tok);
    p->roles[0] = tok_bos(tok);
    p->roles[1] = tok_find(tok, TOKEN_USER);
    p->roles[2] = tok_find(tok, TOKEN_ASSISTANT);
    p->roles[3] = tok_find(tok, TOKEN_SYSTEM);
    p->roles[4] = tok_find(tok, TOKEN_REMINDER);
}

qr_status parser_open(const struct parser_options *options, struct parser **out, qr_error *err)
{
    *out = NULL;
    struct parser *p = qr_calloc(1, sizeof *p);
    if (!p)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a parser");
    p->options = *options;
    p->tools_on = options->tools && options->tools->count > 0;
    p->state = options->start == CHAT_REASONING ? IN_REASONING : IN_CONTENT;
    p->has_reasoning = options->continued && p->state == IN_REASONING;
    p->has_content = options->continued && p->state == IN_CONTENT;
    find_tokens(p);
    detok_start(&p->detokenizer, options->tok);
    qr_status st = stop_filter_open(&p->stops, options->stops, options->stop_count, options->include_stop, err);
    if (st != QR_OK) {
        parser_close(p);
        return st;
    }
    *out = p;
    return QR_OK;
}

void parser_close(struct parser *p)
{
    if (!p)
        return;
    stop_filter_free(&p->stops);
    buffer_free(&p->tag_text);
    buffer_free(&p->block);
    buffer_free(&p->body);
    buffer_free(&p->characters);
    buffer_free(&p->shown);
    call_free(&p->call);
    qr_free(p);
}

enum parser_finish parser_finish(const struct parser *p) { return p->finish; }

const char *parser_finish_name(enum parser_finish finish)
{
    static const char *const names[] = {"none", "stop", "tool_calls", "length"};
    return names[finish];
}

int64_t parser_matched_stop(const struct parser *p) { return p->stops.matched ? (int64_t)p->stops.match : -1; }
enum parser_place parser_place(const struct parser *p) { return p->place; }
const struct parser_counts *parser_counts(const struct parser *p) { return &p->counts; }
