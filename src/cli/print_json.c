#include "cli/print_json.h"

#include <stdio.h>

#include "base/status.h"

qr_status print_json(struct json_writer *w, qr_error *err)
{
    const char *text;
    size_t length;
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the result");
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK && (fwrite(text, 1, length, stdout) != length || putchar('\n') == EOF))
        st = qr_fail(err, QR_IO, "standard output: cannot be written");
    json_writer_close(w);
    return st;
}
