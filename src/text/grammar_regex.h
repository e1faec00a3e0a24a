/* grammar_regex.h: regular expressions as grammar. Characters are code points; the syntax is what ECMA-262, Python and
 * PCRE have in common:
 *   literals, . (no line end), classes [a-z] [^...], \d \w \s \D \W \S (ASCII but for \s), \n \r \t \f \v \0 \xHH \uHHHH
 *   \u{H..}, escaped punctuation, groups (...) (?:...) (?<name>...), | and the quantifiers * + ? {n} {n,} {n,m}, lazy ones too
 *   (the language is the same).
 * Refused by name: look-around, references to groups, word boundaries, \p, flags, possessive quantifiers; and ^ and $
 * anywhere but at the two ends of an alternative that is in no group. */
#ifndef QR_TEXT_GRAMMAR_REGEX_H
#define QR_TEXT_GRAMMAR_REGEX_H

#include "text/code_points.h"

enum regex_ends {
    REGEX_WHOLE, /* the whole text must match; ^ and $ say nothing new */
    REGEX_FIND   /* a match somewhere in the text, but where ^ or $ say otherwise */
};

/* QR_BAD_REQUEST: a sentence that begins with `name` ("regex") and says where and what. */
qr_status grammar_regex(struct grammar *g, const char *text, size_t length, enum regex_ends ends, enum code_form form,
                        const char *name, grammar_node_id next, grammar_node_id *out, qr_error *err);

#endif
