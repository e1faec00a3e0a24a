#include "text/parser_block.h"

#include <string.h>

/* ---- inside a block ---- */

static void close_block(struct parser *p)
{
    p->tag = NO_TAG;
    p->keeps_block = false;
    p->state = p->counts.calls > 0 ? AFTER_BLOCK : IN_CONTENT;
}

void parser_begin_name(struct parser *p)
{
    p->tag = NO_TAG;
    p->state = IN_NAME;
    buffer_clear(&p->call.name);
}

void parser_in_block(struct parser *p, int symbol)
{
    if (p->tag == NO_TAG) {
        parser_follow_bracket(p, symbol);
        return;
    }
    enum tag_match match = MATCH_NONE;
    if (parser_add_to_tag(p, symbol))
        match = p->tag == TAG_OPENS ? tag_call_opener(p->tag_text.data, p->tag_text.length)
                                    : tag_block(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_NONE) {
        parser_swallow_tag(p);
        parser_dispatch(p, symbol);
    } else if (match == MATCH_BLOCK) {
        close_block(p);
    } else if (match == MATCH_CALL) {
        parser_begin_name(p);
    }
}

/* A call was accepted: what came before it in its block is no text any more, and content is at its end. */
static void accept_call(struct parser *p)
{
    if (!p->call.lost && p->keeps_block) {
        parser_flush_stops(p);
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
    parser_emit_content(p, p->block.data, p->block.length);
}

static void finish_call(struct parser *p)
{
    if (p->call.lost) /* it was counted when it was refused */
        return;
    p->counts.calls++;
    p->next_call++;
    if (p->options.single_call)
        parser_finish_with(p, FINISH_TOOL_CALLS);
}

void parser_in_name(struct parser *p, int symbol)
{
    struct buffer *name = &p->call.name;
    parser_append_symbol(name, symbol);
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
    parser_append_symbol(&p->tag_text, symbol);
    if (p->tag_text.failed)
        return MATCH_PARTIAL;
    enum tag_match match = tag_parameter_opener(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_NONE)
        parser_drop_last_of_tag(p);
    return match;
}

static void call_opener(struct parser *p, int symbol)
{
    enum tag_match match = add_to_parameter(p, symbol);
    if (match == MATCH_PARAMETER) {
        open_parameter(p);
    } else if (match == MATCH_NONE) {
        parser_swallow_tag(p);
        parser_dispatch(p, symbol);
    }
}

static void call_closer(struct parser *p, int symbol)
{
    enum tag_match match = MATCH_NONE;
    if (parser_add_to_tag(p, symbol))
        match = tag_closer(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_CALL || match == MATCH_BLOCK) {
        close_call(p, match);
    } else if (match == MATCH_PARAMETER) {
        p->tag = NO_TAG;
    } else if (match == MATCH_NONE) {
        parser_swallow_tag(p);
        parser_dispatch(p, symbol);
    }
}

static bool is_space(int symbol) { return symbol == ' ' || symbol == '\t' || symbol == '\r' || symbol == '\n'; }

static void begin_body(struct parser *p)
{
    buffer_clear(&p->body);
    p->state = IN_BODY;
}

void parser_in_call(struct parser *p, int symbol)
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
    if (parser_follow_bracket(p, symbol) || p->bracket > bracket)
        return;
    if (may_be_body && (bracket > 0 || (symbol < 256 && symbol != '<' && !is_space(symbol)))) {
        begin_body(p);
        p->bracket = bracket;
        parser_dispatch(p, symbol);
    }
}

/* ---- a value ---- */

static void add_to_value(struct parser *p, const char *text, size_t length)
{
    call_value(&p->call, text, length, p->out);
}

void parser_in_value(struct parser *p, int symbol)
{
    char byte[2];
    size_t length;
    int bracket = p->bracket;
    if (parser_follow_bracket(p, symbol)) {
        if (p->tag == TAG_CLOSES) {
            call_value_end(&p->call, p->out);
            p->state = IN_CALL;
            return;
        }
        p->tag = NO_TAG;
    }
    if (p->bracket > bracket) /* `<` or `</`: wait */
        return;
    add_to_value(p, parser_bracket_text(bracket), strlen(parser_bracket_text(bracket)));
    if (p->bracket == 0) {
        const char *text = parser_symbol_text(symbol, byte, &length);
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
    if (parser_add_to_tag(p, symbol)) {
        match = tag_closer(p->tag_text.data, p->tag_text.length);
        if (match == MATCH_NONE)
            parser_drop_last_of_tag(p);
    }
    if (match == MATCH_CALL || match == MATCH_BLOCK)
        end_body(p, match);
    else if (match != MATCH_PARTIAL)
        release_tag_into_body(p);
    if (match == MATCH_NONE)
        parser_dispatch(p, symbol);
}

static void body_opener(struct parser *p, int symbol)
{
    enum tag_match match = add_to_parameter(p, symbol);
    if (match == MATCH_PARAMETER) {
        open_parameter(p);
    } else if (match == MATCH_NONE) {
        release_tag_into_body(p);
        parser_dispatch(p, symbol);
    }
}

void parser_in_body(struct parser *p, int symbol)
{
    int bracket = p->bracket;
    if (p->tag == TAG_CLOSES) {
        body_closer(p, symbol);
    } else if (p->tag == TAG_OPENS) {
        body_opener(p, symbol);
    } else if (parser_follow_bracket(p, symbol)) {
        if (p->tag == TAG_OPENS && p->body.length && p->body.data[0] == '{')
            release_tag_into_body(p);
    } else if (p->bracket <= bracket) {
        buffer_puts(&p->body, parser_bracket_text(bracket));
        if (p->bracket == 0)
            parser_append_symbol(&p->body, symbol);
    }
}

/* ---- a refused block ---- */

void parser_in_raw(struct parser *p, int symbol)
{
    char byte[2];
    size_t length;
    const char *text = parser_symbol_text(symbol, byte, &length);
    parser_emit_content(p, text, length);
    if (p->state == ENDED)
        return;
    enum tag_match match = MATCH_NONE;
    if (p->tag == TAG_CLOSES && parser_add_to_tag(p, symbol))
        match = tag_block(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_PARTIAL)
        return;
    p->tag = NO_TAG;
    if (match == MATCH_BLOCK)
        p->state = IN_CONTENT;
    else if (parser_follow_bracket(p, symbol) && p->tag == TAG_OPENS)
        p->tag = NO_TAG;
}

/* ---- the end ---- */

void parser_cut_call(struct parser *p)
{
    p->counts.cut_calls++;
    if (p->call.started && !p->call.lost)
        deltas_add(p->out, DELTA_CALL_LOST, p->call.index, "", 0);
}

void parser_end_in_call(struct parser *p, bool completes)
{
    bool opener_begun = p->tag == TAG_OPENS || (p->tag == TAG_SWALLOWED && p->tag_opened);
    if (completes && p->call.parameters > 0 && !opener_begun)
        close_call(p, MATCH_CALL);
    else
        parser_cut_call(p);
}

void parser_end_in_body(struct parser *p, bool completes)
{
    buffer_puts(&p->body, parser_bracket_text(p->bracket));
    if (p->tag == TAG_OPENS)
        release_tag_into_body(p);
    if (completes && accept_body(p))
        finish_call(p);
    else
        parser_cut_call(p);
}
