#include "run/forced.h"

#include <math.h>

#include "number/philox.h"

int32_t forced_most(double length) { return (int32_t)ceil(length - 1); }

int32_t forced_accepted(double length, uint64_t seed, int64_t first)
{
    const int32_t whole = (int32_t)floor(length - 1);
    const double rest = length - 1 - whole;
    const struct keyed_stream stream = {.seed = seed, .position = first + whole, .tag = STREAM_ACCEPT};
    return whole + (stream_uniform(stream_word(&stream, 0)) < rest);
}
