/* label: release */
/* Every command that loads a model plans first: what it takes is said at info, and what does not fit is refused before a
 * shard is opened (runtime.md 11). */
#define _GNU_SOURCE
#include "support/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/scratch.h"
#include "support/support.h"

/* Each command with what it needs besides its model. */
static const char *const commands[][4] = {{"run", "hi", NULL, NULL},
                                          {"chat", NULL, NULL, NULL},
                                          {"generate", "--requests", "-", NULL},
                                          {"eval", "--requests", "-", NULL},
                                          {"bench", "load", NULL, NULL}};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* Runs a command with more options, up to NULL. */
static struct ran run_with(const char *const *command, const char *model, const char *const *more)
{
    const char *words[32];
    int n = 0;
    for (int i = 0; i < 4 && command[i]; i++)
        words[n++] = command[i];
    words[n++] = "--model";
    words[n++] = model;
    for (int i = 0; more[i]; i++)
        words[n++] = more[i];
    words[n] = NULL;
    return program_run("", words);
}

static void every_command_says_its_plan_at_info(void **state)
{
    (void)state;
    const char *model = source_path("models/tiny-v41");
    for (int i = 0; i < COMMANDS; i++) {
        static const char *const info[] = {"--kv-ram-bytes", "9000000", "--log-level", "info", NULL};
        static const char *const warn[] = {"--kv-ram-bytes", "9000000", NULL};
        struct ran r = run_with(commands[i], model, info);
        assert_status(&r, 0);
        assert_says(r.err, "quire: info: plan: PAGE pool");
        assert_says(r.err, "quire: info: plan: workspace");
        assert_silent(r.out, "plan:");
        ran_free(&r);
        r = run_with(commands[i], model, warn);
        assert_status(&r, 0);
        assert_silent(r.err, "plan:");
        ran_free(&r);
    }
}

/* The folder holds a config alone: what opens a shard fails in another way. */
static void what_does_not_fit_is_refused_before_the_weights(void **state)
{
    (void)state;
    static const char *const small[] = {"--kv-ram-bytes", "100000", "--max-model-len", "4096", NULL};
    static const char *const enough[] = {"--kv-ram-bytes", "9000000", "--max-model-len", "4096", NULL};
    char *folder = scratch_make();
    const char *link = scratch_path(folder, "config.json");
    assert_int_equal(symlink(source_path("models/tiny-v41/config.json"), link), 0);
    for (int i = 0; i < COMMANDS; i++) {
        struct ran r = run_with(commands[i], folder, small);
        assert_status(&r, 3);
        assert_says(r.err, "E31 ");
        assert_says(r.err, "--kv-ram-bytes 514816 would do, or --max-model-len 128");
        assert_string_equal(r.out, "");
        ran_free(&r);
        r = run_with(commands[i], folder, enough);
        assert_status(&r, 1);
        ran_free(&r);
    }
    scratch_remove(folder);
}

static void the_options_that_the_refusal_names_do_fit(void **state)
{
    (void)state;
    const char *model = source_path("models/tiny-v41");
    static const char *const bytes[] = {"--kv-ram-bytes", "514816", "--max-model-len", "4096", "-n", "1", NULL};
    static const char *const length[] = {"--kv-ram-bytes", "100000", "--max-model-len", "128", "-n", "1", NULL};
    static const char *const longer[] = {"--kv-ram-bytes", "100000", "--max-model-len", "129", "-n", "1", NULL};
    static const char *const seqs[] = {"--kv-ram-bytes", "100000", "--max-num-seqs", "3", NULL};
    struct ran r = run_with(commands[0], model, bytes);
    assert_status(&r, 0);
    ran_free(&r);
    r = run_with(commands[0], model, length);
    assert_status(&r, 0);
    ran_free(&r);
    r = run_with(commands[0], model, longer);
    assert_status(&r, 3);
    ran_free(&r);
    r = run_with(commands[0], model, seqs);
    assert_status(&r, 3);
    assert_says(r.err, "--max-num-seqs 1");
    ran_free(&r);
}

static void pools_beyond_the_memory_of_the_machine_are_refused(void **state)
{
    (void)state;
    static const char *const most[] = {"--kv-ram-bytes", "9000000000000000000", "--max-num-seqs", "65536",
                                       "--kv-cache-dtype", "bf16", "--index-cache-dtype", "fp8", NULL};
    struct ran r = run_with(commands[0], source_path("models/tiny-v41"), most);
    assert_status(&r, 3);
    assert_says(r.err, "E31 pools of ");
    assert_says(r.err, " available; ");
    ran_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_says_its_plan_at_info),
        cmocka_unit_test(what_does_not_fit_is_refused_before_the_weights),
        cmocka_unit_test(the_options_that_the_refusal_names_do_fit),
        cmocka_unit_test(pools_beyond_the_memory_of_the_machine_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
