#include "text/scan.h"

#include "text/utf8.h"

/* Pass 2 holds its characters themselves: 4E00-9FA5, 3040-309F, 30A0-30FF. */
const char *const scan_patterns[3] = {
    "\\p{N}{1,3}",
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    "|\\s+(?!\\S)"
    "|\\s+",
};

/* The text around one stretch. Passes 1 and 2 cut the text into stretches of digits, of CJK characters and of all else;
 * pass 3 never looks past its stretch, so that a character of another one reads as the end: class `outside`. */
struct stretch {
    const struct char_classes *classes;
    const uint8_t *text;
    size_t n;
    uint8_t kind; /* CHAR_NUMBER, CHAR_CJK or 0 */
};

enum { OUTSIDE = 0x80 };

static uint8_t decode_class(const struct char_classes *classes, const uint8_t *text, size_t n, size_t at, size_t *next)
{
    uint32_t cp = text[at];
    if (cp < 0x80)
        *next = at + 1;
    else
        *next = at + utf8_decode(text + at, n - at, &cp);
    return char_class(classes, cp);
}

static uint8_t kind_of(uint8_t class) { return class & (CHAR_NUMBER | CHAR_CJK); }

/* The class of the character at `at`, and where the next one is; OUTSIDE at the end of the stretch. */
static uint8_t class_at(const struct stretch *s, size_t at, size_t *next)
{
    *next = at;
    if (at >= s->n)
        return OUTSIDE;
    uint8_t class = decode_class(s->classes, s->text, s->n, at, next);
    return kind_of(class) == s->kind ? class : OUTSIDE;
}

/* The end of the run of characters of any class in `mask` from `at` on. */
static size_t run_of(const struct stretch *s, size_t at, uint8_t mask)
{
    size_t next;
    while (class_at(s, at, &next) & mask)
        at = next;
    return at;
}

static bool is_ascii_letter(uint8_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

/* A: an ASCII punctuation mark and the ASCII letters after it. Returns `at` when it does not match. */
static size_t match_glued_letters(const struct stretch *s, size_t at)
{
    size_t end = at + 1;
    if (s->kind || s->text[at] >= 0x80)
        return at;
    while (end < s->n && is_ascii_letter(s->text[end]))
        end++;
    return end > at + 1 ? end : at;
}

/* D, E and F: what becomes of the run of white space from `at` on. */
static size_t match_space(const struct stretch *s, size_t at)
{
    size_t end = at, last = at, newlines = 0, next;
    uint8_t class;
    while ((class = class_at(s, end, &next)) & CHAR_SPACE) {
        last = end;
        end = next;
        if (class & CHAR_NEWLINE)
            newlines = end;
    }
    if (newlines)
        return newlines; /* D: up to the last newline */
    if (class == OUTSIDE || last == at)
        return end; /* E at the end of the stretch; F, a single character */
    return last;    /* E: the last one stays for what follows */
}

/* Pass 3 at `at`; returns `at` when no alternative matches there. */
static size_t match_pass3(const struct stretch *s, size_t at)
{
    size_t next, after;
    uint8_t class = class_at(s, at, &next);
    if (class & CHAR_PUNCT) {
        size_t end = match_glued_letters(s, at);
        if (end > at)
            return end;
        return run_of(s, run_of(s, at, CHAR_PUNCT), CHAR_NEWLINE); /* C */
    }
    if (class & (CHAR_LETTER | CHAR_MARK))
        return run_of(s, next, CHAR_LETTER | CHAR_MARK); /* B without its leading character, or a mark as it */
    if (!(class & CHAR_NEWLINE) && class_at(s, next, &after) & (CHAR_LETTER | CHAR_MARK))
        return run_of(s, after, CHAR_LETTER | CHAR_MARK); /* B */
    if (s->text[at] == ' ' && class_at(s, next, &after) & CHAR_PUNCT)
        return run_of(s, run_of(s, after, CHAR_PUNCT), CHAR_NEWLINE); /* C with its space */
    if (class & CHAR_SPACE)
        return match_space(s, at);
    return at;
}

/* A gap: characters in which pass 3 matches nowhere, up to the next match or the end of the stretch. */
static size_t end_of_gap(const struct stretch *s, size_t at)
{
    size_t next;
    while (class_at(s, at, &next) != OUTSIDE && match_pass3(s, at) == at)
        at = next;
    return at;
}

/* Pass 1: up to three digits. */
static size_t match_number(const struct stretch *s, size_t at)
{
    for (int i = 0; i < 3; i++) {
        size_t next;
        if (class_at(s, at, &next) == OUTSIDE)
            break;
        at = next;
    }
    return at;
}

size_t scan_piece(const struct char_classes *classes, const uint8_t *text, size_t n, size_t start)
{
    size_t next;
    struct stretch s = {classes, text, n, kind_of(decode_class(classes, text, n, start, &next))};
    if (s.kind == CHAR_NUMBER)
        return match_number(&s, start);
    size_t end = match_pass3(&s, start);
    return end > start ? end : end_of_gap(&s, next);
}
