#include "text/parser_state.h"

#include <string.h>

/* ---- where ids belong ---- */

size_t parser_held(const struct parser *p)
{
    const size_t undecoded = p->detokenizer.held_count + p->recovery.length;
    if (p->state == IN_REASONING || p->state == IN_CONTENT)
        return undecoded + p->newlines + (size_t)p->bracket + (p->tag == TAG_OPENS ? strlen("<" TOKEN_DSML) + p->tag_text.length : 0);
    return undecoded + (p->keeps_block && p->state >= IN_BLOCK && p->state <= IN_BODY ? p->block.length : 0);
}

/* What is held is let out in its order, and at once: more than that was the id's own. */
void parser_settle(struct parser *p, size_t held, bool silent)
{
    const size_t holds = p->state == ENDED ? 0 : parser_held(p);
    p->place_of_held = p->let_out > 0 ? p->let_out_as : holds == 0 ? PLACE_HIDDEN : PLACE_HELD;
    p->place = PLACE_HIDDEN;
    if (!silent && p->let_out > held)
        p->place = p->let_out_as;
    else if (!silent && holds > 0)
        p->place = PLACE_HELD;
    if (!p->holds_ids)
        p->place_of_held = PLACE_HIDDEN;
    p->holds_ids = p->place == PLACE_HELD || p->place_of_held == PLACE_HELD;
}

/* ---- text leaves ---- */

void parser_finish_with(struct parser *p, enum parser_finish finish)
{
    p->finish = finish;
    p->state = ENDED;
}

static void show_content(struct parser *p)
{
    if (p->shown.length)
        deltas_add(p->out, DELTA_CONTENT, 0, p->shown.data, p->shown.length);
    buffer_clear(&p->shown);
}

void parser_flush_stops(struct parser *p)
{
    if (stop_flush(p->stops, &p->shown, NULL) != QR_OK)
        p->shown.failed = true;
    show_content(p);
}

void parser_emit_content(struct parser *p, const char *text, size_t length)
{
    bool hit = false;
    if (length == 0 || p->state == ENDED)
        return;
    p->has_content = true;
    p->let_out += length;
    p->let_out_as = PLACE_CONTENT;
    bool counts = p->counts.ids >= p->options.min_ids;
    if (stop_push(p->stops, text, length, counts, &p->shown, &hit, NULL) != QR_OK)
        p->shown.failed = true;
    show_content(p);
    if (hit)
        parser_finish_with(p, FINISH_STOP);
}

void parser_emit(struct parser *p, const char *text, size_t length)
{
    if (p->state != IN_REASONING) {
        parser_emit_content(p, text, length);
    } else if (length > 0) {
        p->has_reasoning = true;
        p->let_out += length;
        p->let_out_as = PLACE_REASONING;
        deltas_add(p->out, DELTA_REASONING, 0, text, length);
    }
}

void parser_emit_string(struct parser *p, const char *text) { parser_emit(p, text, strlen(text)); }

const char *parser_bracket_text(int bracket) { return bracket == 0 ? "" : bracket == 1 ? "<" : "</"; }

const char *parser_symbol_text(int symbol, char byte[2], size_t *length)
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

void parser_append_symbol(struct buffer *b, int symbol)
{
    char byte[2];
    size_t length;
    const char *text = parser_symbol_text(symbol, byte, &length);
    buffer_append(b, text, length);
}

bool parser_follow_bracket(struct parser *p, int symbol)
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

bool parser_add_to_tag(struct parser *p, int symbol)
{
    if (symbol > 255)
        return false;
    parser_append_symbol(&p->tag_text, symbol);
    return !p->tag_text.failed;
}

void parser_drop_last_of_tag(struct parser *p) { p->tag_text.length--; }

void parser_swallow_tag(struct parser *p)
{
    p->tag_opened = p->tag == TAG_OPENS;
    p->tag = TAG_SWALLOWED;
}
