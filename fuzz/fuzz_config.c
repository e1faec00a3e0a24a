/* A config.json of any bytes: refused with a sentence, or a config that every later floor may trust: it has a plan, its
 * caches have a geometry or are refused, and its tensors have sizes. */
#include "fuzz.h"

#include "cache/geometry.h"
#include "checkpoint/config.h"
#include "plan/rows.h"
#include "plan/schema.h"

static void check_plan(const struct model_plan *plan)
{
    for (int32_t i = 0; i < plan->layers; i++) {
        const struct layer_plan *l = &plan->layer[i];
        must(l->kv_owner <= i && l->index_owner <= i && (l->kv_owner >= 0) == (l->ratio > 0));
        must(l->n_active <= l->n_experts && l->n_active > 0);
    }
    const struct rows_request request = {.end = 4096, .boundary = -1, .first_logits = 4095, .drafting = true};
    struct row_plan rows;
    rows_exact(plan, &request, &rows);
    must(rows.first >= 0 && rows.first < 4096);
}

static void check_geometry(const struct model_plan *plan)
{
    struct geometry_options options = geometry_defaults(plan);
    struct geometry g;
    struct pool_layout pool;
    qr_error err = {0};
    qr_status st = geometry_make(plan, &options, &g, &err);
    must((st == QR_OK) == (err.message[0] == 0));
    if (st == QR_OK && geometry_pool(&g, 100, 2, &pool, NULL) == QR_OK)
        must(pool.bytes >= 100 * g.unit_bytes + 2 * g.state_bytes && g.image_bytes <= g.state_bytes);
}

/* Only lists of a few thousand tensors: a hostile one may have millions, which is slow and nothing else. */
static void check_schema(const struct qr_config *config)
{
    struct schema *schema;
    if ((config->num_hidden_layers + config->num_draft_layers) * (int64_t)config->n_routed_experts > 100)
        return;
    if (config->dspark_n_routed_experts > 16 || config->vision.num_hidden_layers > 16)
        return;
    must(schema_make(config, &schema, NULL) == QR_OK);
    for (int64_t i = 0; i < schema_count(schema); i++)
        must(schema_tensor_bytes(&schema_tensors(schema)[i]) > 0 || schema_tensors(schema)[i].optional);
    schema_free(schema);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct qr_config config;
    struct model_plan plan;
    qr_error err = {0};
    qr_status st = config_parse((const char *)data, size, "input", &config, &err);
    must((st == QR_OK) == (err.message[0] == 0));
    if (st != QR_OK)
        return 0;
    must(config.vocab_size > 0 && config.hidden_size > 0);
    must(config.num_hidden_layers > 0 && config.num_hidden_layers + config.num_draft_layers <= QR_MAX_LAYERS);
    must(config.n_experts_per_tok <= config.n_routed_experts);
    must(config.n_engram >= 0 && config.n_engram <= QR_MAX_ENGRAM);
    st = plan_make(&config, config.stored_w8a8 ? QR_PROFILE_W8A8 : QR_PROFILE_REFERENCE, &plan, &err);
    if (st != QR_OK) { /* an INT8 folder has rules of its own */
        must(config.stored_w8a8);
        return 0;
    }
    check_plan(&plan);
    check_geometry(&plan);
    check_schema(&config);
    return 0;
}
