#include "model/w8a8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/buffer.h"
#include "checkpoint/checkpoint_check.h"
#include "model/route_table.h"
#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/int8.h"
#include "plan/schema.h"

enum { NAME_BYTES = 192, FP4_GROUP = 32, ALIGNMENT = 64 };

struct w8a8 {
    const struct checkpoint *ck;
    const struct model_plan *plan;
    struct worker_pool *pool;
    struct arena names;
    void **owned;
    size_t owned_count, owned_capacity;
    int64_t owned_bytes;
};

qr_status w8a8_open(const struct checkpoint *ck, const struct model_plan *plan, struct worker_pool *pool,
                    struct w8a8 **out, qr_error *err)
{
    struct w8a8 *w = qr_calloc(1, sizeof *w);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory to convert its weights", checkpoint_path(ck));
    w->ck = ck;
    w->plan = plan;
    w->pool = pool;
    arena_init(&w->names, 0);
    *out = w;
    return QR_OK;
}

void w8a8_close(struct w8a8 *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->owned_count; i++)
        qr_free(w->owned[i]);
    qr_free(w->owned);
    arena_free(&w->names);
    qr_free(w);
}

static qr_status out_of_memory(const struct w8a8 *w, const char *name, int64_t bytes, qr_error *err)
{
    return qr_fail(err, QR_NO_MEMORY, "%s: %s: no memory for %lld bytes of INT8 weights", checkpoint_path(w->ck), name,
                   (long long)bytes);
}

/* Memory that lives until w8a8_close. */
static qr_status own(struct w8a8 *w, const char *name, int64_t bytes, void *out_pointer, qr_error *err)
{
    if (!array_grow(&w->owned, &w->owned_capacity, w->owned_count, sizeof *w->owned))
        return out_of_memory(w, name, bytes, err);
    void *memory = qr_aligned_alloc(ALIGNMENT, (size_t)bytes + !bytes);
    if (!memory)
        return out_of_memory(w, name, bytes, err);
    w->owned[w->owned_count++] = memory;
    w->owned_bytes += bytes;
    memcpy(out_pointer, &memory, sizeof memory);
    return QR_OK;
}

int64_t w8a8_bytes(const struct w8a8 *w) { return w->owned_bytes; }

/* ---- an official matrix, row by row ---- */

struct official {
    const struct tensor_view *view;
    const uint8_t *scales; /* E8M0 */
    int64_t rows, cols, scale_cols;
    int32_t tile; /* FP8 */
};

static bool is_fp4(enum dtype dtype) { return dtype == DTYPE_I8 || dtype == DTYPE_U8 || dtype == DTYPE_F4; }

static qr_status open_scales(const struct w8a8 *w, struct official *m, qr_error *err)
{
    char name[NAME_BYTES];
    const struct tensor_view *scale;
    snprintf(name, sizeof name, "%.*s.scale", (int)(strlen(m->view->name) - strlen(".weight")), m->view->name);
    TRY(checkpoint_get(w->ck, name, &scale, err));
    TRY(tensor_check_values(checkpoint_shard_path(w->ck, scale->shard), scale, 0, (int64_t)scale->bytes, err));
    m->scales = scale->data;
    m->tile = w->plan->config.fp8_block;
    m->scale_cols = is_fp4(m->view->dtype) ? m->cols / FP4_GROUP : (m->cols + m->tile - 1) / m->tile;
    return QR_OK;
}

static qr_status open_official(const struct w8a8 *w, const char *name, struct official *m, qr_error *err)
{
    memset(m, 0, sizeof *m);
    TRY(checkpoint_get(w->ck, name, &m->view, err));
    const struct tensor_view *v = m->view;
    int64_t elements = tensor_elements(v->rank, v->shape);
    m->cols = v->rank > 0 ? v->shape[v->rank - 1] : 1;
    m->rows = m->cols > 0 ? elements / m->cols : 0;
    TRY(tensor_check_values(checkpoint_shard_path(w->ck, v->shard), v, 0, elements, err));
    if (is_fp4(v->dtype))
        m->cols *= 2;
    return is_fp4(v->dtype) || v->dtype == DTYPE_F8_E4M3 ? open_scales(w, m, err) : QR_OK;
}

/* Row `row` as f32, exactly (2.2). */
static void read_row(const struct official *m, int64_t row, float *out)
{
    int64_t n = m->cols, first = row * n;
    const uint8_t *codes = m->view->data;
    const uint16_t *halves = m->view->data;
    switch (m->view->dtype) {
    case DTYPE_F8_E4M3:
        for (int64_t i = 0; i < n; i++)
            out[i] =
                e4m3_decode(codes[first + i]) * e8m0_decode(m->scales[row / m->tile * m->scale_cols + i / m->tile]);
        break;
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++)
            out[i] = bf16_decode(halves[first + i]);
        break;
    case DTYPE_F32:
        memcpy(out, (const float *)m->view->data + first, (size_t)n * sizeof *out);
        break;
    default: /* packed FP4 */
        for (int64_t i = 0; i < n; i++)
            out[i] = e2m1_decode(e2m1_at(codes + first / 2, i)) *
                     e8m0_decode(m->scales[row * m->scale_cols + i / FP4_GROUP]);
        break;
    }
}

/* ---- conversions ---- */

static enum dtype dtype_of(enum w8a8_form form, enum dtype stored)
{
    switch (form) {
    case FORM_BF16:
    case FORM_HADAMARD:
        return DTYPE_BF16;
    case FORM_F32:
    case FORM_BIAS:
    case FORM_ONES:
        return DTYPE_F32;
    case FORM_INT8:
        return DTYPE_I8;
    case FORM_ROUTES:
        return DTYPE_I32;
    default:
        return stored;
    }
}

struct conversion {
    const struct official *from;
    enum w8a8_form form;
    void *values;
    float *scales;
    float *rows; /* [threads][cols] */
};

static void convert_row(void *user, int64_t row, int thread)
{
    const struct conversion *c = user;
    int64_t n = c->from->cols, first = row * n;
    float *x = c->rows + thread * n;
    read_row(c->from, row, x);
    if (c->form == FORM_INT8)
        c->scales[row] = int8_quantize_channel(x, n, 1, (int8_t *)c->values + first);
    else if (c->form == FORM_F32)
        memcpy((float *)c->values + first, x, (size_t)n * sizeof *x);
    else
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)c->values)[first + i] = bf16_encode(x[i]);
}

static qr_status convert(const struct w8a8 *w, const struct official *from, enum w8a8_form form, void *values,
                         float *scales, qr_error *err)
{
    int64_t threads = w->pool ? pool_threads(w->pool) : 1;
    struct conversion c = {.from = from, .form = form, .values = values, .scales = scales};
    c.rows = qr_calloc((size_t)(threads * from->cols), sizeof *c.rows);
    if (!c.rows)
        return out_of_memory(w, from->view->name, threads * from->cols * (int64_t)sizeof *c.rows, err);
    pool_run(w->pool, from->rows, convert_row, &c);
    qr_free(c.rows);
    return QR_OK;
}

/* [rows][cols] elements of `size` bytes into [cols][rows]. */
static void turn(const void *from, int64_t rows, int64_t cols, size_t size, void *to)
{
    const uint8_t *in = from;
    uint8_t *out = to;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            memcpy(out + (size_t)(c * rows + r) * size, in + (size_t)(r * cols + c) * size, size);
}

/* Ones for `smooth`: the official checkpoint has no factors (Q7). One for each input column of the projection. */
static void fill_ones(float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = 1.0f;
}

static void fill_hadamard(uint16_t *out, int64_t n)
{
    float entry = (float)(1.0 / sqrt((double)n));
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            out[i * n + k] = bf16_encode(__builtin_parityll((uint64_t)(i & k)) ? -entry : entry);
}

/* ---- by official name ---- */

static qr_status find_recipe(const struct w8a8 *w, const char *name, struct official_name *parts,
                             const struct w8a8_recipe **out, qr_error *err)
{
    official_split(w->plan, name, parts);
    *out = w8a8_recipe_of(w->plan, parts);
    return *out ? QR_OK
                : qr_fail(err, QR_INTERNAL, "%s: tensor %s has no place in the INT8 deployment", checkpoint_path(w->ck),
                          name);
}

static qr_status derive(struct w8a8 *w, const struct w8a8_recipe *recipe, const char *name, struct w8a8_tensor *out,
                        qr_error *err)
{
    struct official from;
    void *values;
    if (recipe->form == FORM_ONES) {
        int64_t n = out->cols = w->plan->config.hidden_size;
        TRY(own(w, name, n * (int64_t)sizeof(float), &values, err));
        fill_ones(values, n);
        out->dtype = DTYPE_F32;
        out->rows = 1;
        out->values = values;
        return QR_OK;
    }
    TRY(open_official(w, name, &from, err));
    enum dtype wanted = recipe->form == FORM_ROUTES ? from.view->dtype : dtype_of(recipe->form, from.view->dtype);
    out->dtype = wanted;
    out->rows = from.rows;
    out->cols = from.cols;
    out->values = from.view->data;
    if (wanted == from.view->dtype && recipe->form != FORM_INT8)
        return QR_OK;

    TRY(own(w, name, from.rows * from.cols * (int64_t)dtype_size(wanted), &values, err));
    float *scales = NULL;
    if (recipe->form == FORM_INT8)
        TRY(own(w, name, from.rows * (int64_t)sizeof *scales, &scales, err));
    out->values = values;
    out->scales = scales;
    return convert(w, &from, recipe->form, values, scales, err);
}

/* The stored tensor `name` (its scales when `scale`) of a layer. */
static qr_status stored_view(const struct w8a8 *w, const char *name, bool mtp, const struct tensor_view **out,
                             qr_error *err)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", mtp ? "mtp_" : "", name);
    return checkpoint_get(w->ck, full, out, err);
}

static qr_status read_stored(struct w8a8 *w, const struct w8a8_recipe *recipe, const struct official_name *parts,
                             struct w8a8_tensor *out, qr_error *err)
{
    const struct tensor_view *view, *scale;
    bool mtp = parts->layer >= w->plan->layers;
    TRY(stored_view(w, recipe->name, mtp, &view, err));
    int32_t layers[QR_MAX_LAYERS];
    int64_t experts = w8a8_routed(recipe) ? w->plan->config.n_routed_experts : 1;
    int64_t members = w8a8_layers(w->plan, recipe, mtp, layers) * experts;
    int64_t member = w8a8_place(w->plan, recipe, parts->layer) * experts + (parts->expert > 0 ? parts->expert : 0);
    int64_t elements = tensor_elements(view->rank, view->shape) / members;
    const uint8_t *at = (const uint8_t *)view->data + (uint64_t)member * (view->bytes / (uint64_t)members);

    out->dtype = view->dtype;
    out->cols = view->rank > 0 ? view->shape[view->rank - 1] : 1;
    out->rows = out->cols > 0 ? elements / out->cols : 0;
    out->values = at;
    if (recipe->turned) {
        void *values;
        TRY(own(w, out->name, elements * (int64_t)dtype_size(view->dtype), &values, err));
        turn(at, out->rows, out->cols, dtype_size(view->dtype), values);
        out->values = values;
        int64_t rows = out->rows;
        out->rows = out->cols;
        out->cols = rows;
    }
    if (!recipe->scale)
        return QR_OK;
    TRY(stored_view(w, recipe->scale, mtp, &scale, err));
    out->scales = (const float *)scale->data + member * out->rows;
    return QR_OK;
}

qr_status w8a8_get(struct w8a8 *w, const char *name, struct w8a8_tensor *out, qr_error *err)
{
    const struct w8a8_recipe *recipe;
    struct official_name parts;
    memset(out, 0, sizeof *out);
    TRY(find_recipe(w, name, &parts, &recipe, err));
    out->name = arena_strndup(&w->names, name, strlen(name));
    if (!out->name)
        return out_of_memory(w, name, (int64_t)strlen(name), err);
    return w->plan->config.stored_w8a8 ? read_stored(w, recipe, &parts, out, err) : derive(w, recipe, name, out, err);
}

/* ---- the file ---- */

bool w8a8_output(const struct model_plan *plan, int32_t i, struct w8a8_output *out)
{
    for (int32_t k = 0; k < 2 * w8a8_recipe_count; k++) {
        const struct w8a8_recipe *recipe = &w8a8_recipes[k % w8a8_recipe_count];
        bool mtp = k >= w8a8_recipe_count;
        int32_t layers = w8a8_layers(plan, recipe, mtp, out->layer);
        if (layers == 0 || i-- > 0)
            continue;
        out->recipe = recipe;
        out->mtp = mtp;
        out->layers = layers;
        out->members = layers * (w8a8_routed(recipe) ? (int64_t)plan->config.n_routed_experts : 1);
        snprintf(out->name, sizeof out->name, "%s%s", mtp ? "mtp_" : "", recipe->name);
        out->scale_name[0] = '\0';
        if (recipe->scale)
            snprintf(out->scale_name, sizeof out->scale_name, "%s%s", mtp ? "mtp_" : "", recipe->scale);
        return true;
    }
    return false;
}

/* A layer without the official tensor: zeros, ones or the Hadamard matrix. */
static void make_constant(const struct model_plan *plan, enum w8a8_form form, void *values)
{
    const struct qr_config *c = &plan->config;
    switch (form) {
    case FORM_ROUTES:
        memset(values, 0, (size_t)c->vocab_size * (size_t)c->n_experts_per_tok * sizeof(int32_t));
        break;
    case FORM_BIAS:
        memset(values, 0, (size_t)c->n_routed_experts * sizeof(float));
        break;
    case FORM_ONES:
        fill_ones(values, c->hidden_size);
        break;
    default:
        fill_hadamard(values, c->index_head_dim);
        break;
    }
}

static qr_status make_turned(struct w8a8 *w, const struct official *from, enum w8a8_form form, void *values,
                             float *scales, qr_error *err)
{
    size_t size = dtype_size(dtype_of(form, from->view->dtype));
    void *straight = qr_malloc((size_t)(from->rows * from->cols) * size);
    if (!straight)
        return out_of_memory(w, from->view->name, from->rows * from->cols * (int64_t)size, err);
    qr_status st = convert(w, from, form, straight, scales, err);
    if (st == QR_OK)
        turn(straight, from->rows, from->cols, size, values);
    qr_free(straight);
    return st;
}

qr_status w8a8_make(struct w8a8 *w, const struct w8a8_output *output, int64_t member, void *values, float *scales,
                    qr_error *err)
{
    const struct w8a8_recipe *recipe = output->recipe;
    int64_t experts = output->members / output->layers;
    int32_t layer = output->layer[member / experts];
    struct official from;
    char name[NAME_BYTES];

    if (!w8a8_has_official(w->plan, recipe, layer)) {
        make_constant(w->plan, recipe->form, values);
        return QR_OK;
    }
    official_join(w->plan, recipe, layer, (int32_t)(member % experts), name, sizeof name);
    TRY(open_official(w, name, &from, err));
    if (recipe->form == FORM_ROUTES)
        return route_table_read(checkpoint_path(w->ck), name, from.view->dtype, from.view->data, from.rows, from.cols,
                                w->plan->config.n_routed_experts, values, err);
    if (recipe->turned)
        return make_turned(w, &from, recipe->form, values, scales, err);
    if (recipe->form == FORM_SAME || recipe->form == FORM_BIAS) {
        memcpy(values, from.view->data, from.view->bytes);
        return QR_OK;
    }
    return convert(w, &from, recipe->form, values, scales, err);
}

const struct tensor_view *w8a8_unchanged(const struct w8a8 *w, const struct w8a8_output *output, int64_t member)
{
    char name[NAME_BYTES];
    if (output->recipe->form != FORM_SAME || output->recipe->turned)
        return NULL;
    official_join(w->plan, output->recipe, output->layer[member], -1, name, sizeof name);
    return checkpoint_find(w->ck, name);
}

/* ---- sizes ---- */

/* Whether the forward pass needs the tensor in memory of its own. */
static bool takes_memory(const struct model_plan *plan, const struct w8a8_recipe *recipe)
{
    if (plan->config.stored_w8a8)
        return recipe->turned;
    return recipe->form == FORM_INT8 || recipe->form == FORM_BF16 || recipe->form == FORM_F32 ||
           recipe->form == FORM_ONES;
}

static int64_t bytes_of(const struct schema *schema, const char *name)
{
    const struct tensor_spec *specs = schema_tensors(schema);
    for (int64_t i = 0; i < schema_count(schema); i++)
        if (strcmp(specs[i].name, name) == 0)
            return schema_tensor_bytes(&specs[i]);
    return 0;
}

qr_status w8a8_plan_bytes(const struct model_plan *plan, bool drafter, struct byte_plan *bytes, qr_error *err)
{
    struct qr_config config = plan->config;
    struct schema *schema;
    struct w8a8_output o;
    config.stored_w8a8 = true;
    qr_status st = schema_make(&config, &schema, err);
    if (st != QR_OK)
        return st;
    for (int32_t i = 0; w8a8_output(plan, i, &o); i++) {
        if (!takes_memory(plan, o.recipe) || (o.mtp && !drafter))
            continue;
        bool scales = !plan->config.stored_w8a8 && o.scale_name[0];
        byte_plan_grow(bytes, BYTES_PREPARED, byte_plan_part(o.name),
                       bytes_of(schema, o.name) + (scales ? bytes_of(schema, o.scale_name) : 0));
    }
    schema_free(schema);
    return QR_OK;
}
