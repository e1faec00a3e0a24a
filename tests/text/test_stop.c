#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/stop.h"

enum { MOST_STRINGS = 4, MOST_TEXT = 40 };

static int below(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)n);
}

/* What the rules say of a whole text, read off directly. */
struct verdict {
    int found;  /* string, or -1 */
    size_t end; /* of the match, or the text's */
    size_t cut; /* where the shown text ends after a match */
};

static bool ends_with(const char *text, size_t end, const char *string)
{
    size_t n = strlen(string);
    return n <= end && memcmp(text + end - n, string, n) == 0;
}

static struct verdict judge(const char *text, size_t length, const char *const *strings, int count, size_t silent)
{
    for (size_t end = silent + 1; end <= length; end++) {
        int best = -1;
        for (int i = 0; i < count; i++)
            if (ends_with(text, end, strings[i]) && (best < 0 || strlen(strings[i]) > strlen(strings[best])))
                best = i;
        if (best >= 0)
            return (struct verdict){best, end, end - strlen(strings[best])};
    }
    return (struct verdict){-1, length, length};
}

/* The longest ending of the text that is a proper beginning of a string. */
static size_t must_hold(const char *text, size_t length, const char *const *strings, int count)
{
    size_t most = 0;
    for (int i = 0; i < count; i++)
        for (size_t n = 1; n < strlen(strings[i]) && n <= length; n++)
            if (memcmp(text + length - n, strings[i], n) == 0 && n > most)
                most = n;
    return most;
}

struct scenario {
    char strings[MOST_STRINGS][8], text[MOST_TEXT + 1];
    const char *list[MOST_STRINGS];
    int count;
    size_t length, silent; /* strings that end within the first `silent` bytes do not count */
    bool include;
};

static void random_scenario(uint64_t *seed, struct scenario *c)
{
    c->count = below(seed, MOST_STRINGS + 1);
    for (int i = 0; i < c->count; i++) {
        int n = 1 + below(seed, 6);
        for (int k = 0; k < n; k++)
            c->strings[i][k] = (char)('a' + below(seed, 2));
        c->strings[i][n] = '\0';
        c->list[i] = c->strings[i];
    }
    c->length = (size_t)below(seed, MOST_TEXT + 1);
    for (size_t k = 0; k < c->length; k++)
        c->text[k] = (char)('a' + below(seed, 20) % 3 % 2);
    c->text[c->length] = '\0';
    c->silent = below(seed, 2) ? (size_t)below(seed, (int)c->length + 1) : 0;
    c->include = below(seed, 2);
}

static void feed_in_pieces(uint64_t *seed, const struct scenario *c)
{
    struct stop_matcher *stop;
    struct buffer shown = {0};
    bool hit = false;
    struct verdict want = judge(c->text, c->length, c->list, c->count, c->silent);
    assert_int_equal(stop_open(c->list, c->count, c->include, &stop, NULL), QR_OK);
    for (size_t at = 0; at < c->length;) {
        size_t piece = (size_t)below(seed, 6), left = c->length - at;
        if (piece > left)
            piece = left;
        if (at < c->silent && at + piece > c->silent)
            piece = c->silent - at;
        bool was_hit = hit;
        assert_int_equal(stop_push(stop, c->text + at, piece, at >= c->silent, &shown, &hit, NULL), QR_OK);
        at += piece;
        assert_true(hit || !was_hit);
        assert_int_equal(hit, want.found >= 0 && at >= want.end);
        if (!hit)
            assert_int_equal(shown.length, at - must_hold(c->text, at, c->list, c->count));
    }
    assert_int_equal(stop_flush(stop, &shown, NULL), QR_OK);
    size_t end = want.found < 0 ? c->length : c->include ? want.end : want.cut;
    assert_int_equal(shown.length, end);
    assert_memory_equal(shown.data ? shown.data : "", c->text, end);
    if (want.found < 0)
        assert_int_equal(stop_found(stop), -1);
    else
        assert_string_equal(c->list[stop_found(stop)], c->list[want.found]);
    buffer_free(&shown);
    stop_close(stop);
}

static void any_cut_of_any_text_gives_what_the_rules_say(void **state)
{
    uint64_t seed = 4711;
    (void)state;
    for (int turn = 0; turn < 40000; turn++) {
        struct scenario c;
        random_scenario(&seed, &c);
        feed_in_pieces(&seed, &c);
    }
}

static void whole_characters_stay_whole(void **state)
{
    static const char *const strings[] = {"é€", "€!"};
    static const char *const pieces[] = {"é", "é", "€", "x", "€", "!", "later"};
    struct stop_matcher *stop;
    struct buffer shown = {0};
    bool hit = false;
    (void)state;
    assert_int_equal(stop_open(strings + 1, 1, false, &stop, NULL), QR_OK);
    for (int i = 0; i < 7; i++)
        assert_int_equal(stop_push(stop, pieces[i], strlen(pieces[i]), true, &shown, &hit, NULL), QR_OK);
    assert_true(hit);
    assert_string_equal(shown.data, "éé€x");
    assert_int_equal(stop_found(stop), 0);
    stop_close(stop);
    buffer_free(&shown);
}

static void empty_strings_are_refused_and_none_at_all_is_fine(void **state)
{
    static const char *const strings[] = {"a", ""};
    struct stop_matcher *stop;
    struct buffer shown = {0};
    qr_error err = {0};
    bool hit;
    (void)state;
    assert_int_equal(stop_open(strings, 2, false, &stop, &err), QR_BAD_REQUEST);
    assert_string_equal(err.message, "stop: string 1 is empty");
    assert_int_equal(stop_open(NULL, 0, false, &stop, &err), QR_OK);
    assert_int_equal(stop_push(stop, NULL, 0, true, &shown, &hit, NULL), QR_OK);
    assert_int_equal(stop_push(stop, "text", 4, true, &shown, &hit, NULL), QR_OK);
    assert_string_equal(shown.data, "text");
    assert_false(hit);
    stop_close(stop);
    buffer_free(&shown);
}

static void failing_allocations_are_statuses(void **state)
{
    static const char *const strings[] = {"stop", "end"};
    (void)state;
    int64_t live = alloc_live();
    for (int64_t n = 1; n <= 6; n++) {
        struct stop_matcher *stop;
        struct buffer shown = {0};
        bool hit;
        alloc_fault_at(n, 0);
        qr_status st = stop_open(strings, 2, false, &stop, NULL);
        if (st == QR_OK)
            st = stop_push(stop, "text", 4, true, &shown, &hit, NULL);
        alloc_fault_at(0, 0);
        assert_int_equal(st, QR_NO_MEMORY);
        stop_close(stop);
        buffer_free(&shown);
        assert_int_equal(alloc_live(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_of_any_text_gives_what_the_rules_say),
        cmocka_unit_test(whole_characters_stay_whole),
        cmocka_unit_test(empty_strings_are_refused_and_none_at_all_is_fine),
        fault_test(failing_allocations_are_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
