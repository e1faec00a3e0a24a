/* rules.h: the admission rules (runtime.md 11) that an engine's options can break, all told at once. Those of config.json
 * are told by checkpoint/config.c and plan/plan.c, those of the cache's planes by cache/geometry.c, E31 by size.c. */
#ifndef QR_ENGINE_RULES_H
#define QR_ENGINE_RULES_H

#include "plan/plan.h"
#include "quire.h"

/* Sentences of broken rules, one after the other. Starts zeroed. */
struct rule_list {
    char text[sizeof((qr_error *)0)->message];
    size_t used;
    int count;
    bool shortened; /* of the last ones only the ids are told */
};
/* `format`: the rule's id, what was found, what is wanted. Of what does not fit only the ids are told. */
void rule_broken(struct rule_list *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Joins a refusal that another module told in one sentence. */
void rules_join(struct rule_list *list, const qr_error *refused);
/* QR_REFUSED with all of them, or QR_OK. */
qr_status rules_told(const struct rule_list *list, qr_error *err);

/* Flags of features that are not built: one table, one rule. Needs no model. */
void rules_features(const qr_engine_options *o, struct rule_list *list);
/* What the rules of an engine's numbers look at beside the model. */
struct rule_facts {
    int32_t block;  /* tokens a PAGE */
    int32_t length; /* tokens of a request; 0: not known yet */
    int32_t rows;   /* of a step, at most */
    int32_t width;  /* rows of a request that decodes, at most */
    bool clamps;    /* backend_clamps_windows */
};
/* E04, E26, E27, E29, E30, E36 and words that are no mode. `o` with its defaults. */
void rules_engine(const struct model_plan *plan, const qr_engine_options *o, const struct rule_facts *facts,
                  struct rule_list *list);

/* What a replay option says; NULL is exact. False: no mode. */
enum replay_mode { REPLAY_MODE_EXACT, REPLAY_MODE_OFF, REPLAY_MODE_BOUNDED };
bool replay_mode_parse(const char *word, enum replay_mode *out);

/* The flags that the table knows, for the command line: name, and what it says of them; false past the last. */
bool rules_feature_flag(int index, const char **name, const char **feature, const char **rule);

#endif
