#include "text/stop.h"

#include <string.h>

#include "base/alloc.h"

/* An automaton in the manner of Aho and Corasick. A state is a beginning of a stop string; after any text the state is
 * the longest one that the text ends with. Its length is what must be held back. */
struct state {
    int32_t child, sibling; /* longer by one byte; the next state of the same length and parent; 0: none */
    int32_t shorter;        /* the longest state that this one ends with */
    int32_t found;          /* the longest stop string that this one ends with, or -1 */
    int32_t length;
    char byte; /* its last */
};

struct stop_matcher {
    struct state *states; /* states[0] is the empty one */
    int32_t state_count;
    int32_t *lengths; /* of the strings */
    bool include;
    int32_t state, found;
    char *held; /* the bytes of the state */
};

static int32_t child_of(const struct stop_matcher *s, int32_t state, char byte)
{
    int32_t child = s->states[state].child;
    while (child && s->states[child].byte != byte)
        child = s->states[child].sibling;
    return child;
}

static void add_string(struct stop_matcher *s, const char *string, int32_t index)
{
    int32_t state = 0;
    for (const char *c = string; *c; c++) {
        int32_t next = child_of(s, state, *c);
        if (!next) {
            next = s->state_count++;
            s->states[next] = (struct state){
                .sibling = s->states[state].child, .found = -1, .length = s->states[state].length + 1, .byte = *c};
            s->states[state].child = next;
        }
        state = next;
    }
    if (s->states[state].found < 0)
        s->states[state].found = index;
}

static int32_t step(const struct stop_matcher *s, int32_t state, char byte)
{
    int32_t next;
    while (!(next = child_of(s, state, byte)) && state)
        state = s->states[state].shorter;
    return next;
}

/* By length, so that the shorter states are ready. */
static void link_states(struct stop_matcher *s, int32_t *queue)
{
    int32_t count = 0;
    queue[count++] = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct state *parent = &s->states[queue[i]];
        for (int32_t child = parent->child; child; child = s->states[child].sibling) {
            struct state *c = &s->states[child];
            c->shorter = queue[i] ? step(s, parent->shorter, c->byte) : 0;
            if (c->found < 0)
                c->found = s->states[c->shorter].found;
            queue[count++] = child;
        }
    }
}

static qr_status total_length(const char *const *strings, int32_t count, size_t *total, qr_error *err)
{
    *total = 0;
    for (int32_t i = 0; i < count; i++) {
        size_t length = strlen(strings[i]);
        if (length == 0)
            return qr_fail(err, QR_BAD_REQUEST, "stop: string %d is empty", i);
        if (length >= (1u << 30) - *total)
            return qr_fail(err, QR_BAD_REQUEST, "stop: the strings have 2^30 bytes or more");
        *total += length;
    }
    return QR_OK;
}

static qr_status build(struct stop_matcher *s, const char *const *strings, int32_t count, size_t total, qr_error *err)
{
    int32_t *queue = qr_calloc(total + 1, sizeof *queue);
    s->states = qr_calloc(total + 1, sizeof *s->states);
    s->lengths = qr_calloc((size_t)count, sizeof *s->lengths);
    s->held = qr_calloc(total + 1, 1);
    if (!queue || !s->states || !s->lengths || !s->held) {
        qr_free(queue);
        return qr_fail(err, QR_NO_MEMORY, "no memory for stop strings of %zu bytes", total);
    }
    s->state_count = 1;
    s->states[0].found = -1;
    for (int32_t i = 0; i < count; i++) {
        add_string(s, strings[i], i);
        s->lengths[i] = (int32_t)strlen(strings[i]);
    }
    link_states(s, queue);
    qr_free(queue);
    return QR_OK;
}

qr_status stop_open(const char *const *strings, int32_t count, bool include, struct stop_matcher **out, qr_error *err)
{
    size_t total;
    *out = NULL;
    qr_status st = total_length(strings, count, &total, err);
    if (st != QR_OK)
        return st;
    struct stop_matcher *s = qr_calloc(1, sizeof *s);
    if (!s)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d stop strings", count);
    s->include = include;
    s->found = -1;
    st = build(s, strings, count, total, err);
    if (st != QR_OK) {
        stop_close(s);
        return st;
    }
    *out = s;
    return QR_OK;
}

void stop_close(struct stop_matcher *s)
{
    if (!s)
        return;
    qr_free(s->states);
    qr_free(s->lengths);
    qr_free(s->held);
    qr_free(s);
}

int32_t stop_found(const struct stop_matcher *s) { return s->found; }

static qr_status show(struct buffer *shown, const char *text, size_t length, qr_error *err)
{
    if (length == 0 || buffer_append(shown, text, length))
        return QR_OK;
    return qr_fail(err, QR_NO_MEMORY, "no memory for %zu bytes of text", length);
}

/* The longest state that may still become a stop string: a whole one that nothing continues may not. */
static int32_t open_state(const struct stop_matcher *s, int32_t state)
{
    while (state && !s->states[state].child)
        state = s->states[state].shorter;
    return state;
}

/* Of what was held and `text` shows all but the last `keep` bytes, and holds those. */
static qr_status release(struct stop_matcher *s, size_t held, const char *text, size_t length, size_t keep,
                         struct buffer *shown, qr_error *err)
{
    size_t free_now = held + length - keep, from_held = free_now < held ? free_now : held;
    qr_status st = show(shown, s->held, from_held, err);
    if (st == QR_OK)
        st = show(shown, text, free_now - from_held, err);
    memmove(s->held, s->held + from_held, held - from_held);
    if (length > 0)
        memcpy(s->held + (held - from_held), text + (free_now - from_held), length - (free_now - from_held));
    return st;
}

qr_status stop_push(struct stop_matcher *s, const char *text, size_t length, bool counts, struct buffer *shown,
                    bool *hit, qr_error *err)
{
    size_t held = (size_t)s->states[s->state].length;
    *hit = s->found >= 0;
    if (*hit)
        return QR_OK;
    for (size_t i = 0; i < length; i++) {
        int32_t state = step(s, s->state, text[i]);
        s->state = open_state(s, state);
        if (s->states[state].found < 0 || !counts)
            continue;
        s->found = s->states[state].found;
        *hit = true;
        size_t cut = s->include ? 0 : (size_t)s->lengths[s->found];
        s->state = 0;
        return release(s, held, text, i + 1, cut, shown, err);
    }
    return release(s, held, text, length, (size_t)s->states[s->state].length, shown, err);
}

qr_status stop_flush(struct stop_matcher *s, struct buffer *shown, qr_error *err)
{
    size_t held = (size_t)s->states[s->state].length;
    s->state = 0;
    return show(shown, s->held, held, err);
}
