/* accept_graphs.c: A13 of the acceptance suite: every way to run steps on a device that records them (runtime.md 8). */
#include "base/alloc.h"
#include "base/status.h"
#include "ops/device.h"
#include "tools/accept_engine.h"
#include "tools/accept_lab.h"

const char *accept_no_graphs(const struct accept *a)
{
    return backend_records(a->options->device) ? NULL : "this device records no graphs";
}

static const struct {
    const char *name;
    struct run_mode mode;
} modes[] = {{"NONE at level 0", {GRAPHS_NONE, false}},
             {"FULL at level 0", {GRAPHS_FULL, false}},
             {"TR_HYBRID at level 0", {GRAPHS_HYBRID, false}},
             {"NONE at level 3", {GRAPHS_NONE, true}},
             {"FULL at level 3", {GRAPHS_FULL, true}}};
enum { MODES = sizeof modes / sizeof *modes };

/* Prefill chunks of one exact row count, then steps of four rows to one, each size often enough to be recorded and replayed. */
static const int32_t chunks[] = {37, 37, 37, 4, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 1, 0};

static struct backend_counts counts_of(const struct lab *lab)
{
    struct backend_counts c;
    lab->backend->count(lab->backend, &c);
    return c;
}

/* Whether lists were recorded as the mode says. */
static qr_status check_counts(const struct lab *lab, int m, const struct backend_counts *before, struct accept_figures *f,
                              qr_error *err)
{
    const struct backend_counts after = counts_of(lab);
    const int64_t recorded = after.graphs_recorded - before->graphs_recorded,
                  replayed = after.graphs_replayed - before->graphs_replayed;
    const bool none = modes[m].mode.graphs == GRAPHS_NONE;
    if (none ? recorded + replayed > 0 : recorded == 0 || replayed <= recorded)
        return qr_fail(err, QR_INTERNAL, "%s: %lld lists recorded, %lld replayed", modes[m].name, (long long)recorded,
                       (long long)replayed);
    accept_count(f, "recorded", (double)recorded);
    accept_count(f, "replayed", (double)replayed);
    return QR_OK;
}

static qr_status run_mode(struct lab *lab, const struct lab_request *whole, int m, struct accept_figures *f, qr_error *err)
{
    struct lab_request q = {0};
    uint8_t *before = NULL, *after = NULL;
    qr_status st = lab_request(lab, whole->tokens, whole->count, 1 + m % (LAB_SLOTS - 1), true, &q, err);
    lab->backend->run_as(lab->backend, &modes[m].mode);
    const struct backend_counts counts = counts_of(lab);
    if (st == QR_OK)
        st = lab_poison(lab, true, err); /* block 0 too: nobody reads it for values */
    if (st == QR_OK) {
        before = lab_pools(lab, err);
        st = lab_run(lab, &q, chunks, err);
        after = lab_pools(lab, err);
    }
    if (st == QR_OK)
        st = lab_others_unchanged(lab, &q, before, after, err);
    if (st == QR_OK)
        st = lab_same(lab, whole, &q, modes[m].name, err);
    if (st == QR_OK)
        st = check_counts(lab, m, &counts, f, err);
    qr_free(before);
    qr_free(after);
    lab_request_free(&q);
    return st;
}

qr_status accept_graphs(struct accept *a, struct accept_figures *f, qr_error *err)
{
    struct accept_prompt p;
    struct lab_request whole;
    struct lab lab;
    accept_prompt(a, 0, 0, 24, 160 < a->longest ? 160 : a->longest, &p);
    TRY(lab_open(a, p.count, &lab, err));
    qr_status st = lab_request(&lab, p.tokens, p.count, 0, true, &whole, err);
    lab.backend->run_as(lab.backend, &modes[0].mode);
    if (st == QR_OK)
        st = lab_run(&lab, &whole, NULL, err);
    for (int m = 0; st == QR_OK && m < MODES; m++)
        st = run_mode(&lab, &whole, m, f, err);
    lab_request_free(&whole);
    lab_close(&lab);
    return st;
}
