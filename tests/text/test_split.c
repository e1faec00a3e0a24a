#define PCRE2_CODE_UNIT_WIDTH 8
#include "support/support.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "support/tokenizers.h"
#include "text/split.h"
#include "text/utf8.h"

static struct splitter scanner, regex;

static int open_both(void **state)
{
    struct split_pattern patterns[REGEX_SPLIT_PASSES];
    (void)state;
    for (int i = 0; i < REGEX_SPLIT_PASSES; i++)
        patterns[i] = (struct split_pattern){scan_patterns[i], strlen(scan_patterns[i])};
    return split_open(patterns, SPLIT_AUTO, "known", NULL, &scanner, NULL) != QR_OK ||
           split_open(patterns, SPLIT_REGEX, "known", NULL, &regex, NULL) != QR_OK;
}

static int close_both(void **state)
{
    (void)state;
    split_close(&scanner);
    split_close(&regex);
    return 0;
}

/* The pieces of a text, joined by U+00B7. */
static void pieces_of(const struct splitter *splitter, const char *text, size_t n, struct buffer *out)
{
    struct split_cursor c;
    qr_error err = {0};
    size_t from, to, last = 0;
    buffer_clear(out);
    if (split_start(splitter, (const uint8_t *)text, n, &c, &err) != QR_OK)
        fail_msg("%s", err.message);
    for (;;) {
        if (split_next(&c, &from, &to, &err) != QR_OK)
            fail_msg("%s", err.message);
        if (from == to)
            break;
        assert_int_equal(from, last);
        if (from)
            buffer_puts(out, "\xC2\xB7");
        buffer_append(out, text + from, to - from);
        last = to;
    }
    assert_int_equal(last, n);
    split_finish(&c);
    assert_false(out->failed);
}

/* The ends of the pieces agree; on a difference both cuts are shown as code points. */
static void assert_same_pieces(const char *text, size_t n)
{
    struct split_cursor a, b;
    size_t from, to, want_from, want_to;
    assert_int_equal(split_start(&scanner, (const uint8_t *)text, n, &a, NULL), QR_OK);
    assert_int_equal(split_start(&regex, (const uint8_t *)text, n, &b, NULL), QR_OK);
    do {
        assert_int_equal(split_next(&a, &from, &to, NULL), QR_OK);
        assert_int_equal(split_next(&b, &want_from, &want_to, NULL), QR_OK);
        if (to != want_to) {
            struct buffer points = {0};
            for (size_t i = 0; i < n;) {
                uint32_t cp;
                i += utf8_decode((const uint8_t *)text + i, n - i, &cp);
                buffer_printf(&points, " %04X", cp);
            }
            fail_msg("the piece at byte %zu ends at %zu, by the patterns at %zu:%s", from, to, want_to, points.data);
        }
    } while (from < to);
    split_finish(&a);
    split_finish(&b);
}

static void pieces_are_those_of_the_specification(void **state)
{
    static const char *const cases[][2] = {
        {"a1b22c333d4444", "a·1·b·22·c·333·d·444·4"},
        {"12345678", "123·456·78"},
        {"x = 10;\n\n\n  return y\n", "x· =· ·10·;\n\n\n· · return· y·\n"},
        {"    int x", "   · int· x"},
        {"don't", "don·'t"},
        {"日本語テキストabc", "日本語テキスト·abc"},
        {"½ Ⅻ", "½· ·Ⅻ"},
        {" .foo", " .·foo"},
        {"foo.bar(baz)", "foo·.bar·(baz·)"},
        {"end.\n\nNext", "end·.\n\n·Next"},
        {"\r\n\r\n", "\r\n\r\n"},
        {";\n\n\n", ";\n\n\n"},
        {"\tfoo", "\tfoo"},
        {"a\u200Db", "a·\u200Db"},
        {"\x01\x02 \x03", "\x01\x02· ·\x03"},
        {"한국어ｶﾅ㐀", "한국어ｶﾅ㐀"},
        {"ひら゛カ・タ", "ひら·゛·カ·・·タ"},
        {"  \n \n  x", "  \n \n· · x"},
        {"a  ", "a·  "},
        {"①②③④ ４５", "①②③·④· ·４５"},
        {"！“…", "！“…"},
        {"\u3000中", "\u3000·中"},
    };
    struct buffer found = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 2; k++) {
            pieces_of(k ? &regex : &scanner, cases[i][0], strlen(cases[i][0]), &found);
            if (strcmp(found.data, cases[i][1]) != 0)
                fail_msg("\"%s\" %s: \"%s\", wanted \"%s\"", cases[i][0], k ? "by the patterns" : "by the scanner",
                         found.data, cases[i][1]);
        }
    buffer_free(&found);
}

/* Whether PCRE2's tables have a code point; asked of its own \p{Cn}. */
static bool pcre_has(uint32_t cp)
{
    static pcre2_code *unassigned;
    static pcre2_match_data *match;
    uint8_t text[4];
    if (!unassigned) {
        int code;
        PCRE2_SIZE offset;
        unassigned =
            pcre2_compile((PCRE2_SPTR) "\\p{Cn}", PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
        match = pcre2_match_data_create(1, NULL);
        assert_non_null(unassigned);
    }
    return pcre2_match(unassigned, text, utf8_encode(cp, text), 0, 0, match, NULL) < 0;
}

/* Code points that only one of the two tables has are left out (protocol.md 1.3). */
static bool is_comparable(uint32_t cp)
{
    if (cp >= 0xD800 && cp < 0xE000)
        return false;
    return pcre_has(cp) == (utf8proc_category((utf8proc_int32_t)cp) != UTF8PROC_CATEGORY_CN);
}

static void every_code_point_is_cut_alike_in_every_neighbourhood(void **state)
{
    static const char *const around[][2] = {{"", ""},      {"a", "b"},     {" ", " "},   {"1", "2"},
                                            {".", "x"},    {"中", "あ"},   {"\n", "\n"}, {"a ", " "},
                                            {"\x01", "a"}, {" .", "\r\n"}, {"́", "!"}};
    size_t compared = 0;
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        struct buffer text = {0};
        uint8_t bytes[4];
        if (!is_comparable(cp))
            continue;
        /* Unassigned code points are one class: a few of them will do. */
        if (!pcre_has(cp) && cp % 251)
            continue;
        size_t length = utf8_encode(cp, bytes);
        /* One text with all neighbourhoods, each kept apart by a letter and a digit. */
        for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
            buffer_puts(&text, around[i][0]);
            buffer_append(&text, bytes, length);
            if (i % 2)
                buffer_append(&text, bytes, length);
            buffer_puts(&text, around[i][1]);
            buffer_puts(&text, "z7");
        }
        assert_same_pieces(text.data, text.length);
        buffer_free(&text);
        compared++;
    }
    assert_true(compared > 270000);
}

/* Characters of every class, the likely ones often. */
static size_t random_character(uint64_t *seed, uint8_t *out)
{
    static const char common[] = "aZé  \n\r\t.'_12!-\"";
    static const uint32_t rare[] = {0x4E00, 0x9FA5, 0x9FA6,  0x3040, 0x309B, 0x30FB,   0x30FF, 0x3100, 0x85,   0xA0,
                                    0x2028, 0x3000, 0x180E,  0x200B, 0x200D, 0x301,    0x20DD, 0x660,  0x2160, 0xBD,
                                    0xFF01, 0x20AC, 0x1F600, 0xE000, 0xFFFF, 0x10FFFF, 0xAC00, 0x1,    0x7F,   0xAD};
    uint32_t kind = random_below(seed, 8), cp;
    if (kind < 4)
        cp = (uint8_t)common[random_below(seed, sizeof common - 1)] & 0x7F;
    else if (kind < 7)
        cp = rare[random_below(seed, sizeof rare / sizeof *rare)];
    else
        do
            cp = random_below(seed, 0x110000);
        while (!is_comparable(cp));
    return utf8_encode(cp, out);
}

static void a_million_random_mixes_are_cut_alike(void **state)
{
    uint64_t seed = 1;
    int strings = alloc_fault_supported() ? 50000 : 1000000;
    (void)state;
    for (int i = 0; i < strings; i++) {
        uint8_t text[4 * 24];
        size_t n = 0;
        for (uint32_t k = random_below(&seed, 24); k > 0; k--)
            n += random_character(&seed, text + n);
        assert_same_pieces((char *)text, n);
    }
}

static void long_runs_are_cut_alike(void **state)
{
    static const char *const units[] = {"a", " ", "\n", " \n", ".", "1", "中", "・", "\x01", "a ", "́", "\x01 ", ".\n"};
    (void)state;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct buffer text = {0};
        while (text.length < 100000)
            buffer_puts(&text, units[i]);
        buffer_puts(&text, "x");
        assert_same_pieces(text.data, text.length);
        buffer_free(&text);
    }
}

static void open_patterns(const char *third, struct splitter *out)
{
    struct split_pattern patterns[REGEX_SPLIT_PASSES] = {{"x+", 2}, {"(?=c)", 5}, {third, strlen(third)}};
    qr_error err = {0};
    if (split_open(patterns, SPLIT_AUTO, "others", NULL, out, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void other_patterns_are_run_as_they_are(void **state)
{
    struct splitter s;
    struct buffer found = {0};
    (void)state;
    open_patterns("\\s+|[\\s.]b", &s);
    assert_null(s.classes);
    pieces_of(&s, "axxb  c.b", 9, &found);
    assert_string_equal(found.data, "a·xx·b·  ·c·.b"); /* the empty match before c is a cut */
    split_close(&s);
    struct split_pattern one[REGEX_SPLIT_PASSES] = {{"q", 1}, {"q", 1}, {"\\s", 2}};
    assert_int_equal(split_open(one, SPLIT_AUTO, "others", NULL, &s, NULL), QR_OK);
    pieces_of(&s, "a\u180Eb c", 7, &found); /* U+180E is no White_Space */
    assert_string_equal(found.data, "a\u180Eb· ·c");
    split_close(&s);
    buffer_free(&found);
}

static void count_warning(void *user, enum qr_log_level level, const char *line)
{
    assert_int_equal(level, QR_LOG_WARN);
    assert_non_null(strstr(line, "dir/tokenizer.json: its split patterns are not the known ones"));
    ++*(int *)user;
}

static void unknown_patterns_are_warned_of_and_known_ones_not(void **state)
{
    int warnings = 0;
    const struct qr_log log = {.write = count_warning, .user = &warnings, .level = QR_LOG_WARN};
    struct split_pattern patterns[REGEX_SPLIT_PASSES];
    struct splitter s;
    (void)state;
    for (int i = 0; i < REGEX_SPLIT_PASSES; i++)
        patterns[i] = (struct split_pattern){scan_patterns[i], strlen(scan_patterns[i])};
    assert_int_equal(split_open(patterns, SPLIT_AUTO, "dir/tokenizer.json", &log, &s, NULL), QR_OK);
    assert_non_null(s.classes);
    assert_int_equal(warnings, 0);
    split_close(&s);
    patterns[0] = (struct split_pattern){"\\p{N}{1,2}", 10};
    assert_int_equal(split_open(patterns, SPLIT_AUTO, "dir/tokenizer.json", &log, &s, NULL), QR_OK);
    assert_null(s.classes);
    assert_int_equal(warnings, 1);
    split_close(&s);
}

static void a_broken_pattern_is_refused_with_its_place(void **state)
{
    struct split_pattern patterns[REGEX_SPLIT_PASSES] = {{"a", 1}, {"(b", 2}, {"c", 1}};
    struct splitter s;
    qr_error err = {0};
    (void)state;
    assert_int_equal(split_open(patterns, SPLIT_AUTO, "some/tokenizer.json", NULL, &s, &err), QR_BAD_FILE);
    assert_non_null(strstr(err.message, "some/tokenizer.json: split pattern 2 \"(b\""));
    split_close(&s);
}

static void an_engine_that_gives_up_is_an_error_and_no_match(void **state)
{
    struct split_pattern patterns[REGEX_SPLIT_PASSES] = {{"(?:a+)+$", 8}, {"q", 1}, {"q", 1}};
    struct splitter s;
    struct split_cursor c;
    size_t from, to;
    qr_error err = {0};
    char text[42];
    (void)state;
    memset(text, 'a', sizeof text);
    text[40] = 'b';
    assert_int_equal(split_open(patterns, SPLIT_AUTO, "slow", NULL, &s, NULL), QR_OK);
    assert_int_equal(split_start(&s, (uint8_t *)text, sizeof text, &c, NULL), QR_OK);
    assert_int_equal(split_next(&c, &from, &to, &err), QR_BAD_REQUEST);
    assert_non_null(strstr(err.message, "split pattern 1 gave up"));
    split_finish(&c);
    split_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_those_of_the_specification),
        cmocka_unit_test(every_code_point_is_cut_alike_in_every_neighbourhood),
        cmocka_unit_test(a_million_random_mixes_are_cut_alike),
        cmocka_unit_test(long_runs_are_cut_alike),
        cmocka_unit_test(other_patterns_are_run_as_they_are),
        cmocka_unit_test(unknown_patterns_are_warned_of_and_known_ones_not),
        cmocka_unit_test(a_broken_pattern_is_refused_with_its_place),
        cmocka_unit_test(an_engine_that_gives_up_is_an_error_and_no_match),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
