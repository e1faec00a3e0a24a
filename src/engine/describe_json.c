#include "engine/describe.h"

/* Members that point at another layer are null where there is none. */
static void put_layer_of(struct json_writer *w, const char *key, int32_t layer)
{
    if (layer >= 0)
        json_w_member_int(w, key, layer);
    else
        json_w_member_null(w, key);
}

static void put_model(const struct description *d, struct json_writer *w)
{
    const struct qr_config *c = &d->plan->config;
    json_w_member_string(w, "family", config_family_title(c));
    json_w_member_string(w, "path", d->dir);
    json_w_member_string(w, "profile", config_profile_name(d->plan->profile));
    json_w_member_string(w, "expert_format",
               c->stored_w8a8 ? "int8" : c->expert_format == QR_EXPERT_FP8 ? "fp8" : "fp4");
    json_w_member_int(w, "num_hidden_layers", c->num_hidden_layers);
    json_w_member_int(w, "hidden_size", c->hidden_size);
    json_w_member_int(w, "num_attention_heads", c->num_attention_heads);
    json_w_member_int(w, "head_dim", c->head_dim);
    json_w_member_int(w, "vocab_size", c->vocab_size);
    json_w_member_int(w, "max_position_embeddings", c->max_position_embeddings);
    json_w_member_bool(w, "vision", c->has_vision);
    json_w_key(w, "drafter");
    json_w_object(w);
    json_w_member_string(w, "kind", drafter_title(c));
    json_w_member_int(w, "layers", c->num_draft_layers);
    json_w_member_int(w, "block", c->drafter == QR_DRAFTER_DSPARK ? c->dspark_block_size : c->drafter == QR_DRAFTER_MTP);
    json_w_end_object(w);
}

static void put_layer(const struct model_plan *plan, int32_t i, struct json_writer *w)
{
    const struct layer_plan *l = &plan->layer[i];
    json_w_object(w);
    json_w_member_int(w, "layer", i);
    json_w_member_bool(w, "draft", i >= plan->layers);
    json_w_member_string(w, "kind", attend_name(l->attend));
    json_w_member_int(w, "ratio", l->ratio);
    put_layer_of(w, "rows_of", l->kv_owner);
    put_layer_of(w, "selection_of", l->index_owner);
    json_w_member_string(w, "candidates", candidate_role(l));
    json_w_member_string(w, "rope", l->rope == ROPE_MAIN ? "main" : "compress");
    json_w_member_string(w, "router", l->router == ROUTER_HASH ? "hash" : "score");
    json_w_member_int(w, "experts", l->n_experts);
    json_w_member_int(w, "experts_per_token", l->n_active);
    json_w_member_bool(w, "engram", l->engram >= 0);
    json_w_member_bool(w, "tap", l->tap >= 0);
    json_w_end_object(w);
}

static void put_difference(const struct differences *d, enum mismatch kind, struct json_writer *w)
{
    static const char *const keys[MISMATCH_KINDS] = {[MISMATCH_MISSING] = "missing",
                                                     [MISMATCH_UNEXPECTED] = "unexpected",
                                                     [MISMATCH_SHAPE] = "wrong_shape",
                                                     [MISMATCH_DTYPE] = "wrong_format"};
    json_w_key(w, keys[kind]);
    json_w_object(w);
    json_w_member_int(w, "count", d->diff.count[kind]);
    json_w_key(w, "names");
    json_w_array(w);
    for (int32_t i = 0; i < d->count[kind]; i++)
        json_w_string(w, d->shown[kind][i].spec ? d->shown[kind][i].spec->name : d->shown[kind][i].view->name);
    json_w_end_array(w);
    json_w_end_object(w);
}

static void put_tensors(const struct description *d, struct json_writer *w)
{
    struct format_census n;
    format_census(d->checkpoint, &n);
    json_w_object(w);
    json_w_member_int(w, "count", n.tensors[DTYPE_COUNT]);
    json_w_member_int(w, "bytes", n.bytes[DTYPE_COUNT]);
    json_w_member_int(w, "files", checkpoint_shards(d->checkpoint));
    json_w_key(w, "by_format");
    json_w_object(w);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        if (n.tensors[t] == 0)
            continue;
        json_w_key(w, dtype_name((enum dtype)t));
        json_w_object(w);
        json_w_member_int(w, "count", n.tensors[t]);
        json_w_member_int(w, "bytes", n.bytes[t]);
        json_w_end_object(w);
    }
    json_w_end_object(w);
    for (int kind = 0; kind < MISMATCH_KINDS; kind++)
        put_difference(d->differences, (enum mismatch)kind, w);
    json_w_end_object(w);
}

static void put_tokenizer(const struct description *d, struct json_writer *w)
{
    json_w_object(w);
    json_w_member_bool(w, "sound", d->tokenizer_defect == NULL);
    if (d->tokenizer_defect)
        json_w_member_string(w, "defect", d->tokenizer_defect);
    else
        json_w_member_int(w, "ids", d->token_ids);
    json_w_end_object(w);
}

static void put_cache(const struct description *d, struct json_writer *w)
{
    const struct geometry *g = d->geometry;
    json_w_object(w);
    json_w_member_int(w, "bytes", d->cache_bytes);
    json_w_member_int(w, "block_tokens", g->options.block_tokens);
    json_w_member_int(w, "block_bytes", g->unit_bytes);
    json_w_member_int(w, "state_bytes", g->state_bytes);
    json_w_member_int(w, "image_bytes", g->image_bytes);
    json_w_member_string(w, "kv_cache_dtype", row_format_name(g->options.main_format));
    json_w_member_string(w, "index_cache_dtype", row_format_name(g->options.index_format));
    json_w_member_string(w, "layout", g->state_layout);
    json_w_member_bool(w, "fits", d->budget != NULL);
    if (d->budget) {
        json_w_member_int(w, "max_model_len", d->budget->max_model_len);
        json_w_member_int(w, "blocks", d->budget->blocks);
        json_w_member_int(w, "slots", d->budget->slots);
    } else {
        json_w_member_string(w, "refusal", d->refusal);
    }
    json_w_end_object(w);
}

void describe_json(const struct description *d, struct json_writer *w)
{
    json_w_object(w);
    put_model(d, w);
    json_w_key(w, "layers");
    json_w_array(w);
    for (int32_t i = 0; i < d->plan->layers + d->plan->draft_layers; i++)
        put_layer(d->plan, i, w);
    json_w_end_array(w);
    json_w_key(w, "tensors");
    put_tensors(d, w);
    json_w_key(w, "tokenizer");
    put_tokenizer(d, w);
    json_w_key(w, "bytes");
    byte_plan_json(d->bytes, w);
    json_w_key(w, "cache");
    put_cache(d, w);
    json_w_end_object(w);
}
