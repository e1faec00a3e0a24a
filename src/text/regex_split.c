#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex_split.h"

#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "text/utf8.h"

/* A match that outgrows the 32 KiB of the machine's stack gets one of its own: patterns with groups may, the known ones
 * do not. */
static const size_t jit_stack_start = 64 << 10, jit_stack_limit = 8 << 20;

struct regex_split {
    pcre2_general_context *memory;
    pcre2_code *code[REGEX_SPLIT_PASSES];
};

/* Where one pass stands. The piece that it cuts is [from, to); pieces up to `at` are given out already, the next search
 * starts at `search` (past `at` only after an empty match), and a match found behind a gap waits in `pending`. */
struct pass {
    pcre2_match_data *match;
    size_t from, to, at, search;
    size_t pending_end; /* 0: none */
};

struct regex_cursor {
    const struct regex_split *split;
    const uint8_t *text;
    size_t n;
    bool started;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    struct pass pass[REGEX_SPLIT_PASSES];
};

static void *pcre_malloc(size_t size, void *user)
{
    (void)user;
    return qr_malloc(size);
}

static void pcre_free(void *p, void *user)
{
    (void)user;
    qr_free(p);
}

#define WHITE_SPACE "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

/* Appends `pattern` with white space written out. A `]` right after the opening bracket is not handled: it ends the
 * class here, at worst a later \s keeps PCRE2's meaning. */
static bool spell_white_space(const struct split_pattern *pattern, struct buffer *out)
{
    bool in_class = false;
    const char *p = pattern->text, *end = p + pattern->length;
    while (p < end) {
        if (*p == '\\' && p + 1 < end) {
            if (p[1] == 's')
                buffer_puts(out, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
            else if (p[1] == 'S' && !in_class)
                buffer_puts(out, "[^" WHITE_SPACE "]");
            else
                buffer_append(out, p, 2);
            p += 2;
            continue;
        }
        if (*p == '[')
            in_class = true;
        else if (*p == ']')
            in_class = false;
        buffer_append(out, p++, 1);
    }
    return buffer_append(out, "", 0);
}

static qr_status compile(struct regex_split *split, int pass, const struct split_pattern *pattern, qr_error *err)
{
    struct buffer spelled = {0};
    int code;
    PCRE2_SIZE offset;
    char reason[200] = "";
    qr_status st = QR_OK;
    pcre2_compile_context *context = pcre2_compile_context_create(split->memory);
    if (!context || !spell_white_space(pattern, &spelled)) {
        st = qr_fail(err, QR_NO_MEMORY, "no memory for split pattern %d", pass + 1);
        goto cleanup;
    }
    split->code[pass] = pcre2_compile((PCRE2_SPTR)spelled.data, spelled.length,
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context);
    if (!split->code[pass]) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        st = qr_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? QR_NO_MEMORY : QR_BAD_FILE,
                     "split pattern %d \"%.200s\": %s at byte %zu of it", pass + 1, pattern->text, reason, offset);
        goto cleanup;
    }
    /* Without a JIT compiler on this machine the interpreter gives the same matches. */
    (void)pcre2_jit_compile(split->code[pass], PCRE2_JIT_COMPLETE);

cleanup:
    pcre2_compile_context_free(context);
    buffer_free(&spelled);
    return st;
}

qr_status regex_split_open(const struct split_pattern patterns[REGEX_SPLIT_PASSES], struct regex_split **out,
                           qr_error *err)
{
    qr_status st = QR_OK;
    struct regex_split *split = qr_calloc(1, sizeof *split);
    *out = NULL;
    if (!split || !(split->memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL))) {
        regex_split_free(split);
        return qr_fail(err, QR_NO_MEMORY, "no memory for the split patterns");
    }
    for (int i = 0; i < REGEX_SPLIT_PASSES && st == QR_OK; i++)
        st = compile(split, i, &patterns[i], err);
    if (st != QR_OK) {
        regex_split_free(split);
        return st;
    }
    *out = split;
    return QR_OK;
}

void regex_split_free(struct regex_split *split)
{
    if (!split)
        return;
    for (int i = 0; i < REGEX_SPLIT_PASSES; i++)
        pcre2_code_free(split->code[i]);
    pcre2_general_context_free(split->memory);
    qr_free(split);
}

qr_status regex_cursor_open(const struct regex_split *split, const uint8_t *text, size_t n, struct regex_cursor **out,
                            qr_error *err)
{
    struct regex_cursor *c = qr_calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        goto no_memory;
    c->split = split;
    c->text = text;
    c->n = n;
    if (!(c->context = pcre2_match_context_create(split->memory)))
        goto no_memory;
    for (int i = 0; i < REGEX_SPLIT_PASSES; i++)
        if (!(c->pass[i].match = pcre2_match_data_create_from_pattern(split->code[i], split->memory)))
            goto no_memory;
    *out = c;
    return QR_OK;

no_memory:
    regex_cursor_free(c);
    return qr_fail(err, QR_NO_MEMORY, "no memory to split a text of %zu bytes", n);
}

void regex_cursor_free(struct regex_cursor *c)
{
    if (!c)
        return;
    for (int i = 0; i < REGEX_SPLIT_PASSES; i++)
        pcre2_match_data_free(c->pass[i].match);
    pcre2_jit_stack_free(c->stack);
    pcre2_match_context_free(c->context);
    qr_free(c);
}

static int match(struct regex_cursor *c, int k)
{
    struct pass *p = &c->pass[k];
    return pcre2_match(c->split->code[k], c->text + p->from, p->to - p->from, p->search - p->from, PCRE2_NO_UTF_CHECK,
                       p->match, c->context);
}

/* The next match of pass `k` from its place on, as offsets in the text; an empty one at the end when there is none. */
static qr_status search(struct regex_cursor *c, int k, size_t *from, size_t *to, qr_error *err)
{
    struct pass *p = &c->pass[k];
    char reason[200] = "";
    *from = *to = p->to;
    int rc = match(c, k);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !c->stack) {
        c->stack = pcre2_jit_stack_create(jit_stack_start, jit_stack_limit, c->split->memory);
        if (!c->stack)
            return qr_fail(err, QR_NO_MEMORY, "no memory to split a text of %zu bytes", c->n);
        pcre2_jit_stack_assign(c->context, NULL, c->stack);
        rc = match(c, k);
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return QR_OK;
    if (rc < 0) {
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
        return qr_fail(err, rc == PCRE2_ERROR_NOMEMORY ? QR_NO_MEMORY : QR_BAD_REQUEST,
                       "split pattern %d gave up at byte %zu of the text: %s", k + 1, p->search, reason);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(p->match);
    *from = p->from + span[0];
    *to = p->from + span[1];
    /* A match behind its own place (a \K in a lookbehind, where PCRE2 allows it) must not stop the search from moving.
     */
    *from = *from < p->search ? p->search : *from;
    *to = *to < *from ? *from : *to;
    return QR_OK;
}

static size_t next_character(const struct regex_cursor *c, size_t at)
{
    uint32_t cp;
    return at + utf8_decode(c->text + at, c->n - at, &cp);
}

/* Cuts the next piece of pass `k` off its present subject (at < to): a match, or the gap before one. */
static qr_status cut(struct regex_cursor *c, int k, size_t *end, qr_error *err)
{
    struct pass *p = &c->pass[k];
    size_t from, to;
    if (p->pending_end) {
        *end = p->at = p->search = p->pending_end;
        p->pending_end = 0;
        return QR_OK;
    }
    while (p->search < p->to) {
        qr_status st = search(c, k, &from, &to, err);
        if (st != QR_OK)
            return st;
        if (to > from) {
            if (from > p->at)
                p->pending_end = to;
            *end = p->at = p->search = from > p->at ? from : to;
            return QR_OK;
        }
        /* An empty match is a cut without a piece. */
        p->search = from < p->to ? next_character(c, from) : p->to;
        if (from > p->at) {
            *end = p->at = from;
            return QR_OK;
        }
    }
    *end = p->at = p->search = p->to;
    return QR_OK;
}

/* The next piece of pass `k`, which takes a new subject from the pass before it when its own is used up. Ends at *end;
 * unchanged at the end of the text. */
static qr_status next_piece(struct regex_cursor *c, int k, size_t *end, qr_error *err)
{
    struct pass *p = &c->pass[k];
    if (p->at == p->to) {
        size_t to = p->to;
        if (k > 0) {
            qr_status st = next_piece(c, k - 1, &to, err);
            if (st != QR_OK)
                return st;
        } else if (!c->started) {
            c->started = true;
            to = c->n;
        }
        if (to == p->to)
            return QR_OK;
        p->from = p->at = p->search = p->to;
        p->to = to;
    }
    return cut(c, k, end, err);
}

qr_status regex_cursor_next(struct regex_cursor *cursor, size_t *end, qr_error *err)
{
    return next_piece(cursor, REGEX_SPLIT_PASSES - 1, end, err);
}

void regex_unicode_version(char *out, size_t size)
{
    char version[64] = "unknown";
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    size_t n = strlen(version) < size - 1 ? strlen(version) : size - 1;
    memcpy(out, version, n);
    out[n] = 0;
}
