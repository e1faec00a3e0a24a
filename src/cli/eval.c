#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/jsonl.h"
#include "base/status.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/drift.h"
#include "cli/plural.h"

/* Positions in buckets of growing width: 1, 2-3, 4-7, ... so that short and long contexts are told apart. */
enum { BUCKETS = 24 };

struct tally {
    double nll[BUCKETS], total;
    int64_t tokens[BUCKETS], count;
};

struct eval_options {
    struct model_options model;
    const char *text, *requests;
    bool json;
};

/* What scores tokens, and under bounded replay keeps what it gave. */
struct scorer {
    struct loaded *loaded;
    struct drift *drift;
};

static int bucket_of(int64_t position)
{
    int b = 0;
    while (position > 1 && b < BUCKETS - 1) {
        position >>= 1;
        b++;
    }
    return b;
}

static void tally_add(struct tally *t, int64_t position, double logprob)
{
    const int b = bucket_of(position);
    t->nll[b] -= logprob;
    t->tokens[b]++;
    t->total -= logprob;
    t->count++;
}

/* ---- a text ---- */

/* BOS and the text's tokens. */
static qr_status text_tokens(const qr_model *model, const char *path, qr_tokens *out, qr_error *err)
{
    qr_model_info info;
    qr_tokens body = {0};
    char *text = NULL;
    size_t length = 0;
    qr_model_get_info(model, &info);
    qr_status st = file_read(path, (uint64_t)1 << 32, &text, &length, err);
    const size_t valid = st == QR_OK ? utf8_valid_prefix(text, length) : 0;
    if (valid < length)
        st = qr_fail(err, QR_BAD_REQUEST, "%s: no UTF-8 at byte %zu", path, valid);
    if (st == QR_OK)
        st = qr_tokenize(model, text, length, false, &body, err);
    if (st == QR_OK) {
        const size_t bos = info.bos >= 0;
        out->data = qr_calloc(body.count + 1, sizeof *out->data);
        if (!out->data) {
            st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for %zu tokens", path, body.count);
        } else {
            out->data[0] = info.bos;
            if (body.count)
                memcpy(out->data + bos, body.data, body.count * sizeof *body.data);
            out->count = body.count + bos;
        }
    }
    qr_tokens_free(&body);
    qr_free(text);
    return st;
}

/* A text longer than the context is scored in windows that overlap by half, each token once, with the most context. */
static qr_status score_text(struct scorer *s, const qr_tokens *tokens, struct tally *tally, qr_error *err)
{
    qr_plan_bytes plan;
    qr_engine_get_plan(s->loaded->engine, &plan);
    const size_t window = (size_t)plan.max_model_len, step = window / 2 ? window / 2 : 1;
    double *out = qr_calloc(tokens->count + 1, sizeof *out);
    qr_status st = out ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for %zu scores", tokens->count);
    size_t scored = 1;
    for (size_t start = 0; st == QR_OK && scored < tokens->count; start += step) {
        const size_t left = tokens->count - start, count = left < window ? left : window, from = scored - start;
        st = drift_score(s->drift, s->loaded, tokens->data + start, count, from, out, err);
        for (size_t i = from; st == QR_OK && i < count; i++)
            tally_add(tally, (int64_t)i, out[i - from]);
        scored = start + count;
    }
    qr_free(out);
    return st;
}

/* The members of an object: the sums, and the buckets that hold something. */
static void write_tally(struct json_writer *w, const struct tally *t)
{
    const double mean = t->count ? t->total / (double)t->count : 0;
    json_w_member_int(w, "tokens", t->count);
    json_w_member_number(w, "nll", t->total);
    json_w_member_number(w, "mean_nll", mean);
    json_w_member_number(w, "perplexity", exp(mean));
    json_w_key(w, "buckets");
    json_w_array(w);
    for (int b = 0; b < BUCKETS; b++) {
        if (!t->tokens[b])
            continue;
        json_w_object(w);
        json_w_member_int(w, "from", 1LL << b);
        json_w_member_int(w, "tokens", t->tokens[b]);
        json_w_member_number(w, "mean_nll", t->nll[b] / (double)t->tokens[b]);
        json_w_end_object(w);
    }
    json_w_end_array(w);
}

static qr_status print_line(struct json_writer *w, qr_error *err)
{
    const char *text;
    size_t length;
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK && (fwrite(text, 1, length, stdout) != length || putchar('\n') == EOF))
        st = qr_fail(err, QR_IO, "standard output: cannot be written");
    return st;
}

static qr_status print_tally_json(const struct tally *t, const struct drift_figures *drift, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the result");
    json_w_object(w);
    write_tally(w, t);
    if (drift)
        drift_write(w, drift);
    json_w_end_object(w);
    qr_status st = print_line(w, err);
    json_writer_close(w);
    return st;
}

static void print_tally(const struct tally *t)
{
    const double mean = t->count ? t->total / (double)t->count : 0;
    printf("positions        tokens   mean NLL   perplexity\n");
    for (int b = 0; b < BUCKETS; b++)
        if (t->tokens[b]) {
            const double m = t->nll[b] / (double)t->tokens[b];
            printf("%7lld-%-7lld %8lld %10.4f %12.4f\n", 1LL << b, (1LL << (b + 1)) - 1, (long long)t->tokens[b], m, exp(m));
        }
    printf("all             %8lld %10.4f %12.4f   sum %.6f\n", (long long)t->count, mean, exp(mean), t->total);
}

/* What the scores would have been under exact replay; NULL in `out` where they were. */
static qr_status measure_drift(struct scorer *s, const struct eval_options *o, struct drift_figures *figures,
                               const struct drift_figures **out, qr_error *err)
{
    *out = s->drift ? figures : NULL;
    return s->drift ? drift_measure(s->drift, s->loaded, &o->model, figures, err) : QR_OK;
}

static qr_status eval_text(struct scorer *s, const struct eval_options *o, qr_error *err)
{
    struct tally tally = {0};
    qr_tokens tokens = {0};
    struct drift_figures figures;
    const struct drift_figures *drift = NULL;
    qr_status st = text_tokens(s->loaded->model, o->text, &tokens, err);
    if (st == QR_OK && tokens.count < 2)
        st = qr_fail(err, QR_BAD_REQUEST, "%s: %zu token%s, at least 2 are wanted", o->text, tokens.count,
                     plural((int64_t)tokens.count));
    if (st == QR_OK)
        st = score_text(s, &tokens, &tally, err);
    if (st == QR_OK)
        st = measure_drift(s, o, &figures, &drift, err);
    if (st == QR_OK && o->json)
        st = print_tally_json(&tally, drift, err);
    else if (st == QR_OK)
        print_tally(&tally);
    if (st == QR_OK && drift && !o->json)
        drift_print(drift, stdout);
    qr_tokens_free(&tokens);
    return st;
}

/* ---- pairs of context and continuation ---- */

/* A side of a pair: a string, or a list of ids. */
static qr_status read_side(const qr_model *model, const struct json *line, const char *name, qr_tokens *out, qr_error *err)
{
    const struct json *value = json_get(line, name);
    if (!value)
        return QR_OK;
    if (value->kind == JSON_STRING)
        return qr_tokenize(model, value->text, value->length, true, out, err);
    if (value->kind != JSON_ARRAY)
        return qr_fail(err, QR_BAD_REQUEST, "%s: wanted a string or a list of token ids", name);
    out->data = qr_calloc(value->count + 1, sizeof *out->data);
    if (!out->data)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for %zu ids", name, value->count);
    for (const struct json *item = value->child; item; item = item->next) {
        int64_t id;
        if (!json_int64(item, &id) || id < 0 || id > INT32_MAX)
            return qr_fail(err, QR_BAD_REQUEST, "%s: entry %zu is no token id", name, out->count);
        out->data[out->count++] = (int32_t)id;
    }
    return QR_OK;
}

/* {"context", "continuation"}, or {"tokens"} (all but the first are scored), each text or ids. */
static qr_status score_line(struct scorer *s, const struct json *line, struct json_writer *w, struct tally *tally,
                            qr_error *err)
{
    qr_tokens a = {0}, b = {0};
    double *out = NULL, sum = 0;
    qr_status st = read_side(s->loaded->model, line, json_get(line, "tokens") ? "tokens" : "context", &a, err);
    if (st == QR_OK)
        st = read_side(s->loaded->model, line, "continuation", &b, err);
    const size_t from = json_get(line, "tokens") ? 1 : a.count, count = a.count + b.count;
    int32_t *all = qr_calloc(count + 1, sizeof *all);
    out = qr_calloc(count + 1, sizeof *out);
    if (st == QR_OK && (!all || !out))
        st = qr_fail(err, QR_NO_MEMORY, "no memory for %zu tokens", count);
    if (st == QR_OK && (from < 1 || from >= count))
        st = qr_fail(err, QR_BAD_REQUEST, "wanted a context of at least one token and a continuation of at least one, found "
                     "%zu and %zu", count < from ? count : from, count < from ? 0 : count - from);
    if (st == QR_OK) {
        if (a.count)
            memcpy(all, a.data, a.count * sizeof *all);
        if (b.count)
            memcpy(all + a.count, b.data, b.count * sizeof *all);
        st = drift_score(s->drift, s->loaded, all, count, from, out, err);
    }
    for (size_t i = from; st == QR_OK && i < count; i++) {
        tally_add(tally, (int64_t)i, out[i - from]);
        sum -= out[i - from];
    }
    if (st == QR_OK) {
        json_w_member_uint(w, "n", count - from);
        json_w_member_number(w, "nll", sum);
        json_w_key(w, "logprobs");
        json_w_array(w);
        for (size_t i = from; i < count; i++)
            json_w_double(w, out[i - from]);
        json_w_end_array(w);
    }
    qr_free(all);
    qr_free(out);
    qr_tokens_free(&a);
    qr_tokens_free(&b);
    return st;
}

/* The answers of a requests' file: a line for each, or with --json one object that holds them all. */
struct answers {
    struct scorer *scorer;
    struct json_writer *w;
    bool json;
    struct tally tally;
    int64_t failed;
};

/* The answer of one line; `read`: how the reading of it went. */
static void answer_line(struct answers *a, const struct json *line, uint64_t number, qr_status read, qr_error *read_error)
{
    const struct json *id = json_get(line, "id");
    json_w_object(a->w);
    json_w_key(a->w, "id");
    if (id)
        json_w_value(a->w, id);
    else if (line)
        json_w_uint(a->w, number);
    else
        json_w_null(a->w); /* no JSON: the message has its number */
    if (read == QR_OK && json_get(line, "tokens") && (json_get(line, "context") || json_get(line, "continuation")))
        read = qr_fail(read_error, QR_BAD_REQUEST, "tokens: stands beside a context or continuation, wanted one form of the two");
    if (read == QR_OK)
        read = score_line(a->scorer, line, a->w, &a->tally, read_error);
    if (read != QR_OK) {
        json_w_member_string(a->w, "error", read_error->message);
        a->failed++;
    }
    json_w_end_object(a->w);
}

static qr_status answer_lines(struct answers *a, FILE *file, const char *name, qr_error *err)
{
    struct jsonl_reader reader;
    qr_status st = QR_OK;
    jsonl_open(&reader, file, name);
    for (;;) {
        struct json_document *doc = NULL;
        qr_error line_error = {0};
        const qr_status read = jsonl_next(&reader, &doc, &line_error);
        if (read != QR_OK && read != QR_BAD_REQUEST) {
            st = qr_fail(err, read, "%s", line_error.message);
            break;
        }
        if (read == QR_OK && !doc)
            break;
        answer_line(a, doc ? json_root(doc) : NULL, reader.number - 1, read, &line_error);
        json_close(doc);
        if (a->json)
            continue;
        if ((st = print_line(a->w, err)) != QR_OK)
            break;
        json_writer_reset(a->w);
    }
    jsonl_close(&reader);
    return st;
}

static qr_status eval_requests(struct scorer *s, const struct eval_options *o, qr_error *err)
{
    struct answers a = {.scorer = s, .json = o->json};
    struct drift_figures figures;
    const struct drift_figures *drift = NULL;
    FILE *file = strcmp(o->requests, "-") == 0 ? stdin : fopen(o->requests, "re");
    if (!file)
        return qr_fail(err, QR_BAD_FILE, "%s: cannot open: %s", o->requests, strerror(errno));
    a.w = json_writer_open(false);
    qr_status st = a.w ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for the answers");
    if (st == QR_OK && o->json) {
        json_w_object(a.w);
        json_w_key(a.w, "requests");
        json_w_array(a.w);
    }
    if (st == QR_OK)
        st = answer_lines(&a, file, o->requests, err);
    if (st == QR_OK)
        st = measure_drift(s, o, &figures, &drift, err);
    if (st == QR_OK && o->json) {
        json_w_end_array(a.w);
        json_w_member_int(a.w, "failed", a.failed);
        write_tally(a.w, &a.tally);
        if (drift)
            drift_write(a.w, drift);
        json_w_end_object(a.w);
        st = print_line(a.w, err);
    }
    json_writer_close(a.w);
    if (file != stdin)
        fclose(file);
    if (st == QR_OK && !o->model.quiet && a.tally.count)
        fprintf(stderr, "%lld token%s, mean NLL %.4f, perplexity %.4f\n", (long long)a.tally.count, plural(a.tally.count),
                a.tally.total / (double)a.tally.count, exp(a.tally.total / (double)a.tally.count));
    if (st == QR_OK && drift && !o->model.quiet)
        drift_print(drift, stderr);
    if (st == QR_OK && a.failed)
        st = qr_fail(err, QR_BAD_REQUEST, "%s: %lld request%s failed", o->requests, (long long)a.failed,
                     plural(a.failed));
    return st;
}

/* What is measured must be the model's (runtime.md 11). */
static qr_status refuse_forced(const struct model_options *m, qr_error *err)
{
    if (m->forced_length == 0)
        return QR_OK;
    return qr_fail(err, QR_REFUSED, "E09 a forced acceptance length of %g in a run that measures the model", m->forced_length);
}

int command_eval(int argc, char **argv)
{
    struct eval_options o = {.model = MODEL_OPTIONS_DEFAULT};
    qr_error err = {0};
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(o.model),
        ENGINE_OPTIONS(o.model),
        {.name = "text", .kind = OPTION_PATH, .target = &o.text, .value = "FILE", .help = "a text to score as a whole"},
        {.name = "requests", .kind = OPTION_PATH, .target = &o.requests, .value = "FILE",
         .help = "JSON lines {id, context, continuation} or {id, tokens}; - for standard input"},
        {.name = "json", .kind = OPTION_FLAG, .target = &o.json, .help = "one JSON object on standard output"},
        {0}};
    struct command_line line = {.command = "eval", .synopsis = "--model DIR (--text FILE | --requests FILE.jsonl)",
                                .about = "Negative log likelihood of a text by position, or of continuations given their "
                                         "contexts; under bounded replay also how far it is from exact.",
                                .options = options};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!o.model.model || !o.text == !o.requests) {
        status = options_wrong(&line, o.model.model ? "one of --text and --requests is wanted" : "--model DIR is missing");
    } else {
        struct loaded l = {.percent = -1};
        struct scorer s = {.loaded = &l};
        qr_status st = refuse_forced(&o.model, &err);
        if (st == QR_OK)
            st = loaded_open(&o.model, &l, &err);
        if (st == QR_OK)
            st = drift_open(&o.model, &s.drift, &err);
        if (st == QR_OK)
            st = o.text ? eval_text(&s, &o, &err) : eval_requests(&s, &o, &err);
        status = st == QR_OK ? 0 : report_failure("eval", &err);
        drift_close(s.drift);
        loaded_close(&l);
    }
    options_free(options);
    return status;
}
