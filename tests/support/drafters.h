/* drafters.h: small models of random weights with a drafter of each kind, behind engines. */
#ifndef QR_TESTS_DRAFTERS_H
#define QR_TESTS_DRAFTERS_H

#include "support/engines.h"

enum { DRAFTERS = 3 };
/* Makes their folders, and removes them; for cmocka's groups. */
int drafters_make(void **state);
int drafters_remove(void **state);
/* "V4.1", "V4" (both DSpark) or "MTP", and the folder. */
const char *drafter_name(int which);
const char *drafter_folder(int which);
/* The tokens that the tokenizer has no text for, and special ones: to be banned. */
const int32_t *drafter_silent(int which, size_t *count);
/* Eight requests at once, of 128 tokens, with that verifier and way of drafting; `verifier` NULL: without drafts. */
struct opened drafter_open(int which, const char *verifier, const char *sampling);

#endif
