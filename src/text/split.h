/* split.h: cuts a text into the pieces that are merged on their own (protocol.md 1.3). */
#ifndef QR_TEXT_SPLIT_H
#define QR_TEXT_SPLIT_H

#include "base/log.h"
#include "text/regex_split.h"
#include "text/scan.h"

/* How: the scanner where the patterns are the known ones, else the regex engine (with a warning); or always the regex
 * engine. */
enum split_engine { SPLIT_AUTO, SPLIT_REGEX };

/* Read-only once made: any number of cursors may use it at once. */
struct splitter {
    struct char_classes *classes; /* of the scanner; NULL: the regex engine splits */
    struct regex_split *regex;
};

/* `name` (a path) is quoted in the warning and in errors. */
qr_status split_open(const struct split_pattern patterns[REGEX_SPLIT_PASSES], enum split_engine engine,
                     const char *name, const struct qr_log *log, struct splitter *out, qr_error *err);
void split_close(struct splitter *splitter);

/* One text being cut; `text` (n bytes of well-formed UTF-8) must outlive it. End with split_finish, also after a
 * failure. */
struct split_cursor {
    const struct splitter *splitter;
    const uint8_t *text;
    size_t n, at;
    struct regex_cursor *regex;
};

qr_status split_start(const struct splitter *splitter, const uint8_t *text, size_t n, struct split_cursor *out,
                      qr_error *err);
/* The next piece is text[*from .. *to); *from == *to once the text is used up. Fails only with the regex engine. */
qr_status split_next(struct split_cursor *cursor, size_t *from, size_t *to, qr_error *err);
void split_finish(struct split_cursor *cursor);

#endif
