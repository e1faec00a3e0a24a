#include "text/parser_section.h"

#include "text/parser_block.h"

/* The held newlines turn out to be text. */
static void release_newlines(struct parser *p)
{
    for (; p->newlines > 0; p->newlines--)
        parser_emit(p, "\n", 1);
}

static void release_bracket(struct parser *p)
{
    int bracket = p->bracket;
    if (bracket == 0)
        return;
    p->bracket = 0;
    release_newlines(p);
    parser_emit_string(p, parser_bracket_text(bracket));
}

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
    parser_emit_string(p, "<" TOKEN_DSML);
    parser_emit(p, p->tag_text.data, p->tag_text.length);
}

/* A call may stand without a block when the parser is to recover what it can. */
static enum tag_match match_opener(const struct parser *p)
{
    enum tag_match match = tag_block(p->tag_text.data, p->tag_text.length);
    if (match == MATCH_NONE && p->options.recovery)
        match = tag_call_opener(p->tag_text.data, p->tag_text.length);
    return match;
}

static void section_opener(struct parser *p, int symbol)
{
    enum tag_match match = MATCH_NONE;
    if (parser_add_to_tag(p, symbol)) {
        match = match_opener(p);
        if (match == MATCH_NONE)
            parser_drop_last_of_tag(p);
    }
    if (match == MATCH_BLOCK) {
        open_block(p);
    } else if (match == MATCH_CALL) {
        open_block(p);
        parser_begin_name(p);
    } else if (match == MATCH_NONE) {
        release_opener(p);
        parser_dispatch(p, symbol);
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
        parser_emit(p, &byte, 1);
    }
}

static void section_dsml(struct parser *p)
{
    if (p->tools_on && parser_follow_bracket(p, SYMBOL_DSML)) {
        if (p->tag == TAG_CLOSES)
            parser_swallow_tag(p);
        return;
    }
    release_newlines(p);
    parser_emit_string(p, TOKEN_DSML);
}

void parser_in_section(struct parser *p, int symbol)
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

void parser_end_section(struct parser *p)
{
    if (p->tag == TAG_OPENS) { /* the opener of a block that did not come to its end */
        p->newlines = 0;
        return;
    }
    release_bracket(p);
    release_newlines(p);
}
