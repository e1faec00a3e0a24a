/* stop_filter.h: finds stop strings in a text that comes byte by byte, and holds back what may become one (protocol.md
 * 3.6). */
#ifndef QR_TEXT_STOP_FILTER_H
#define QR_TEXT_STOP_FILTER_H

#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"

struct stop_string {
    const char *text; /* UTF-8; must outlive the filter */
    size_t length;    /* > 0 */
};

struct stop_automaton;

/* Zero-initialise; free with stop_filter_free. Without strings everything passes at once. */
struct stop_filter {
    struct stop_automaton *automata; /* one for each string */
    size_t count;
    bool keep;          /* a match is part of the text, not cut from it */
    bool matched;       /* a string was found; nothing passes any more */
    size_t match;       /* which */
    struct buffer held; /* the longest end of the text that begins a stop string */
};

/* QR_BAD_ARGUMENT for an empty string. */
qr_status stop_filter_open(struct stop_filter *f, const struct stop_string *strings, size_t count, bool keep,
                           qr_error *err);
void stop_filter_free(struct stop_filter *f);

/* Takes `length` bytes and appends to `out` what may be shown of them and of what was held: the text up to the match
 * that ends first, of those the longest. While not `armed` a whole string counts as text. Held text is never cut inside
 * a character when the bytes come in whole ones. */
void stop_filter_push(struct stop_filter *f, const char *text, size_t length, bool armed, struct buffer *out);

/* Appends what is held: no match can come any more. */
void stop_filter_flush(struct stop_filter *f, struct buffer *out);

#endif
