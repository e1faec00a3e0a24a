/* scratch.h: a folder of its own for a test that writes files. */
#ifndef QR_TESTS_SCRATCH_H
#define QR_TESTS_SCRATCH_H

#include <stddef.h>

/* A fresh empty folder in the working folder of the test, by its absolute path; fails the test when it cannot be made.
 * scratch_remove deletes it with everything in it and frees the string. */
char *scratch_make(void);
void scratch_remove(char *dir);

/* One for a whole group of tests: hand these to cmocka_run_group_tests. `scratch` lives from one to the other. */
extern char *scratch;
int scratch_begin(void **state);
int scratch_end(void **state);

/* "dir/name"; the result lives until the next call but seven. */
const char *scratch_path(const char *dir, const char *name);
/* Writes a file there (or anywhere); fails the test when it cannot. */
void scratch_write(const char *path, const void *data, size_t size);

#endif
