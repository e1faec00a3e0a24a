/* A message quotes what files and requests hold, and stays one line that commands no terminal. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/sentence.h"
#include "base/status.h"
#include "base/utf8.h"

static void quoted(const char *text, const char *wanted)
{
    qr_error err = {0};
    assert_int_equal(qr_fail(&err, QR_BAD_FILE, "tensor %s", text), QR_BAD_FILE);
    assert_string_equal(err.message + strlen("tensor "), wanted);
    /* A sentence inside of a sentence does not change. */
    assert_int_equal(qr_fail_in(&err, QR_BAD_FILE, "%s", text), QR_BAD_FILE);
    assert_memory_equal(err.message, wanted, strlen(wanted));
    assert_string_equal(err.message + strlen(wanted) + strlen(": tensor "), wanted);
    assert_int_equal(qr_fail(&err, QR_BAD_FILE, "%s", wanted), QR_BAD_FILE);
    assert_string_equal(err.message, wanted);
}

static void what_commands_a_terminal_is_written_out(void **state)
{
    (void)state;
    quoted("evil\n\x1b[31mname", "evil\\n\\x1b[31mname");
    quoted("a\tb\rc\bd\x7f", "a\\tb\\rc\\x08d\\x7f");
    quoted("\xc2\x9b" "31m|\xc2\xa0|", "\\u009b31m|\xc2\xa0|");                     /* C1; a no-break space is a space */
    quoted("\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6", "\\u2028\\u202e\\u2066");        /* a line, an override, an isolate */
    quoted("\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5", "\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5"); /* their neighbours */
    quoted("layers.0.\xe6\xb7\xb1\xe5\xba\xa6 \xf0\x9f\x90\xb3 C:\\new", "layers.0.\xe6\xb7\xb1\xe5\xba\xa6 \xf0\x9f\x90\xb3 C:\\new");
}

static void bytes_that_are_no_utf8_are_written_out(void **state)
{
    (void)state;
    quoted("\xff" "a\xc3", "\\xffa\\xc3");
    quoted("\xed\xa0\x80", "\\xed\\xa0\\x80"); /* a surrogate */
    quoted("\xc0\xaf", "\\xc0\\xaf");          /* overlong */
}

static void whatever_is_quoted_is_one_line_of_utf8(void **state)
{
    (void)state;
    for (unsigned first = 1; first < 256; first++)
        for (unsigned second = 1; second < 256; second++) {
            const char text[] = {(char)first, (char)second, 0};
            qr_error err = {0};
            qr_fail(&err, QR_BAD_FILE, "%s", text);
            size_t n = strlen(err.message);
            assert_int_equal(utf8_valid_prefix(err.message, n), n);
            for (size_t i = 0; i < n; i++)
                assert_false((uint8_t)err.message[i] < 0x20 || err.message[i] == 0x7f);
        }
}

static void a_long_message_ends_with_a_whole_character(void **state)
{
    (void)state;
    static const char *const units[] = {"\xe2\x82\xac", "\xf0\x9f\x98\x80", "\x1b", "\xe2\x80\xae", "\xc2\xa0"};
    static const size_t shown[] = {3, 4, 4, 6, 2};
    char text[4096];
    for (size_t u = 0; u < sizeof units / sizeof *units; u++)
        for (size_t before = 0; before < 8; before++) {
            size_t used = before;
            memset(text, 'a', before);
            while (used + 8 < sizeof text)
                used += (size_t)sprintf(text + used, "%s", units[u]);
            qr_error err = {0};
            qr_fail(&err, QR_BAD_FILE, "%s", text);
            size_t room = sizeof err.message - 1 - before;
            assert_int_equal(strlen(err.message), before + room - room % shown[u]);
            assert_int_equal(utf8_valid_prefix(err.message, strlen(err.message)), strlen(err.message));
            qr_fail_in(&err, QR_BAD_FILE, "%.*s", (int)before, text);
            assert_int_equal(utf8_valid_prefix(err.message, strlen(err.message)), strlen(err.message));
        }
}

static void a_message_may_quote_itself(void **state)
{
    (void)state;
    qr_error err = {0};
    qr_fail(&err, QR_BAD_FILE, "first");
    qr_fail(&err, QR_IO, "second after %s", err.message);
    assert_string_equal(err.message, "second after first");
}

static void keep_line(void *user, enum qr_log_level level, const char *line)
{
    (void)level;
    strcpy(user, line);
}

static void a_line_of_the_log_is_one_line(void **state)
{
    (void)state;
    char line[SENTENCE_ROOM];
    const struct qr_log log = {.write = keep_line, .user = line, .level = QR_LOG_DEBUG};
    qr_logf(&log, QR_LOG_WARN, "group %s", "a\nb\x1b[2J");
    assert_string_equal(line, "group a\\nb\\x1b[2J");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_commands_a_terminal_is_written_out),
        cmocka_unit_test(bytes_that_are_no_utf8_are_written_out),
        cmocka_unit_test(whatever_is_quoted_is_one_line_of_utf8),
        cmocka_unit_test(a_long_message_ends_with_a_whole_character),
        cmocka_unit_test(a_message_may_quote_itself),
        cmocka_unit_test(a_line_of_the_log_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
