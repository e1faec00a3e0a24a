/* support.h: what the tests share. */
#ifndef QR_TESTS_SUPPORT_H
#define QR_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"

/* The path of a file of the source tree ("tests/golden/..."), from QUIRE_SOURCE or, when unset, the working folder.
 * The result lives until the next call but seven. */
const char *source_path(const char *relative);
/* shared/fixtures/tokenizer-v3/tokenizer.json, or where QUIRE_TOKENIZER points; NULL where it is absent (return 77
 * from main then, after saying so). */
const char *fixture_tokenizer(void);

/* Fails the test with the error's sentence unless the status is QR_OK. */
void must(qr_status st, const qr_error *err);

/* The same of a call that names its error `err`. */
#define MUST(call)                                   \
    do {                                             \
        qr_error must_err_ = {0}, *err = &must_err_; \
        if ((call) != QR_OK)                         \
            fail_msg("%s", must_err_.message);       \
    } while (0)

/* Whether there is a CUDA device; where there is none says so, for a skip that is seen (return 77 from main then). */
bool cuda_device_found(void);

/* The entry of a test that makes allocations fail. Where a build cannot make them fail it is no entry (cmocka passes over
 * one without a name), so that nothing skipped counts as passed. */
#ifdef QR_ALLOC_FAULTS
#define fault_test(test) cmocka_unit_test(test)
#else
#define fault_test(test) {NULL, test, NULL, NULL, NULL}
#endif

#endif
