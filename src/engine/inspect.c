/* inspect.c: qr_inspect. */
#include <string.h>

#include "base/alloc.h"
#include "engine/describe.h"
#include "engine/engine.h"
#include "engine/text.h"

/* Everything that is made for one description. */
struct inspection {
    qr_model *model;
    struct schema *schema;
    struct differences differences;
    struct engine_size size;
    struct byte_plan bytes;
    qr_error refusal;
    qr_error tokenizer_defect;
};

static void plan_bytes(struct inspection *i)
{
    const struct engine_size *size = &i->size;
    for (int64_t t = 0; t < checkpoint_count(i->model->checkpoint); t++) {
        const struct tensor_view *v = checkpoint_at(i->model->checkpoint, t);
        if (v->dtype != DTYPE_COUNT) /* listed, held by no file */
            byte_plan_tensor(&i->bytes, v->name, (int64_t)v->bytes);
    }
    if (size->prepared > 0)
        byte_plan_add(&i->bytes, BYTES_PREPARED, "INT8 and other forms, made while loading", 1, size->prepared);
    if (size->too_small)
        return;
    budget_items(&size->geometry, &size->budget, &i->bytes);
    if (size->on_device.memory.total > 0)
        device_plan_items(&size->on_device, &i->bytes);
    const struct {
        const char *name;
        int64_t bytes;
    } workspace[] = {{"buffers of a forward pass", size->workspace.forward},
                     {"scratch of the operators", size->workspace.scratch},
                     {"rows and lists of a step", size->workspace.lists},
                     {"Engram rows of a step", size->workspace.engram},
                     {"logits, sampler, token counts", size->workspace.sampling},
                     {"grammars and the vocabulary's tree", size->workspace.grammars},
                     {"scheduler and prefix index", size->workspace.scheduler},
                     {"tokens and pages of requests", size->workspace.requests},
                     {"drafts", size->workspace.drafts}};
    const size_t on_device = size->on_device.memory.total > 0 ? 2 : 0; /* of the list above, and told with the device */
    for (size_t w = on_device; w < sizeof workspace / sizeof *workspace; w++)
        byte_plan_add(&i->bytes, BYTES_WORKSPACE, workspace[w].name, 1, workspace[w].bytes);
}

static qr_status write_json(const struct description *d, struct buffer *text, qr_error *err)
{
    const char *written;
    size_t length;
    struct json_writer *w = json_writer_open(true);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the description", d->dir);
    describe_json(d, w);
    qr_status st = json_finish(w, &written, &length, err);
    if (st == QR_OK) {
        buffer_append(text, written, length);
        buffer_puts(text, "\n");
    }
    json_writer_close(w);
    return st;
}

static qr_status write_out(const struct description *d, bool json, qr_text *out, qr_error *err)
{
    struct buffer text = {0};
    qr_status st = QR_OK;
    if (json)
        st = write_json(d, &text, err);
    else
        describe_text(d, &text);
    if (st == QR_OK && (text.failed || d->bytes->failed))
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for the description", d->dir);
    if (st != QR_OK) {
        buffer_free(&text);
        return st;
    }
    return text_from_buffer(&text, out, err);
}

/* A tokenizer that is missing or unfit is part of the description: everything else is known without it. */
static qr_status look_at_tokenizer(struct inspection *i, qr_error *err)
{
    qr_model *m = i->model;
    qr_error *why = &i->tokenizer_defect;
    qr_status st = model_tokenizer_open(m->dir, &m->config, &m->log, &m->tokenizer, why);
    if (st == QR_OK)
        st = model_map_make(m->dir, &m->config, m->tokenizer, &m->map, why);
    return st == QR_NO_MEMORY ? qr_fail(err, st, "%s", why->message) : QR_OK;
}

/* What does not fit is part of the description; what breaks a rule is a failure. */
static qr_status size_up(struct inspection *i, const qr_engine_options *engine, qr_error *err)
{
    const struct engine_place place = {
        .device = i->model->device, .threads = i->model->threads, .checkpoint = i->model->checkpoint};
    qr_status st = engine_size(&i->model->plan, (int64_t)checkpoint_bytes(i->model->checkpoint), &place, engine, &i->size,
                               &i->refusal);
    if (st == QR_OK || i->size.too_small)
        return QR_OK;
    return qr_fail(err, st, "%s", i->refusal.message);
}

static qr_status inspect(struct inspection *i, const char *dir, const qr_model_options *model,
                         const qr_engine_options *engine, bool json, qr_text *out, qr_error *err)
{
    qr_status st = model_open_parts(dir, model, false, &i->model, err);
    if (st == QR_OK)
        st = schema_make(&i->model->config, &i->schema, err);
    if (st == QR_OK)
        st = differences_find(i->model->checkpoint, i->schema, &i->differences, err);
    if (st == QR_OK)
        st = look_at_tokenizer(i, err);
    if (st == QR_OK)
        st = size_up(i, engine, err);
    if (st != QR_OK)
        return st;
    plan_bytes(i);
    struct description d = {.dir = dir,
                            .plan = &i->model->plan,
                            .checkpoint = i->model->checkpoint,
                            .differences = &i->differences,
                            .token_ids = i->model->tokenizer ? tok_count(i->model->tokenizer) : 0,
                            .tokenizer_defect = i->tokenizer_defect.status != QR_OK ? i->tokenizer_defect.message : NULL,
                            .geometry = &i->size.geometry,
                            .bytes = &i->bytes,
                            .cache_bytes = i->size.cache_bytes,
                            .budget = i->size.too_small ? NULL : &i->size.budget,
                            .captures = &i->size.captures,
                            .refusal = i->refusal.message};
    return write_out(&d, json, out, err);
}

qr_status qr_inspect(const char *dir, const qr_model_options *model, const qr_engine_options *engine, bool json,
                     qr_text *out, qr_error *err)
{
    *out = (qr_text){.data = NULL};
    struct inspection *i = qr_calloc(1, sizeof *i);
    if (!i)
        return qr_fail(err, QR_NO_MEMORY, "qr_inspect: no memory for the description");
    qr_status st = inspect(i, dir, model, engine, json, out, err);
    byte_plan_free(&i->bytes);
    schema_free(i->schema);
    qr_model_close(i->model);
    qr_free(i);
    return st;
}
