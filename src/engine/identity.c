#include "engine/identity.h"

#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/engine.h"

enum { SAMPLES = 64, SAMPLE_BYTES = 4096, K_SPLITS_VERSION = 1 };

static void add(XXH3_state_t *state, const void *data, size_t bytes) { XXH3_128bits_update(state, data, bytes); }

void model_fingerprint(const struct checkpoint *ck, uint64_t out[2])
{
    XXH3_state_t state;
    const int64_t count = checkpoint_count(ck), every = count / SAMPLES + 1;
    XXH3_128bits_reset(&state);
    for (int64_t i = 0; i < count; i++) {
        const struct tensor_view *t = checkpoint_at(ck, i);
        const int32_t facts[2] = {(int32_t)t->dtype, t->rank};
        add(&state, t->name, strlen(t->name) + 1);
        add(&state, facts, sizeof facts);
        add(&state, t->shape, (size_t)t->rank * sizeof *t->shape);
        if (i % every == 0 && t->data)
            add(&state, t->data, t->bytes < SAMPLE_BYTES ? (size_t)t->bytes : SAMPLE_BYTES);
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(&state);
    out[0] = hash.high64;
    out[1] = hash.low64;
}

void engine_identity(const struct qr_engine *engine, char out[ENGINE_IDENTITY])
{
    const struct qr_model *model = engine->model;
    /* index queries have one grid; another one is another model (runtime.md 3.6) */
    snprintf(out, ENGINE_IDENTITY, "%s model=%016llx%016llx profile=%s grid=fp4 path=%s splits=%d", engine->geometry.page_layout,
             (unsigned long long)engine->weights[0], (unsigned long long)engine->weights[1],
             config_profile_name(model->plan.profile), engine->backend->name, K_SPLITS_VERSION);
}
