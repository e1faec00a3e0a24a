#define _GNU_SOURCE
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "support/scratch.h"

static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = scratch_make();
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static void assert_holds(const char *path, const char *wanted)
{
    char *text;
    size_t size;
    assert_int_equal(file_read(path, 1000, &text, &size, NULL), QR_OK);
    assert_string_equal(text, wanted);
    qr_free(text);
}

static void what_is_written_atomically_is_read_back(void **state)
{
    const char *path = scratch_path(folder, "written");
    (void)state;
    assert_int_equal(file_write_atomic(path, "old", 3, NULL), QR_OK);
    assert_int_equal(file_write_atomic(path, "fresh", 5, NULL), QR_OK);
    assert_holds(path, "fresh");
}

static void a_pipe_that_nobody_writes_to_is_refused_not_waited_for(void **state)
{
    const char *path = scratch_path(folder, "pipe");
    struct mapped_file file;
    qr_error err = {0};
    char *text;
    size_t size;
    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_map(path, &file, &err), QR_BAD_FILE);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(file_read(path, 1000, &text, &size, &err), QR_BAD_FILE);
}

/* A rename over a device would leave a regular file in its place. */
static void what_is_no_regular_file_is_never_replaced(void **state)
{
    const char *path = scratch_path(folder, "device"), *below = scratch_path(folder, "below");
    qr_error err = {0};
    struct stat st;
    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_write_atomic(path, "x", 1, &err), QR_IO);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(mkdir(below, 0700), 0);
    assert_int_equal(file_write_atomic(below, "x", 1, &err), QR_IO);
    assert_int_equal(file_write_atomic("", "x", 1, &err), QR_IO);
}

static void a_link_stays_and_the_file_behind_it_is_written(void **state)
{
    const char *target = scratch_path(folder, "target"), *link_to = scratch_path(folder, "link");
    const char *to_device = scratch_path(folder, "link-to-device"), *loop = scratch_path(folder, "loop");
    char *here = realpath(folder, NULL), absolute[4096];
    qr_error err = {0};
    struct stat st;
    (void)state;
    snprintf(absolute, sizeof absolute, "%s/target", here);
    scratch_write(target, "old", 3);
    assert_int_equal(symlink(absolute, link_to), 0);
    assert_int_equal(file_write_atomic(link_to, "fresh", 5, NULL), QR_OK);
    assert_holds(target, "fresh");
    assert_int_equal(lstat(link_to, &st), 0);
    assert_true(S_ISLNK(st.st_mode));

    assert_int_equal(symlink("/dev/null", to_device), 0);
    assert_int_equal(file_write_atomic(to_device, "x", 1, &err), QR_IO);
    assert_int_equal(symlink("loop", loop), 0);
    assert_int_equal(file_write_atomic(loop, "x", 1, &err), QR_IO);
    free(here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_atomically_is_read_back),
        cmocka_unit_test(a_pipe_that_nobody_writes_to_is_refused_not_waited_for),
        cmocka_unit_test(what_is_no_regular_file_is_never_replaced),
        cmocka_unit_test(a_link_stays_and_the_file_behind_it_is_written),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
