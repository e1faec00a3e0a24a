#include "number/e4m3.h"

#include <math.h>

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
