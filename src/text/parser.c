#include "text/parser.h"

#include <string.h>

#include "base/alloc.h"
#include "text/parser_block.h"
#include "text/parser_section.h"

/* How many ids behind a finished block are waited for the end token in. */
#define IDS_AFTER_BLOCK 4

/* ---- all states ---- */

void parser_dispatch(struct parser *p, int symbol)
{
    if (p->tag == TAG_SWALLOWED) {
        if (symbol == '>')
            p->tag = NO_TAG;
        return;
    }
    switch (p->state) {
    case IN_REASONING:
    case IN_CONTENT:
        parser_in_section(p, symbol);
        break;
    case IN_BLOCK:
        parser_in_block(p, symbol);
        break;
    case IN_NAME:
        parser_in_name(p, symbol);
        break;
    case IN_CALL:
        parser_in_call(p, symbol);
        break;
    case IN_VALUE:
        parser_in_value(p, symbol);
        break;
    case IN_BODY:
        parser_in_body(p, symbol);
        break;
    case IN_RAW:
        parser_in_raw(p, symbol);
        break;
    case AFTER_BLOCK:
    case ENDED:
        break;
    }
}

/* A symbol for the machine, which forgets none while the text of a block may still be needed. */
static void take_symbol(struct parser *p, int symbol)
{
    if (p->keeps_block && p->state >= IN_BLOCK && p->state <= IN_BODY)
        parser_append_symbol(&p->block, symbol);
    parser_dispatch(p, symbol);
}

/* ---- the end ---- */

/* `completes`: an open call that lacks nothing but its closer counts. */
static void end_state(struct parser *p, bool completes)
{
    switch (p->state) {
    case IN_REASONING:
    case IN_CONTENT:
        parser_end_section(p);
        break;
    case IN_NAME:
        p->counts.cut_calls++;
        break;
    case IN_VALUE:
        parser_cut_call(p);
        break;
    case IN_CALL:
        parser_end_in_call(p, completes);
        break;
    case IN_BODY:
        parser_end_in_body(p, completes);
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
    parser_flush_stops(p);
    bool calls = p->counts.calls > 0 && (calls_count || after_block);
    parser_finish_with(p, calls ? FINISH_TOOL_CALLS : without_calls);
}

/* ---- ids ---- */

static void take_bytes(struct parser *p, const char *text, size_t length)
{
    for (size_t i = 0; i < length && p->state != ENDED; i++)
        take_symbol(p, (unsigned char)text[i]);
}

static void take_characters(struct parser *p)
{
    for (size_t i = 0; i < p->characters.length && p->state != ENDED; i++) {
        struct recovered r = {.pass = p->characters.data + i, .length = 1};
        if (p->options.recovery)
            recovery_step(&p->recovery, p->characters.data[i], &r);
        if (r.token)
            take_symbol(p, SYMBOL_DSML);
        take_bytes(p, r.pass, r.length);
    }
    buffer_clear(&p->characters);
}

/* An added token ends a character that lacks bytes. */
static qr_status flush_characters(struct parser *p, qr_error *err)
{
    qr_status st = detok_flush(&p->detokenizer, &p->characters, err);
    if (st != QR_OK)
        return st;
    take_characters(p);
    struct recovered r;
    recovery_flush(&p->recovery, &r);
    take_bytes(p, r.pass, r.length);
    return QR_OK;
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

static qr_status take_token(struct parser *p, int32_t id, qr_error *err)
{
    int symbol = symbol_of(p, id);
    bool ends = id >= 0 && (id == p->eos || is_role(p, id));
    qr_status st;
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

static bool in_section(const struct parser *p) { return p->state == IN_REASONING || p->state == IN_CONTENT; }

/* Whether an id is no text where it comes: an end, a token of reasoning outside of calls, a part of a tag that is swallowed. */
static bool is_silent(const struct parser *p, int32_t id)
{
    return id == p->eos || is_role(p, id) || p->state == AFTER_BLOCK ||
           (in_section(p) && (p->tag == TAG_SWALLOWED || id == p->think || id == p->end_think));
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
    const size_t held = parser_held(p);
    bool silent = id >= 0 && is_silent(p, id);
    p->let_out = 0;
    qr_status st = take_token(p, id, err);
    silent |= in_section(p) && p->tag == TAG_SWALLOWED;
    parser_settle(p, held, silent && p->let_out <= held);
    if (st == QR_OK)
        st = check_memory(p, err);
    if (st != QR_OK)
        parser_finish_with(p, FINISH_NONE);
    if (after_block && p->state != ENDED && !p->options.ignore_eos && ++p->ids_after_block == IDS_AFTER_BLOCK)
        parser_finish_with(p, FINISH_TOOL_CALLS);
    return st;
}

qr_status parser_end(struct parser *p, enum parser_end why, struct deltas *out, qr_error *err)
{
    if (p->state == ENDED)
        return QR_OK;
    p->out = out;
    p->let_out = 0;
    qr_status st = flush_characters(p, err);
    if (st != QR_OK || p->state == ENDED)
        return st;
    end_with(p, why == END_EOS, why == END_LENGTH ? FINISH_LENGTH : FINISH_STOP, why == END_EOS);
    p->place_of_held = p->holds_ids && p->let_out > 0 ? p->let_out_as : PLACE_HIDDEN;
    p->holds_ids = false;
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
    p->options.recovery &= p->tools_on;
    find_tokens(p);
    detok_start(&p->detokenizer, options->tok);
    qr_status st = stop_open(options->stops, options->stop_count, options->include_stop, &p->stops, err);
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
    stop_close(p->stops);
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

int32_t parser_matched_stop(const struct parser *p) { return stop_found(p->stops); }
enum parser_place parser_place(const struct parser *p) { return p->place; }
enum parser_place parser_place_of_held(const struct parser *p) { return p->place_of_held; }
const struct parser_counts *parser_counts(const struct parser *p) { return &p->counts; }
