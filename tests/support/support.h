/* support.h: what the tests share. */
#ifndef QR_TESTS_SUPPORT_H
#define QR_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The path of a file of the source tree ("tests/golden/..."), from QUIRE_SOURCE or, when unset, the working folder.
 * The result lives until the next call but seven. */
const char *source_path(const char *relative);
/* shared/fixtures/tokenizer-v3/tokenizer.json, or where QUIRE_TOKENIZER points; NULL where it is absent (return 77
 * from main then, after saying so). */
const char *fixture_tokenizer(void);

#endif
