#include "number/e4m3.h"

#include <math.h>
#include <stdbool.h>

/* The codes of one exponent but the last: mantissas `first` .. `first` + 6 in units of `unit`. */
#define SEVEN(first, unit)                                                                                            \
    (first) * (unit), ((first) + 1) * (unit), ((first) + 2) * (unit), ((first) + 3) * (unit), ((first) + 4) * (unit), \
        ((first) + 5) * (unit), ((first) + 6) * (unit)
#define ROW(sign, first, unit) SEVEN((first), (sign) * (unit)), ((first) + 7) * ((sign) * (unit))
#define HALF(sign)                                                                                              \
    ROW(sign, 0.0f, 0x1p-9f), ROW(sign, 8.0f, 0x1p-9f), ROW(sign, 8.0f, 0x1p-8f), ROW(sign, 8.0f, 0x1p-7f),     \
        ROW(sign, 8.0f, 0x1p-6f), ROW(sign, 8.0f, 0x1p-5f), ROW(sign, 8.0f, 0x1p-4f), ROW(sign, 8.0f, 0x1p-3f), \
        ROW(sign, 8.0f, 0x1p-2f), ROW(sign, 8.0f, 0x1p-1f), ROW(sign, 8.0f, 0x1p0f), ROW(sign, 8.0f, 0x1p1f),   \
        ROW(sign, 8.0f, 0x1p2f), ROW(sign, 8.0f, 0x1p3f), ROW(sign, 8.0f, 0x1p4f), SEVEN(8.0f, (sign)*0x1p5f)

const float e4m3_values[256] = {HALF(1.0f), NAN, HALF(-1.0f), NAN};

/* Whether a run of codes holds a NaN; a plain loop over few bytes is what a compiler makes wide. */
enum { CODES_AT_ONCE = 256 };
static bool has_nan(const uint8_t *codes)
{
    uint8_t hit = 0;
    for (int i = 0; i < CODES_AT_ONCE; i++)
        hit |= (codes[i] & 0x7F) == 0x7F;
    return hit;
}

int64_t e4m3_first_nan(const uint8_t *codes, int64_t first, int64_t end)
{
    while (first + CODES_AT_ONCE <= end && !has_nan(codes + first))
        first += CODES_AT_ONCE;
    for (int64_t i = first; i < end; i++)
        if ((codes[i] & 0x7F) == 0x7F)
            return i;
    return -1;
}
