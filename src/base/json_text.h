/* json_text.h: what yajl lets through and JSON does not. For json.c, and for whoever must tell a lone surrogate from
 * other broken JSON. */
#ifndef QR_BASE_JSON_TEXT_H
#define QR_BASE_JSON_TEXT_H

#include <stddef.h>

/* Looks through raw JSON text for invalid UTF-8, escapes of lone surrogates and control characters that are no JSON
 * white space. NULL when there are none, otherwise what was found, with its byte in *offset. */
const char *json_text_defect(const char *text, size_t size, size_t *offset);

#endif
