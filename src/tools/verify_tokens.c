#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "text/tokenizer.h"
#include "tools/open_map.h"
#include "tools/verify_line.h"

enum { PROMPT_TOKENS = 32, ANSWER_TOKENS = 64 };

/* A choice must be equal where the reference's first logit leads by so much, and at all positions but so many of them. */
#define CLEAR_MARGIN 0.5
#define MAY_DIFFER 0.03

static const char prompt_text[] =
    "Once upon a time there was a small dragon who lived in a cave above the village. Every morning she looked down at the roofs and "
    "wondered what the people were baking. One day she decided to go and ask them herself.";

/* The prompt and the answer as it comes, with the logits of every token of it. */
struct answer {
    struct machine *m;
    int32_t prompt, count;
    int32_t tokens[PROMPT_TOKENS + ANSWER_TOKENS + 1];
    int64_t vocab;
    float *found, *want; /* [count][vocab]: the device's, the reference's */
    struct layers *layers;
};

/* A tokenizer of the folder; NULL where there is none that can be used: some models made for tests have a stand-in. */
static qr_status open_tokenizer(const struct machine *m, struct tokenizer **out, qr_error *err)
{
    qr_error why = {0};
    int there = folder_has_tokenizer(m->dir);
    *out = NULL;
    if (there < 0)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a path");
    if (!there)
        return QR_OK;
    qr_status st = tok_open(m->dir, m->log, out, &why);
    if (st == QR_NO_MEMORY)
        return qr_fail(err, st, "%s", why.message);
    if (st != QR_OK)
        qr_logf(m->log, QR_LOG_WARN, "%s; so the prompt is made of tokens that mean nothing", why.message);
    return QR_OK;
}

/* The beginning of a story in the folder's own tokens, or tokens that look like anything. */
static qr_status make_prompt(struct answer *a, qr_error *err)
{
    const struct qr_config *c = &a->m->config;
    struct tok_ids ids = {0};
    struct tokenizer *tok;
    line_draw_tokens(a->m, a->tokens, PROMPT_TOKENS);
    TRY(open_tokenizer(a->m, &tok, err));
    if (!tok)
        return QR_OK;
    qr_status st = tok_encode_literal(tok, prompt_text, sizeof prompt_text - 1, &ids, err);
    tok_close(tok);
    if (c->bos_token_id >= 0 && c->bos_token_id < c->vocab_size)
        a->tokens[0] = c->bos_token_id;
    for (size_t i = 0; i < ids.count && i + 1 < PROMPT_TOKENS; i++)
        if (ids.data[i] < c->vocab_size)
            a->tokens[i + 1] = ids.data[i];
    tok_ids_free(&ids);
    return st;
}

/* The largest of `n` logits; equal ones: the smaller id. */
static int32_t best_of(const float *logits, int64_t n)
{
    int32_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = (int32_t)i;
    return best;
}

static qr_status fetch_logits(struct backend *b, const struct line *l, int64_t count, float *out, qr_error *err)
{
    TRY(b->download(b, out, runner_workspace(l->runner)->logits, count * (int64_t)sizeof *out, err));
    return b->fence(b, err);
}

static qr_status answer_on(struct answer *a, struct backend *b, struct line *l, double *seconds, qr_error *err)
{
    double start = 0;
    memcpy(l->tokens, a->tokens, (size_t)a->prompt * sizeof *l->tokens);
    l->observer = layers_keep(a->layers, b);
    layers_step(a->layers, 0, a->prompt);
    TRY(line_step(l, a->prompt, 1, err));
    for (int32_t i = 0; i < a->count; i++) {
        TRY(fetch_logits(b, l, a->vocab, a->found + i * a->vocab, err));
        l->tokens[a->prompt + i] = a->tokens[a->prompt + i] = best_of(a->found + i * a->vocab, a->vocab);
        if (i == 0)
            start = clock_seconds();
        if (i + 1 == a->count)
            break;
        layers_step(a->layers, l->position, 1);
        TRY(line_step(l, 1, 1, err));
    }
    *seconds = clock_seconds() - start;
    return QR_OK;
}

static qr_status ask_device(struct answer *a, struct backend *b, struct tokens_report *out, qr_error *err)
{
    struct line l;
    qr_status st = line_open(a->m, b, a->prompt + a->count, a->prompt, 1, false, &l, err);
    if (st == QR_OK)
        st = answer_on(a, b, &l, &out->device_seconds, err);
    line_close(&l);
    return st;
}

/* One pass over the prompt and all tokens of the answer but the last: logits of the same positions. */
static qr_status ask_reference(struct answer *a, struct backend *b, struct tokens_report *out, qr_error *err)
{
    struct line l;
    int32_t rows = a->prompt + a->count - 1;
    double start = clock_seconds();
    qr_status st = line_open(a->m, b, rows, rows, a->count, false, &l, err);
    if (st == QR_OK) {
        memcpy(l.tokens, a->tokens, (size_t)rows * sizeof *l.tokens);
        l.observer = layers_compare(a->layers, b);
        start = clock_seconds();
        st = line_step(&l, rows, a->count, err);
    }
    if (st == QR_OK)
        st = fetch_logits(b, &l, a->count * a->vocab, a->want, err);
    out->reference_seconds = clock_seconds() - start;
    line_close(&l);
    return st;
}

/* How far the best logit leads before the next. */
static double margin_of(const float *logits, int64_t n)
{
    int32_t best = best_of(logits, n);
    double next = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        if (i != best)
            next = fmax(next, logits[i]);
    return (double)logits[best] - next;
}

static void compare_logits(const struct answer *a, struct tokens_report *out)
{
    double sum = 0;
    int64_t n = a->count * a->vocab;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a->found[i] - (double)a->want[i]);
        out->largest = d > out->largest || isnan(d) ? d : out->largest;
        sum += d;
    }
    out->mean = sum / (double)n;
}

static void compare_choices(const struct answer *a, struct tokens_report *out, struct findings *findings)
{
    for (int32_t i = 0; i < a->count; i++) {
        const float *want = a->want + i * a->vocab;
        int32_t token = a->tokens[a->prompt + i], other = best_of(want, a->vocab);
        double margin = margin_of(want, a->vocab);
        if (token == other)
            continue;
        out->differ++;
        out->margin = fmax(out->margin, margin);
        if (margin < CLEAR_MARGIN)
            continue;
        findings_add(findings, "token %d of the answer is %d, wanted %d, which leads by %.3g on the reference (0.5 or more must be met)",
                     i, token, other, margin);
        out->failed = true;
    }
}

static void compare_answers(const struct answer *a, struct tokens_report *out, struct findings *findings)
{
    compare_logits(a, out);
    compare_choices(a, out, findings);
    if (!isfinite(out->mean)) {
        findings_add(findings, "logits of %d tokens: some are not finite", a->count);
        out->failed = true;
    }
    if (out->differ > MAY_DIFFER * a->count) {
        findings_add(findings, "%d of %d choices are not the reference's, wanted at most %d", out->differ, a->count,
                     (int)(MAY_DIFFER * a->count));
        out->failed = true;
    }
    layers_judge(a->layers, findings);
    memcpy(out->layer, layers_reports(a->layers), sizeof out->layer);
}

static qr_status ask_both(struct answer *a, struct backend *device, struct backend *reference, struct tokens_report *out,
                          struct findings *findings, qr_error *err)
{
    a->found = qr_calloc((size_t)(a->count * a->vocab), sizeof *a->found);
    a->want = qr_calloc((size_t)(a->count * a->vocab), sizeof *a->want);
    if (!a->found || !a->want)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the logits of %d tokens", a->count);
    TRY(layers_open(&a->m->plan, a->prompt + a->count - 1, &a->layers, err));
    TRY(make_prompt(a, err));
    TRY(ask_device(a, device, out, err));
    TRY(ask_reference(a, reference, out, err));
    compare_answers(a, out, findings);
    return QR_OK;
}

qr_status machine_tokens(struct machine *m, struct backend *device, struct backend *reference, struct tokens_report *out,
                         struct findings *findings, qr_error *err)
{
    int32_t positions = m->config.max_position_embeddings;
    struct answer a = {.m = m, .prompt = PROMPT_TOKENS, .count = ANSWER_TOKENS, .vocab = m->config.vocab_size};
    if (positions < a.prompt + a.count) { /* a model made for tests */
        a.prompt = positions / 2;
        a.count = positions - a.prompt;
    }
    if (a.prompt < 1)
        return qr_fail(err, QR_UNSUPPORTED, "%s: %d positions, wanted at least 2", m->dir, positions);
    *out = (struct tokens_report){.prompt = a.prompt, .tokens = a.count, .layers = m->plan.layers};
    qr_status st = ask_both(&a, device, reference, out, findings, err);
    layers_close(a.layers);
    qr_free(a.found);
    qr_free(a.want);
    return st;
}
