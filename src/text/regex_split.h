/* regex_split.h: isolating splits by any patterns, run one after the other by PCRE2 with its JIT compiler where there
 * is one. The oracle of the scanner, and what splits for a tokenizer whose patterns are not the known ones. */
#ifndef QR_TEXT_REGEX_SPLIT_H
#define QR_TEXT_REGEX_SPLIT_H

#include "base/status.h"

enum { REGEX_SPLIT_PASSES = 3 };

/* A pattern as tokenizer.json has it. */
struct split_pattern {
    const char *text;
    size_t length;
};

struct regex_split;

/* Compiles the patterns. `\s` and `\S` outside brackets, and `\s` within, are written out as White_Space of
 * protocol.md 1.3 first, because PCRE2's own `\s` also has U+180E. QR_BAD_FILE names the pattern, what is wrong with it
 * and where. Read-only once made; free with regex_split_free (NULL is fine). */
qr_status regex_split_open(const struct split_pattern patterns[REGEX_SPLIT_PASSES], struct regex_split **out,
                           qr_error *err);
void regex_split_free(struct regex_split *split);

/* One text on its way through the passes. Each pass cuts the pieces of the pass before it; every match is a piece and
 * so is every gap between matches. A pattern sees nothing outside the piece that it cuts. */
struct regex_cursor;

/* `text` (n bytes of well-formed UTF-8) must outlive the cursor. Free with regex_cursor_free (NULL is fine). */
qr_status regex_cursor_open(const struct regex_split *split, const uint8_t *text, size_t n, struct regex_cursor **out,
                            qr_error *err);
void regex_cursor_free(struct regex_cursor *cursor);

/* The end of the next piece in *end; *end unchanged at the end of the text. QR_BAD_REQUEST when the engine gives up (a
 * limit of its own), which is never read as "no match". */
qr_status regex_cursor_next(struct regex_cursor *cursor, size_t *end, qr_error *err);

/* The Unicode version of PCRE2's tables, such as "14.0.0", in `out`. */
void regex_unicode_version(char *out, size_t size);

#endif
