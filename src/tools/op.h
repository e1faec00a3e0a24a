/* op.h: one operator on the arrays of a file (design/cli.md), for `quire op` and `quire bench op`. */
#ifndef QR_TOOLS_OP_H
#define QR_TOOLS_OP_H

#include "base/status.h"
#include "cli/options.h"

struct op_options {
    const char *name; /* NULL: the one that the file's metadata names */
    const char *in, *out, *device, *against;
    int threads, times, ranks;
    bool check, list, json;
};

/* Runs it, and prints what `check`, `against` and `times` ask for. *passed becomes false where an output is outside the
 * tolerance of the file. */
qr_status op_tool_run(const struct op_options *o, bool *passed, qr_error *err);

/* 0 where `name` is an operator or NULL, else 2 after a sentence that names the nearest one. */
int op_check_name(const struct command_line *line, const char *name);

#endif
