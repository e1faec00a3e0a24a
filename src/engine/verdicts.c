#include "engine/verdicts.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "run/forced.h"

struct verdicts {
    struct draft_choice choice;
    int32_t vocab;
    struct verdict_scratch *scratch; /* NULL under forced acceptance */
};

/* ---- memory ---- */

static bool judges(const struct draft_choice *c)
{
    return c->drafter != QR_DRAFTER_NONE && (c->verifier != VERIFIER_MATCH || c->forced > 0);
}

qr_status verdicts_open(const struct draft_choice *choice, int32_t vocab, struct verdicts **out, qr_error *err)
{
    *out = NULL;
    if (!judges(choice))
        return QR_OK;
    struct verdicts *v = qr_calloc(1, sizeof *v);
    if (!v)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a record of verdicts");
    v->choice = *choice;
    v->vocab = vocab;
    qr_status st = choice->forced > 0 ? QR_OK : verdict_open(vocab, choice->limit, &v->scratch, err);
    if (st != QR_OK) {
        verdicts_close(v);
        return st;
    }
    *out = v;
    return QR_OK;
}

void verdicts_close(struct verdicts *v)
{
    if (!v)
        return;
    verdict_close(v->scratch);
    qr_free(v);
}

static bool points(const struct draft_choice *c) { return c->sampling == DRAFT_GREEDY; }

int64_t verdicts_bytes_for(const struct draft_choice *c, int32_t requests, int32_t vocab)
{
    if (!judges(c))
        return 0;
    if (c->forced > 0)
        return (int64_t)sizeof(struct verdicts);
    return (int64_t)sizeof(struct verdicts) + verdict_bytes(vocab, c->limit) +
           requests * draft_law_bytes(vocab, c->limit, points(c));
}

qr_status verdicts_law(const struct verdicts *v, const struct sampling_params *params, struct draft_law **out, qr_error *err)
{
    *out = NULL;
    if (!v || v->choice.forced > 0 || params->temperature == 0)
        return QR_OK;
    return draft_law_open(v->vocab, v->choice.limit, points(&v->choice), out, err);
}

/* ---- rows ---- */

/* Row i of the span's verify part, behind the first i drafts, which `t` counts already. */
static qr_status distribution_of(struct task *t, const struct span_rows *rows, int32_t i, const struct sampling_params *params,
                                 struct distribution *out, qr_error *err)
{
    const struct batch_span *span = rows->span;
    const int32_t row = span->count - span->drafts - 1 + i;
    struct id_list banned[TASK_BANS];
    const float *logits;
    const int32_t lists = task_bans(t, t->made + i, banned);
    TRY(engine_logits(t->engine, rows->logits + row - span->logits_from, &logits, err));
    const struct sampling_row of = {.logits = logits, .counts = t->counts, .banned = banned, .banned_lists = lists};
    return sampling_distribution(params, &of, t->engine->sampler, out, err);
}

static const int32_t *drafts_of(const struct batch_span *span) { return span->tokens + span->count - span->drafts; }

static void count_drafts(struct task *t, const int32_t *drafts, int32_t n)
{
    for (int32_t i = 0; t->counts && i < n; i++)
        token_counts_push(t->counts, drafts[i]);
}

static void forget_drafts(struct task *t, const int32_t *drafts, int32_t n)
{
    for (int32_t i = n - 1; t->counts && i >= 0; i--)
        token_counts_pop(t->counts, drafts[i]);
}

/* ---- ratio and block ---- */

/* The target's distributions, each behind the drafts before it. Returns how many drafts have one in front of them: all, or
 * those up to a row that cannot be drawn from, which the drafts behind it are not asked about. */
static int32_t fill_targets(struct verdicts *v, struct task *t, const struct span_rows *rows, qr_status *missing, qr_error *err)
{
    const int32_t *drafts = drafts_of(rows->span), n = rows->span->drafts;
    int32_t i = 0;
    *missing = QR_OK;
    for (;; i++) {
        struct distribution d;
        *missing = distribution_of(t, rows, i, &t->r->sampling, &d, err);
        if (*missing != QR_OK)
            break;
        distribution_dense(&d, verdict_target(v->scratch, i), v->vocab);
        if (i == n)
            break;
        count_drafts(t, &drafts[i], 1);
    }
    forget_drafts(t, drafts, i);
    return i;
}

static void judge(struct verdicts *v, struct task *t, const struct span_rows *rows, struct span_verdict *out, qr_error *err)
{
    const int32_t *drafts = drafts_of(rows->span), n = rows->span->drafts;
    const int64_t first = t->r->count;
    qr_status missing;
    if (!draft_law_holds(t->law, first, n)) {
        out->status = qr_fail(err, QR_INTERNAL, "%d drafts from position %lld that nobody drew", n, (long long)first);
        return;
    }
    const int32_t known = fill_targets(v, t, rows, &missing, err);
    const struct verdict said = verdict_take(v->scratch, v->choice.verifier, t->law, drafts, known, missing != QR_OK,
                                             t->r->sampling.seed, first);
    memcpy(out->tokens, drafts, (size_t)said.accepted * sizeof *drafts);
    out->count = said.accepted;
    out->status = said.next < 0 ? missing : QR_OK;
    if (said.next >= 0)
        out->tokens[out->count++] = said.next;
}

/* ---- forced acceptance ---- */

static void force(struct verdicts *v, struct task *t, const struct span_rows *rows, struct span_verdict *out, qr_error *err)
{
    const int32_t *drafts = drafts_of(rows->span), n = rows->span->drafts;
    const int32_t wanted = forced_accepted(v->choice.forced, t->r->sampling.seed, t->r->count);
    struct sampling_params greedy = t->r->sampling;
    struct distribution d;
    out->count = wanted < n ? wanted : n;
    memcpy(out->tokens, drafts, (size_t)out->count * sizeof *drafts);
    greedy.temperature = 0;
    count_drafts(t, drafts, out->count);
    out->status = distribution_of(t, rows, out->count, &greedy, &d, err);
    forget_drafts(t, drafts, out->count);
    if (out->status == QR_OK)
        out->tokens[out->count++] = d.ids[0];
}

void verdicts_take(struct verdicts *v, struct task *t, const struct span_rows *rows, struct span_verdict *out, qr_error *err)
{
    *out = (struct span_verdict){.status = QR_OK};
    if (!v || rows->span->drafts == 0)
        return;
    if (v->choice.forced > 0)
        force(v, t, rows, out, err);
    else if (t->law)
        judge(v, t, rows, out, err);
}
