#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/op_harness.h"

static const struct op_harness *const families[] = {
    op_streams_harnesses, op_projection_harnesses, op_compressor_harnesses, op_indexer_harnesses, op_attention_harnesses,
    op_expert_harnesses,  op_exchange_harnesses,   op_head_harnesses,       op_prepare_harnesses, op_number_harnesses,  op_pack_harnesses,
    op_layer_harnesses,   op_mtp_harnesses,        op_forward_harnesses,
    op_dspark_harnesses,  op_drafter_harnesses,
};
enum { FAMILIES = sizeof families / sizeof *families };

/* The `nth` harness among those of the next number at or above `least`, in the order of the families. */
static const struct op_harness *by_number(int32_t index)
{
    for (int32_t number = 0; number < 64; number++)
        for (int f = 0; f < FAMILIES; f++)
            for (const struct op_harness *h = families[f]; h->name; h++)
                if (h->number == number && index-- == 0)
                    return h;
    return NULL;
}

const struct op_harness *op_harness_at(int32_t index) { return by_number(index); }

const struct op_harness *op_harness_find(const char *name)
{
    const struct op_harness *best = NULL;
    for (int f = 0; f < FAMILIES; f++)
        for (const struct op_harness *h = families[f]; h->name; h++) {
            size_t n = strlen(h->name);
            if (strncmp(h->name, name, n) == 0 && (!name[n] || name[n] == '_') && (!best || n > strlen(best->name)))
                best = h;
        }
    return best;
}

qr_status op_refuse(qr_error *err, enum refusal why, const char *format, ...)
{
    static const char *const names[] = {"bad token", "bad position", "bad shape",      "bad table",      "bad world",
                                        "bad slot",  "stale slot",   "bad checkpoint", "numeric failure"};
    char text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return qr_fail(err, why == NUMERIC_FAILURE ? QR_NUMERIC : QR_BAD_REQUEST, "%s: %s", names[why], text);
}
