#include "tools/bench_drafts.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/jsonl.h"
#include "base/sha256.h"
#include "cli/plan.h"
#include "cli/print_json.h"
#include "cli/sampling_options.h"
#include "tools/bench_profile.h"
#include "tools/bench_random.h"

enum { MOST_KINDS = 64, OF_A_KIND = 8 };
enum { METHOD_NONE, METHOD_ALWAYS, METHOD_AUTO, METHODS };

/* What one method made of a kind. */
struct outcome {
    double seconds, cpu; /* cpu: of all threads together, which other work on the machine does not lengthen */
    qr_draft_metrics drafts; /* of the counters only */
};

struct kind {
    char name[32];
    struct request_text requests[OF_A_KIND];
    int count;
    struct outcome outcomes[METHODS];
};

struct drafts_bench {
    const struct bench_drafts *o;
    qr_model *model;
    struct kind kinds[MOST_KINDS];
    int kind_count;
};

/* ---- requests ---- */

static struct kind *find_kind(struct drafts_bench *b, const char *name, size_t length)
{
    for (int i = 0; i < b->kind_count; i++)
        if (strlen(b->kinds[i].name) == length && memcmp(b->kinds[i].name, name, length) == 0)
            return &b->kinds[i];
    if (b->kind_count == MOST_KINDS - 1 || length >= sizeof b->kinds->name)
        return NULL;
    struct kind *kind = &b->kinds[b->kind_count++];
    memcpy(kind->name, name, length);
    return kind;
}

static qr_status take_line(struct drafts_bench *b, const struct json *line, qr_error *err)
{
    const struct sampling_options defaults = SAMPLING_OPTIONS_DEFAULT;
    const struct json *name = json_get(line, "kind"), *request = json_get(line, "request");
    const bool named = name && name->kind == JSON_STRING;
    struct kind *kind = find_kind(b, named ? name->text : "requests", named ? name->length : strlen("requests"));
    if (!kind)
        return qr_fail(err, QR_BAD_REQUEST, "more than %d kinds of requests, or one with a name of %d bytes or more",
                       MOST_KINDS - 1, (int)sizeof kind->name);
    if (kind->count == OF_A_KIND)
        return QR_OK;
    return request_from_json(b->model, request ? request : line, &defaults, &kind->requests[kind->count++], err);
}

/* `docs` keeps what the requests point into. */
static qr_status read_requests(struct drafts_bench *b, struct json_document ***docs, size_t *count, qr_error *err)
{
    struct jsonl_reader reader;
    size_t room = 0;
    FILE *file = b->o->requests ? fopen(b->o->requests, "re") : NULL;
    if (!file)
        return b->o->requests ? qr_fail(err, QR_BAD_FILE, "%s: cannot be opened", b->o->requests) : QR_OK;
    jsonl_open(&reader, file, b->o->requests);
    qr_status st = QR_OK;
    while (st == QR_OK) {
        struct json_document *doc = NULL;
        st = jsonl_next(&reader, &doc, err);
        if (st != QR_OK || !doc)
            break;
        if (!array_grow(docs, &room, *count, sizeof **docs)) {
            json_close(doc);
            st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for request %zu", b->o->requests, *count + 1);
            break;
        }
        (*docs)[(*count)++] = doc;
        st = take_line(b, json_root(doc), err);
    }
    jsonl_close(&reader);
    fclose(file);
    return st;
}

static qr_status add_random(struct drafts_bench *b, qr_error *err)
{
    struct kind *kind = &b->kinds[b->kind_count++];
    snprintf(kind->name, sizeof kind->name, "random tokens");
    kind->count = OF_A_KIND;
    return bench_random(b->model, b->o->tokens, kind->requests, kind->count, err);
}

/* ---- running ---- */

static void subtract(uint64_t *after, const uint64_t *before, size_t count)
{
    for (size_t i = 0; i < count; i++)
        after[i] -= before[i];
}

static qr_draft_metrics since(const qr_draft_metrics *before, const qr_draft_metrics *after)
{
    qr_draft_metrics m = *after;
    uint64_t *sums[] = {&m.decode_steps, &m.verify_steps, &m.verified, &m.accepted, &m.emitted};
    const uint64_t olds[] = {before->decode_steps, before->verify_steps, before->verified, before->accepted, before->emitted};
    for (size_t i = 0; i < sizeof olds / sizeof *olds; i++)
        subtract(sums[i], &olds[i], 1);
    subtract(m.rests, before->rests, QR_REST_REASONS);
    m.draft_seconds -= before->draft_seconds;
    m.verify_seconds -= before->verify_seconds;
    return m;
}

static qr_status run_kind(qr_engine *engine, const struct kind *kind, struct outcome *out, qr_error *err)
{
    qr_metrics before = {.size = sizeof before}, after = {.size = sizeof after};
    qr_get_metrics(engine, &before);
    const double start = clock_seconds();
    const double cpu = clock_cpu_seconds();
    const qr_status st = bench_answers(engine, kind->requests, kind->count, err);
    out->seconds = clock_seconds() - start;
    out->cpu = clock_cpu_seconds() - cpu;
    qr_get_metrics(engine, &after);
    out->drafts = since(&before.drafts, &after.drafts);
    return st;
}

static qr_status run_method(struct drafts_bench *b, int method, qr_engine_options options, qr_error *err)
{
    static const char *const own[] = {"dspark", "mtp"};
    qr_engine *engine = NULL;
    qr_status st = QR_REFUSED;
    options.method = method == METHOD_NONE ? "none" : "auto";
    if (method == METHOD_ALWAYS) {
        for (int i = 0; st == QR_REFUSED && i < 2; i++) {
            options.method = own[i];
            st = qr_engine_create(b->model, &options, &engine, err);
        }
        if (st == QR_REFUSED)
            return qr_fail(err, QR_UNSUPPORTED, "bench drafts: the checkpoint has no drafter that can run");
    } else {
        st = qr_engine_create(b->model, &options, &engine, err);
    }
    for (int i = 0; st == QR_OK && i < b->kind_count; i++) {
        struct outcome outcome;
        st = run_kind(engine, &b->kinds[i], &outcome, err);
        struct outcome *best = &b->kinds[i].outcomes[method];
        if (st == QR_OK && (best->seconds == 0 || outcome.seconds < best->seconds))
            *best = outcome;
    }
    qr_engine_destroy(engine);
    return st;
}

/* ---- figures ---- */

static double part(double a, double b) { return b > 0 ? a / b : 0; }

/* Tokens that came of a step of a request. */
static double tokens_a_step(const qr_draft_metrics *m) { return part((double)m->emitted, (double)m->decode_steps); }

struct figures {
    double tokens, accepted, seconds[METHODS], cpu[METHODS], resting;
};

static struct figures figures_of(const struct outcome *outcomes)
{
    const qr_draft_metrics *always = &outcomes[METHOD_ALWAYS].drafts, *automatic = &outcomes[METHOD_AUTO].drafts;
    struct figures f = {.tokens = tokens_a_step(always),
                        .accepted = part((double)always->accepted, (double)always->verified),
                        .resting = 1 - part((double)automatic->verify_steps, (double)automatic->decode_steps)};
    for (int m = 0; m < METHODS; m++) {
        f.seconds[m] = outcomes[m].seconds;
        f.cpu[m] = outcomes[m].cpu;
    }
    return f;
}

static void write_figures(struct json_writer *w, const char *name, const struct figures *f)
{
    json_w_object(w);
    json_w_member_string(w, "kind", name);
    json_w_member_number(w, "tokens_a_step", f->tokens);
    json_w_member_number(w, "acceptance_rate", f->accepted);
    json_w_member_number(w, "seconds_without", f->seconds[METHOD_NONE]);
    json_w_member_number(w, "seconds_always", f->seconds[METHOD_ALWAYS]);
    json_w_member_number(w, "seconds_auto", f->seconds[METHOD_AUTO]);
    json_w_member_number(w, "cpu_seconds_without", f->cpu[METHOD_NONE]);
    json_w_member_number(w, "cpu_seconds_always", f->cpu[METHOD_ALWAYS]);
    json_w_member_number(w, "cpu_seconds_auto", f->cpu[METHOD_AUTO]);
    json_w_member_number(w, "steps_resting_auto", f->resting);
    json_w_end_object(w);
}

static void print_figures(const char *name, const struct figures *f)
{
    printf("%-16s %8.2f %9.1f%% %10.2f %10.2f %10.2f %8.2f %8.2f %8.0f%%\n", name, f->tokens, 100 * f->accepted,
           f->seconds[METHOD_NONE], f->seconds[METHOD_ALWAYS], f->seconds[METHOD_AUTO],
           part(f->seconds[METHOD_NONE], f->seconds[METHOD_ALWAYS]), part(f->seconds[METHOD_NONE], f->seconds[METHOD_AUTO]),
           100 * f->resting);
}

/* Of the requests of the file together; and the mean of their kinds' tokens a step. */
static struct figures figures_of_all(const struct drafts_bench *b, double *mean)
{
    struct outcome all[METHODS] = {0};
    *mean = 0;
    for (int i = 0; i < b->kind_count - 1; i++) {
        *mean += tokens_a_step(&b->kinds[i].outcomes[METHOD_ALWAYS].drafts) / (b->kind_count - 1);
        for (int m = 0; m < METHODS; m++) {
            const struct outcome *one = &b->kinds[i].outcomes[m];
            all[m].seconds += one->seconds;
            all[m].cpu += one->cpu;
            all[m].drafts.decode_steps += one->drafts.decode_steps;
            all[m].drafts.verify_steps += one->drafts.verify_steps;
            all[m].drafts.verified += one->drafts.verified;
            all[m].drafts.accepted += one->drafts.accepted;
            all[m].drafts.emitted += one->drafts.emitted;
        }
    }
    return figures_of(all);
}

static qr_status print_all(const struct drafts_bench *b, qr_error *err)
{
    double mean;
    const struct figures all = figures_of_all(b, &mean);
    struct json_writer *w = b->o->json ? json_writer_open(false) : NULL;
    if (b->o->json && !w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    if (w) {
        json_w_object(w);
        json_w_member_int(w, "batch", b->o->batch);
        json_w_key(w, "kinds");
        json_w_array(w);
    } else {
        printf("%-16s %8s %10s %10s %10s %10s %8s %8s %9s\n", "drafts", "tokens/", "accepted", "seconds", "seconds", "seconds",
               "faster", "faster", "steps");
        printf("%-16s %8s %10s %10s %10s %10s %8s %8s %9s\n", "", "step", "", "without", "always", "auto", "always", "auto",
               "resting");
    }
    for (int i = 0; i < b->kind_count; i++) {
        const struct figures f = figures_of(b->kinds[i].outcomes);
        if (w)
            write_figures(w, b->kinds[i].name, &f);
        else
            print_figures(b->kinds[i].name, &f);
    }
    if (!w) {
        if (b->kind_count > 1) {
            print_figures("all of the file", &all);
            printf("mean of its kinds: %.2f tokens a step\n", mean);
        }
        return QR_OK;
    }
    json_w_end_array(w);
    json_w_key(w, "file");
    write_figures(w, "all", &all);
    json_w_member_number(w, "mean_tokens_a_step", mean);
    json_w_end_object(w);
    return print_json(w, err);
}

/* ---- the profile ---- */

/* The hash of the tokens of every prompt, one after the other. */
static void hash_prompts(const qr_request *const *requests, int count, char out[SHA256_HEX])
{
    struct sha256 h;
    sha256_start(&h);
    for (int i = 0; i < count; i++)
        sha256_add(&h, requests[i]->tokens, requests[i]->token_count * sizeof *requests[i]->tokens);
    sha256_end(&h, out);
}

static qr_status measure_profile(const struct drafts_bench *b, const qr_engine_options *options, qr_error *err)
{
    const qr_request *all[MOST_KINDS * OF_A_KIND];
    char workload[SHA256_HEX];
    int count = 0;
    for (int k = 0; k < b->kind_count; k++)
        for (int i = 0; i < b->kinds[k].count; i++)
            all[count++] = &b->kinds[k].requests[i].request;
    hash_prompts(all, count, workload);
    qr_status st = bench_profile(b->model, options, all, count, workload, b->o->profile, err);
    if (st == QR_OK)
        printf("%s: the profile of %d requests\n", b->o->profile, count);
    return st;
}

/* ---- the whole ---- */

static qr_status run(struct drafts_bench *b, const qr_engine_options *options, qr_error *err)
{
    struct json_document **docs = NULL;
    size_t count = 0;
    qr_status st = read_requests(b, &docs, &count, err);
    if (st == QR_OK)
        st = add_random(b, err);
    if (st == QR_OK && b->o->profile)
        st = measure_profile(b, options, err);
    for (int i = 0; st == QR_OK && !b->o->profile && i < b->o->runs * METHODS; i++)
        st = run_method(b, i % METHODS, *options, err);
    if (st == QR_OK && !b->o->profile)
        st = print_all(b, err);
    for (int k = 0; k < MOST_KINDS; k++)
        for (int i = 0; i < OF_A_KIND; i++)
            request_text_free(&b->kinds[k].requests[i]);
    for (size_t i = 0; i < count; i++)
        json_close(docs[i]);
    qr_free(docs);
    return st;
}

qr_status bench_drafts_run(const struct bench_drafts *o, qr_error *err)
{
    struct model_options m = o->model;
    m.max_num_seqs = o->batch;
    m.no_prefix_caching = true; /* the same prompts again and again */
    m.method = "auto";          /* what is planned for */
    const qr_model_options model_options = model_options_model(&m);
    qr_engine_options options = model_options_engine(&m);
    struct drafts_bench *b = qr_calloc(1, sizeof *b);
    if (!b)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    b->o = o;
    qr_status st = plan_before_loading(&m, &options, err);
    if (st == QR_OK)
        st = qr_model_open(m.model, &model_options, &b->model, err);
    if (st == QR_OK)
        st = run(b, &options, err);
    qr_model_close(b->model);
    qr_free(b);
    return st;
}
