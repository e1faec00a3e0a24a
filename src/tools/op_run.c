#include "tools/op_run.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "model/weights.h"
#include "tools/op_fields.h"

/* ---- memory ---- */

qr_status op_host_new(struct op_run *r, int64_t bytes, void *pointer, qr_error *err)
{
    void *p = bytes >= 0 ? arena_alloc(&r->arena, (size_t)bytes + 1) : NULL;
    memcpy(pointer, &p, sizeof p);
    return p ? QR_OK : qr_fail(err, QR_NO_MEMORY, "%s: no memory for %lld bytes", r->harness->name, (long long)bytes);
}

static qr_status fresh_buffer(struct op_run *r, int64_t bytes, void **out, qr_error *err)
{
    if (!array_grow(&r->buffers, &r->buffer_capacity, r->buffer_count, sizeof *r->buffers))
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its list of buffers", r->harness->name);
    TRY(r->backend->allocate(r->backend, bytes, out, err));
    r->buffers[r->buffer_count++] = *out;
    return QR_OK;
}

qr_status op_buffer(struct op_run *r, int64_t bytes, void *pointer, qr_error *err)
{
    static const uint8_t zeros[1 << 16];
    void *p;
    TRY(fresh_buffer(r, bytes, &p, err));
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof zeros) {
        int64_t n = bytes - at < (int64_t)sizeof zeros ? bytes - at : (int64_t)sizeof zeros;
        TRY(r->backend->upload(r->backend, (uint8_t *)p + at, zeros, n, err));
    }
    memcpy(pointer, &p, sizeof p);
    return QR_OK;
}

qr_status op_upload(struct op_run *r, const void *from, int64_t bytes, void *pointer, qr_error *err)
{
    void *p;
    TRY(fresh_buffer(r, bytes, &p, err));
    TRY(r->backend->upload(r->backend, p, from, bytes, err));
    memcpy(pointer, &p, sizeof p);
    return QR_OK;
}

qr_status op_rows(struct op_run *r, enum act_format format, int64_t rows, int32_t cols, int32_t block,
                  struct activation *out, qr_error *err)
{
    int64_t size = format == ACT_BF16 ? 2 : format == ACT_F32 ? 4 : 1;
    *out = (struct activation){.format = format, .cols = cols, .block = block};
    TRY(op_buffer(r, rows * cols * size, &out->codes, err));
    if (block)
        TRY(op_buffer(r, rows * (cols / block) * (format == ACT_Q8 ? 1 : 4), &out->scales, err));
    return QR_OK;
}

qr_status op_prepare(struct op_run *r, const struct weight_spec *spec, const struct weight **out, qr_error *err)
{
    struct weight *handle;
    if (!array_grow(&r->weights, &r->weight_capacity, r->weight_count, sizeof *r->weights))
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its list of weights", r->harness->name);
    TRY(r->backend->prepare_weight(r->backend, spec, &handle, err));

    int64_t n = spec->n, k = spec->k, tiles = spec->tile ? (n + spec->tile - 1) / spec->tile * ((k + spec->tile - 1) / spec->tile) : 0;
    int64_t bytes = spec->format == WEIGHT_BF16  ? 2 * n * k
                    : spec->format == WEIGHT_F32 ? 4 * n * k
                    : spec->format == WEIGHT_FP8 ? n * k + tiles
                    : spec->format == WEIGHT_FP4 ? n * k / 2 + n * k / 32
                                                 : n * k + 4 * n;
    r->weights[r->weight_count++] = (struct op_weight){handle, bytes, n, k};
    *out = handle;
    return QR_OK;
}

/* ---- names ---- */

int32_t op_dim(const struct op_run *r, const char *word) { return (int32_t)dims_value(&r->dims, word); }

double op_param(const struct op_run *r, const char *name, double otherwise)
{
    double value;
    return op_file_param(r->file, name, &value) ? value : otherwise;
}

static struct op_slot *find_slot(struct op_slot *slots, int32_t count, const char *name)
{
    for (int32_t i = 0; i < count; i++)
        if (strcmp(slots[i].array->name, name) == 0 && (slots[i].host || slots[i].device || slots[i].prepared))
            return &slots[i];
    return NULL;
}

static const struct op_slot *input(const struct op_run *r, const char *name)
{
    return find_slot(r->in, r->in_count, name);
}

bool op_has(const struct op_run *r, const char *name) { return input(r, name) != NULL; }

const struct tensor_view *op_view(const struct op_run *r, const char *name)
{
    for (int32_t i = 0; i < r->in_count; i++)
        if (r->in[i].view && strcmp(r->in[i].array->name, name) == 0)
            return r->in[i].view;
    return NULL;
}

const void *op_host(const struct op_run *r, const char *name)
{
    const struct op_slot *slot = input(r, name);
    return slot ? slot->host : NULL;
}

const int32_t *op_ints(const struct op_run *r, const char *name) { return op_host(r, name); }

void *op_in(const struct op_run *r, const char *name)
{
    const struct op_slot *slot = input(r, name);
    return slot ? slot->device : NULL;
}

const struct weight *op_weight(const struct op_run *r, const char *name)
{
    const struct op_slot *slot = input(r, name);
    return slot ? slot->prepared[0] : NULL;
}

const struct weight *const *op_stack(const struct op_run *r, const char *name)
{
    const struct op_slot *slot = input(r, name);
    return slot ? slot->prepared : NULL;
}

struct op_slot *op_out_slot(const struct op_run *r, const char *name)
{
    return find_slot(r->out, r->out_count, name);
}

void *op_out(const struct op_run *r, const char *name)
{
    const struct op_slot *slot = op_out_slot(r, name);
    return !slot ? NULL : slot->device ? slot->device : (void *)(uintptr_t)slot->host;
}

void op_drop(struct op_run *r, const char *name)
{
    struct op_slot *slot = op_out_slot(r, name);
    slot->host = NULL;
    slot->device = NULL;
}

const struct op_slot *op_run_output(const struct op_run *r, const char *name)
{
    return find_slot(r->out, r->out_count, name);
}

/* ---- params ---- */

static const struct {
    const char *param, *dim;
} sizes_of_params[] = {
    {"hidden_size", "D"},    {"hc_mult", "M"},       {"num_attention_heads", "H"},   {"head_dim", "d"},
    {"qk_rope_head_dim", "r"}, {"q_lora_rank", "Qr"}, {"o_groups", "G"},              {"o_lora_rank", "R"},
    {"moe_intermediate_size", "I"}, {"n_routed_experts", "E"}, {"num_experts_per_tok", "K"}, {"index_n_heads", "Hi"},
    {"index_head_dim", "di"}, {"index_topk", "topk"}, {"sliding_window", "W"},        {"vocab_size", "V"},
    {"ratio", "rho"},
};

static void bind_params(struct op_run *r)
{
    for (size_t i = 0; i < sizeof sizes_of_params / sizeof *sizes_of_params; i++) {
        double value;
        if (op_file_param(r->file, sizes_of_params[i].param, &value) && value >= 0 && value <= INT32_MAX)
            dims_bind(&r->dims, sizes_of_params[i].dim, (int64_t)value);
    }
    if (dims_has(&r->dims, "M"))
        dims_bind(&r->dims, "MIX", (2 + dims_value(&r->dims, "M")) * dims_value(&r->dims, "M"));
    dims_bind(&r->dims, "S", 2);
}

/* The parameters that a harness named must be there. */
static qr_status need_params(const struct op_run *r, qr_error *err)
{
    const char *at = r->harness->params;
    while (at && *at) {
        char name[64];
        double value;
        size_t n = strcspn(at, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        if (!op_file_param(r->file, name, &value))
            return qr_fail(err, QR_BAD_REQUEST, "%s: params has no number %s", op_file_path(r->file), name);
        at += n + strspn(at + n, " ");
    }
    return QR_OK;
}

static void fill_config(struct op_run *r)
{
    struct qr_config *c = &r->config;
    *c = (struct qr_config){.family = QR_FAMILY_V4, .fp8_block = 128};
    c->hidden_size = op_dim(r, "D");
    c->hc_mult = op_dim(r, "M");
    c->num_attention_heads = op_dim(r, "H");
    c->head_dim = op_dim(r, "d");
    c->rope_head_dim = op_dim(r, "r");
    c->q_lora_rank = op_dim(r, "Qr");
    c->o_groups = op_dim(r, "G");
    c->o_lora_rank = op_dim(r, "R");
    c->moe_intermediate_size = op_dim(r, "I");
    c->n_routed_experts = op_dim(r, "E");
    c->n_experts_per_tok = op_dim(r, "K");
    c->index_n_heads = op_dim(r, "Hi");
    c->index_head_dim = op_dim(r, "di");
    c->index_topk = op_dim(r, "topk");
    c->sliding_window = op_dim(r, "W");
    c->vocab_size = op_dim(r, "V");
    c->hc_sinkhorn_iters = (int32_t)op_param(r, "hc_sinkhorn_iters", 0);
    c->hc_eps = (float)op_param(r, "hc_eps", 0);
    c->rms_norm_eps = (float)op_param(r, "rms_norm_eps", 0);
    c->swiglu_limit = (float)op_param(r, "swiglu_limit", 0);
    c->routed_scaling_factor = (float)op_param(r, "routed_scaling_factor", 1);
    c->rope_theta = op_param(r, "rope_theta", 10000);
    c->compress_rope_theta = op_param(r, "compress_rope_theta", 160000);
    c->rope_factor = op_param(r, "rope_scaling.factor", 1);
    c->rope_beta_fast = op_param(r, "rope_scaling.beta_fast", 32);
    c->rope_beta_slow = op_param(r, "rope_scaling.beta_slow", 1);
    c->rope_original_positions = (int32_t)op_param(r, "rope_scaling.original_max_position_embeddings", 65536);
    c->max_position_embeddings = (int32_t)op_param(r, "max_position_embeddings", 1048576);
}

/* ---- inputs ---- */

static bool belongs(const struct op_run *r, const struct op_array *a)
{
    return !(a->flags & (r->w8a8 ? ARRAY_REFERENCE : ARRAY_W8A8));
}

static bool on_host(const struct op_array *a)
{
    return (a->flags & ARRAY_HOST) || a->kind == ARRAY_INT || a->kind == ARRAY_U8;
}

static enum array_kind plain_kind(const struct op_run *r, const struct op_array *a)
{
    return a->kind != ARRAY_STREAM ? a->kind : r->w8a8 ? ARRAY_F32 : ARRAY_BF16;
}

/* "in.experts.3.w1.weight" of "experts.#.w1.weight" */
static void full_name(const char *prefix, const char *name, int64_t index, char *out, size_t size)
{
    const char *mark = strchr(name, '#');
    if (mark)
        snprintf(out, size, "%s%.*s%lld%s", prefix, (int)(mark - name), name, (long long)index, mark + 1);
    else
        snprintf(out, size, "%s%s", prefix, name);
}

static const struct tensor_view *view_of(const struct op_run *r, const char *name, int64_t index)
{
    char full[128];
    full_name("in.", name, index, full, sizeof full);
    return op_file_find(r->file, full);
}

/* The array under its name, or the other it may have. */
static const struct tensor_view *named_view(const struct op_run *r, const struct op_array *a, int64_t index)
{
    const struct tensor_view *view = view_of(r, a->name, index);
    char full[96];
    if (view)
        return view;
    snprintf(full, sizeof full, "mtp_%s", a->name);
    return a->alias ? view_of(r, a->alias, index) : a->kind == ARRAY_TENSOR ? view_of(r, full, index) : NULL;
}

static int32_t count_words(const char *words)
{
    int32_t n = 0;
    for (; *words; words += strcspn(words, " ") + strspn(words + strcspn(words, " "), " "))
        n++;
    return n;
}

/* One rank needs no axis of ranks; a weight may stand in a stack of one, as 7.1 has the MTP layer's. */
static qr_status match_shape(struct op_run *r, const char *name, const struct op_array *a, const struct tensor_view *view, qr_error *err)
{
    const char *words = a->shape;
    if (a->kind == ARRAY_TENSOR && view->rank == count_words(words) + 1 && view->shape[0] == 1)
        return dims_match(&r->dims, name, words, view->rank - 1, view->shape + 1, err);
    if (strncmp(words, "ep ", 3) == 0 && view->rank == count_words(words) - 1) {
        dims_bind(&r->dims, "ep", 1);
        r->one_rank = true;
        words += 3;
        if (op_dim(r, "ep") != 1)
            return qr_fail(err, QR_BAD_REQUEST, "bad shape: %s has no axis of ranks, others have %d", name, op_dim(r, "ep"));
    }
    return dims_match(&r->dims, name, words, view->rank, view->shape, err);
}

static qr_status find_input(struct op_run *r, const struct op_array *a, int64_t index, const struct tensor_view **out, qr_error *err)
{
    char full[128];
    full_name("in.", a->name, index, full, sizeof full);
    *out = named_view(r, a, index);
    if (!*out)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array %s", op_file_path(r->file), full);
    return match_shape(r, full, a, *out, err);
}

static qr_status bind_inputs(struct op_run *r, qr_error *err)
{
    for (int32_t i = 0; i < r->in_count; i++) {
        struct op_slot *slot = &r->in[i];
        if (!belongs(r, slot->array) || ((slot->array->flags & ARRAY_OPTIONAL) && !named_view(r, slot->array, 0)))
            continue;
        TRY(find_input(r, slot->array, 0, &slot->view, err));
        slot->rank = slot->view->rank;
        memcpy(slot->shape, slot->view->shape, (size_t)slot->rank * sizeof *slot->shape);
    }
    return QR_OK;
}

static qr_status load_plain(struct op_run *r, struct op_slot *slot, qr_error *err)
{
    static const int64_t size[WEIGHT_KINDS] = {4, 2, 4, 0, 1, 1, 1};
    const struct tensor_view *v = slot->view;
    enum array_kind kind = plain_kind(r, slot->array);
    const void *host = NULL;
    qr_status st = kind == ARRAY_INT    ? op_file_i32(v, &r->arena, (const int32_t **)&host, err)
                   : kind == ARRAY_BF16 ? op_file_bf16(v, &r->arena, (const uint16_t **)&host, err)
                   : kind == ARRAY_F32  ? op_file_f32(v, &r->arena, (const float **)&host, err)
                                        : op_file_bytes(v, (const uint8_t **)&host, err);
    if (st != QR_OK)
        return qr_fail_in(err, st, "in.%s", slot->array->name);
    slot->host = host;
    slot->bytes = tensor_elements(v->rank, v->shape) * size[kind];
    return on_host(slot->array) ? QR_OK : op_upload(r, host, slot->bytes, &slot->device, err);
}

/* [k][n] as [n][k]. */
static qr_status transposed(struct op_run *r, const void *from, int64_t n, int64_t k, size_t size, const void **out, qr_error *err)
{
    uint8_t *to;
    const uint8_t *at = from;
    TRY(op_host_new(r, n * k * (int64_t)size, &to, err));
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++, at += size)
            memcpy(to + (size_t)(j * k + i) * size, at, size);
    *out = to;
    return QR_OK;
}

/* The scales of weight `index` of a stack, whose shape must follow from n and k. */
static qr_status find_scales(struct op_run *r, const struct op_array *a, int64_t index, int64_t stack, int64_t n, int64_t k,
                             const void **out, qr_error *err)
{
    const struct tensor_view *view;
    char name[128];
    full_name("in.", a->scales, index, name, sizeof name);
    view = op_file_find(r->file, name);
    if (!view)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array %s", op_file_path(r->file), name);
    bool fp8 = a->kind == WEIGHT_OF_FP8, fp4 = a->kind == WEIGHT_OF_FP4;
    int64_t wanted = fp8 ? (n + 127) / 128 * ((k + 127) / 128) : fp4 ? n * (k / 32) : n;
    int64_t found = tensor_elements(view->rank, view->shape);
    if (found != wanted * stack)
        return qr_fail(err, QR_BAD_REQUEST, "bad shape: %s holds %lld scales, wanted %lld for [%lld, %lld]", name,
                       (long long)found, (long long)wanted * stack, (long long)n, (long long)k);
    if (fp8 || fp4) {
        const uint8_t *bytes;
        TRY(op_file_bytes(view, &bytes, err));
        *out = bytes + (stack > 1 ? index * wanted : 0);
        return QR_OK;
    }
    const float *scales;
    TRY(op_file_f32(view, &r->arena, &scales, err));
    *out = scales + (stack > 1 ? index * n : 0);
    return QR_OK;
}

/* Weight `index` of a slot: `values` are those of the whole array, of which it is one of `stack`. */
static qr_status prepare_one(struct op_run *r, struct op_slot *slot, const struct tensor_view *view, int64_t index,
                             int64_t stack, qr_error *err)
{
    const struct op_array *a = slot->array;
    bool in_out = a->kind == WEIGHT_OF_BF16_IN_OUT || a->kind == WEIGHT_OF_I8_IN_OUT;
    int32_t rank = view->rank;
    int64_t k = view->shape[in_out ? rank - 2 : rank - 1];
    int64_t n = tensor_elements(rank, view->shape) / (stack * (k ? k : 1));
    const uint8_t *bytes = NULL;
    const void *values, *scales = NULL;
    size_t size = 1;

    if (a->kind == WEIGHT_OF_BF16 || a->kind == WEIGHT_OF_BF16_IN_OUT) {
        TRY(op_file_bf16(view, &r->arena, (const uint16_t **)&bytes, err));
        size = 2;
    } else if (a->kind == WEIGHT_OF_F32) {
        TRY(op_file_f32(view, &r->arena, (const float **)&bytes, err));
        size = 4;
    } else {
        TRY(op_file_bytes(view, &bytes, err));
    }
    values = bytes + (stack > 1 ? (size_t)(index * n * k) * size : 0);
    if (in_out)
        TRY(transposed(r, values, n, k, size, &values, err));
    if (a->kind == WEIGHT_OF_FP4)
        k *= 2;
    if (a->scales)
        TRY(find_scales(r, a, index, stack, n, k, &scales, err));

    static const enum weight_format formats[] = {WEIGHT_BF16, WEIGHT_BF16, WEIGHT_F32, WEIGHT_FP8, WEIGHT_FP4, WEIGHT_INT8,
                                                 WEIGHT_INT8};
    struct weight_spec spec = {.name = a->name, .format = formats[a->kind - WEIGHT_KINDS], .n = (int32_t)n,
                                     .k = (int32_t)k, .tile = a->kind == WEIGHT_OF_FP8 ? 128 : 0, .values = values,
                                     .scales = scales};
    spec.k_splits = a->flags & ARRAY_CUT ? weights_splits(&spec) : 1;
    return op_prepare(r, &spec, &slot->prepared[index], err);
}

static qr_status load_weight(struct op_run *r, struct op_slot *slot, qr_error *err)
{
    bool numbered = strchr(slot->array->name, '#');
    int64_t count = numbered ? op_dim(r, "E") : slot->array->flags & ARRAY_STACKED ? slot->view->shape[0] : 1;
    TRY(op_host_new(r, (count + 1) * (int64_t)sizeof *slot->prepared, &slot->prepared, err));
    slot->prepared_count = count;
    slot->host = slot->view->data;
    for (int64_t i = 0; i < count; i++) {
        const struct tensor_view *view = slot->view;
        if (numbered)
            TRY(find_input(r, slot->array, i, &view, err));
        TRY(prepare_one(r, slot, view, i, numbered ? 1 : count, err));
    }
    return QR_OK;
}

static qr_status load_inputs(struct op_run *r, qr_error *err)
{
    for (int32_t i = 0; i < r->in_count; i++)
        if (r->in[i].view && r->in[i].array->kind != ARRAY_TENSOR)
            TRY(r->in[i].array->kind >= WEIGHT_KINDS ? load_weight(r, &r->in[i], err) : load_plain(r, &r->in[i], err));
    return QR_OK;
}

/* ---- outputs ---- */

enum dtype op_slot_dtype(const struct op_run *r, const struct op_slot *slot)
{
    static const enum dtype dtypes[WEIGHT_KINDS] = {DTYPE_I32, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_I8, DTYPE_U8,
                                                    DTYPE_F8_E4M3};
    return dtypes[plain_kind(r, slot->array)];
}

static qr_status make_outputs(struct op_run *r, qr_error *err)
{
    for (int32_t i = 0; i < r->out_count; i++) {
        struct op_slot *slot = &r->out[i];
        void *host;
        if (!belongs(r, slot->array))
            continue;
        slot->live = -1;
        bool no_ranks = r->one_rank && strncmp(slot->array->shape, "ep ", 3) == 0;
        slot->rank = dims_shape(&r->dims, slot->array->shape + (no_ranks ? 3 : 0), slot->shape);
        slot->bytes = tensor_elements(slot->rank, slot->shape) * (int64_t)dtype_size(op_slot_dtype(r, slot));
        if (on_host(slot->array)) {
            TRY(op_host_new(r, slot->bytes, &host, err));
            slot->host = host;
        } else {
            TRY(op_buffer(r, slot->bytes, &slot->device, err));
        }
    }
    return QR_OK;
}

static qr_status fetch_outputs(struct op_run *r, qr_error *err)
{
    TRY(r->backend->fence(r->backend, err));
    for (int32_t i = 0; i < r->out_count; i++) {
        struct op_slot *slot = &r->out[i];
        void *host;
        if (!slot->device)
            continue;
        TRY(op_host_new(r, slot->bytes, &host, err));
        TRY(r->backend->download(r->backend, host, slot->device, slot->bytes, err));
        slot->host = host;
    }
    return r->backend->fence(r->backend, err);
}

/* ---- a run ---- */

/* The longest row of any input: no product reads a longer one. */
static int32_t widest(const struct op_run *r)
{
    int64_t most = 1;
    for (int32_t i = 0; i < r->in_count; i++)
        for (int32_t k = 0; r->in[i].view && k < r->in[i].rank; k++) {
            bool row = k >= r->in[i].rank - 2;
            int64_t n = r->in[i].shape[k] * (r->in[i].array->kind == WEIGHT_OF_FP4 ? 2 : 1);
            most = row && n > most && n <= 1 << 20 ? n : most;
        }
    return (int32_t)most;
}

static qr_status reserve(struct op_run *r, qr_error *err)
{
    struct model_plan *plan;
    int64_t bytes;
    TRY(op_host_new(r, sizeof *plan, &plan, err));
    plan->config = r->config;
    plan->config.hidden_size = widest(r) > r->config.hidden_size ? widest(r) : r->config.hidden_size;
    plan->config.hc_mult = r->config.hc_mult > 0 ? r->config.hc_mult : 1;
    plan->max_ratio = 128;
    int32_t rows = op_dim(r, r->harness->rows);
    const struct op_limits limits = {plan, rows > 1 ? rows : 1, rows > 1 ? rows : 1, r->config.max_position_embeddings};
    return r->backend->reserve(r->backend, &limits, &bytes, err);
}

static int32_t count_arrays(const struct op_array *a)
{
    int32_t n = 0;
    while (a[n].name)
        n++;
    return n;
}

static qr_status make_slots(struct op_run *r, qr_error *err)
{
    r->in_count = count_arrays(r->harness->in);
    r->out_count = count_arrays(r->harness->out);
    TRY(op_host_new(r, (r->in_count + 1) * (int64_t)sizeof *r->in, &r->in, err));
    TRY(op_host_new(r, (r->out_count + 1) * (int64_t)sizeof *r->out, &r->out, err));
    for (int32_t i = 0; i < r->in_count; i++)
        r->in[i].array = &r->harness->in[i];
    for (int32_t i = 0; i < r->out_count; i++)
        r->out[i].array = &r->harness->out[i];
    return QR_OK;
}

static qr_status open_run(struct op_run *r, qr_error *err)
{
    TRY(make_slots(r, err));
    TRY(need_params(r, err));
    bind_params(r);
    if (r->harness->bind)
        r->harness->bind(r);
    TRY(bind_inputs(r, err));
    fill_config(r);
    if (r->harness->sizes)
        TRY(r->harness->sizes(r, err));
    TRY(reserve(r, err));
    TRY(load_inputs(r, err));
    return make_outputs(r, err);
}

qr_status op_run_open(const struct op_file *file, const struct op_harness *harness, struct backend *backend, int32_t ranks,
                      struct op_run **out, qr_error *err)
{
    struct op_run *r = qr_calloc(1, sizeof *r);
    const char *profile = op_file_metadata(file, "profile");
    if (!r)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for a run", harness->name);
    r->file = file;
    r->harness = harness;
    r->backend = backend;
    r->ranks = ranks;
    r->w8a8 = profile && strcmp(profile, "w8a8") == 0;
    arena_init(&r->arena, 0);
    qr_status st = open_run(r, err);
    if (st != QR_OK) {
        op_run_close(r);
        return st;
    }
    *out = r;
    return QR_OK;
}

void op_run_close(struct op_run *r)
{
    if (!r)
        return;
    if (r->close_world)
        r->close_world(r->world);
    for (size_t i = 0; i < r->weight_count; i++)
        r->backend->release_weight(r->backend, r->weights[i].handle);
    for (size_t i = 0; i < r->buffer_count; i++)
        r->backend->release(r->backend, r->buffers[i]);
    qr_free(r->weights);
    qr_free(r->buffers);
    qr_free(r->calls);
    arena_free(&r->arena);
    qr_free(r);
}

qr_status op_call(struct op_run *r, enum op_kind kind, const void *op, size_t size, qr_error *err)
{
    void *kept;
    TRY(op_host_new(r, (int64_t)size, &kept, err));
    memcpy(kept, op, size);
    if (!array_grow(&r->calls, &r->call_capacity, r->call_count, sizeof *r->calls))
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its list of calls", r->harness->name);
    r->calls[r->call_count++] = (struct op_call){(int)kind, kept};
    return op_call_on(r->backend, kind, kept, err);
}

qr_status op_run_execute(struct op_run *r, qr_error *err)
{
    TRY(r->harness->run(r, err));
    return fetch_outputs(r, err);
}

qr_status op_run_repeat(struct op_run *r, double *seconds, qr_error *err)
{
    TRY(r->backend->fence(r->backend, err));
    double start = clock_seconds();
    for (size_t i = 0; i < r->call_count; i++)
        TRY(op_call_on(r->backend, (enum op_kind)r->calls[i].kind, r->calls[i].op, err));
    TRY(r->backend->fence(r->backend, err));
    *seconds = clock_seconds() - start;
    return QR_OK;
}
