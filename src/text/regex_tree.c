#include "text/regex_tree.h"

#include <string.h>

#include "base/utf8.h"

enum { MOST_GROUPS = 64, MOST_REPEAT = 4096, MOST_PIECES = 1 << 15 };

struct reader {
    const char *text, *name;
    size_t length, at;
    int depth, pieces;
    struct arena *arena;
    qr_error *err;
    qr_status status;
};

/* ---- failures ---- */

static struct regex *refuse(struct reader *r, const char *what)
{
    if (r->status == QR_OK)
        r->status = qr_fail(r->err, QR_BAD_REQUEST, "%s: at byte %zu: %s", r->name, r->at, what);
    return NULL;
}

static struct regex *make(struct reader *r, enum regex_kind kind)
{
    struct regex *x = r->pieces++ < MOST_PIECES ? arena_alloc(r->arena, sizeof *x) : NULL;
    if (!x && r->pieces > MOST_PIECES)
        return refuse(r, "the expression is too long");
    if (!x) {
        if (r->status == QR_OK)
            r->status = qr_fail(r->err, QR_NO_MEMORY, "no memory for a regular expression");
        return NULL;
    }
    x->kind = kind;
    return x;
}

static struct regex *make_characters(struct reader *r)
{
    struct regex *x = make(r, REGEX_CHARACTERS);
    if (x && !(x->characters = arena_alloc(r->arena, sizeof *x->characters))) {
        r->status = qr_fail(r->err, QR_NO_MEMORY, "no memory for a regular expression");
        return NULL;
    }
    return x;
}

/* ---- characters ---- */

static bool more(const struct reader *r) { return r->at < r->length; }
static char peek(const struct reader *r) { return more(r) ? r->text[r->at] : '\0'; }
static bool take(struct reader *r, const char *what)
{
    const size_t n = strlen(what);
    if (r->length - r->at < n || memcmp(r->text + r->at, what, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* The next character of the text, which is UTF-8. */
static uint32_t next_character(struct reader *r)
{
    const uint8_t *s = (const uint8_t *)r->text + r->at;
    const size_t n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = n == 1 ? s[0] : s[0] & (0x3fu >> (n - 1));
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (s[i] & 0x3fu);
    r->at += n;
    return c;
}

static void add_shorthand(struct code_points *to, char which)
{
    struct code_points s = {.count = 0};
    switch (which | 0x20) {
    case 'd':
        code_points_add(&s, '0', '9');
        break;
    case 'w':
        code_points_add(&s, '0', '9');
        code_points_add(&s, 'A', 'Z');
        code_points_add(&s, '_', '_');
        code_points_add(&s, 'a', 'z');
        break;
    default: {
        static const uint32_t others[][2] = {{9, 13}, {32, 32}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a},
                                             {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                             {0xfeff, 0xfeff}};
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            code_points_add(&s, others[i][0], others[i][1]);
    }
    }
    if (!(which & 0x20))
        code_points_turn(&s);
    code_points_join(to, &s);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    const char low = (char)(c | 0x20);
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

static bool read_hex(struct reader *r, size_t digits, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < digits; i++) {
        const int d = hex_digit(peek(r));
        if (d < 0) {
            refuse(r, "an escape with hexadecimal digits lacks some");
            return false;
        }
        *out = *out << 4 | (uint32_t)d;
        r->at++;
    }
    return true;
}

static bool read_unicode(struct reader *r, uint32_t *out)
{
    if (peek(r) != '{') {
        if (!read_hex(r, 4, out))
            return false;
    } else {
        *out = 0;
        for (r->at++; hex_digit(peek(r)) >= 0 && *out <= CODE_LAST; r->at++)
            *out = *out << 4 | (uint32_t)hex_digit(peek(r));
        if (!take(r, "}") || *out > CODE_LAST) {
            refuse(r, "\\u{...} is no character");
            return false;
        }
    }
    if (*out >= 0xd800 && *out <= 0xdfff) {
        refuse(r, "half a surrogate pair is no character");
        return false;
    }
    return true;
}

/* What stands behind a backslash: one character, or a set (*is_set) that is added to `set`. */
static bool read_escape(struct reader *r, bool in_class, struct code_points *set, bool *is_set, uint32_t *c)
{
    static const char plain[] = "nrtfv0", means[] = "\n\r\t\f\v";
    const char e = peek(r);
    *is_set = false;
    if (!more(r)) {
        refuse(r, "nothing follows the backslash");
        return false;
    }
    if (e && strchr("dwsDWS", e)) {
        r->at++;
        add_shorthand(set, e);
        return *is_set = true;
    }
    if (in_class && e == 'b') {
        r->at++;
        *c = '\b';
        return true;
    }
    if (e && strchr(plain, e)) {
        r->at++;
        *c = (uint8_t)means[strchr(plain, e) - plain];
        if (e != '0' || !hex_digit(peek(r)) || peek(r) < '0' || peek(r) > '9')
            return true;
        refuse(r, "octal escapes are not supported");
        return false;
    }
    if (e == 'x' || e == 'u') {
        r->at++;
        return e == 'x' ? read_hex(r, 2, c) : read_unicode(r, c);
    }
    if (e >= '1' && e <= '9')
        return refuse(r, "references to groups are not supported"), false;
    if (e == 'b' || e == 'B')
        return refuse(r, "word boundaries (\\b, \\B) are not supported"), false;
    if (e == 'p' || e == 'P')
        return refuse(r, "Unicode properties (\\p) are not supported"), false;
    if (e == 'k')
        return refuse(r, "references to groups (\\k) are not supported"), false;
    if ((uint8_t)e < 0x80 && ((e | 0x20) < 'a' || (e | 0x20) > 'z')) {
        r->at++;
        *c = (uint8_t)e;
        return true;
    }
    refuse(r, "an escape that has no meaning here");
    return false;
}

/* ---- classes ---- */

static bool read_member(struct reader *r, struct code_points *set, bool *is_set, uint32_t *c)
{
    *is_set = false;
    if (take(r, "\\"))
        return read_escape(r, true, set, is_set, c);
    *c = next_character(r);
    return true;
}

static struct regex *read_class(struct reader *r)
{
    struct regex *x = make_characters(r);
    if (!x)
        return NULL;
    const bool turned = take(r, "^");
    bool is_set, to_set;
    uint32_t first, last;
    while (more(r) && peek(r) != ']') {
        if (!read_member(r, x->characters, &is_set, &first))
            return NULL;
        const bool range = !is_set && peek(r) == '-' && r->at + 1 < r->length && r->text[r->at + 1] != ']';
        last = first;
        if (range) {
            r->at++;
            if (!read_member(r, x->characters, &to_set, &last))
                return NULL;
            if (to_set || last < first)
                return refuse(r, "a range in a class runs backwards or ends in a set");
        }
        if (!is_set)
            code_points_add(x->characters, first, last);
    }
    if (!take(r, "]"))
        return refuse(r, "the class is not closed by ]");
    code_points_settle(x->characters);
    if (turned)
        code_points_turn(x->characters);
    return x->characters->full ? refuse(r, "the class has too many ranges") : x;
}

/* ---- pieces ---- */

static struct regex *read_alternatives(struct reader *r);

static struct regex *read_group(struct reader *r)
{
    if (take(r, "?")) {
        if (peek(r) == '=' || peek(r) == '!')
            return refuse(r, "look-ahead is not supported");
        if (take(r, "<") || take(r, "P<")) {
            if (peek(r) == '=' || peek(r) == '!')
                return refuse(r, "look-behind is not supported");
            while (more(r) && peek(r) != '>')
                r->at++;
            if (!take(r, ">"))
                return refuse(r, "the name of the group does not end");
        } else if (!take(r, ":")) {
            return refuse(r, "flags and special groups (?...) are not supported");
        }
    }
    if (++r->depth > MOST_GROUPS)
        return refuse(r, "groups are nested too deeply");
    struct regex *inside = read_alternatives(r);
    r->depth--;
    if (inside && !take(r, ")"))
        return refuse(r, "the group is not closed by )");
    return inside;
}

static struct regex *read_one(struct reader *r, uint32_t c)
{
    struct regex *x = make_characters(r);
    if (x)
        code_points_add(x->characters, c, c);
    return x;
}

static struct regex *read_dot(struct reader *r)
{
    struct regex *x = make_characters(r);
    if (!x)
        return NULL;
    code_points_add(x->characters, '\n', '\n');
    code_points_add(x->characters, '\r', '\r');
    code_points_add(x->characters, 0x2028, 0x2029);
    code_points_turn(x->characters);
    return x;
}

static struct regex *read_escaped(struct reader *r)
{
    struct regex *x = make_characters(r);
    bool is_set;
    uint32_t c;
    if (!x || !read_escape(r, false, x->characters, &is_set, &c))
        return NULL;
    if (!is_set)
        code_points_add(x->characters, c, c);
    code_points_settle(x->characters);
    return x;
}

static struct regex *read_atom(struct reader *r)
{
    if (take(r, "("))
        return read_group(r);
    if (take(r, "["))
        return read_class(r);
    if (take(r, "."))
        return read_dot(r);
    if (take(r, "\\"))
        return read_escaped(r);
    if (peek(r) == '^' || peek(r) == '$')
        return refuse(r, "^ and $ are supported at the ends of an alternative outside of groups only");
    if (peek(r) && strchr("*+?", peek(r)))
        return refuse(r, "there is nothing to repeat");
    return read_one(r, next_character(r));
}

/* {n}, {n,}, {n,m}; anything else is a brace. */
static bool read_counts(struct reader *r, uint32_t *least, uint32_t *most)
{
    const size_t from = r->at;
    uint64_t n[2] = {0, 0};
    int which = 0, digits[2] = {0, 0};
    for (r->at++; more(r) && peek(r) != '}'; r->at++) {
        const char c = peek(r);
        if (c == ',' && which == 0 && digits[0])
            which = 1;
        else if (c >= '0' && c <= '9' && digits[which]++ < 9)
            n[which] = n[which] * 10 + (uint64_t)(c - '0');
        else
            break;
    }
    if (!digits[0] || !take(r, "}")) {
        r->at = from;
        return false;
    }
    *least = (uint32_t)n[0];
    *most = which == 0 ? *least : digits[1] ? (uint32_t)n[1] : REGEX_ENDLESS;
    return true;
}

static struct regex *read_repeated(struct reader *r)
{
    struct regex *x = read_atom(r);
    while (x && more(r)) {
        uint32_t least = 0, most = REGEX_ENDLESS;
        const char c = peek(r);
        if (c == '{' && !read_counts(r, &least, &most))
            break;
        if (c != '{' && (!strchr("*+?", c) || !c))
            break;
        r->at += c != '{';
        least = c == '+' ? 1 : least;
        most = c == '?' ? 1 : most;
        if (most < least || least > MOST_REPEAT || (most > MOST_REPEAT && most != REGEX_ENDLESS))
            return refuse(r, "a repetition runs backwards or is wanted more than 4096 times");
        if (take(r, "+"))
            return refuse(r, "possessive quantifiers are not supported");
        take(r, "?");
        struct regex *inside = x;
        if (!(x = make(r, REGEX_REPEAT)))
            return NULL;
        x->left = inside;
        x->least = least;
        x->most = most;
    }
    return x;
}

static struct regex *join(struct reader *r, enum regex_kind kind, struct regex *left, struct regex *right)
{
    struct regex *x = left && right ? make(r, kind) : NULL;
    if (x) {
        x->left = left;
        x->right = right;
    }
    return x;
}

static struct regex *read_sequence(struct reader *r)
{
    const bool begins = r->depth == 0 && take(r, "^");
    bool ends = false;
    struct regex *all = make(r, REGEX_EMPTY);
    while (all && more(r) && peek(r) != '|' && peek(r) != ')' && !ends) {
        ends = r->depth == 0 && peek(r) == '$' && (r->at + 1 == r->length || r->text[r->at + 1] == '|') && take(r, "$");
        if (!ends) {
            struct regex *one = read_repeated(r);
            all = !one ? NULL : all->kind == REGEX_EMPTY ? one : join(r, REGEX_THEN, all, one);
        }
    }
    if (all && r->depth == 0 && (begins || ends)) {
        all = join(r, REGEX_THEN, make(r, REGEX_EMPTY), all);
        if (all) {
            all->begins = begins;
            all->ends = ends;
        }
    }
    return all;
}

static struct regex *read_alternatives(struct reader *r)
{
    struct regex *all = read_sequence(r);
    while (all && take(r, "|"))
        all = join(r, REGEX_OR, all, read_sequence(r));
    return all;
}

qr_status regex_read(const char *text, size_t length, const char *name, struct arena *arena, struct regex **tree,
                     qr_error *err)
{
    struct reader r = {.text = text, .name = name, .length = length, .arena = arena, .err = err, .status = QR_OK};
    *tree = NULL;
    if (utf8_valid_prefix(text, length) != length)
        return qr_fail(err, QR_BAD_REQUEST, "%s: this is no UTF-8", name);
    struct regex *all = read_alternatives(&r);
    if (all && more(&r))
        refuse(&r, "a ) without its (");
    if (r.status == QR_OK && !all)
        r.status = qr_fail(err, QR_NO_MEMORY, "no memory for a regular expression");
    *tree = all;
    return r.status;
}
