/* print_json.h: `--json` makes the standard output one JSON object. */
#ifndef QR_CLI_PRINT_JSON_H
#define QR_CLI_PRINT_JSON_H

#include "base/json.h"

/* Prints what was written, a line of its own, and closes the writer. NULL is a writer that had no memory: QR_NO_MEMORY. */
qr_status print_json(struct json_writer *w, qr_error *err);

#endif
