/* parser_recovery.h: reads tags that lack the DSML token as if they had it (protocol.md 3.5 item 4): `<|DSML|` in
 * ASCII, and bare tags of calls once one began with `<invoke name="`. */
#ifndef QR_TEXT_PARSER_RECOVERY_H
#define QR_TEXT_PARSER_RECOVERY_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise. */
struct recovery {
    int bracket;   /* the bytes before: 1 `<`, 2 `</` */
    bool bare;     /* a bare call has begun */
    char held[24]; /* what follows the bracket and may be such a tag */
    size_t length;
};

/* What the parser is to read next: the token, then `length` bytes. */
struct recovered {
    bool token;
    const char *pass; /* until the next call */
    size_t length;
};

/* Takes the next byte of text. */
void recovery_step(struct recovery *r, char byte, struct recovered *out);
/* A token or the end comes: what is held was text. */
void recovery_flush(struct recovery *r, struct recovered *out);

#endif
