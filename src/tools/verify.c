/* quire verify: the files of a model, then this build and this machine against the reference path (design/cli.md). */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "tools/verify_files.h"
#include "tools/verify_sums.h"

struct verify {
    struct model_options model;
    const char *checksums;
    bool files_only, json;
    struct files_report files;
    struct findings found;
};

static void print_files(const struct verify *v)
{
    const struct files_report *f = &v->files;
    printf("files: %lld shards, %lld tensors of %.3f GB; every header, every scale (%lld tensors), the values of %.3f GB\n",
           (long long)f->shards, (long long)f->tensors, (double)f->bytes / 1e9, (long long)f->scales,
           (double)f->values_bytes / 1e9);
    if (v->checksums)
        printf("checksums: %lld files of %.3f GB\n", (long long)f->hashed_files, (double)f->hashed_bytes / 1e9);
    for (size_t i = 0; i < v->found.count; i++)
        printf("%s\n", v->found.items[i]);
    if (!v->found.count)
        printf("the files are sound\n");
}

static void json_count(struct json_writer *w, const char *key, int64_t value)
{
    json_w_key(w, key);
    json_w_int(w, value);
}

static void json_files(struct json_writer *w, const struct verify *v)
{
    const struct files_report *f = &v->files;
    json_w_key(w, "files");
    json_w_object(w);
    json_count(w, "shards", f->shards);
    json_count(w, "tensors", f->tensors);
    json_count(w, "bytes", (int64_t)f->bytes);
    json_count(w, "scales", f->scales);
    json_count(w, "values_bytes", (int64_t)f->values_bytes);
    json_count(w, "hashed_files", f->hashed_files);
    json_count(w, "hashed_bytes", (int64_t)f->hashed_bytes);
    json_w_key(w, "defects");
    json_w_array(w);
    for (size_t i = 0; i < v->found.count; i++)
        json_w_string(w, v->found.items[i]);
    json_w_end_array(w);
    json_w_end_object(w);
}

static qr_status print_json(const struct verify *v, bool sound, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    const char *text;
    size_t length;
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a report");
    json_w_object(w);
    json_files(w, v);
    json_w_key(w, "ok");
    json_w_bool(w, sound);
    json_w_end_object(w);
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK)
        printf("%.*s\n", (int)length, text);
    json_writer_close(w);
    return st;
}

static qr_status look_at_files(struct verify *v, qr_error *err)
{
    struct worker_pool *pool;
    TRY(pool_open(v->model.threads, &pool, err));
    qr_status st = verify_files(v->model.model, pool, v->model.quiet, &v->files, &v->found, err);
    if (st == QR_OK && v->checksums)
        st = verify_sums(v->model.model, v->checksums, pool, v->model.quiet, &v->files, &v->found, err);
    pool_close(pool);
    return st;
}

/* The one sentence that a failure ends with; the defects themselves are printed. */
static qr_status judge_files(const struct verify *v, qr_error *err)
{
    if (!v->found.count)
        return QR_OK;
    return qr_fail(err, v->files.config == QR_REFUSED ? QR_REFUSED : QR_BAD_FILE,
                   "%s: %zu defects in its files, so that nothing was run; the first: %s", v->model.model, v->found.count,
                   v->found.items[0]);
}

static qr_status run(struct verify *v, qr_error *err)
{
    TRY(look_at_files(v, err));
    if (!v->json)
        print_files(v);
    qr_error why = {0};
    qr_status st = judge_files(v, &why);
    if (v->json)
        TRY(print_json(v, st == QR_OK, err));
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
                                .about = "Checks a model folder: every header, every scale, every value that could be no number, and with "
                                         "a list of checksums every byte. Names every defect.",
                                .options = options};
    qr_error err = {0};
    int status;
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!v.model.model)
        return options_wrong(&line, "--model is missing");
    arena_init(&v.found.arena, 0);
    qr_status st = run(&v, &err);
    findings_free(&v.found);
    return st == QR_OK ? 0 : report_failure("verify", &err);
}
