/* draft_schedule.h: whether an engine may choose how many drafts it verifies by confidence: by a profile that is its own
 * (speculation.md 6.5, E10). */
#ifndef QR_ENGINE_DRAFT_SCHEDULE_H
#define QR_ENGINE_DRAFT_SCHEDULE_H

#include "engine/draft_profile.h"
#include "engine/rules.h"

struct engine_place;
struct engine_size;

/* What a profile of an engine of that size is of, the two files left out. */
struct draft_place draft_place_of(const struct model_plan *plan, const struct engine_place *place, const struct engine_size *size);
/* Fills them in: config.json and the index of the weights, where there is one. */
qr_status draft_place_hash(const char *dir, struct draft_place *out, qr_error *err);

/* Reads the profile that the options name into size->drafts; what is wrong with it is added to the list. */
qr_status draft_schedule(const struct model_plan *plan, const struct engine_place *place, struct engine_size *size,
                         struct rule_list *broken, qr_error *err);
/* Once the folder is there: QR_REFUSED (E10) when the profile is of another one. */
qr_status draft_schedule_check(const char *dir, const struct engine_size *size, qr_error *err);

#endif
