#include "engine/draft_choice.h"

#include <string.h>

#include "run/forced.h"
#include "sched/request.h"

static bool is_word(const char *word, const char *wanted) { return word && strcmp(word, wanted) == 0; }

/* ---- the drafter ---- */

static const char *drafter_name(enum qr_drafter d)
{
    return d == QR_DRAFTER_DSPARK ? "dspark" : d == QR_DRAFTER_MTP ? "mtp" : "none";
}

/* The method names one drafter; takes the one that is there, as the default does; wants one at all. */
static bool is_named(const qr_engine_options *o) { return is_word(o->method, "dspark") || is_word(o->method, "mtp"); }
static bool is_automatic(const qr_engine_options *o) { return !o->method || is_word(o->method, "auto"); }
static bool is_wanted(const qr_engine_options *o) { return is_named(o) || is_automatic(o); }

static void check_method(const struct model_plan *plan, const qr_engine_options *o, struct rule_list *broken)
{
    const enum qr_drafter own = plan->config.drafter;
    if (!is_wanted(o) && !is_word(o->method, "none"))
        rule_broken(broken, "E08 method is \"%s\", wanted auto, none, dspark or mtp", o->method);
    if (is_named(o) && !is_word(o->method, drafter_name(own)))
        rule_broken(broken, "E08 method is %s, the checkpoint's drafter is %s", o->method, drafter_name(own));
}

/* ---- how many ---- */

static int32_t choose_width(const struct model_plan *plan, const qr_engine_options *o, struct rule_list *broken)
{
    const int32_t own = plan->draft_width, widest = plan->draft_widest, given = o->draft_width;
    if (given == 0)
        return own;
    if (!is_wanted(o))
        rule_broken(broken, "E08 a draft width of %d without a method of drafting, wanted auto, dspark or mtp", given);
    else if (given < own || given > widest)
        rule_broken(broken, "E08 a draft width of %d, wanted %d to %d, what the checkpoint's drafter can be made to", given, own,
                    widest);
    return given < own ? own : given;
}

static void check_count(const struct model_plan *plan, const qr_engine_options *o, int32_t most, struct rule_list *broken)
{
    const int32_t n = o->num_speculative_tokens;
    if (n > 0 && !is_wanted(o))
        rule_broken(broken, "E08 %d drafts in a step without a method of drafting, wanted auto, dspark or mtp", n);
    if (n < 0 || (is_wanted(o) && plan->config.drafter != QR_DRAFTER_NONE && n > most))
        rule_broken(broken, "E08 %d drafts in a step, wanted 1 to %d, what the checkpoint's drafter makes", n, most);
}

/* ---- how they are drawn and judged ---- */

static void choose_verifier(const qr_engine_options *o, struct draft_choice *c, struct rule_list *broken)
{
    c->verifier = is_word(o->verifier, "ratio")   ? VERIFIER_RATIO
                  : is_word(o->verifier, "block") ? VERIFIER_BLOCK
                                                  : VERIFIER_MATCH;
    if (o->verifier && c->verifier == VERIFIER_MATCH && !is_word(o->verifier, "match"))
        rule_broken(broken, "E08 verifier is \"%s\", wanted match, ratio or block", o->verifier);
    if (c->verifier != VERIFIER_MATCH && !is_wanted(o))
        rule_broken(broken, "E08 verifier is %s without a method of drafting, wanted auto, dspark or mtp", o->verifier);
}

/* Coupled drafts have the noise of the draws that judge them, which the other verifiers must not share; match keeps no
 * law of its drafts. */
static void choose_sampling(const qr_engine_options *o, struct draft_choice *c, struct rule_list *broken)
{
    const bool match = c->verifier == VERIFIER_MATCH;
    const enum draft_sampling own = match ? DRAFT_COUPLED : DRAFT_PROBABILISTIC;
    c->sampling = is_word(o->draft_sampling, "greedy") ? DRAFT_GREEDY : own;
    if (o->draft_sampling && c->sampling != DRAFT_GREEDY && !is_word(o->draft_sampling, match ? "coupled" : "probabilistic"))
        rule_broken(broken, "E08 draft sampling is \"%s\" with verifier %s, wanted %s or greedy", o->draft_sampling,
                    match ? "match" : o->verifier, match ? "coupled" : "probabilistic");
}

static void choose_forced(const struct model_plan *plan, const qr_engine_options *o, int32_t limit, struct draft_choice *c,
                          struct rule_list *broken)
{
    const double length = o->forced_acceptance_length;
    if (length == 0)
        return;
    if (!is_wanted(o) || plan->config.drafter == QR_DRAFTER_NONE)
        rule_broken(broken, "E09 a forced acceptance length of %g without drafts", length);
    else if (!(length >= 1 && length <= limit + 1))
        rule_broken(broken, "E09 a forced acceptance length of %g, wanted 1 to %d", length, limit + 1);
    if (c->verifier != VERIFIER_MATCH)
        rule_broken(broken, "E09 a forced acceptance length of %g with verifier %s, which would judge nothing", length,
                    o->verifier);
    c->forced = length;
    c->least = forced_most(length) > 1 ? forced_most(length) : 1;
}

struct draft_choice draft_choose(const struct model_plan *plan, const qr_engine_options *o, struct rule_list *broken)
{
    const struct draft_choice none = {.drafter = QR_DRAFTER_NONE};
    struct draft_choice c = {.drafter = plan->config.drafter, .rests = is_automatic(o)};
    check_method(plan, o, broken);
    c.width = choose_width(plan, o, broken);
    const int32_t most = c.width < SCHED_MAX_WIDTH ? c.width : SCHED_MAX_WIDTH - 1; /* of a verify span */
    check_count(plan, o, most, broken);
    c.limit = o->num_speculative_tokens > 0 ? o->num_speculative_tokens : most;
    c.least = 1;
    choose_verifier(o, &c, broken);
    choose_sampling(o, &c, broken);
    choose_forced(plan, o, c.limit, &c, broken);
    c.rests &= c.forced == 0;
    const bool drafts = plan->config.drafter != QR_DRAFTER_NONE && (is_automatic(o) || is_word(o->method, drafter_name(c.drafter)));
    return drafts ? c : none;
}
