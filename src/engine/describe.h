/* describe.h: what `quire inspect` says about a folder, as text for people and as one JSON object. Reads headers and
 * plans, no weight. */
#ifndef QR_ENGINE_DESCRIBE_H
#define QR_ENGINE_DESCRIBE_H

#include "cache/budget.h"
#include "checkpoint/checkpoint_check.h"
#include "engine/capture.h"
#include "plan/schema.h"

enum { DIFFERENCES_SHOWN = 20 }; /* of a kind; the rest is counted */

/* How the folder differs from its schema. */
struct differences {
    struct checkpoint_diff diff;
    struct {
        const struct tensor_spec *spec; /* NULL: unexpected */
        const struct tensor_view *view; /* NULL: missing */
    } shown[MISMATCH_KINDS][DIFFERENCES_SHOWN];
    int32_t count[MISMATCH_KINDS]; /* shown */
};

/* Everything that is described; all borrowed. */
struct description {
    const char *dir;
    const struct model_plan *plan;
    const struct checkpoint *checkpoint;
    const struct differences *differences;
    int32_t token_ids;            /* of its tokenizer */
    const char *tokenizer_defect; /* NULL: it is sound */
    const struct geometry *geometry;
    const struct byte_plan *bytes;
    int64_t cache_bytes;         /* given to both pools */
    const struct budget *budget; /* NULL: it does not fit, `refusal` says why */
    const struct capture_sizes *captures;
    const char *refusal;
};

/* Compares the folder with the schema. Fails only without memory. */
qr_status differences_find(const struct checkpoint *ck, const struct schema *schema, struct differences *out,
                           qr_error *err);

/* Payload by element format: how many tensors and bytes, indexed by dtype; [DTYPE_COUNT] is the sum. */
struct format_census {
    int64_t tensors[DTYPE_COUNT + 1], bytes[DTYPE_COUNT + 1];
};
void format_census(const struct checkpoint *ck, struct format_census *out);

/* Words both forms use. */
const char *drafter_title(const struct qr_config *c);  /* "DSpark", "MTP", "none" */
const char *mismatch_title(enum mismatch kind);        /* "missing", "unexpected", "wrong shape", "wrong format" */
/* "builds", "reads" or NULL. */
const char *candidate_role(const struct layer_plan *layer);

void describe_text(const struct description *d, struct buffer *out);
void describe_json(const struct description *d, struct json_writer *w);

#endif
