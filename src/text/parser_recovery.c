#include "text/parser_recovery.h"

#include <string.h>

struct spelling {
    const char *text;
    int bracket; /* it stands behind; 0: either */
    bool bare;   /* counts within a bare call only */
};

static const char ascii_token[] = "|DSML|";
static const char call_opener[] = "invoke name=\"";

static const struct spelling spellings[] = {
    {ascii_token, 0, false}, {call_opener, 1, false}, {"parameter name=\"", 1, true},
    {"parameter>", 2, true}, {"invoke>", 2, true},    {"tool_calls>", 2, true},
    {"calls>", 2, true},
};

/* The spelling that the held text is; NULL with *begun set when it is the start of one. */
static const struct spelling *find(const struct recovery *r, bool *begun)
{
    *begun = false;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        const struct spelling *s = &spellings[i];
        size_t full = strlen(s->text);
        if ((s->bracket && s->bracket != r->bracket) || (s->bare && !r->bare) || r->length > full ||
            memcmp(s->text, r->held, r->length) != 0)
            continue;
        if (r->length == full)
            return s;
        *begun = true;
    }
    return NULL;
}

static void follow(struct recovery *r, char byte)
{
    if (byte == '<')
        r->bracket = 1;
    else
        r->bracket = byte == '/' && r->bracket == 1 ? 2 : 0;
}

void recovery_flush(struct recovery *r, struct recovered *out)
{
    *out = (struct recovered){.pass = r->held, .length = r->length};
    r->length = 0;
    r->bracket = 0;
}

void recovery_step(struct recovery *r, char byte, struct recovered *out)
{
    bool begun = false;
    const struct spelling *s = NULL;
    r->held[r->length++] = byte;
    if (r->bracket)
        s = find(r, &begun);
    *out = (struct recovered){.pass = r->held};
    if (begun)
        return;
    if (s) {
        out->token = true;
        out->length = s->text == ascii_token ? 0 : r->length;
        r->bare |= s->text == call_opener;
        r->bracket = 0;
    } else {
        out->length = r->length;
        bool behind = r->length > 1; /* the bytes before this one end what the bracket began */
        if (behind)
            r->bracket = 0;
        follow(r, byte);
    }
    r->length = 0;
}
