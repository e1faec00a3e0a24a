#define _GNU_SOURCE
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ops/device.h"

/* A pattern of the names of the tests that a program of several runs. */
static __attribute__((constructor)) void choose_tests(void)
{
    const char *only = getenv("QUIRE_TEST_ONLY");
    if (only)
        cmocka_set_test_filter(only);
}

const char *source_path(const char *relative)
{
    static char paths[8][4096];
    static unsigned turn;
    const char *root = getenv("QUIRE_SOURCE");
    char *p = paths[turn++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", root ? root : ".", relative);
    return p;
}

const char *fixture_tokenizer(void)
{
    const char *path = getenv("QUIRE_TOKENIZER");
    if (!path || !*path)
        path = source_path("../shared/fixtures/tokenizer-v3/tokenizer.json");
    return access(path, R_OK) == 0 ? path : NULL;
}

void must(qr_status st, const qr_error *err)
{
    if (st != QR_OK)
        fail_msg("%s: %s", qr_status_name(st), err->message);
}

bool cuda_device_found(void)
{
    char name[64];
    qr_error err = {0};
    if (backend_name("cuda", name, sizeof name, &err) == QR_OK)
        return true;
    print_message("skipped: %s\n", err.message);
    return false;
}
