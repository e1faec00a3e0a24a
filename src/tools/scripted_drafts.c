#include "tools/scripted_drafts.h"

#include <string.h>

#include "engine/engine.h"

static uint32_t any(struct scripted_drafts *s, uint32_t below)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(s->random >> 33) % below;
}

static struct script_line *find(struct scripted_drafts *s, const struct sched_request *r)
{
    for (int32_t i = 0; i < s->lines; i++)
        if (r->count <= s->line[i].count &&
            memcmp(r->tokens, s->line[i].tokens, (size_t)r->count * sizeof *r->tokens) == 0)
            return &s->line[i];
    return NULL;
}

/* Whether the drafts that were asked for last came out as they were meant to: others ran where it was preempted. */
static void note(struct scripted_drafts *s, struct script_line *line, const struct sched_request *r)
{
    if (line->right >= 0 && r->count == line->asked + line->right + 1) {
        s->seen[(line->asked - 1) % s->period][line->right] = true;
        s->steps++;
    }
    line->right = -1;
}

/* How many of the drafts behind `count` tokens shall be right. */
static int32_t choose(struct scripted_drafts *s, int32_t count)
{
    const bool *seen = s->seen[(count - 1) % s->period];
    switch (s->mode) {
    case SCRIPT_EVERY:
        for (int32_t right = 0; right <= s->limit; right++)
            if (!seen[right])
                return right;
        return (int32_t)any(s, (uint32_t)s->limit + 1);
    case SCRIPT_RIGHT:
        return s->limit;
    case SCRIPT_WRONG_AT:
        return s->wrong_at;
    case SCRIPT_RANDOM:
    case SCRIPT_OWN:
        break;
    }
    return 0;
}

/* Any tokens: of no line. */
static int32_t replace_by_any(struct scripted_drafts *s, int32_t *drafts, int32_t made)
{
    for (int32_t i = 0; i < made; i++)
        drafts[i] = (int32_t)any(s, (uint32_t)s->vocab);
    return made;
}

static int32_t replace(void *user, const struct sched_request *r, int32_t *drafts, int32_t count, int32_t limit)
{
    struct scripted_drafts *s = user;
    if (s->mode == SCRIPT_RANDOM)
        return replace_by_any(s, drafts, s->ragged ? (int32_t)any(s, (uint32_t)limit + 1) : limit);
    struct script_line *line = find(s, r);
    if (s->mode == SCRIPT_OWN || !line)
        return count;
    note(s, line, r);
    const int32_t right = choose(s, r->count), made = s->ragged ? (int32_t)any(s, (uint32_t)limit + 1) : limit;
    bool as_meant = made >= right;
    for (int32_t i = 0; i < made; i++) {
        const int32_t at = r->count + i, truth = at < line->count ? line->tokens[at] : 0;
        const bool wrong = s->mode == SCRIPT_WRONG_AT ? i == right : i >= right;
        as_meant &= at < line->count;
        drafts[i] = wrong ? (truth + 1 + i) % s->vocab : truth;
    }
    line->asked = r->count;
    line->right = as_meant ? right : -1;
    return made;
}

void script_install(struct scripted_drafts *s, qr_engine *engine)
{
    const struct draft_hook hook = {.replace = replace, .user = s};
    speculation_hook(engine->speculation, &hook);
}

void script_tell(struct scripted_drafts *s, const int32_t *tokens, int32_t count)
{
    if (s->lines < SCRIPT_LINES)
        s->line[s->lines++] = (struct script_line){.tokens = tokens, .count = count, .right = -1};
}

int32_t script_missing(const struct scripted_drafts *s)
{
    int32_t missing = 0;
    for (int32_t parity = 0; parity < s->period; parity++)
        for (int32_t right = 0; right <= s->limit; right++)
            missing += !s->seen[parity][right];
    return missing;
}
