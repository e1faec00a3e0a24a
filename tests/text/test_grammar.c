/* Grammars, their states and their masks: what they let through is what an independent reader lets through, byte by byte,
 * and a mask is what trying each token says. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/grammars.h"

static uint64_t seed = 7;
static int below(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- JSON, read by recursion ---- */

struct reader {
    const char *at, *end;
};

static bool eat(struct reader *r, char c)
{
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

static bool one_of(struct reader *r, const char *set)
{
    if (r->at == r->end || !*r->at || !strchr(set, *r->at))
        return false;
    r->at++;
    return true;
}

static void space(struct reader *r)
{
    if (eat(r, ' '))
        return;
    if (eat(r, '\n'))
        for (int i = 0; i < 32 && eat(r, ' '); i++)
            ;
}

static bool digits(struct reader *r, int most)
{
    int n = 0;
    while (n < most && one_of(r, "0123456789"))
        n++;
    return n > 0;
}

static bool number(struct reader *r)
{
    eat(r, '-');
    if (!eat(r, '0') && !(one_of(r, "123456789") && (digits(r, 1000), true)))
        return false;
    if (eat(r, '.') && !digits(r, 1000))
        return false;
    if (one_of(r, "eE")) {
        one_of(r, "+-");
        return digits(r, 2);
    }
    return true;
}

static bool hex4(struct reader *r, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        const char *c = r->at;
        if (!one_of(r, "0123456789abcdefABCDEF"))
            return false;
        *out = *out * 16 + (unsigned)strtol((char[2]){*c, 0}, NULL, 16);
    }
    return true;
}

static bool escape(struct reader *r)
{
    unsigned high, low;
    if (one_of(r, "\"\\/bfnrt"))
        return true;
    if (!eat(r, 'u') || !hex4(r, &high) || (high >= 0xdc00 && high < 0xe000))
        return false;
    if (high < 0xd800 || high >= 0xe000)
        return true;
    return eat(r, '\\') && eat(r, 'u') && hex4(r, &low) && low >= 0xdc00 && low < 0xe000;
}

static bool string(struct reader *r)
{
    if (!eat(r, '"'))
        return false;
    while (r->at < r->end && *r->at != '"') {
        if (eat(r, '\\')) {
            if (!escape(r))
                return false;
        } else if ((unsigned char)*r->at < 0x20) {
            return false;
        } else {
            r->at++; /* texts of this test are UTF-8 */
        }
    }
    return eat(r, '"');
}

static bool word(struct reader *r, const char *w)
{
    while (*w)
        if (!eat(r, *w++))
            return false;
    return true;
}

static bool value(struct reader *r, int depth);

static bool list(struct reader *r, char close, bool named, int depth)
{
    space(r);
    if (eat(r, close))
        return true;
    for (;;) {
        if (named && !(string(r) && eat(r, ':') && (space(r), true)))
            return false;
        if (!value(r, depth))
            return false;
        if (eat(r, ',')) {
            space(r);
            continue;
        }
        space(r);
        return eat(r, close);
    }
}

static bool value(struct reader *r, int depth)
{
    if (depth > 100 || r->at == r->end)
        return false;
    switch (*r->at) {
    case '{': return r->at++, list(r, '}', true, depth + 1);
    case '[': return r->at++, list(r, ']', false, depth + 1);
    case '"': return string(r);
    case 't': return word(r, "true");
    case 'f': return word(r, "false");
    case 'n': return word(r, "null");
    default: return number(r);
    }
}

static bool is_object(const char *text, size_t length)
{
    struct reader r = {text, text + length};
    return length > 0 && *text == '{' && value(&r, 0) && r.at == r.end;
}

/* A random text near JSON. */
static size_t write_value(char *out, int depth)
{
    static const char *const plain[] = {"0", "-1", "2.5", "1e9", "1E-07", "true", "false", "null", "\"\"", "\"a\\n\"", "\"\xc3\xa9\\u00e9\"",
                                        "\"\\ud83d\\ude00\"", "-0.0", "\"\\\"\""};
    static const char *const gaps[] = {"", "", " ", "\n  "};
    const int kind = depth > 3 ? 2 : below(4);
    size_t n = 0;
    if (kind > 1) {
        const char *p = plain[below(14)];
        memcpy(out, p, strlen(p));
        return strlen(p);
    }
    const int count = below(4);
    out[n++] = kind ? '{' : '[';
    for (int i = 0; i < count; i++) {
        const char *gap = gaps[below(4)];
        if (i)
            out[n++] = ',';
        memcpy(out + n, gap, strlen(gap));
        n += strlen(gap);
        if (kind) {
            memcpy(out + n, "\"k\": ", 5);
            n += 5;
        }
        n += write_value(out + n, depth + 1);
    }
    out[n++] = kind ? '}' : ']';
    return n;
}

static void json_is_what_a_recursive_reader_lets_through(void **state)
{
    static const char noise[] = "{}[]\",:0123.eE+-\\u \ntfna";
    struct grammar *g = grammar_of(GRAMMAR_JSON_OBJECT, NULL);
    struct grammar_run *run = run_of(&rig, g);
    char text[4096];
    int accepted = 0;
    (void)state;
    for (int i = 0; i < 3000; i++) {
        size_t n;
        do
            n = write_value(text, 0);
        while (n > 2000 || text[0] != '{');
        for (int k = below(3); k > 0; k--) {
            const size_t at = (size_t)below((int)n);
            if ((unsigned char)text[at] < 0x80)
                text[at] = noise[below(sizeof noise - 1)];
        }
        const bool want = is_object(text, n);
        accepted += want;
        const bool good = grammar_run_push_bytes(run, text, n, NULL) == QR_OK && grammar_run_complete(run);
        if (good != want)
            fail_msg("%.*s: wanted %d", (int)n, text, want);
        grammar_run_rewind(run); /* to where the bytes began */
    }
    grammar_run_close(run);
    assert_in_range(accepted, 500, 2900);
    grammar_release(g);
}

/* ---- regular expressions ---- */

struct sample {
    const char *regex, *good, *bad; /* separated by spaces */
};

static void check_words(struct grammar *g, const char *regex, const char *words, bool want)
{
    while (*words) {
        const size_t n = strcspn(words, " ");
        if (grammar_accepts(&rig, g, words, n) != want)
            fail_msg("%s: %.*s, wanted %d", regex, (int)n, words, want);
        words += n + (words[n] == ' ');
    }
}

static void regular_expressions_match_whole_texts(void **state)
{
    static const struct sample samples[] = {
        {"abc", "abc", "ab abcd xabc"},
        {"^abc$", "abc", "ab"},
        {"a|bc|", "a bc", "ab b"},
        {"a*b+c?", "b aab abbc", "a c abcc"},
        {"(ab){2,3}", "abab ababab", "ab abababab"},
        {"[a-c]{2}", "aa cb", "a ad"},
        {"[^a-c\\d]+", "xyz \xc3\xa9", "a x1 \xff"},
        {"\\d{3}-\\d{4}", "555-1234", "55-1234 555-12345"},
        {"(?:x|y(?<n>z))*w", "w xyzw", "yw x"},
        {"a.c", "abc a\xe2\x82\xac" "c a.c", "ac abbc a\nc"},
        {"\\w+@\\w+\\.com", "a_1@b.com", "a@b.org @b.com"},
        {"[\\u00e0-\\u017f]", "\xc3\xa0 \xc5\xbf", "\xc3 \xc6\x80"},
        {"\xf0\x9f\x98\x80?!", "! \xf0\x9f\x98\x80!", "\xf0\x9f\x98!"},
        {"a{0}b{2,}?", "bb bbbb", "b abb"},
        {"\\x41\\u{42}[]x]", "", "AB]"}, /* "[]" is the empty class: nothing fits */
        {"[\\]\\-x]+", "]-x", "a"},
        {"(a*)*b", "b aaab", "a"},
        {"\\S\\s\\S", "a\tb", "ab"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        struct grammar *g;
        if (grammar_make(GRAMMAR_REGEX, samples[i].regex, strlen(samples[i].regex), "regex", &g, NULL, NULL) != QR_OK) {
            assert_string_equal(samples[i].good, "");
            continue;
        }
        check_words(g, samples[i].regex, samples[i].good, true);
        check_words(g, samples[i].regex, samples[i].bad, false);
        grammar_release(g);
    }
}

static void what_is_no_regular_language_is_refused_by_name(void **state)
{
    static const struct {
        const char *regex, *says;
    } samples[] = {{"(?=a)b", "look-ahead"},    {"(?<!a)b", "look-behind"}, {"(a)\\1", "references"},   {"a\\b", "word boundaries"},
                   {"\\p{L}", "properties"},    {"(?i)a", "flags"},         {"a++", "possessive"},      {"(a", "not closed"},
                   {"a)", "without its"},       {"[a", "not closed"},       {"*a", "nothing to repeat"}, {"a{3,2}", "backwards"},
                   {"(^a)", "at the ends"},     {"a$b", "at the ends"},     {"[z-a]", "backwards"},     {"\\q", "no meaning"},
                   {"(a{4096}){4096}", "too large"}, {"\xff", "UTF-8"}};
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        struct grammar *g;
        qr_error err = {0};
        if (grammar_make(GRAMMAR_REGEX, samples[i].regex, strlen(samples[i].regex), "regex", &g, NULL, &err) != QR_BAD_REQUEST ||
            !strstr(err.message, samples[i].says) || g)
            fail_msg("%s: %s", samples[i].regex, err.message);
    }
}

static void choices_are_their_strings_alone(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_CHOICE, "[\"yes\",\"yes please\",\"no\",\"\xc3\xa9\"]");
    (void)state;
    assert_true(grammar_accepts(&rig, g, "yes", 3));
    assert_true(grammar_accepts(&rig, g, "yes please", 10));
    assert_true(grammar_accepts(&rig, g, "\xc3\xa9", 2));
    assert_false(grammar_accepts(&rig, g, "yes ", 4));
    assert_false(grammar_accepts(&rig, g, "\xc3", 1));
    assert_false(grammar_accepts(&rig, g, "", 0));
    grammar_release(g);
    assert_int_equal(grammar_make(GRAMMAR_CHOICE, "[]", 2, "test", &g, NULL, NULL), QR_BAD_REQUEST);
    assert_int_equal(grammar_make(GRAMMAR_CHOICE, "[1]", 3, "test", &g, NULL, NULL), QR_BAD_REQUEST);
    assert_int_equal(grammar_make(GRAMMAR_CHOICE, "[\"\"]", 4, "test", &g, NULL, NULL), QR_BAD_REQUEST);
    assert_int_equal(grammar_make(GRAMMAR_CHOICE, "nonsense", 8, "test", &g, NULL, NULL), QR_BAD_REQUEST);
}

/* ---- masks ---- */

static bool has(const uint32_t *mask, int32_t id) { return mask[id >> 5] >> (id & 31) & 1; }

/* Any token that the mask lets through. */
static int32_t pick(const uint32_t *mask)
{
    for (;;) {
        const int32_t id = below(rig.trie->vocab);
        if (has(mask, id))
            return id;
        for (int32_t next = id; next < id + 64 && next < rig.trie->vocab; next++)
            if (has(mask, next))
                return next;
    }
}

static void masks_are_what_trying_each_token_says(void **state)
{
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } grammars[] = {
        {GRAMMAR_JSON_OBJECT, NULL},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":5},\"n\":{\"type\":\"integer\","
                              "\"minimum\":-7,\"maximum\":1200},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"redder\",7]}}},"
                              "\"required\":[\"n\"],\"additionalProperties\":false}"},
        {GRAMMAR_REGEX, "(the|a) (cat|dog)s? [0-9]{2,4}[.!]"},
        {GRAMMAR_CHOICE, "[\"yes\",\"yes please\",\"no\"]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct grammar *g = grammar_of(grammars[i].kind, grammars[i].text);
        struct grammar_run *run = run_of(&rig, g);
        for (int steps = 0; steps < 12; steps++) {
            const uint32_t *mask;
            assert_true(mask_is_right(&rig, run) > 0);
            assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
            const int32_t id = pick(mask);
            assert_int_equal(grammar_run_push(run, id, NULL), QR_OK);
            if (id == rig.ends[0])
                break;
        }
        grammar_run_close(run);
        grammar_release(g);
    }
}

static void an_end_fits_exactly_where_the_grammar_is_complete(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_REGEX, "ab?");
    struct grammar_run *run = run_of(&rig, g);
    const uint32_t *mask;
    (void)state;
    assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
    assert_false(has(mask, rig.ends[0]));
    assert_int_equal(grammar_run_push(run, rig.ends[0], NULL), QR_BAD_REQUEST);
    assert_int_equal(grammar_run_push_bytes(run, "a", 1, NULL), QR_OK);
    assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
    assert_true(has(mask, rig.ends[0]));
    assert_int_equal(grammar_run_push_bytes(run, "b", 1, NULL), QR_OK);
    assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
    for (int32_t id = 0; id < rig.trie->vocab; id++)
        assert_int_equal(has(mask, id), id == rig.ends[0]);
    grammar_run_close(run);
    grammar_release(g);
}

/* ---- bounds ---- */

static void nesting_is_bounded_and_closes_again(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\"}");
    struct grammar_run *run = run_of(&rig, g);
    int depth = 0;
    (void)state;
    while (depth < 1000 && grammar_run_push_bytes(run, "[", 1, NULL) == QR_OK)
        depth++;
    assert_in_range(depth, 100, 200);
    for (int i = 0; i < depth; i++)
        assert_int_equal(grammar_run_push_bytes(run, "]", 1, NULL), QR_OK);
    assert_true(grammar_run_complete(run));
    grammar_run_close(run);
    grammar_release(g);
}

/* Thousands of different states: what does not fit into the run's memory is forgotten and made again. */
static void a_full_store_changes_no_mask(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"minItems\":4000,\"items\":{\"enum\":[1,23]}}");
    struct grammar_run *run = run_of(&rig, g);
    const uint32_t *mask;
    uint32_t first[2048];
    const size_t bytes = ((size_t)rig.trie->vocab + 31) / 32 * sizeof *mask;
    (void)state;
    assert_int_equal(grammar_run_push_bytes(run, "[1,", 3, NULL), QR_OK);
    assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
    memcpy(first, mask, bytes);
    for (int i = 0; i < 3900; i++) {
        assert_int_equal(grammar_run_push_bytes(run, "23,", 3, NULL), QR_OK);
        if (i % 100 == 0) {
            assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
            assert_memory_equal(mask, first, bytes);
        }
    }
    assert_true(grammar_run_counts(run).collections > 0);
    grammar_run_close(run);
    grammar_release(g);
}

static void a_run_allocates_nothing_on_its_way(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_JSON_OBJECT, NULL);
    struct grammar_run *run = run_of(&rig, g);
    const uint32_t *mask;
    (void)state;
    const int64_t before = alloc_count();
    for (int i = 0; i < 200; i++) {
        assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
        assert_int_equal(grammar_run_push(run, pick(mask), NULL), QR_OK);
    }
    assert_int_equal(alloc_count(), before);
    grammar_run_close(run);
    grammar_release(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_is_what_a_recursive_reader_lets_through),
        cmocka_unit_test(regular_expressions_match_whole_texts),
        cmocka_unit_test(what_is_no_regular_language_is_refused_by_name),
        cmocka_unit_test(choices_are_their_strings_alone),
        cmocka_unit_test(masks_are_what_trying_each_token_says),
        cmocka_unit_test(an_end_fits_exactly_where_the_grammar_is_complete),
        cmocka_unit_test(nesting_is_bounded_and_closes_again),
        cmocka_unit_test(a_full_store_changes_no_mask),
        cmocka_unit_test(a_run_allocates_nothing_on_its_way),
    };
    return cmocka_run_group_tests(tests, grammar_set_up, grammar_tear_down);
}
