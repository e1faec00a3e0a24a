/* plural.h: "1 token", "2 tokens". */
#ifndef QR_CLI_PLURAL_H
#define QR_CLI_PLURAL_H

#include <stdint.h>

/* What a noun ends with behind the number. */
static inline const char *plural(int64_t number) { return number == 1 ? "" : "s"; }

#endif
