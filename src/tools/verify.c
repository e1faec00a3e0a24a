/* quire verify: the files of a model, then this build and this machine against the reference path (design/cli.md). */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/plural.h"
#include "cli/print_json.h"
#include "ops/device.h"
#include "tools/verify_files.h"
#include "tools/verify_machine.h"
#include "tools/verify_sums.h"

struct verify {
    struct model_options model;
    const char *checksums;
    bool files_only, json;
    struct qr_log log;

    struct files_report files;
    struct findings defects; /* of the files */

    bool ran; /* the machine was looked at */
    char device[32], reference[32];
    const char *profile;
    struct verify_table table;
    struct tokens_report tokens;
    struct findings faults; /* of the machine */
};

/* ---- printing ---- */

static void print_files(const struct verify *v)
{
    const struct files_report *f = &v->files;
    printf("files: %lld shards, %lld tensors of %.3f GB; every header, every scale (%lld tensors), the values of %.3f GB\n",
           (long long)f->shards, (long long)f->tensors, (double)f->bytes / 1e9, (long long)f->scales,
           (double)f->values_bytes / 1e9);
    if (v->checksums)
        printf("checksums: %lld files of %.3f GB\n", (long long)f->hashed_files, (double)f->hashed_bytes / 1e9);
    for (size_t i = 0; i < v->defects.count; i++)
        printf("%s\n", v->defects.items[i]);
    if (!v->defects.count)
        printf("the files are sound\n");
}

static void print_machine(const struct verify *v)
{
    const struct tokens_report *t = &v->tokens;
    printf("\n%s against %s, profile %s, one layer of each kind:\n", v->device, v->reference, v->profile);
    verify_table_print(&v->table);
    printf("\n%d tokens after a prompt of %d, each layer from the same input:\n", t->tokens, t->prompt);
    printf("%-8s %10s %10s %10s %10s\n", "layer", "equal", "mean", "error", "median");
    for (int32_t i = 0; i < t->layers; i++)
        printf("%-8d %9.3f%% %10.3g %10.3g %10.3g  %s\n", i, 100 * t->layer[i].equal, t->layer[i].mean, t->layer[i].largest,
               t->layer[i].median, t->layer[i].failed ? "FAIL" : "ok");
    printf("logits   %10s %10.3g %10.3g, %d choices differ (largest margin %.3g)  %s\n", "", t->mean, t->largest, t->differ, t->margin,
           t->failed ? "FAIL" : "ok");
    printf("%s: %.2f tokens/s; %s: one pass over all in %.2f s\n", v->device,
           t->device_seconds > 0 ? (t->tokens - 1) / t->device_seconds : 0, v->reference, t->reference_seconds);
    for (size_t i = 0; i < v->faults.count; i++)
        printf("%s\n", v->faults.items[i]);
}

static void json_findings(struct json_writer *w, const char *key, const struct findings *f)
{
    json_w_key(w, key);
    json_w_array(w);
    for (size_t i = 0; i < f->count; i++)
        json_w_string(w, f->items[i]);
    json_w_end_array(w);
}

static void json_files(struct json_writer *w, const struct verify *v)
{
    const struct files_report *f = &v->files;
    json_w_key(w, "files");
    json_w_object(w);
    json_w_member_int(w, "shards", f->shards);
    json_w_member_int(w, "tensors", f->tensors);
    json_w_member_int(w, "bytes", (int64_t)f->bytes);
    json_w_member_int(w, "scales", f->scales);
    json_w_member_int(w, "values_bytes", (int64_t)f->values_bytes);
    json_w_member_int(w, "hashed_files", f->hashed_files);
    json_w_member_int(w, "hashed_bytes", (int64_t)f->hashed_bytes);
    json_findings(w, "defects", &v->defects);
    json_w_end_object(w);
}

static void json_tokens(struct json_writer *w, const struct tokens_report *t)
{
    json_w_key(w, "tokens");
    json_w_object(w);
    json_w_member_int(w, "prompt", t->prompt);
    json_w_member_int(w, "count", t->tokens);
    json_w_member_int(w, "differ", t->differ);
    json_w_member_number(w, "margin", t->margin);
    json_w_member_number(w, "largest", t->largest);
    json_w_member_number(w, "mean", t->mean);
    json_w_member_number(w, "seconds", t->device_seconds);
    json_w_member_number(w, "reference_seconds", t->reference_seconds);
    json_w_key(w, "layers");
    json_w_array(w);
    for (int32_t i = 0; i < t->layers; i++) {
        json_w_object(w);
        json_w_member_number(w, "equal", t->layer[i].equal);
        json_w_member_number(w, "mean", t->layer[i].mean);
        json_w_member_number(w, "largest", t->layer[i].largest);
        json_w_member_number(w, "median", t->layer[i].median);
        json_w_member_bool(w, "passed", !t->layer[i].failed);
        json_w_end_object(w);
    }
    json_w_end_array(w);
    json_w_member_bool(w, "passed", !t->failed);
    json_w_end_object(w);
}

static void json_machine(struct json_writer *w, const struct verify *v)
{
    json_w_key(w, "machine");
    json_w_object(w);
    json_w_member_string(w, "device", v->device);
    json_w_member_string(w, "against", v->reference);
    json_w_member_string(w, "profile", v->profile);
    json_w_key(w, "operators");
    verify_table_json(&v->table, w);
    json_tokens(w, &v->tokens);
    json_findings(w, "faults", &v->faults);
    json_w_end_object(w);
}

static qr_status print_report(const struct verify *v, bool sound, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a report");
    json_w_object(w);
    json_files(w, v);
    if (v->ran)
        json_machine(w, v);
    json_w_member_bool(w, "ok", sound);
    json_w_end_object(w);
    return print_json(w, err);
}

/* ---- looking ---- */

static qr_status look_at_files(struct verify *v, qr_error *err)
{
    struct worker_pool *pool;
    TRY(pool_open(v->model.threads, &pool, err));
    qr_status st = verify_files(v->model.model, pool, v->model.quiet, &v->files, &v->defects, err);
    if (st == QR_OK && v->checksums)
        st = verify_sums(v->model.model, v->checksums, pool, v->model.quiet, &v->files, &v->defects, err);
    pool_close(pool);
    return st;
}

/* What takes long is said where somebody waits at a terminal. */
static void say(const struct verify *v, const char *what)
{
    if (!v->model.quiet && isatty(STDERR_FILENO))
        fprintf(stderr, "%s\n", what);
}

static qr_status compare(struct verify *v, struct machine *m, struct backend *device, struct backend *reference, qr_error *err)
{
    snprintf(v->device, sizeof v->device, "%s", device->name);
    snprintf(v->reference, sizeof v->reference, "%s", reference->name);
    v->profile = config_profile_name(m->plan.profile);
    say(v, "comparing every operator with the reference, which takes its time ...");
    TRY(machine_operators(m, device, reference, &v->table, &v->faults, err));
    say(v, "comparing 64 tokens ...");
    TRY(machine_tokens(m, device, reference, &v->tokens, &v->faults, err));
    if (v->faults.no_memory)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for a list of faults", v->model.model);
    v->ran = true;
    return QR_OK;
}

static qr_status look_at_machine(struct verify *v, qr_error *err)
{
    struct machine m = {0};
    struct backend *device = NULL, *reference = NULL;
    qr_status st = machine_open(v->model.model, v->model.profile, &v->log, &m, err);
    if (st == QR_OK)
        st = backend_open(v->model.device, v->model.threads, &v->log, &device, err);
    if (st == QR_OK)
        st = backend_open("cpu-reference", v->model.threads, &v->log, &reference, err);
    if (st == QR_OK)
        st = compare(v, &m, device, reference, err);
    if (device)
        device->close(device);
    if (reference)
        reference->close(reference);
    machine_close(&m);
    return st;
}

/* ---- judging: the one sentence that a failure ends with; what was found is printed ---- */

static qr_status judge(const struct verify *v, qr_error *err)
{
    const char *dir = v->model.model;
    if (v->defects.count)
        return qr_fail(err, v->files.config == QR_REFUSED ? QR_REFUSED : QR_BAD_FILE,
                       "%s: %zu defect%s in its files, so that nothing was run; the first: %s", dir, v->defects.count,
                       plural((int64_t)v->defects.count), v->defects.items[0]);
    if (v->faults.count)
        return qr_fail(err, QR_NUMERIC, "%s: %s is not the reference in %zu way%s; the first: %s", dir, v->device, v->faults.count, plural((int64_t)v->faults.count),
                       v->faults.items[0]);
    return QR_OK;
}

static qr_status run(struct verify *v, qr_error *err)
{
    qr_error why = {0};
    TRY(look_at_files(v, err));
    if (!v->json) {
        print_files(v);
        fflush(stdout);
    }
    if (!v->defects.count && !v->files_only)
        TRY(look_at_machine(v, err));
    if (v->ran && !v->json)
        print_machine(v);
    qr_status st = judge(v, &why);
    if (v->json)
        TRY(print_report(v, st == QR_OK, err));
    return st == QR_OK ? QR_OK : qr_fail(err, st, "%s", why.message);
}

int tool_verify(int argc, char **argv)
{
    struct verify v = {.model = MODEL_OPTIONS_DEFAULT};
    const struct option options[] = {
        MODEL_OPTIONS(v.model),
        {.name = "checksums", .kind = OPTION_PATH, .target = &v.checksums, .value = "FILE",
         .help = "SHA-256 of every file of the folder, as sha256sum writes them"},
        {.name = "files-only", .kind = OPTION_FLAG, .target = &v.files_only, .help = "leave the machine out"},
        {.name = "json", .kind = OPTION_FLAG, .target = &v.json, .help = "one JSON object"},
        {0},
    };
    struct command_line line = {.command = "verify",
                                .synopsis = "--model DIR [--checksums FILE] [OPTION...]",
                                .about = "Checks a model's files: config, tokenizer, every header, every scale, every value that could be no number, and with a "
                                         "list of checksums every byte. Then this build on this machine against the reference path: every "
                                         "operator at the model's shapes, and 64 tokens. Names every defect.",
                                .options = options};
    qr_error err = {0};
    int status;
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!v.model.model)
        return options_wrong(&line, "--model DIR is missing");
    for (const struct option *o = NULL; v.files_only && (o = options_given(&line, o));)
        if (option_among(o, " device profile "))
            return options_wrong(&line, "--%s says nothing to --files-only, which leaves the machine out", o->name);
    v.log = model_options_log(&v.model);
    arena_init(&v.defects.arena, 0);
    arena_init(&v.faults.arena, 0);
    arena_init(&v.table.arena, 0);
    qr_status st = run(&v, &err);
    findings_free(&v.defects);
    findings_free(&v.faults);
    verify_table_free(&v.table);
    return st == QR_OK ? 0 : report_failure("verify", &err);
}
