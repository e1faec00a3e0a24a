#include "engine/modes.h"

#include <string.h>

static const char *const words[] = {[GRAPHS_FULL] = "FULL", [GRAPHS_HYBRID] = "TR_HYBRID", [GRAPHS_NONE] = "NONE"};

static bool graphs_parse(const char *word, enum graph_mode *out)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (enum graph_mode)i;
            return true;
        }
    return false;
}

static void check_together(const struct run_mode *m, bool records, struct rule_list *broken)
{
    if (!records && m->graphs != GRAPHS_NONE)
        rule_broken(broken, "E23 cudagraph-mode is %s: this device records no graphs, wanted NONE", words[m->graphs]);
    if (!records && m->fused)
        rule_broken(broken, "E23 level is 3: this device has no fused segments, wanted 0");
    if (records && m->fused && m->graphs == GRAPHS_HYBRID)
        rule_broken(broken, "E23 level is 3 with cudagraph-mode TR_HYBRID, wanted FULL, or level 0");
}

struct run_mode modes_choose(const qr_engine_options *o, bool records, struct rule_list *broken)
{
    struct run_mode m = {.graphs = records ? GRAPHS_FULL : GRAPHS_NONE};
    if (o->cudagraph_mode && !graphs_parse(o->cudagraph_mode, &m.graphs))
        rule_broken(broken, "E23 cudagraph-mode is \"%s\", wanted FULL, TR_HYBRID or NONE", o->cudagraph_mode);
    if (o->enforce_eager)
        m.graphs = GRAPHS_NONE;
    m.fused = records && m.graphs != GRAPHS_HYBRID;
    if (o->level && strcmp(o->level, "0") != 0 && strcmp(o->level, "3") != 0)
        rule_broken(broken, "E23 level is \"%s\", wanted 0 or 3", o->level);
    else if (o->level)
        m.fused = strcmp(o->level, "3") == 0;
    check_together(&m, records, broken);
    return m;
}
