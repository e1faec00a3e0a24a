#define _GNU_SOURCE
#include "support/support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/model_options.h"
#include "cli/nearest.h"
#include "cli/options.h"

static struct {
    bool raw, count_given;
    const char *file, *think, *replay, *model, *out;
    int count;
    uint64_t seed;
    double temperature;
    struct option_list stop;
} got;

static const struct option table[] = {
    {.name = "raw", .letter = 'r', .kind = OPTION_FLAG, .target = &got.raw, .help = "no template"},
    {.name = "file", .letter = 'f', .kind = OPTION_STRING, .target = &got.file, .value = "FILE"},
    {.name = "think", .kind = OPTION_CHOICE, .target = &got.think, .value = "off|low|high"},
    {.name = "bounded", .kind = OPTION_SET, .target = &got.replay, .value = "bounded"},
    {.letter = 'n',
     .kind = OPTION_INT,
     .target = &got.count,
     .value = "N",
     .given = &got.count_given,
     .least = 1,
     .most = 100},
    {.name = "model", .kind = OPTION_PATH, .target = &got.model, .value = "DIR"},
    {.name = "out", .kind = OPTION_PATH, .target = &got.out, .value = "FILE"},
    {.name = "seed", .kind = OPTION_UINT64, .target = &got.seed, .value = "N"},
    {.name = "temperature", .kind = OPTION_DOUBLE, .target = &got.temperature, .value = "T", .least = 0, .most = 10},
    {.name = "stop", .kind = OPTION_LIST, .target = &got.stop, .value = "TEXT"},
    {.name = "tp", .kind = OPTION_INT, .target = &got.count, .value = "N"},
    {.name = "device", .kind = OPTION_DEVICE, .target = &got.file, .value = "DEVICE"},
    {0}};

static char printed[8192]; /* what the last parse wrote, both streams */
static struct command_line line;

/* Parses `text` split at blanks; returns the status, or -1 for "go on". */
static int parse(const char *text)
{
    static char words[1024];
    static char *argv[64];
    int argc = 0, status;
    options_free(table);
    memset(&got, 0, sizeof got);
    snprintf(words, sizeof words, "%s", text);
    argv[argc++] = "test";
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    line = (struct command_line){
        .command = "test", .synopsis = "[ARG]", .about = "Does a test.", .options = table, .most = 2};

    FILE *file = tmpfile();
    int out = dup(1), err = dup(2);
    fflush(stdout);
    dup2(fileno(file), 1);
    dup2(fileno(file), 2);
    bool go_on = options_parse(&line, argc, argv, &status);
    fflush(stdout);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    rewind(file);
    printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
    fclose(file);
    return go_on ? -1 : status;
}

static void wrong(const char *text, const char *message)
{
    assert_int_equal(parse(text), 2);
    if (!strstr(printed, message))
        fail_msg("%s: printed \"%s\", wanted \"%s\"", text, printed, message);
}

static void every_kind_is_read_in_every_spelling(void **state)
{
    (void)state;
    assert_int_equal(parse("--raw --file a --think=low -n 7 --seed 18446744073709551615 --temperature 0.5 --bounded"),
                     -1);
    assert_true(got.raw);
    assert_string_equal(got.file, "a");
    assert_string_equal(got.think, "low");
    assert_int_equal(got.count, 7);
    assert_true(got.count_given);
    assert_true(got.seed == UINT64_MAX);
    assert_true(got.temperature == 0.5);
    assert_string_equal(got.replay, "bounded");
    assert_int_equal(parse("--model a/b --out=c"), -1);
    assert_string_equal(got.model, "a/b");
    assert_string_equal(got.out, "c");
    assert_string_equal(printed, "");

    assert_int_equal(parse("-r -fx=y -n7"), -1);
    assert_true(got.raw);
    assert_string_equal(got.file, "x=y");
    assert_int_equal(got.count, 7);
    assert_int_equal(parse("--file= -tp 4"), -1);
    assert_string_equal(got.file, "");
    assert_int_equal(got.count, 4);
    assert_false(got.count_given);
}

static void a_value_may_begin_with_a_dash(void **state)
{
    (void)state;
    assert_int_equal(parse("--file --raw"), -1);
    assert_string_equal(got.file, "--raw");
    assert_false(got.raw);
    assert_int_equal(parse("--file --help"), -1);
    assert_string_equal(got.file, "--help");
}

static void lists_collect_every_occurrence(void **state)
{
    (void)state;
    assert_int_equal(parse("--stop a --stop=b --stop c"), -1);
    assert_int_equal(got.stop.count, 3);
    assert_string_equal(got.stop.items[1], "b");
    options_free(table);
    assert_int_equal(got.stop.count, 0);
}

static void arguments_stand_anywhere_and_after_two_dashes(void **state)
{
    (void)state;
    assert_int_equal(parse("one --raw -"), -1);
    assert_int_equal(line.argument_count, 2);
    assert_string_equal(line.arguments[0], "one");
    assert_string_equal(line.arguments[1], "-");
    assert_int_equal(parse("-- --raw --help"), -1);
    assert_false(got.raw);
    assert_string_equal(line.arguments[1], "--help");
    wrong("a b c", "argument \"c\" is one too many");
}

static void a_wrong_line_says_what_and_what_was_wanted(void **state)
{
    static const char *const no_devices[] = {"--device=", "--device gpu", "--device cpux", "--device cuda:", "--device cuda:-1",
                                             "--device cuda:x", "--device cuda:1000"};
    (void)state;
    wrong("--row", "quire test: unknown option --row; the nearest is --raw");
    wrong("--temprature=1", "nearest is --temperature");
    wrong("--temp 1", "nearest is --temperature");
    wrong("--see 1", "nearest is --seed");
    wrong("--n 4", "quire test: unknown option --n; the nearest is -n");
    wrong("--n=4", "unknown option --n=4; the nearest is -n");
    wrong("--h", "nearest is -h");
    wrong("-x", "unknown option -x");
    wrong("--tensor-parallel-size 2", "quire test: unknown option --tensor-parallel-size\n"); /* nothing is like it */
    wrong("--method mtp", "quire test: unknown option --method\n");
    wrong("--hlep", "nearest is --help");
    wrong("--raw=1", "--raw takes no value");
    wrong("--file", "--file needs a value: FILE");
    wrong("-n", "-n needs a value: N");
    wrong("-n x", "-n is \"x\", wanted an integer");
    wrong("-n 99999999999", "-n is 99999999999, wanted 1 to 100");
    wrong("-n -99999999999999999999999", "-n is -99999999999999999999999, wanted 1 to 100");
    wrong("-n=", "-n is \"\", wanted an integer");
    wrong("-n +", "-n is \"+\", wanted an integer");
    wrong("-n 7x", "\"7x\"");
    wrong("-n 0", "-n is 0, wanted 1 to 100");
    wrong("--seed -1", "--seed is -1, wanted 0 to 18446744073709551615");
    wrong("--seed 18446744073709551616", "--seed is 18446744073709551616, wanted 0 to 18446744073709551615");
    wrong("--seed 0x1", "--seed is \"0x1\", wanted an integer");
    wrong("--temperature 1e999", "--temperature is 1e999, wanted 0 to 10");
    wrong("--temperature 0x1", "--temperature is \"0x1\", wanted a number");
    wrong("--stop=", "--stop is \"\", wanted a text that is not empty");
    for (size_t i = 0; i < sizeof no_devices / sizeof *no_devices; i++)
        wrong(no_devices[i], "wanted cpu, cpu-reference, cpu-avx512, cpu-avx2, cpu-portable or cuda[:N]");
    wrong("--temperature=nan", "--temperature is \"nan\", wanted a number");
    wrong("--temperature 11", "--temperature is 11, wanted 0 to 10");
    wrong("--model=", "--model is \"\", wanted the name of a folder");
    wrong("--out=", "--out is \"\", wanted the name of a file");
    wrong("--think lo", "--think is \"lo\", wanted off|low|high");
    wrong("--think=", "--think is \"\"");
}

static void help_wins_over_everything_and_lists_every_option(void **state)
{
    (void)state;
    static const char *const lines[] = {"--help", "-h", "--row --help", "-n x -h"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(parse(lines[i]), 0);
        assert_non_null(strstr(printed, "Usage: quire test [ARG]\n\nDoes a test.\n"));
        assert_non_null(strstr(printed, "-r, --raw "));
        assert_non_null(strstr(printed, "-n N"));
        assert_non_null(strstr(printed, "--think off|low|high"));
        assert_non_null(strstr(printed, "-h, --help"));
    }
}

static void distances_count_single_letter_changes(void **state)
{
    (void)state;
    assert_int_equal(edit_distance("", ""), 0);
    assert_int_equal(edit_distance("abc", "abc"), 0);
    assert_int_equal(edit_distance("abc", ""), 3);
    assert_int_equal(edit_distance("", "ab"), 2);
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
    assert_int_equal(edit_distance("ab", "ba"), 1);
    assert_int_equal(edit_distance("hlep", "help"), 1);
}

static void model_options_are_a_fragment_of_a_table(void **state)
{
    (void)state;
    struct model_options m = MODEL_OPTIONS_DEFAULT;
    const struct option options[] = {MODEL_OPTIONS(m), {0}};
    struct command_line l = {.command = "test", .synopsis = "", .options = options};
    char *argv[] = {"test", "--model", "dir", "--max-model-len", "4096", "--log-level", "debug", "--threads=2"};
    int status;
    assert_true(options_parse(&l, 8, argv, &status));
    assert_string_equal(m.model, "dir");
    assert_string_equal(m.device, "cpu");
    assert_string_equal(m.prompt_profile, "auto");
    assert_null(m.profile);
    assert_int_equal(m.max_model_len, 4096);
    assert_int_equal(m.threads, 2);
    assert_int_equal(model_options_log(&m).level, QR_LOG_DEBUG);
    m.quiet = true;
    assert_int_equal(model_options_log(&m).level, QR_LOG_ERROR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_read_in_every_spelling),
        cmocka_unit_test(a_value_may_begin_with_a_dash),
        cmocka_unit_test(lists_collect_every_occurrence),
        cmocka_unit_test(arguments_stand_anywhere_and_after_two_dashes),
        cmocka_unit_test(a_wrong_line_says_what_and_what_was_wanted),
        cmocka_unit_test(help_wins_over_everything_and_lists_every_option),
        cmocka_unit_test(distances_count_single_letter_changes),
        cmocka_unit_test(model_options_are_a_fragment_of_a_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
