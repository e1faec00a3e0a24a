#include "text/stop_filter.h"

#include <string.h>

#include "base/alloc.h"

/* Knuth-Morris-Pratt: `matched` bytes at the end of the text are the start of the string; `fallback[i]`: how many of
 * its first i bytes end in a shorter start of it. */
struct stop_automaton {
    const char *text;
    size_t length, matched;
    size_t *fallback; /* [length + 1] */
};

static void compute_fallback(struct stop_automaton *a)
{
    size_t k = 0;
    a->fallback[0] = 0;
    a->fallback[1] = 0;
    for (size_t i = 1; i < a->length; i++) {
        while (k > 0 && a->text[i] != a->text[k])
            k = a->fallback[k];
        k += a->text[i] == a->text[k];
        a->fallback[i + 1] = k;
    }
}

qr_status stop_filter_open(struct stop_filter *f, const struct stop_string *strings, size_t count, bool keep,
                           qr_error *err)
{
    *f = (struct stop_filter){.keep = keep};
    if (count == 0)
        return QR_OK;
    f->automata = qr_calloc(count, sizeof *f->automata);
    if (!f->automata)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu stop strings", count);
    for (; f->count < count; f->count++) {
        struct stop_automaton *a = &f->automata[f->count];
        *a = (struct stop_automaton){.text = strings[f->count].text, .length = strings[f->count].length};
        if (a->length == 0) {
            stop_filter_free(f);
            return qr_fail(err, QR_BAD_ARGUMENT, "an empty stop string");
        }
        a->fallback = qr_malloc((a->length + 1) * sizeof *a->fallback);
        if (!a->fallback) {
            qr_fail(err, QR_NO_MEMORY, "no memory for a stop string of %zu bytes", a->length);
            stop_filter_free(f);
            return QR_NO_MEMORY;
        }
        compute_fallback(a);
    }
    return QR_OK;
}

void stop_filter_free(struct stop_filter *f)
{
    for (size_t i = 0; i < f->count; i++)
        qr_free(f->automata[i].fallback);
    qr_free(f->automata);
    buffer_free(&f->held);
    *f = (struct stop_filter){0};
}

static void step(struct stop_automaton *a, char byte)
{
    if (a->matched == a->length)
        a->matched = a->fallback[a->matched];
    while (a->matched > 0 && a->text[a->matched] != byte)
        a->matched = a->fallback[a->matched];
    a->matched += a->text[a->matched] == byte;
}

/* Advances all automata. *found is the length of the longest string that ends here, *begun that of the longest start of
 * one. */
static void step_all(struct stop_filter *f, char byte, size_t *found, size_t *begun)
{
    *found = *begun = 0;
    for (size_t i = 0; i < f->count; i++) {
        struct stop_automaton *a = &f->automata[i];
        step(a, byte);
        size_t proper = a->matched;
        if (a->matched == a->length) {
            if (a->length > *found) {
                *found = a->length;
                f->match = i;
            }
            proper = a->fallback[a->length];
        }
        if (proper > *begun)
            *begun = proper;
    }
}

static void release(struct stop_filter *f, size_t keep_back, struct buffer *out)
{
    size_t count = f->held.length - keep_back;
    if (count == 0)
        return;
    buffer_append(out, f->held.data, count);
    memmove(f->held.data, f->held.data + count, keep_back);
    f->held.length = keep_back;
}

void stop_filter_push(struct stop_filter *f, const char *text, size_t length, bool armed, struct buffer *out)
{
    if (f->matched)
        return;
    if (f->count == 0) {
        buffer_append(out, text, length);
        return;
    }
    size_t found, begun = 0;
    for (size_t i = 0; i < length; i++) {
        if (!buffer_append(&f->held, text + i, 1)) {
            out->failed = true;
            return;
        }
        step_all(f, text[i], &found, &begun);
        if (found && armed) {
            f->matched = true;
            release(f, f->keep ? 0 : found, out);
            buffer_clear(&f->held);
            return;
        }
    }
    if (length)
        release(f, begun, out);
}

void stop_filter_flush(struct stop_filter *f, struct buffer *out)
{
    if (!f->matched)
        release(f, 0, out);
}
