/* Which generation of chat text a folder was trained with (protocol.md 2.1). */
#include "support/support.h"

#include <string.h>
#include <sys/stat.h>

#include "checkpoint/prompt_profile.h"
#include "support/scratch.h"

static void count_line(void *user, enum qr_log_level level, const char *line)
{
    int *lines = user;
    (void)level;
    assert_non_null(strstr(line, "v4b assumed"));
    ++*lines;
}

/* *lines: how many the log was told. */
static enum chat_profile profile_of(const char *dir, enum qr_family family, int *lines)
{
    const struct qr_log log = {.write = count_line, .user = lines, .level = QR_LOG_INFO};
    struct qr_config config = {.family = family};
    enum chat_profile profile;
    qr_error err = {0};
    *lines = 0;
    must(prompt_profile_of(dir, &config, &log, &profile, &err), &err);
    return profile;
}

static void the_encoder_beside_the_weights_decides_and_a_guess_is_told(void **state)
{
    static const char early[] = "TEXT = 'Reasoning Effort: Absolute maximum'\n";
    static const char later[] = "A = 'Reasoning Effort: Absolute maximum'\nB = 'Reasoning Effort: Beyond maximum'\n";
    const char *encoder = scratch_path(scratch, "encoding/encoding_dsv4.py");
    int lines;
    (void)state;
    assert_int_equal(profile_of(scratch, QR_FAMILY_V4, &lines), CHAT_V4B);
    assert_int_equal(lines, 1);
    assert_int_equal(mkdir(scratch_path(scratch, "encoding"), 0777), 0);
    scratch_write(encoder, early, sizeof early - 1);
    assert_int_equal(profile_of(scratch, QR_FAMILY_V4, &lines), CHAT_V4A);
    assert_int_equal(lines, 0);
    scratch_write(encoder, later, sizeof later - 1);
    assert_int_equal(profile_of(scratch, QR_FAMILY_V4, &lines), CHAT_V4B);
    assert_int_equal(lines, 0);
    scratch_write(encoder, early, sizeof early - 1);
    assert_int_equal(profile_of(scratch, QR_FAMILY_V41, &lines), CHAT_V41);
    assert_int_equal(lines, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_encoder_beside_the_weights_decides_and_a_guess_is_told),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
