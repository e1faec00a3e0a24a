/* quire op: one operator on the arrays of a file (design/cli.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "checkpoint/safetensors_write.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/nearest.h"
#include "ops/device.h"
#include "tools/bench.h"
#include "tools/op.h"
#include "tools/op_check.h"
#include "tools/op_cost.h"
#include "tools/op_report.h"

/* Everything one call opens, closed in one place. */
struct op_tool {
    const struct op_options *options;
    struct op_file *file;
    const struct op_harness *harness;
    struct backend *backend, *other_backend;
    struct op_run *run, *other;
    struct op_report report;
};

static qr_status find_harness(struct op_tool *t, qr_error *err)
{
    const char *stated = op_file_metadata(t->file, "op"), *name = t->options->name ? t->options->name : stated;
    if (!name)
        return qr_fail(err, QR_BAD_REQUEST, "%s: its metadata names no operator", t->options->in);
    t->harness = op_harness_find(name);
    if (!t->harness)
        return qr_fail(err, QR_BAD_REQUEST, "operator %s is none of those that quire op --list names", name);
    if (stated && op_harness_find(stated) != t->harness)
        return qr_fail(err, QR_BAD_REQUEST, "%s: holds inputs of operator %s, wanted %s", t->options->in, stated, t->harness->name);
    return QR_OK;
}

static qr_status run_on(struct op_tool *t, const char *device, struct backend **backend, struct op_run **run, qr_error *err)
{
    TRY(backend_open(device, t->options->threads, NULL, backend, err));
    TRY(op_run_open(t->file, t->harness, *backend, t->options->ranks, run, err));
    return op_run_execute(*run, err);
}

/* Every output, under its name in a file. */
static qr_status write_outputs(struct op_run *run, const char *path, qr_error *err)
{
    const char *metadata[3][2] = {{"op", run->harness->name}, {"profile", run->w8a8 ? "w8a8" : "ref"}, {"device", run->backend->name}};
    struct tensor_view *views;
    int64_t count = 0;
    TRY(op_host_new(run, (run->out_count + 1) * (int64_t)sizeof *views, &views, err));
    for (int32_t i = 0; i < run->out_count; i++) {
        const struct op_slot *slot = &run->out[i];
        char *name;
        if (!slot->host)
            continue;
        TRY(op_host_new(run, (int64_t)strlen(slot->array->name) + 8, &name, err));
        sprintf(name, "out.%s", slot->array->name);
        views[count++] = (struct tensor_view){.name = name, .dtype = op_slot_dtype(run, slot), .rank = slot->rank,
                                              .shape = slot->shape, .data = slot->host, .bytes = (uint64_t)slot->bytes};
    }
    return safetensors_save(path, views, count, (const char *const(*)[2])metadata, 3, err);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Bytes a second that a copy on the device reads and writes, the best of a few. */
static qr_status copy_rate(struct backend *b, double *out, qr_error *err)
{
    enum { TRIES = 5 };
    const int64_t bytes = (int64_t)1 << 28;
    void *from = NULL, *to = NULL;
    double start;
    *out = 0;
    qr_status st = b->allocate(b, bytes, &from, err);
    if (st == QR_OK)
        st = b->allocate(b, bytes, &to, err);
    for (int i = 0; st == QR_OK && i < TRIES; i++) {
        st = b->fence(b, err);
        start = clock_seconds();
        if (st == QR_OK)
            st = b->copy(b, to, from, bytes, err);
        if (st == QR_OK)
            st = b->fence(b, err);
        double rate = 2 * (double)bytes / (clock_seconds() - start);
        *out = rate > *out ? rate : *out;
    }
    if (from)
        b->release(b, from);
    if (to)
        b->release(b, to);
    return st;
}

/* What the memory of the device gives, measured in the same run: reading on a CPU, copying elsewhere. */
static qr_status measure_memory(const struct op_tool *t, double *out, qr_error *err)
{
    struct worker_pool *pool;
    if (strncmp(t->backend->name, "cpu", 3) != 0)
        return copy_rate(t->backend, out, err);
    TRY(pool_open(t->options->threads, &pool, err));
    qr_status st = bench_read_rate(pool, (int64_t)1 << 28, out, err);
    pool_close(pool);
    return st;
}

static qr_status time_calls(struct op_tool *t, qr_error *err)
{
    double *seconds;
    int n = t->options->times;
    TRY(op_run_bytes(t->run, &t->report.bytes, err));
    TRY(op_host_new(t->run, (n + 1) * (int64_t)sizeof *seconds, &seconds, err));
    for (int i = -1; i < n; i++) /* one that is not counted */
        TRY(op_run_repeat(t->run, &seconds[i < 0 ? 0 : i], err));
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    TRY(measure_memory(t, &t->report.bandwidth, err));
    t->report.calls = n;
    t->report.median = seconds[n / 2];
    t->report.least = seconds[0];
    return QR_OK;
}

static qr_status check(struct op_tool *t, bool *passed, qr_error *err)
{
    struct op_verdict *verdicts;
    TRY(op_host_new(t->run, op_file_count(t->file) * (int64_t)sizeof *verdicts, &verdicts, err));
    t->report.verdicts = verdicts;
    return op_check(t->run, verdicts, &t->report.verdict_count, passed, err);
}

static qr_status compare(struct op_tool *t, qr_error *err)
{
    struct op_difference *differences;
    TRY(run_on(t, t->options->against, &t->other_backend, &t->other, err));
    TRY(op_host_new(t->run, (t->run->out_count + 1) * (int64_t)sizeof *differences, &differences, err));
    t->report.differences = differences;
    t->report.against = t->other_backend->name;
    return op_compare_runs(t->run, t->other, differences, &t->report.difference_count, err);
}

static qr_status run(struct op_tool *t, bool *passed, qr_error *err)
{
    const struct op_options *o = t->options;
    TRY(op_file_open(o->in, &t->file, err));
    TRY(find_harness(t, err));
    TRY(run_on(t, o->device, &t->backend, &t->run, err));
    t->report.run = t->run;
    if (o->check)
        TRY(check(t, passed, err));
    if (o->against)
        TRY(compare(t, err));
    else if (o->out)
        TRY(write_outputs(t->run, o->out, err));
    if (o->times)
        TRY(time_calls(t, err));
    if (o->json)
        return report_json(&t->report, err);
    if (o->check || o->against || o->times)
        report_text(&t->report);
    return QR_OK;
}

static void close_all(struct op_tool *t)
{
    op_run_close(t->other);
    op_run_close(t->run);
    if (t->other_backend)
        t->other_backend->close(t->other_backend);
    if (t->backend)
        t->backend->close(t->backend);
    op_file_close(t->file);
}

qr_status op_tool_run(const struct op_options *o, bool *passed, qr_error *err)
{
    struct op_tool t = {.options = o};
    *passed = true;
    qr_status st = run(&t, passed, err);
    close_all(&t);
    return st;
}

int op_check_name(const struct command_line *line, const char *name)
{
    const struct op_harness *h, *nearest = op_harness_at(0);
    if (!name || op_harness_find(name))
        return 0;
    for (int32_t i = 0; (h = op_harness_at(i)); i++)
        if (edit_distance(name, h->name) < edit_distance(name, nearest->name))
            nearest = h;
    return options_wrong(line, "operator \"%s\" is none of those that quire op --list names%s", name,
                         nearest_hint(name, nearest->name).text);
}

static int list(const char *name, bool json)
{
    qr_error err = {0};
    const struct op_harness *only = name ? op_harness_find(name) : NULL;
    if (json)
        return report_list_json(only, &err) == QR_OK ? 0 : report_failure("op", &err);
    report_list(only);
    return 0;
}

int tool_op(int argc, char **argv)
{
    struct op_options o = {.device = "cpu"};
    const struct option table[] = {
        {.name = "in", .kind = OPTION_PATH, .target = &o.in, .value = "FILE", .help = "safetensors file with the arrays in.*"},
        {.name = "out", .kind = OPTION_PATH, .target = &o.out, .value = "FILE", .help = "where the arrays out.* go"},
        {.name = "device", .kind = OPTION_DEVICE, .target = &o.device, .value = "DEVICE", .help = "cpu (default), cpu-reference or cuda[:N]"},
        {.name = "threads", .kind = OPTION_INT, .target = &o.threads, .value = "N", .help = "default: every core", .least = 0, .most = 4096},
        {.name = "check", .kind = OPTION_FLAG, .target = &o.check, .help = "compare with the out.* of the file, by its tolerance"},
        {.name = "against", .kind = OPTION_DEVICE, .target = &o.against, .value = "DEVICE",
         .help = "compare with another device and print the largest difference"},
        {.name = "time", .kind = OPTION_INT, .target = &o.times, .value = "N", .help = "time N calls beside the bytes they move",
         .least = 1, .most = 1000000},
        {.name = "ranks", .kind = OPTION_INT, .target = &o.ranks, .value = "N", .help = "simulated ranks, where the operator has ranks",
         .least = 1, .most = 16},
        {.name = "list", .kind = OPTION_FLAG, .target = &o.list, .help = "name every operator with its arrays"},
        {.name = "json", .kind = OPTION_FLAG, .target = &o.json, .help = "what is printed as one JSON object"},
        {0},
    };
    struct command_line line = {.command = "op", .synopsis = "[NAME] --in FILE --out FILE [OPTION...]",
                                .about = "Runs one operator on the arrays of a file. Name, profile and parameters come from its metadata.",
                                .options = table, .most = 1};
    qr_error err = {0};
    bool passed;
    int status;

    if (!options_parse(&line, argc, argv, &status))
        return status;
    o.name = line.argument_count ? line.arguments[0] : NULL;
    if ((status = op_check_name(&line, o.name)) != 0)
        return status;
    if (o.list && (o.in || o.out || o.check || o.against || o.times || o.ranks))
        return options_wrong(&line, "--list runs nothing, wanted only a name and --json beside it");
    if (o.list)
        return list(o.name, o.json);
    if (!o.in)
        return options_wrong(&line, "--in FILE is missing");
    if (o.out && o.against)
        return options_wrong(&line, "--out says nothing to --against, which writes no file");
    if (!o.out && !o.check && !o.against && !o.times)
        return options_wrong(&line, "--out FILE is missing (or --check, --against or --time)");

    qr_status st = op_tool_run(&o, &passed, &err);
    if (st == QR_BAD_ARGUMENT) /* of the file's arrays: nothing is wrong with the line */
        err.status = QR_BAD_FILE;
    if (st == QR_OK && !passed)
        st = qr_fail(&err, QR_BAD_FILE, "%s: outputs are outside the tolerance", o.in);
    return st == QR_OK ? 0 : report_failure("op", &err);
}
