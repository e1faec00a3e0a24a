/* quire acceptance: the acceptance suite (runtime.md 13) on any model folder, and its report. */
#include "tools/accept.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/print_json.h"
#include "engine/model.h"
#include "ops/device.h"
#include "tools/open_map.h"

const struct accept_case accept_cases[] = {
    {"A01", "chunks of any length give the logits of one forward, and its cursor", accept_chunks, NULL, NULL},
    {"A02", "padding rows give zero and change no byte", accept_padding, NULL, NULL},
    {"A03", "prompts in chunks, the running requests turned around in every step", accept_reversed, NULL, NULL},
    {"A04", "two forks of one prompt", accept_forks, NULL, NULL},
    {"A05", "a prompt behind the loss of all images", accept_no_images, NULL, NULL},
    {"A06", "a prompt preempted in its middle", accept_preempted, NULL, NULL},
    {"A07", "requests cancelled in every state", accept_cancelled, NULL, NULL},
    {"A08", "an answer in the slot of a cancelled request", accept_slot_reuse, NULL, NULL},
    {"A09", "prefix hits before suffixes of every kind of length", accept_hits, NULL, NULL},
    {"A10", "kernels see the rows of the row plan and no other", accept_audit, NULL, NULL},
    {"A11", "last chunks of 1 to 127 rows", accept_last_chunk, NULL, NULL},
    {"A12", "a rerun longer than a step", accept_budget, NULL, NULL},
    {"A13", "recorded steps give the bits of operators started one by one, and touch no page of others", accept_graphs, NULL,
     accept_no_graphs},
    {"A14", "garbage in every unused row and page", accept_garbage, NULL, NULL},
    {"A15", "the ring wraps: positions one by one against a prefill", accept_wrap, NULL, NULL},
    {"A16", "drafts change no token, whatever becomes of them", accept_drafts, NULL, accept_no_drafts},
    {"A17", "tiers of the cache", NULL, "this build keeps the cache in one tier", NULL},
    {"A18", "data parallelism", NULL, "this build runs one rank", NULL},
    {"A19", "two-batch overlap", NULL, "this build does not split batches", NULL},
    {"A20", "collectives", NULL, "this build runs one rank", NULL},
    {"A21", "planes are apart, addresses beyond 4 GiB are exact", accept_geometry, NULL, NULL},
    {"A22", "each admission rule alone refuses before weights are opened", accept_rules, NULL, NULL},
    {"A23", "a soak of all events at random", accept_soak, NULL, NULL},
    {"A24", "quality", NULL, "it needs texts and scores of the published model", NULL},
    {"A25", "a whole prompt in the cache, then decoding at once", accept_whole_hit, NULL, NULL},
    {"A26", "sleep and wake between requests", accept_sleep, NULL, NULL},
    {"A27", "image prompts in chunks", NULL, "this build takes no images", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

bool accept_has_bounded(const struct accept *a)
{
    return rows_decoder(&a->plan) >= 0 && backend_clamps_windows(a->options->device);
}

void accept_mode(struct accept_figures *f, const char *mode)
{
    for (int i = 0; i < f->mode_count; i++)
        if (strcmp(f->modes[i], mode) == 0)
            return;
    if (f->mode_count < ACCEPT_MODES)
        f->modes[f->mode_count++] = mode;
}

void accept_count(struct accept_figures *f, const char *name, double value)
{
    int i = 0;
    while (i < f->count && strcmp(f->at[i].name, name) != 0)
        i++;
    if (i == ACCEPT_FIGURES)
        return;
    if (i == f->count) {
        f->count++;
        f->at[i].name = name;
        f->at[i].value = 0;
    }
    f->at[i].value += value;
}

/* ---- the fixture ---- */

static const char words[] =
    "The lamp was lit before dusk, and the keeper wrote the hour and the wind into his book, as he had done "
    "every evening for thirty years. A ship passed far out; nobody on it saw him. 灯塔在黄昏前点亮，看守人把时刻与风向写进簿子，"
    "三十年来每个傍晚都是如此。一艘船从远处驶过，船上没有人看见他。"
    "int32_t best = 0;\nfor (int32_t i = 1; i < count; i++)\n    best = score[i] > score[best] ? i : best;\n"
    "return best;\n";

/* Pages of 32 tokens where the ratios allow it. */
static int32_t smallest_block(const struct model_plan *plan)
{
    struct geometry_options o = geometry_defaults(plan);
    struct geometry g;
    qr_error err = {0};
    o.block_tokens = 32;
    return geometry_make(plan, &o, &g, &err) == QR_OK ? 32 : 128;
}

/* Tokens of any kind, where the folder's tokenizer says what ids stand for and not how text is split. */
static qr_status make_words(struct accept *a, qr_error *err)
{
    enum { WORDS = 331 };
    uint64_t state = 41;
    a->words.data = qr_calloc(WORDS, sizeof *a->words.data);
    if (!a->words.data)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d tokens", WORDS);
    while (a->words.count < WORDS) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const int32_t token = (int32_t)((state >> 33) % (uint64_t)a->config.vocab_size);
        if (token != a->config.image_token_id)
            a->words.data[a->words.count++] = token;
    }
    return QR_OK;
}

/* Ids that the tokenizer does not have are in no answer. */
static qr_status ban_the_rest(struct accept *a, qr_error *err)
{
    const int32_t first = tok_count(a->model->tokenizer), count = a->config.vocab_size - first;
    if (count <= 0)
        return QR_OK;
    a->banned.data = qr_calloc((size_t)count, sizeof *a->banned.data);
    if (!a->banned.data)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d tokens", count);
    for (int32_t i = 0; i < count; i++)
        a->banned.data[a->banned.count++] = first + i;
    return QR_OK;
}

static qr_status set_sizes(struct accept *a, qr_error *err)
{
    const bool small = (a->block = smallest_block(&a->plan)) == 32;
    const int32_t ceiling = a->config.max_position_embeddings;
    a->longest = ceiling < ACCEPT_LONGEST ? ceiling : ACCEPT_LONGEST;
    a->rows = small ? 256 : 512;
    a->cap = a->interval = a->block;
    a->prompts[0] = small ? 96 : 384;
    a->prompts[1] = small ? 81 : 401;
    a->prompts[2] = 525;
    if (a->longest < 640)
        return qr_fail(err, QR_UNSUPPORTED, "%s: requests of %d tokens at most, the suite wants 640", a->options->model,
                       a->longest);
    TRY(ban_the_rest(a, err));
    return a->ids_only ? make_words(a, err) : qr_tokenize(a->model, words, sizeof words - 1, false, &a->words, err);
}

static qr_status open_control(struct accept *a, qr_error *err)
{
    qr_engine_options o = model_options_engine(a->options);
    o.block_size = a->block;
    o.max_model_len = o.max_num_batched_tokens = a->longest;
    o.max_num_seqs = 1;
    o.no_prefix_caching = true;
    o.decoder_replay = "off";
    return qr_engine_create(a->model, &o, &a->control, err);
}

/* The suite needs no text: a folder whose tokenizer splits in a way that this build does not know will do too. */
static qr_status open_model(struct accept *a, qr_error *err)
{
    const qr_model_options o = model_options_model(a->options);
    const struct qr_log log = model_options_log(a->options);
    const char *dir = a->options->model;
    qr_error text = {0};
    qr_status st = qr_model_open(dir, &o, &a->model, &text);
    if (st == QR_OK)
        return QR_OK;
    if (st != QR_BAD_FILE || folder_has_tokenizer(dir) != 1)
        return qr_fail(err, st, "%s", text.message);
    a->ids_only = true;
    TRY(model_open_parts(dir, &o, false, &a->model, err));
    TRY(tok_open_ids(dir, &log, &a->model->tokenizer, err));
    TRY(tok_ban_list(a->model->tokenizer, &a->model->banned, err));
    return open_token_map(dir, &a->model->config, &log, &a->model->map, err);
}

static qr_status open_fixture(struct accept *a, qr_error *err)
{
    TRY(open_model(a, err));
    a->config = a->model->config;
    a->plan = a->model->plan;
    TRY(set_sizes(a, err));
    return open_control(a, err);
}

static void close_fixture(struct accept *a)
{
    qr_tokens_free(&a->words);
    qr_tokens_free(&a->banned);
    qr_engine_destroy(a->control);
    qr_model_close(a->model);
}

/* ---- the report ---- */

enum result { PASSED, FAILED, NOT_APPLICABLE };
static const char *const result_names[] = {"passed", "failed", "not applicable"};

struct outcome {
    const struct accept_case *of;
    enum result result;
    qr_error why;
    double seconds;
    struct accept_figures figures;
};

enum { MOST_CASES = sizeof accept_cases / sizeof *accept_cases };

static struct outcome run_case(struct accept *a, const struct accept_case *c)
{
    struct outcome o = {.of = c, .result = NOT_APPLICABLE};
    const double start = clock_seconds();
    const char *reason = c->run && c->unless ? c->unless(a) : c->reason;
    if (reason) {
        qr_fail(&o.why, QR_UNSUPPORTED, "%s", reason);
        return o;
    }
    o.result = c->run(a, &o.figures, &o.why) == QR_OK ? PASSED : FAILED;
    o.seconds = clock_seconds() - start;
    return o;
}

static void print_outcome(const struct outcome *o)
{
    printf("%s  %-14s %6.1f s  %s", o->of->id, result_names[o->result], o->seconds, o->of->title);
    for (int i = 0; i < o->figures.mode_count; i++)
        printf("%s%s", i ? ", " : "; ", o->figures.modes[i]);
    for (int i = 0; i < o->figures.count; i++)
        printf("%s%s %.10g", i ? ", " : " (", o->figures.at[i].name, o->figures.at[i].value);
    printf("%s\n", o->figures.count ? ")" : "");
    if (o->result != PASSED)
        printf("     %s\n", o->why.message);
    fflush(stdout);
}

static void write_outcome(struct json_writer *w, const struct outcome *o)
{
    json_w_object(w);
    json_w_member_string(w, "id", o->of->id);
    json_w_member_string(w, "title", o->of->title);
    json_w_key(w, "modes");
    json_w_array(w);
    for (int i = 0; i < o->figures.mode_count; i++)
        json_w_string(w, o->figures.modes[i]);
    json_w_end_array(w);
    json_w_member_string(w, "result", result_names[o->result]);
    json_w_member_string(w, "why", o->result == PASSED ? "" : o->why.message);
    json_w_member_number(w, "seconds", o->seconds);
    json_w_key(w, "figures");
    json_w_object(w);
    for (int i = 0; i < o->figures.count; i++)
        json_w_member_number(w, o->figures.at[i].name, o->figures.at[i].value);
    json_w_end_object(w);
    json_w_end_object(w);
}

static qr_status write_report(const struct accept *a, const struct outcome *outcomes, int count, qr_error *err)
{
    int64_t of[3] = {0};
    qr_model_info info;
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the report");
    qr_model_get_info(a->model, &info);
    json_w_object(w);
    json_w_member_string(w, "model", info.name);
    json_w_member_string(w, "family", info.family);
    json_w_member_string(w, "backend", info.backend);
    json_w_key(w, "cases");
    json_w_array(w);
    for (int i = 0; i < count; i++) {
        of[outcomes[i].result]++;
        write_outcome(w, &outcomes[i]);
    }
    json_w_end_array(w);
    json_w_member_int(w, "passed", of[PASSED]);
    json_w_member_int(w, "failed", of[FAILED]);
    json_w_member_int(w, "not_applicable", of[NOT_APPLICABLE]);
    json_w_end_object(w);
    return print_json(w, err);
}

/* ---- the command ---- */

/* Whether `only`, ids between commas, names the case; NULL names all. */
static bool wanted(const char *only, const char *id)
{
    for (const char *at = only; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strcspn(at, ",") == strlen(id) && strncmp(at, id, strlen(id)) == 0)
            return true;
    return !only;
}

/* Whether each of them is the id of a case; one may stand there twice. */
static bool known(const char *only)
{
    for (const char *at = only; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const struct accept_case *c = accept_cases;
        while (c->id && !(strcspn(at, ",") == strlen(c->id) && strncmp(at, c->id, strlen(c->id)) == 0))
            c++;
        if (!c->id)
            return false;
    }
    return true;
}

static qr_status run_all(struct accept *a, const char *only, bool json, int *failed, qr_error *err)
{
    struct outcome *outcomes = qr_calloc(MOST_CASES, sizeof *outcomes);
    int count = 0;
    if (!outcomes)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the report");
    qr_status st = open_fixture(a, err);
    for (const struct accept_case *c = accept_cases; st == QR_OK && c->id; c++) {
        if (!wanted(only, c->id))
            continue;
        outcomes[count] = run_case(a, c);
        *failed += outcomes[count].result == FAILED;
        if (!json)
            print_outcome(&outcomes[count]);
        count++;
    }
    if (st == QR_OK && json)
        st = write_report(a, outcomes, count, err);
    close_fixture(a);
    qr_free(outcomes);
    return st;
}

int tool_acceptance(int argc, char **argv)
{
    struct model_options m = MODEL_OPTIONS_DEFAULT;
    const char *only = NULL;
    bool json = false;
    int steps = 400, status, failed = 0;
    const struct option options[] = {
        MODEL_OPTIONS(m),
        {.name = "only",
         .kind = OPTION_STRING,
         .target = &only,
         .value = "LIST",
         .help = "cases by their ids: A03,A07; default: all"},
        {.name = "steps",
         .kind = OPTION_INT,
         .target = &steps,
         .value = "N",
         .help = "steps of the soak (A23); default 400",
         .least = 1,
         .most = 100000000},
        {.name = "json", .kind = OPTION_FLAG, .target = &json, .help = "one JSON object on standard output"},
        {0}};
    struct command_line line = {
        .command = "acceptance",
        .synopsis = "--model DIR",
        .about = "Runs the acceptance suite of the runtime on a model folder: one entry for each case, passed, "
                 "failed or not applicable, with the reason and what was counted. Exit status 0 when none failed.",
        .options = options};
    qr_error err = {0};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!m.model || !known(only)) {
        status = m.model ? options_wrong(&line, "--only %s names a case that does not exist", only)
                         : options_wrong(&line, "--model DIR is missing");
    } else {
        struct accept a = {.options = &m, .soak_steps = steps};
        const qr_status st = run_all(&a, only, json, &failed, &err);
        status = st == QR_OK ? failed > 0 : report_failure("acceptance", &err);
    }
    options_free(options);
    return status;
}
