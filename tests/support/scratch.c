#define _GNU_SOURCE
#include "support/scratch.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

char *scratch;

char *scratch_make(void)
{
    char name[] = "scratch.XXXXXX";
    assert_non_null(mkdtemp(name));
    char *dir = realpath(name, NULL);
    assert_non_null(dir);
    return dir;
}

int scratch_begin(void **state)
{
    (void)state;
    scratch = scratch_make();
    return 0;
}

int scratch_end(void **state)
{
    (void)state;
    scratch_remove(scratch);
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void scratch_remove(char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(dir);
}

const char *scratch_path(const char *dir, const char *name)
{
    static char paths[8][4096];
    static unsigned turn;
    char *p = paths[turn++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

void scratch_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}
