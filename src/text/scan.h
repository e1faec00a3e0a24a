/* scan.h: the pre-tokenizer's three passes (protocol.md 1.3) as one hand-written scanner. Equal to the patterns run by
 * a regex engine; a test compares the two. */
#ifndef QR_TEXT_SCAN_H
#define QR_TEXT_SCAN_H

#include "text/char_class.h"

/* The three patterns that the scanner stands for, as they are written in tokenizer.json. */
extern const char *const scan_patterns[3];

/* The end of the piece that starts at `start` (< n) in `text`, n bytes of well-formed UTF-8. `start` is 0 or an end
 * returned before. Time is linear in the piece and what must be looked at behind it: a run of one class. */
size_t scan_piece(const struct char_classes *classes, const uint8_t *text, size_t n, size_t start);

#endif
