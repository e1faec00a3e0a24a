#include "checkpoint/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/config_reader.h"

/* A config.json is a few KiB; far above that it is something else. */
enum { CONFIG_FILE_LIMIT = 4 << 20 };
/* No dimension of a model comes near these; they keep every product of two or three of them inside 64 bits and every
 * row count inside 32. */
enum { DIM_LIMIT = 1 << 20, VOCAB_LIMIT = 1 << 24, EXPERT_LIMIT = 4096, POSITION_LIMIT = 1 << 30 };

static bool names_architecture(const struct json *architectures, const char *name)
{
    return architectures && architectures->kind == JSON_ARRAY && json_equals(json_at(architectures, 0), name);
}

/* Whether the file says, in either place, that it is of this family. */
static bool says(const struct json *root, const char *architecture, const char *model_type)
{
    return names_architecture(json_get(root, "architectures"), architecture) ||
           json_equals(json_get(root, "model_type"), model_type);
}

void config_identity(struct config_reader *r, const char *architecture, const char *model_type)
{
    const struct json *list = json_get(r->root, "architectures");
    char room[64];
    if (!config_missing(r, list, "E01", "architectures") && (!names_architecture(list, architecture) || list->count != 1))
        config_problem(r, "E01", "architectures is %s, wanted [\"%s\"]",
                       list->count == 1 ? config_shown(json_at(list, 0), room) : config_shown(list, room), architecture);
    config_must_be_text(r, json_get(r->root, "model_type"), "E01", "model_type", model_type, true);
}

static void unknown_family(struct config_reader *r)
{
    const struct json *list = json_get(r->root, "architectures");
    char a[64], b[64];
    config_problem(r, "E01",
                   "architectures is %s and model_type is %s, wanted DeepseekV41ForCausalLM (deepseek_v41) or "
                   "DeepseekV4ForCausalLM (deepseek_v4): unknown cache topology",
                   config_shown(list && list->count == 1 ? list->child : list, a),
                   config_shown(json_get(r->root, "model_type"), b));
}

void config_rope(struct config_reader *r, struct qr_config *out)
{
    const struct json *object = config_find(r, "rope_scaling", NULL);
    char room[64];
    if (object && object->kind != JSON_OBJECT) {
        config_problem(r, NULL, "rope_scaling is %s, wanted an object", config_shown(object, room));
        return;
    }
    if (object) {
        const struct json *type = json_get(object, "rope_type");
        config_must_be_text(r, type ? type : json_get(object, "type"), NULL, "rope_scaling.rope_type", "yarn", true);
    }
    /* The flat keys of an inference file and the members of the object are the same fields. */
    static const struct {
        const char *member, *flat;
    } keys[4] = {{"factor", "rope_factor"},
                 {"beta_fast", "beta_fast"},
                 {"beta_slow", "beta_slow"},
                 {"original_max_position_embeddings", "original_seq_len"}};
    static const double usual[4] = {1, 32, 1, 1};
    double value[4] = {usual[0], usual[1], usual[2], usual[3]}; /* one that is refused is as if it were not there */
    bool any = object != NULL;
    for (int i = 0; i < 4; i++)
        any = any || config_find(r, keys[i].flat, NULL);
    if (!any)
        config_missing(r, NULL, NULL, "rope_scaling");
    for (int i = 0; any && i < 4; i++) {
        const struct json *a = json_get(object, keys[i].member), *b = config_find(r, keys[i].flat, NULL);
        char x[64], y[64], label[80];
        if (a && b && !config_same(a, b))
            config_problem(r, NULL, "rope_scaling.%s is %s, but %s is %s", keys[i].member, config_shown(a, x),
                           keys[i].flat, config_shown(b, y));
        snprintf(label, sizeof label, "rope_scaling.%s", keys[i].member);
        if (config_missing(r, a ? a : b, NULL, label))
            continue;
        if (!json_double(a ? a : b, &value[i]) || value[i] <= 0 || value[i] > POSITION_LIMIT) {
            config_problem(r, NULL, "%s is %s, wanted a positive number", label, config_shown(a ? a : b, x));
            value[i] = usual[i];
        }
    }
    out->rope_factor = value[0];
    out->rope_beta_fast = value[1];
    out->rope_beta_slow = value[2];
    out->rope_original_positions = (int32_t)value[3];
    if (value[3] != out->rope_original_positions)
        config_problem(r, NULL, "rope_scaling.original_max_position_embeddings is %g, wanted an integer", value[3]);
    config_double(r, "rope_theta", NULL, 1.0000001, 1e18, &out->rope_theta);
    config_double(r, "compress_rope_theta", NULL, 1.0000001, 1e18, &out->compress_rope_theta);
}

static void read_sizes(struct config_reader *r, struct qr_config *c)
{
    config_int(r, "vocab_size", NULL, 1, VOCAB_LIMIT, &c->vocab_size);
    config_int(r, "hidden_size", "dim", 1, DIM_LIMIT, &c->hidden_size);
    config_int(r, "num_hidden_layers", "n_layers", 1, QR_MAX_LAYERS, &c->num_hidden_layers);
    config_int(r, "num_attention_heads", "n_heads", 1, DIM_LIMIT, &c->num_attention_heads);
    config_int(r, "head_dim", NULL, 2, DIM_LIMIT, &c->head_dim);
    config_int(r, "qk_rope_head_dim", "rope_head_dim", 2, DIM_LIMIT, &c->rope_head_dim);
    config_int(r, "q_lora_rank", NULL, 1, DIM_LIMIT, &c->q_lora_rank);
    config_int(r, "o_lora_rank", NULL, 1, DIM_LIMIT, &c->o_lora_rank);
    config_int(r, "o_groups", NULL, 1, DIM_LIMIT, &c->o_groups);
    config_int(r, "moe_intermediate_size", "moe_inter_dim", 1, DIM_LIMIT, &c->moe_intermediate_size);
    config_int(r, "n_routed_experts", NULL, 1, EXPERT_LIMIT, &c->n_routed_experts);
    config_int(r, "num_experts_per_tok", "n_activated_experts", 1, EXPERT_LIMIT, &c->n_experts_per_tok);
    config_int(r, "max_position_embeddings", NULL, 1, POSITION_LIMIT, &c->max_position_embeddings);
    config_int(r, "sliding_window", "window_size", 1, DIM_LIMIT, &c->sliding_window);
    config_must_be_int(r, config_find(r, "num_key_value_heads", NULL), NULL, "num_key_value_heads", 1, false);
    config_must_be_int(r, config_find(r, "n_shared_experts", NULL), NULL, "n_shared_experts", 1, true);
}

static void read_arithmetic(struct config_reader *r, struct qr_config *c)
{
    config_float(r, "swiglu_limit", NULL, 0, 3e38, &c->swiglu_limit);
    if (config_float(r, "rms_norm_eps", "norm_eps", 0, 1, &c->rms_norm_eps) &&
        (c->rms_norm_eps < 1.17549435e-38f || c->rms_norm_eps >= 1))
        config_problem(r, NULL, "rms_norm_eps is %g, wanted a positive normal binary32 number below 1", c->rms_norm_eps);
    if (config_float(r, "routed_scaling_factor", "route_scale", 0, 3e38, &c->routed_scaling_factor) &&
        c->routed_scaling_factor < 1.17549435e-38f)
        config_problem(r, NULL, "routed_scaling_factor is %g, wanted a positive normal binary32 number",
                       c->routed_scaling_factor);
    config_int(r, "hc_mult", NULL, 1, QR_MAX_STREAMS, &c->hc_mult);
    config_int(r, "hc_sinkhorn_iters", NULL, 1, 10000, &c->hc_sinkhorn_iters);
    if (config_float(r, "hc_eps", NULL, 0, 1, &c->hc_eps) && c->hc_eps >= 1)
        config_problem(r, NULL, "hc_eps is %g, wanted a number below 1", c->hc_eps);
    config_must_be_text(r, config_find(r, "hidden_act", NULL), NULL, "hidden_act", "silu", false);
    config_must_be_text(r, config_find(r, "scoring_func", "score_func"), NULL, "scoring_func", "sqrtsoftplus", true);
    config_must_be_text(r, config_find(r, "topk_method", NULL), NULL, "topk_method", "noaux_tc", false);
    config_must_be_bool(r, config_find(r, "attention_bias", NULL), "attention_bias", false);
    config_must_be_bool(r, config_find(r, "tie_word_embeddings", NULL), "tie_word_embeddings", false);
}

static void read_special_tokens(struct config_reader *r, struct qr_config *c)
{
    int64_t last = c->vocab_size > 0 ? c->vocab_size - 1 : VOCAB_LIMIT;
    c->bos_token_id = c->eos_token_id = c->pad_token_id = c->image_token_id = -1;
    config_int_or(r, "bos_token_id", NULL, 0, last, &c->bos_token_id);
    config_int_or(r, "pad_token_id", NULL, 0, last, &c->pad_token_id);
    config_int_or(r, "image_token_id", NULL, 0, last, &c->image_token_id);
    const struct json *eos = config_find(r, "eos_token_id", NULL);
    if (eos && eos->kind == JSON_ARRAY) { /* several: the first ends a turn, generation_config.json names them all */
        int32_t ids[QR_MAX_LAYERS], n = 0;
        if (config_ints(r, "eos_token_id", NULL, 0, last, QR_MAX_LAYERS, ids, &n) && n > 0)
            c->eos_token_id = ids[0];
    } else {
        config_int_or(r, "eos_token_id", NULL, 0, last, &c->eos_token_id);
    }
}

void config_common(struct config_reader *r, struct qr_config *c)
{
    read_sizes(r, c);
    read_arithmetic(r, c);
    read_special_tokens(r, c);
    config_rope(r, c);
    if (c->n_experts_per_tok > c->n_routed_experts)
        config_rule(r, NULL, "num_experts_per_tok is %d, wanted at most n_routed_experts %d",
                    (int)c->n_experts_per_tok, (int)c->n_routed_experts);
    if (c->sliding_window > c->max_position_embeddings)
        config_rule(r, NULL, "sliding_window is %d, wanted at most max_position_embeddings %d", (int)c->sliding_window,
                    (int)c->max_position_embeddings);
    if (c->rope_beta_fast > 0 && c->rope_beta_fast <= c->rope_beta_slow)
        config_rule(r, NULL, "rope_scaling.beta_fast is %g, wanted more than beta_slow %g", c->rope_beta_fast,
                    c->rope_beta_slow);
    if (c->o_groups > 0 && c->num_attention_heads % c->o_groups)
        config_rule(r, NULL, "num_attention_heads is %d, wanted a multiple of o_groups %d",
                    (int)c->num_attention_heads, (int)c->o_groups);
    if (c->rope_head_dim % 2 || c->rope_head_dim > c->head_dim)
        config_rule(r, NULL, "qk_rope_head_dim is %d, wanted an even number of at most head_dim %d",
                    (int)c->rope_head_dim, (int)c->head_dim);
    if ((int64_t)c->num_attention_heads * c->head_dim > DIM_LIMIT * 16)
        config_rule(r, NULL, "num_attention_heads %d times head_dim %d is more than %d",
                    (int)c->num_attention_heads, (int)c->head_dim, DIM_LIMIT * 16);
}

qr_status config_parse(const char *json, size_t size, const char *name, struct qr_config *out, qr_error *err)
{
    struct json_document *doc;
    struct config_reader r;
    qr_status st = json_parse(json, size, name, true, &doc, err);
    if (st != QR_OK)
        return st;
    memset(out, 0, sizeof *out);
    out->candidate_source_layer = -1;
    config_reader_open(&r, name, json_root(doc));
    if (json_root(doc)->kind != JSON_OBJECT)
        config_problem(&r, NULL, "the file holds no JSON object");
    else if (says(json_root(doc), "DeepseekV41ForCausalLM", "deepseek_v41"))
        config_read_v41(&r, out);
    else if (says(json_root(doc), "DeepseekV4ForCausalLM", "deepseek_v4"))
        config_read_v4(&r, out);
    else
        unknown_family(&r);
    st = config_verdict(&r, err);
    json_close(doc);
    return st;
}

const char *config_profile_name(enum qr_profile profile) { return profile == QR_PROFILE_W8A8 ? "w8a8" : "reference"; }

enum qr_profile config_profile(const struct qr_config *config, const char *name)
{
    const bool w8a8 = name ? strcmp(name, config_profile_name(QR_PROFILE_W8A8)) == 0 : config->stored_w8a8;
    return w8a8 ? QR_PROFILE_W8A8 : QR_PROFILE_REFERENCE;
}

const char *config_family_title(const struct qr_config *config)
{
    return config->family == QR_FAMILY_V41 ? "DeepSeek-V4.1" : "DeepSeek-V4";
}

qr_status config_read(const char *path, struct qr_config *out, qr_error *err)
{
    char *text = NULL;
    size_t size;
    qr_status st = file_read(path, CONFIG_FILE_LIMIT, &text, &size, err);
    if (st == QR_OK)
        st = config_parse(text, size, path, out, err);
    qr_free(text);
    return st;
}
