/* regex_tree.h: a regular expression that was read (grammar_regex.h says which). */
#ifndef QR_TEXT_REGEX_TREE_H
#define QR_TEXT_REGEX_TREE_H

#include "base/arena.h"
#include "text/code_points.h"

enum regex_kind { REGEX_EMPTY, REGEX_CHARACTERS, REGEX_THEN, REGEX_OR, REGEX_REPEAT };

enum { REGEX_ENDLESS = UINT32_MAX };

struct regex {
    enum regex_kind kind;
    struct code_points *characters;
    struct regex *left, *right;  /* THEN, OR; REPEAT has one */
    uint32_t least, most;
    bool begins, ends;           /* an alternative that is in no group: it has ^, it has $ */
};

/* `tree` lives in the arena. */
qr_status regex_read(const char *text, size_t length, const char *name, struct arena *arena, struct regex **tree,
                     qr_error *err);

#endif
