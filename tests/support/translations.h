/* translations.h: requests of other APIs and the chat requests that they become, for tests. JSON is written with ' for ". */
#ifndef QR_TESTS_TRANSLATIONS_H
#define QR_TESTS_TRANSLATIONS_H

#include "serve/translation.h"
#include "support/support.h"

/* Reads a body into a translation; false: refused. */
typedef bool (*translator)(const struct json *body, struct translation *t, struct refusal *refusal);

struct translated_case {
    const char *name, *body;
    const char *chat;    /* what it becomes, member by member and in this order; NULL: */
    const char *refusal; /* how the refusal's sentence begins */
};
void check_translations(translator read, const struct translated_case *cases, size_t count);

/* Each allocation fails in turn: refused with 500 or read as if nothing had been, and nothing is left. */
void check_translation_faults(translator read, const char *body);

/* The same text with " for '. The caller frees it with qr_free. */
char *quoted(const char *text);

#endif
