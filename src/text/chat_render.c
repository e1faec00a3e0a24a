#include "text/chat_render.h"

#include <string.h>

#include "text/chat_json.h"
#include "text/chat_turns.h"

struct renderer {
    const struct chat_rendering *r;
    struct prompt *p;
    bool keep;    /* reasoning of all turns */
    int64_t last; /* the last user's turn */
};

static const char blank_line[] = "\n\n";

/* ---- blocks ---- */

static void write_blocks(struct prompt *p, const struct chat_block *blocks)
{
    for (const struct chat_block *b = blocks; b; b = b->next) {
        if (b != blocks)
            prompt_puts(p, blank_line);
        if (b->kind == BLOCK_IMAGE) {
            prompt_markup(p, TOKEN_IMAGE);
        } else if (b->kind == BLOCK_RESULT) {
            prompt_puts(p, "<tool_result>");
            write_blocks(p, b->parts);
            prompt_puts(p, "</tool_result>");
        } else {
            prompt_literal(p, b->text, b->length);
        }
    }
}

/* ---- calls ---- */

static void write_parameter(struct renderer *w, const char *key, size_t length, const struct json *value)
{
    chat_write_parameter_open(w->p, w->r->profile);
    prompt_literal(w->p, key, length);
    if (value->kind == JSON_STRING) {
        prompt_puts(w->p, "\" string=\"true\">");
        prompt_literal(w->p, value->text, value->length);
    } else {
        prompt_puts(w->p, "\" string=\"false\">");
        prompt_json(w->p, value);
    }
    chat_write_parameter_close(w->p, w->r->profile);
    prompt_puts(w->p, "\n");
}

static void write_arguments(struct renderer *w, const struct json *object)
{
    const struct json **members;
    size_t count;
    if (!chat_json_members(object, &members, &count)) {
        w->p->text.failed = true;
        return;
    }
    for (size_t i = 0; i < count; i++)
        write_parameter(w, members[i]->key, members[i]->key_length, members[i]);
    if (count == 0)
        prompt_puts(w->p, "\n");
    qr_free(members);
}

static void write_call(struct renderer *w, const struct chat_call *call)
{
    chat_write_call_open(w->p, w->r->profile);
    prompt_literal(w->p, call->name, call->name_length);
    prompt_puts(w->p, "\">\n");
    if (call->arguments) {
        write_arguments(w, call->arguments);
    } else {
        struct json raw = {.kind = JSON_STRING, .text = call->raw, .length = call->raw_length};
        write_parameter(w, "arguments", strlen("arguments"), &raw);
    }
    chat_write_call_close(w->p, w->r->profile);
    prompt_puts(w->p, "\n");
}

static void write_calls(struct renderer *w, const struct chat_call *calls)
{
    if (!calls || call_blocks_write(w->r->call_blocks, calls, w->p))
        return;
    prompt_puts(w->p, blank_line);
    chat_write_block_open(w->p, w->r->profile);
    prompt_puts(w->p, "\n");
    for (const struct chat_call *c = calls; c; c = c->next)
        write_call(w, c);
    chat_write_block_close(w->p, w->r->profile);
}

/* ---- bodies ---- */

static void write_system(struct renderer *w, const struct chat_message *m, size_t i)
{
    if (w->r->profile == CHAT_V41 && i > 0)
        prompt_markup(w->p, TOKEN_SYSTEM);
    write_blocks(w->p, m->blocks);
    if (i > 0)
        return;
    if (w->r->tools->count > 0) {
        prompt_puts(w->p, blank_line);
        chat_write_tools_before(w->p, w->r->profile);
        tool_list_write(w->r->tools, w->p);
        chat_write_tools_after(w->p);
    }
    if (w->r->format) {
        prompt_puts(w->p, blank_line);
        chat_write_response_format(w->p);
        prompt_json(w->p, w->r->format);
    }
}

static bool is_empty(const struct chat_message *m)
{
    for (const struct chat_block *b = m->blocks; b; b = b->next)
        if (b->length > 0 || b->next)
            return false;
    return !m->calls;
}

static void write_assistant(struct renderer *w, const struct chat_message *m, size_t i)
{
    bool open = w->r->open && i + 1 == w->r->messages->count;
    bool after_task = i > 0 && w->r->messages->items[i - 1].task;
    if (w->r->thinking.on && !after_task && (w->keep || (int64_t)i > w->last)) {
        prompt_literal(w->p, m->reasoning, m->reasoning_length);
        bool goes_on_thinking = open && m->reasoning_length > 0 && is_empty(m);
        if (!goes_on_thinking)
            prompt_markup(w->p, TOKEN_END_THINK);
    }
    write_blocks(w->p, m->blocks);
    write_calls(w, m->calls);
    if (!open)
        prompt_markup(w->p, TOKEN_EOS);
}

static void write_body(struct renderer *w, const struct chat_message *m, size_t i)
{
    switch (m->role) {
    case CHAT_SYSTEM:
        write_system(w, m, i);
        break;
    case CHAT_USER:
    case CHAT_TOOL:
        prompt_markup(w->p, TOKEN_USER);
        write_blocks(w->p, m->blocks);
        break;
    case CHAT_REMINDER:
        prompt_markup(w->p, TOKEN_REMINDER);
        write_blocks(w->p, m->blocks);
        break;
    case CHAT_ASSISTANT:
        write_assistant(w, m, i);
        break;
    }
}

/* ---- tails ---- */

static void begin_assistant(struct renderer *w, bool think)
{
    prompt_markup(w->p, TOKEN_ASSISTANT);
    prompt_markup(w->p, think ? TOKEN_THINK : TOKEN_END_THINK);
}

/* What follows message i when an assistant's turn does: the header of that turn belongs to the message before it. */
static void write_tail(struct renderer *w, const struct chat_message *m, size_t i)
{
    bool thinks = w->r->thinking.on;
    if (m->task && strcmp(m->task, TOKEN_ACTION) != 0) {
        prompt_markup(w->p, m->task);
    } else if (m->task) {
        begin_assistant(w, thinks);
        prompt_markup(w->p, m->task);
    } else if (m->role == CHAT_USER || (m->role == CHAT_SYSTEM && w->r->profile == CHAT_V41 && i > 0)) {
        begin_assistant(w, thinks && (w->keep || (int64_t)i >= w->last));
    }
}

static bool takes_tail(const struct renderer *w, size_t i)
{
    if (i + 1 == w->r->messages->count)
        return w->r->header;
    enum chat_role next = w->r->messages->items[i + 1].role;
    return next == CHAT_ASSISTANT || next == CHAT_REMINDER;
}

/* The header where no tail has written it: behind a conversation that is a system message only, or ends with the
 * assistant's. */
static void write_final_header(struct renderer *w)
{
    const struct chat_messages *all = w->r->messages;
    const struct chat_message *m = &all->items[all->count - 1];
    if (!w->r->header || m->task)
        return;
    if (m->role == CHAT_ASSISTANT || (m->role == CHAT_SYSTEM && all->count == 1))
        begin_assistant(w, w->r->thinking.on);
}

static void write_head(struct renderer *w)
{
    const struct chat_thinking *thinking = &w->r->thinking;
    prompt_markup(w->p, TOKEN_BOS);
    if (w->r->profile == CHAT_V41 && (thinking->on || w->r->messages->items[0].role == CHAT_SYSTEM))
        prompt_markup(w->p, TOKEN_SYSTEM);
    if (!thinking->on)
        return;
    if (w->r->profile == CHAT_V41)
        chat_write_effort_number(w->p, thinking->number);
    else
        chat_write_effort_text(w->p, thinking->text);
}

void chat_render_messages(const struct chat_rendering *r, struct prompt *p)
{
    struct renderer w = {.r = r, .p = p, .last = chat_turns_last_user(r->messages, r->profile)};
    w.keep = !r->thinking.on || r->keep_reasoning || r->tools->count > 0;
    write_head(&w);
    for (size_t i = 0; i < r->messages->count; i++) {
        const struct chat_message *m = &r->messages->items[i];
        write_body(&w, m, i);
        if (takes_tail(&w, i))
            write_tail(&w, m, i);
    }
    write_final_header(&w);
}
