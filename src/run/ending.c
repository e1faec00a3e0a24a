#include "run/ending.h"

static bool contains(const int32_t *ids, int32_t count, int32_t id)
{
    for (int32_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

bool ending_bans_stops(const struct ending *e, int32_t made) { return made < e->min_tokens; }

bool ending_hears_strings(const struct ending *e, int32_t made) { return made >= e->min_tokens; }

enum ended ending_after(const struct ending *e, int32_t token, int32_t made)
{
    if (!ending_bans_stops(e, made - 1)) {
        if (!e->ignore_eos && contains(e->eos, e->eos_count, token))
            return ENDED_EOS;
        if (contains(e->stop_tokens, e->stop_token_count, token))
            return ENDED_STOP_TOKEN;
    }
    return made >= e->max_tokens ? ENDED_LENGTH : ENDED_NOT;
}

int32_t ending_cut(const struct ending *e, const int32_t *tokens, int32_t n, int32_t made, enum ended *ended)
{
    *ended = ENDED_NOT;
    for (int32_t i = 0; i < n; i++)
        if ((*ended = ending_after(e, tokens[i], made + i + 1)) != ENDED_NOT)
            return i + 1;
    return n;
}
