#include "engine/model.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/prompt_profile.h"
#include "engine/grammars.h"
#include "engine/structs.h"
#include "ops/device.h"
#include "plan/settle.h"

enum { MOST_THREADS = 4096 };

/* ---- options ---- */

static qr_status check_device(const char *device, qr_error *err)
{
    char name[64];
    if (strlen(device) >= sizeof ((struct qr_model *)0)->device)
        return qr_fail(err, QR_BAD_ARGUMENT, "device: \"%s\" is no name of a device", device);
    return backend_name(device, name, sizeof name, err);
}

static qr_status check_values(const qr_model_options *o, qr_error *err)
{
    if (o->threads < 0 || o->threads > MOST_THREADS)
        return qr_fail(err, QR_BAD_ARGUMENT, "threads: %d, wanted 0 (every core) to %d", o->threads, MOST_THREADS);
    if ((unsigned)o->log_level > QR_SEVERITY_DEBUG)
        return qr_fail(err, QR_BAD_ARGUMENT, "log_level: %d, wanted one of qr_log_severity", (int)o->log_level);
    if (o->profile && strcmp(o->profile, "reference") != 0 && strcmp(o->profile, "w8a8") != 0)
        return qr_fail(err, QR_BAD_ARGUMENT, "profile: \"%s\", wanted reference or w8a8", o->profile);
    if (strcmp(o->prompt_profile, "auto") != 0 && strcmp(o->prompt_profile, "v4a") != 0 &&
        strcmp(o->prompt_profile, "v4b") != 0 && strcmp(o->prompt_profile, "v41") != 0)
        return qr_fail(err, QR_BAD_ARGUMENT, "prompt_profile: \"%s\", wanted auto, v4a, v4b or v41", o->prompt_profile);
    return check_device(o->device, err);
}

qr_status model_options_read(const qr_model_options *given, qr_model_options *out, qr_error *err)
{
    static const qr_model_options defaults = QR_MODEL_OPTIONS;
    *out = defaults;
    qr_status st = given ? struct_take("qr_model_options", given, sizeof *out, out, err) : QR_OK;
    if (st != QR_OK)
        return st;
    if (!out->device)
        out->device = "cpu";
    if (!out->prompt_profile)
        out->prompt_profile = "auto";
    return check_values(out, err);
}

/* ---- opening ---- */

static void pass_line(void *user, enum qr_log_level level, const char *line)
{
    static const qr_log_severity severity[] = {[QR_LOG_ERROR] = QR_SEVERITY_ERROR,
                                               [QR_LOG_WARN] = QR_SEVERITY_WARN,
                                               [QR_LOG_INFO] = QR_SEVERITY_INFO,
                                               [QR_LOG_DEBUG] = QR_SEVERITY_DEBUG};
    const qr_model *model = user;
    model->log_line(model->user, severity[level], line);
}

static void set_log(qr_model *model, const qr_model_options *options)
{
    static const enum qr_log_level level[] = {[QR_SEVERITY_ERROR] = QR_LOG_ERROR,
                                              [QR_SEVERITY_WARN] = QR_LOG_WARN,
                                              [QR_SEVERITY_INFO] = QR_LOG_INFO,
                                              [QR_SEVERITY_DEBUG] = QR_LOG_DEBUG};
    model->log_line = options->log;
    model->user = options->user;
    model->progress = options->progress;
    model->log = (struct qr_log){.write = options->log ? pass_line : NULL, .user = model, .level = level[options->log_level]};
}

const char *qr_phase_name(qr_phase phase)
{
    static const char *const names[] = {
        [QR_PHASE_FILES] = "files", [QR_PHASE_TEXT] = "text", [QR_PHASE_WEIGHTS] = "weights"};
    return (unsigned)phase <= QR_PHASE_WEIGHTS ? names[phase] : "";
}

qr_status model_say_progress(const qr_model *model, qr_phase phase, uint64_t done, uint64_t total, qr_error *err)
{
    if (!model->progress || model->progress(model->user, phase, done, total))
        return QR_OK;
    return qr_fail(err, QR_CANCELLED, "%s: cancelled at %llu of %llu of its %s", model->dir, (unsigned long long)done,
                   (unsigned long long)total, qr_phase_name(phase));
}

static qr_status set_names(qr_model *model, const char *dir, qr_error *err)
{
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && dir[start - 1] != '/')
        start--;
    model->dir = qr_strndup(dir, end);
    model->name = qr_strndup(dir + start, end - start);
    if (!model->dir || !model->name)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the name", dir);
    return QR_OK;
}

static qr_status choose_prompt_profile(qr_model *model, const char *wanted, qr_error *err)
{
    const char *chosen = wanted;
    if (strcmp(wanted, "auto") == 0) {
        enum chat_profile own;
        qr_status st = prompt_profile_of(model->dir, &model->config, &model->log, &own, err);
        if (st != QR_OK)
            return st;
        chosen = chat_profile_name(own);
    }
    snprintf(model->prompt_profile, sizeof model->prompt_profile, "%s", chosen);
    return QR_OK;
}

static qr_status open_files(qr_model *model, qr_error *err)
{
    qr_status st = model_say_progress(model, QR_PHASE_FILES, 0, 0, err); /* nobody knows yet how much there is */
    if (st == QR_OK)
        st = model_folder_open(model->dir, &model->config, &model->checkpoint, err);
    if (st != QR_OK)
        return st;
    const uint64_t bytes = checkpoint_bytes(model->checkpoint);
    return model_say_progress(model, QR_PHASE_FILES, bytes, bytes, err);
}

qr_status model_tokenizer_open(const char *dir, const struct qr_config *config, const struct qr_log *log,
                               struct tokenizer **out, qr_error *err)
{
    TRY(tok_open(dir, log, out, err));
    const int32_t count = tok_count(*out);
    if (count <= config->vocab_size)
        return QR_OK;
    tok_close(*out);
    *out = NULL;
    return qr_fail(err, QR_BAD_FILE, "%s/tokenizer.json: ids up to %d, config vocab_size is %d", dir, count - 1,
                   config->vocab_size);
}

qr_status model_map_make(const char *dir, const struct qr_config *config, const struct tokenizer *tok,
                         struct token_map *out, qr_error *err)
{
    if (config->n_engram == 0)
        return QR_OK;
    TRY(token_map_build(tok, out, err));
    if (out->keys == config->engram_compressed_vocab_size)
        return QR_OK;
    return qr_fail(err, QR_BAD_FILE, "%s: the tokenizer's compressed map has %d keys, engram_compressed_vocab_size is %d",
                   dir, out->keys, config->engram_compressed_vocab_size);
}

static qr_status open_tokenizer(qr_model *model, qr_error *err)
{
    TRY(model_tokenizer_open(model->dir, &model->config, &model->log, &model->tokenizer, err));
    TRY(model_trie_make(&model->trie, err));
    return tok_ban_list(model->tokenizer, &model->banned, err);
}

static qr_status open_map(qr_model *model, qr_error *err)
{
    return model_map_make(model->dir, &model->config, model->tokenizer, &model->map, err);
}

static qr_status open_text(qr_model *model, qr_error *err)
{
    static qr_status (*const steps[])(qr_model *, qr_error *) = {open_tokenizer, open_map};
    enum { STEPS = sizeof steps / sizeof *steps };
    qr_status st = model_say_progress(model, QR_PHASE_TEXT, 0, STEPS, err);
    for (int i = 0; st == QR_OK && i < STEPS; i++) {
        st = steps[i](model, err);
        if (st == QR_OK)
            st = model_say_progress(model, QR_PHASE_TEXT, (uint64_t)i + 1, STEPS, err);
    }
    return st;
}

static qr_status make_plan(const struct qr_config *config, const qr_model_options *options, struct model_plan *plan,
                           qr_error *err)
{
    return plan_make(config, config_profile(config, options->profile), plan, err);
}

static qr_status read_given(const char *dir, const qr_model_options *given, qr_model_options *out, qr_error *err)
{
    if (!dir || !*dir)
        return qr_fail(err, QR_BAD_ARGUMENT, "the model is %s, wanted the name of a folder", dir ? "\"\"" : "NULL");
    return model_options_read(given, out, err);
}

qr_status model_config_read(const char *dir, const qr_model_options *given, struct qr_config *config,
                            struct model_plan *plan, qr_error *err)
{
    qr_model_options options;
    qr_status st = read_given(dir, given, &options, err);
    if (st != QR_OK)
        return st;
    char *path = path_join(dir, "config.json");
    if (!path)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for a path", dir);
    st = config_read(path, config, err);
    qr_free(path);
    return st == QR_OK ? make_plan(config, &options, plan, err) : st;
}

qr_status model_open_parts(const char *dir, const qr_model_options *given, bool text, qr_model **out, qr_error *err)
{
    qr_model_options options;
    *out = NULL;
    qr_status st = read_given(dir, given, &options, err);
    if (st != QR_OK)
        return st;
    qr_model *model = qr_calloc(1, sizeof *model);
    if (!model)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the model", dir);
    set_log(model, &options);
    memcpy(model->device, options.device, strlen(options.device) + 1);
    model->threads = options.threads;

    if ((st = set_names(model, dir, err)) != QR_OK)
        goto cleanup;
    if (!text)
        model->progress = NULL; /* only sizes are wanted */
    if ((st = open_files(model, err)) != QR_OK)
        goto cleanup;
    if ((st = make_plan(&model->config, &options, &model->plan, err)) != QR_OK)
        goto cleanup;
    if ((st = choose_prompt_profile(model, options.prompt_profile, err)) != QR_OK)
        goto cleanup;
    if ((st = generation_config_read(model->dir, model->config.vocab_size, &model->generation, err)) != QR_OK)
        goto cleanup;
    if (text && (st = open_text(model, err)) != QR_OK)
        goto cleanup;
    *out = model;
    return QR_OK;

cleanup:
    qr_model_close(model);
    return st;
}

qr_status qr_model_open(const char *dir, const qr_model_options *options, qr_model **out, qr_error *err)
{
    return out ? model_open_parts(dir, options, true, out, err) : qr_fail(err, QR_BAD_ARGUMENT, "a model has no place: out is NULL");
}

void qr_model_close(qr_model *model)
{
    if (!model)
        return;
    model_trie_free(model->trie);
    tok_ids_free(&model->banned);
    token_map_free(&model->map);
    tok_close(model->tokenizer);
    checkpoint_close(model->checkpoint);
    qr_free(model->dir);
    qr_free(model->name);
    qr_free(model);
}
