#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/jsonl.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/loaded.h"

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
static qr_status score_text(struct loaded *l, const qr_tokens *tokens, struct tally *tally, qr_error *err)
{
    qr_plan_bytes plan;
    qr_engine_get_plan(l->engine, &plan);
    const size_t window = (size_t)plan.max_model_len, step = window / 2 ? window / 2 : 1;
    double *out = qr_calloc(tokens->count + 1, sizeof *out);
    qr_status st = out ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for %zu scores", tokens->count);
    size_t scored = 1;
    for (size_t start = 0; st == QR_OK && scored < tokens->count; start += step) {
        const size_t left = tokens->count - start, count = left < window ? left : window, from = scored - start;
        st = qr_score(l->engine, tokens->data + start, count, from, out, err);
        for (size_t i = from; st == QR_OK && i < count; i++)
            tally_add(tally, (int64_t)i, out[i - from]);
        scored = start + count;
    }
    qr_free(out);
    return st;
}

static void print_tally(const struct tally *t, bool json)
{
    const double mean = t->count ? t->total / (double)t->count : 0;
    if (json) {
        printf("{\"tokens\":%lld,\"nll\":%.9g,\"mean_nll\":%.9g,\"perplexity\":%.9g,\"buckets\":[", (long long)t->count,
               t->total, mean, exp(mean));
        bool first = true;
        for (int b = 0; b < BUCKETS; b++)
            if (t->tokens[b]) {
                printf("%s{\"from\":%lld,\"tokens\":%lld,\"mean_nll\":%.9g}", first ? "" : ",", 1LL << b,
                       (long long)t->tokens[b], t->nll[b] / (double)t->tokens[b]);
                first = false;
            }
        printf("]}\n");
        return;
    }
    printf("positions        tokens   mean NLL   perplexity\n");
    for (int b = 0; b < BUCKETS; b++)
        if (t->tokens[b]) {
            const double m = t->nll[b] / (double)t->tokens[b];
            printf("%7lld-%-7lld %8lld %10.4f %12.4f\n", 1LL << b, (1LL << (b + 1)) - 1, (long long)t->tokens[b], m, exp(m));
        }
    printf("all             %8lld %10.4f %12.4f   sum %.6f\n", (long long)t->count, mean, exp(mean), t->total);
}

static qr_status eval_text(struct loaded *l, const struct eval_options *o, qr_error *err)
{
    struct tally tally = {0};
    qr_tokens tokens = {0};
    qr_status st = text_tokens(l->model, o->text, &tokens, err);
    if (st == QR_OK && tokens.count < 2)
        st = qr_fail(err, QR_BAD_REQUEST, "%s: %zu tokens, at least 2 are wanted", o->text, tokens.count);
    if (st == QR_OK)
        st = score_text(l, &tokens, &tally, err);
    if (st == QR_OK)
        print_tally(&tally, o->json);
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
static qr_status score_line(struct loaded *l, const struct json *line, struct json_writer *w, struct tally *tally,
                            qr_error *err)
{
    qr_tokens a = {0}, b = {0};
    double *out = NULL, sum = 0;
    qr_status st = read_side(l->model, line, json_get(line, "tokens") ? "tokens" : "context", &a, err);
    if (st == QR_OK)
        st = read_side(l->model, line, "continuation", &b, err);
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
        st = qr_score(l->engine, all, count, from, out, err);
    }
    for (size_t i = from; st == QR_OK && i < count; i++) {
        tally_add(tally, (int64_t)i, out[i - from]);
        sum -= out[i - from];
    }
    if (st == QR_OK) {
        json_w_key(w, "n");
        json_w_uint(w, count - from);
        json_w_key(w, "nll");
        json_w_double(w, sum);
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

static qr_status print_line(struct json_writer *w, qr_error *err)
{
    const char *text;
    size_t length;
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK && (fwrite(text, 1, length, stdout) != length || putchar('\n') == EOF))
        st = qr_fail(err, QR_IO, "standard output: cannot be written");
    return st;
}

static qr_status eval_requests(struct loaded *l, const struct eval_options *o, qr_error *err)
{
    struct tally tally = {0};
    struct jsonl_reader reader;
    FILE *file = strcmp(o->requests, "-") == 0 ? stdin : fopen(o->requests, "re");
    struct json_writer *w = json_writer_open(false);
    if (!file || !w) {
        json_writer_close(w);
        return file ? qr_fail(err, QR_NO_MEMORY, "no memory for the answers")
                    : qr_fail(err, QR_BAD_FILE, "%s: cannot open: %s", o->requests, strerror(errno));
    }
    jsonl_open(&reader, file, o->requests);
    int64_t failed = 0;
    qr_status st = QR_OK;
    while (st == QR_OK) {
        struct json_document *doc = NULL;
        qr_error line_error = {0};
        qr_status line = jsonl_next(&reader, &doc, &line_error);
        if (line != QR_OK && line != QR_BAD_REQUEST) {
            st = line;
            if (err)
                *err = line_error;
            break;
        }
        if (line == QR_OK && !doc)
            break;
        json_writer_reset(w);
        json_w_object(w);
        const struct json *id = doc ? json_get(json_root(doc), "id") : NULL;
        json_w_key(w, "id");
        if (id)
            json_w_value(w, id);
        else
            json_w_uint(w, reader.number - 1);
        if (line == QR_OK)
            line = score_line(l, json_root(doc), w, &tally, &line_error);
        if (line != QR_OK) {
            json_w_key(w, "error");
            json_w_string(w, line_error.message);
            failed++;
        }
        json_w_end_object(w);
        st = print_line(w, err);
        json_close(doc);
    }
    jsonl_close(&reader);
    json_writer_close(w);
    if (file != stdin)
        fclose(file);
    if (st == QR_OK && !o->model.quiet && tally.count)
        fprintf(stderr, "%lld tokens, mean NLL %.4f, perplexity %.4f\n", (long long)tally.count,
                tally.total / (double)tally.count, exp(tally.total / (double)tally.count));
    if (st == QR_OK && failed)
        st = qr_fail(err, QR_BAD_REQUEST, "%s: %lld requests failed", o->requests, (long long)failed);
    return st;
}

int command_eval(int argc, char **argv)
{
    struct eval_options o = {.model = MODEL_OPTIONS_DEFAULT};
    qr_error err = {0};
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(o.model),
        ENGINE_OPTIONS(o.model),
        {.name = "text", .kind = OPTION_STRING, .target = &o.text, .value = "FILE", .help = "a text to score as a whole"},
        {.name = "requests", .kind = OPTION_STRING, .target = &o.requests, .value = "FILE",
         .help = "JSON lines {id, context, continuation} or {id, tokens}; - for standard input"},
        {.name = "json", .kind = OPTION_FLAG, .target = &o.json, .help = "one JSON object on standard output"},
        {0}};
    struct command_line line = {.command = "eval", .synopsis = "--model DIR (--text FILE | --requests FILE.jsonl)",
                                .about = "Negative log likelihood of a text by position, or of continuations given their "
                                         "contexts.",
                                .options = options};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!o.model.model || !o.text == !o.requests) {
        status = options_wrong(&line, o.model.model ? "one of --text and --requests is wanted" : "--model DIR is missing");
    } else {
        struct loaded l;
        qr_status st = loaded_open(&o.model, &l, &err);
        if (st == QR_OK)
            st = o.text ? eval_text(&l, &o, &err) : eval_requests(&l, &o, &err);
        status = st == QR_OK ? 0 : report_failure("eval", &err);
        loaded_close(&l);
    }
    options_free(options);
    return status;
}
