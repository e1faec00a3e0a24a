/* custom_input.h: the text of a free-form call. The model writes it as the one string of a function's arguments; a client wants
 * it raw, while it arrives. */
#ifndef QR_SERVE_CUSTOM_INPUT_H
#define QR_SERVE_CUSTOM_INPUT_H

#include <stdint.h>

#include "base/buffer.h"

enum custom_state { CUSTOM_START, CUSTOM_TEXT, CUSTOM_ESCAPE, CUSTOM_HEX, CUSTOM_OVER, CUSTOM_OTHER };

/* Zero-initialise; buffer_free(&text). */
struct custom_input {
    struct buffer text;      /* what has come of it */
    enum custom_state state; /* OTHER: the arguments do not begin with the string "input" */
    size_t matched;          /* of the arguments' beginning */
    uint32_t unit, high;     /* of an escape in progress; the first half of a pair, or 0 */
    int digits;
};

/* Takes the next piece of the arguments' JSON and appends what it says to `text`, never a part of a character. */
void custom_input_push(struct custom_input *c, const char *json, size_t length);

/* The text of all arguments, whole or cut: the string "input", else the JSON itself. */
void custom_input_of(const char *json, size_t length, struct buffer *out);

#endif
