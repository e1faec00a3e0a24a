/* answer.h: JSON lines in, JSON lines out: one answer line for each line, in order. */
#ifndef QR_TOOLS_ANSWER_H
#define QR_TOOLS_ANSWER_H

#include <stdio.h>

#include "base/json.h"

/* Writes the members of the answer to `line` (an object) into the object that is open in `w`; the member "id" is there
 * already, as it came (null when it came as a list or an object). On failure what was written is dropped and the line
 * becomes {"id", "error"}. */
typedef qr_status (*answer_line)(void *user, const struct json *line, struct json_writer *w, qr_error *err);

/* Answers every line of `in` on `out`, flushing after each. A bad line or a failing answer is an error line and the
 * rest goes on; only an unreadable `in` or an unwritable `out` (or no memory for either) fails. `name` is `in`'s. */
qr_status answer_lines(FILE *in, const char *name, FILE *out, answer_line answer, void *user, qr_error *err);

/* The same with files by name; NULL or "-" is standard input or output. */
qr_status answer_files(const char *in, const char *out, answer_line answer, void *user, qr_error *err);

#endif
