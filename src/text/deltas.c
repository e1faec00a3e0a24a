#include "text/deltas.h"

#include "base/alloc.h"

static bool joins(const struct deltas *d, enum delta_kind kind, uint32_t call)
{
    if (d->count == 0 || (kind != DELTA_REASONING && kind != DELTA_CONTENT && kind != DELTA_ARGUMENTS))
        return false;
    const struct delta *last = &d->items[d->count - 1];
    return last->kind == kind && last->call == call;
}

void deltas_add(struct deltas *d, enum delta_kind kind, uint32_t call, const char *text, size_t length)
{
    size_t offset = d->text.length;
    if (!buffer_append(&d->text, text, length))
        return;
    if (joins(d, kind, call)) {
        d->items[d->count - 1].length += length;
        return;
    }
    if (!array_grow(&d->items, &d->capacity, d->count, sizeof *d->items)) {
        d->text.failed = true;
        return;
    }
    d->items[d->count++] = (struct delta){kind, call, offset, length};
}

const char *deltas_text(const struct deltas *d, const struct delta *delta) { return d->text.data + delta->offset; }

void deltas_clear(struct deltas *d)
{
    d->count = 0;
    buffer_clear(&d->text);
}

void deltas_free(struct deltas *d)
{
    qr_free(d->items);
    buffer_free(&d->text);
    *d = (struct deltas){0};
}

/* ---- the sum ---- */

static struct answer_call *call_of(struct parsed_answer *answer, uint32_t index)
{
    while (answer->call_count <= index) {
        if (!array_grow(&answer->calls, &answer->call_capacity, answer->call_count, sizeof *answer->calls))
            return NULL;
        answer->calls[answer->call_count++] = (struct answer_call){0};
    }
    return &answer->calls[index];
}

static bool add_call_delta(struct parsed_answer *answer, const struct delta *delta, const char *text)
{
    struct answer_call *call = call_of(answer, delta->call);
    if (!call)
        return false;
    switch (delta->kind) {
    case DELTA_CALL:
        return buffer_append(&call->name, text, delta->length);
    case DELTA_ARGUMENTS:
        return buffer_append(&call->arguments, text, delta->length);
    default:
        call->whole = delta->kind == DELTA_CALL_END;
        return true;
    }
}

bool parsed_answer_add(struct parsed_answer *answer, const struct deltas *d)
{
    bool ok = !d->text.failed;
    for (size_t i = 0; i < d->count && ok; i++) {
        const struct delta *delta = &d->items[i];
        const char *text = deltas_text(d, delta);
        if (delta->kind == DELTA_REASONING)
            ok = buffer_append(&answer->reasoning, text, delta->length);
        else if (delta->kind == DELTA_CONTENT)
            ok = buffer_append(&answer->content, text, delta->length);
        else
            ok = add_call_delta(answer, delta, text);
    }
    return ok;
}

void parsed_answer_free(struct parsed_answer *answer)
{
    buffer_free(&answer->reasoning);
    buffer_free(&answer->content);
    for (size_t i = 0; i < answer->call_count; i++) {
        buffer_free(&answer->calls[i].name);
        buffer_free(&answer->calls[i].arguments);
    }
    qr_free(answer->calls);
    *answer = (struct parsed_answer){0};
}
