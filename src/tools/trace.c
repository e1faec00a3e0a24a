/* quire trace: a teacher-forced forward of token sequences, its arrays in a file (design/cli.md). */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "tools/opened.h"
#include "tools/trace_recorder.h"

struct trace_options {
    struct model_options model;
    const char *tokens, *out, *want, *force, *chunks, *kv_fp8_sim;
    int decode_from;
};

/* Everything a trace opens, closed in one place. */
struct trace {
    const struct trace_options *options;
    uint32_t groups; /* wanted, of those that the family has */
    struct qr_log log;
    struct opened model;
    struct safetensors *force;
    struct trace_input input;
    struct trace_cut cut;
    int32_t *chunks;
    int32_t **blocks; /* of each sequence */
    struct batch_span *spans;
    int32_t *sequence;  /* of each span */
    int32_t *positions; /* where each sequence stands */
    int32_t *slots;     /* STATE slot of each sequence */
    struct trace_arrays arrays;
    const struct trace_recorder *recorder;
    void *recording;
};

/* ---- what was asked for ---- */

static const struct {
    const char *name;
    uint32_t groups;
} group_names[] = {
    {"logits", TRACE_LOGITS}, {"streams", TRACE_STREAMS}, {"selection", TRACE_SELECTION},
    {"caches", TRACE_CACHES}, {"routes", TRACE_ROUTES},   {"engram", TRACE_ENGRAM},
    {"draft", TRACE_DRAFT},   {"mtp", TRACE_MTP},         {"all", ~0u},
};
enum { GROUPS = sizeof group_names / sizeof *group_names };

static const struct trace_recorder *const recorders[] = {
    [QR_FAMILY_V41] = &trace_v41_recorder, [QR_FAMILY_V4] = &trace_v4_recorder};

static bool read_groups(const char *list, uint32_t *out)
{
    *out = 0;
    for (const char *at = list;;) {
        size_t length = strcspn(at, ",");
        uint32_t found = 0;
        for (int i = 0; i < GROUPS; i++)
            if (strlen(group_names[i].name) == length && strncmp(group_names[i].name, at, length) == 0)
                found = group_names[i].groups;
        if (!found)
            return false;
        *out |= found;
        if (!at[length])
            return true;
        at += length + 1;
    }
}

/* All groups of a model with this config. */
static uint32_t groups_of_model(const struct qr_config *c)
{
    uint32_t none = 0;
    if (c->n_engram == 0)
        none |= TRACE_ENGRAM;
    if (c->drafter != QR_DRAFTER_DSPARK)
        none |= TRACE_DRAFT;
    if (c->drafter != QR_DRAFTER_MTP)
        none |= TRACE_MTP;
    return ~none;
}

/* The groups wanted that can be recorded; one that cannot is warned about. */
static uint32_t groups_recorded(const struct trace *t, uint32_t wanted)
{
    const bool serial = t->model.config.drafter == QR_DRAFTER_MTP; /* its drafts are group mtp */
    const uint32_t built = t->recorder->groups & ~(serial ? (uint32_t)TRACE_DRAFT : 0);
    if (wanted == ~0u)
        wanted = groups_of_model(&t->model.config);
    for (int name = 0; name < GROUPS; name++) {
        uint32_t group = group_names[name].groups;
        if (group != ~0u && (group & wanted) && !(group & built))
            qr_logf(&t->log, QR_LOG_WARN, "group %s is left out: it is not built for this model",
                    group_names[name].name);
    }
    return wanted & built;
}

/* ---- opening ---- */

static qr_status read_config(struct trace *t, uint32_t wanted, qr_error *err)
{
    const struct model_options *m = &t->options->model;
    struct qr_config *c = &t->model.config;
    TRY(opened_config(m, &t->model, err));
    t->recorder = recorders[c->family];
    t->groups = groups_recorded(t, wanted);
    if (c->drafter != QR_DRAFTER_MTP && (t->groups & TRACE_MTP))
        return qr_fail(err, QR_UNSUPPORTED, "%s: group mtp is wanted, the folder's drafter is %s", m->model,
                       c->drafter == QR_DRAFTER_DSPARK ? "DSpark" : "none");
    if (c->drafter != QR_DRAFTER_DSPARK && (t->groups & TRACE_DRAFT))
        return qr_fail(err, QR_UNSUPPORTED, "%s: group draft is wanted, the folder's drafter is %s", m->model,
                       c->drafter == QR_DRAFTER_MTP ? "the MTP layer" : "none");
    return opened_geometry(m, t->groups & (TRACE_MTP | TRACE_DRAFT), &t->model, err);
}

/* Blocks of every sequence, handed out from the far end of the pool so that no address is where a plain array would
 * have it; `*used` gets the size of the pool. */
static qr_status deal_blocks(struct trace *t, int64_t *used, qr_error *err)
{
    int64_t block = t->model.geometry.options.block_tokens, next = 1;
    for (int32_t i = 0; i < t->input.count; i++)
        next += (t->input.sequences[i].count + block - 1) / block;
    *used = next;
    for (int32_t i = 0; i < t->input.count; i++) {
        int64_t count = (t->input.sequences[i].count + block - 1) / block;
        t->blocks[i] = qr_calloc((size_t)count, sizeof **t->blocks);
        if (!t->blocks[i])
            return qr_fail(err, QR_NO_MEMORY, "no memory for %lld block ids", (long long)count);
        for (int64_t k = 0; k < count; k++)
            t->blocks[i][k] = (int32_t)--next;
    }
    return QR_OK;
}

/* Tokens of sequence `i` in the step that begins at `position`. */
static int32_t next_chunk(const struct trace *t, int32_t i, int32_t step, int32_t position)
{
    const struct trace_sequence *s = &t->input.sequences[i];
    const int32_t count = trace_next_chunk(&t->cut, step, position, s->count);
    return t->groups & TRACE_DRAFT ? trace_to_prefix(s, position, count) : count;
}

/* Rows of the largest step that the cut asks for. */
static int64_t largest_step(const struct trace *t)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < t->input.count; i++) {
        int32_t end = t->input.sequences[i].count, largest = 0, position = 0;
        for (int32_t step = 0; position < end; step++) {
            int32_t chunk = next_chunk(t, i, step, position);
            largest = chunk > largest ? chunk : largest;
            position += chunk;
        }
        rows += largest;
    }
    return rows;
}

/* The longest sequence. */
static int32_t longest_sequence(const struct trace *t)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < t->input.count; i++)
        longest = t->input.sequences[i].count > longest ? t->input.sequences[i].count : longest;
    return longest;
}

static qr_status make_lists(struct trace *t, qr_error *err)
{
    size_t count = (size_t)t->input.count;
    t->blocks = qr_calloc(count, sizeof *t->blocks);
    t->spans = qr_calloc(count, sizeof *t->spans);
    t->sequence = qr_calloc(count, sizeof *t->sequence);
    t->positions = qr_calloc(count, sizeof *t->positions);
    t->slots = qr_calloc(count, sizeof *t->slots);
    if (!t->blocks || !t->spans || !t->sequence || !t->positions || !t->slots)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu sequences", count);
    for (int32_t i = 0; i < t->input.count; i++)
        t->slots[i] = t->input.count - 1 - i;
    return QR_OK;
}

static qr_status open_model(struct trace *t, qr_error *err)
{
    const struct trace_options *o = t->options;
    const int32_t longest = longest_sequence(t), positions = t->model.config.max_position_embeddings;
    int64_t blocks, rows = largest_step(t), drafts = t->groups & TRACE_MTP ? rows : 0;

    if (t->groups & TRACE_DRAFT) {
        drafts = t->input.count * (int64_t)t->model.config.dspark_block_size;
        rows = rows > drafts ? rows : drafts;
    }
    if (rows > INT32_MAX)
        return qr_fail(err, QR_BAD_REQUEST, "a step of %lld rows, wanted at most %d", (long long)rows, INT32_MAX);
    if (o->decode_from >= positions) /* one behind a sequence's end decodes nothing of that sequence */
        return qr_fail(err, QR_BAD_REQUEST, "--decode-from is %d, wanted 0 to %d, the model's last position",
                       o->decode_from, positions - 1);
    TRY(make_lists(t, err));
    TRY(deal_blocks(t, &blocks, err));
    const struct runner_options steps = {.blocks = blocks,
                                         .slots = t->input.count,
                                         .model = {.max_rows = (int32_t)rows,
                                                   .max_requests = t->input.count,
                                                   .max_logits = (int32_t)rows,
                                                   .max_positions = longest,
                                                   .max_draft_rows = (int32_t)drafts,
                                                   .plain_keys = o->kv_fp8_sim && strcmp(o->kv_fp8_sim, "off") == 0,
                                                   .trace = true}};
    TRY(opened_plan(&t->model, &o->model, &steps, err));
    return opened_load(&t->model, &o->model, &steps, err);
}

/* ---- running ---- */

/* The next chunk of every sequence that has tokens left; false when none has. */
static bool next_batch(struct trace *t, int32_t step, struct batch *out)
{
    out->count = 0;
    out->spans = t->spans;
    for (int32_t i = 0; i < t->input.count; i++) {
        const struct trace_sequence *s = &t->input.sequences[i];
        int32_t position = t->positions[i], block = t->model.geometry.options.block_tokens;
        if (position == s->count)
            continue;
        struct batch_span *span = &t->spans[out->count];
        *span = (struct batch_span){.slot = t->slots[i],
                                    .blocks = t->blocks[i],
                                    .block_count = (s->count + block - 1) / block,
                                    .first_position = position,
                                    .count = next_chunk(t, i, step, position),
                                    .tokens = s->tokens + position,
                                    .image_mask = s->image_mask + position};
        t->sequence[out->count++] = i;
        t->positions[i] += span->count;
    }
    return out->count > 0;
}

static qr_status run_steps(struct trace *t, qr_error *err)
{
    struct batch batch = {.tentative = false};
    for (int32_t step = 0; next_batch(t, step, &batch); step++)
        TRY(t->recorder->step(t->recording, &batch, t->sequence, err));
    return t->recorder->finish(t->recording, (const int32_t *const *)t->blocks, t->slots, err);
}

static qr_status run(struct trace *t, uint32_t wanted, qr_error *err)
{
    TRY(read_config(t, wanted, err));
    TRY(trace_input_read(t->options->tokens, &t->model.config, &t->input, err));
    if (t->options->force)
        TRY(safetensors_open(t->options->force, &t->force, err));
    TRY(open_model(t, err));
    const struct trace_job job = {.plan = &t->model.plan,
                                  .backend = t->model.backend,
                                  .runner = t->model.runner,
                                  .input = &t->input,
                                  .want = t->groups,
                                  .force = t->force};
    TRY(t->recorder->open(&job, &t->arrays, &t->recording, err));
    TRY(run_steps(t, err));
    return arrays_save(&t->arrays, t->options->out, err);
}

static void close_all(struct trace *t)
{
    if (t->recorder)
        t->recorder->close(t->recording);
    arrays_free(&t->arrays);
    opened_close(&t->model);
    safetensors_close(t->force);
    for (int32_t i = 0; t->blocks && i < t->input.count; i++)
        qr_free(t->blocks[i]);
    qr_free(t->blocks);
    qr_free(t->spans);
    qr_free(t->sequence);
    qr_free(t->positions);
    qr_free(t->slots);
    qr_free(t->chunks);
    trace_input_free(&t->input);
}

int tool_trace(int argc, char **argv)
{
    struct trace_options o = {.model = MODEL_OPTIONS_DEFAULT, .want = "logits", .decode_from = -1};
    const struct option table[] = {
        MODEL_OPTIONS(o.model),
        CACHE_OPTIONS(o.model),
        {.name = "tokens",
         .kind = OPTION_PATH,
         .target = &o.tokens,
         .value = "FILE",
         .help = "JSON: {\"tokens\": [...]} or a list of such objects, a ragged batch"},
        {.name = "out",
         .kind = OPTION_PATH,
         .target = &o.out,
         .value = "FILE",
         .help = "the safetensors file to write"},
        {.name = "want",
         .kind = OPTION_STRING,
         .target = &o.want,
         .value = "LIST",
         .help = "groups of arrays: logits (default), streams, selection, caches, routes, engram, draft, mtp, all"},
        {.name = "force",
         .kind = OPTION_PATH,
         .target = &o.force,
         .value = "FILE",
         .help = "feed every layer with the streams and pre of FILE instead of its predecessor's"},
        {.name = "chunks",
         .kind = OPTION_STRING,
         .target = &o.chunks,
         .value = "N,N,...",
         .help = "tokens of each step, the last number repeating; default: all at once"},
        {.name = "decode-from",
         .kind = OPTION_INT,
         .target = &o.decode_from,
         .value = "N",
         .help = "run positions from N on one at a time",
         .least = 0,
         .most = 2147483647},
        {.name = "kv-fp8-sim",
         .kind = OPTION_CHOICE,
         .target = &o.kv_fp8_sim,
         .value = "on|off",
         .help = "off: V4 keys and values unrounded, as in the first official code; default on"},
        {0},
    };
    struct command_line line = {
        .command = "trace",
        .synopsis = "--model DIR --tokens FILE --out FILE [OPTION...]",
        .about = "Runs a teacher-forced forward of token sequences and writes arrays of it, named as in the goldens.",
        .options = table};
    struct trace t = {.options = &o};
    qr_error err = {0};
    uint32_t groups;
    int status;

    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!o.model.model || !o.tokens || !o.out)
        return options_wrong(&line, "%s is missing",
                             !o.model.model ? "--model DIR"
                             : !o.tokens    ? "--tokens FILE"
                                            : "--out FILE");
    if (!read_groups(o.want, &groups))
        return options_wrong(&line, "--want is \"%s\", wanted a list of logits, streams, selection, caches, routes, engram, draft, mtp "
                                    "and all", o.want);
    if (!trace_read_chunks(o.chunks, &t.chunks, &t.cut.count))
        return options_wrong(&line, "--chunks is \"%s\", wanted numbers from 1 to 2147483647 with commas between", o.chunks);
    t.cut.chunks = t.chunks;
    t.cut.decode_from = o.decode_from;
    t.log = model_options_log(&o.model);

    qr_status st = run(&t, groups, &err);
    close_all(&t);
    return st == QR_OK ? 0 : report_failure("trace", &err);
}
