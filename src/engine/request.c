#include "engine/request.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "engine/grammars.h"
#include "engine/structs.h"
#include "text/chat_profile.h"

enum { MOST_STOPS = 16, MOST_STOP_TOKENS = 1024, MOST_LOGPROBS = 20 };

struct event *event_make(void)
{
    struct event *e = qr_calloc(1, sizeof *e);
    if (e) {
        e->event.token = e->event.stop_token = e->event.stop_string = -1;
        e->event.logprob.token = -1;
    }
    return e;
}

void event_cut(struct event *e)
{
    e->event = (qr_event){.handle = e->event.handle, .token = -1, .logprob = {.token = -1}, .stop_token = -1,
                          .stop_string = -1, .finish = QR_FINISH_CANCELLED};
}

void event_free(struct event *e)
{
    if (!e)
        return;
    qr_free(e->text);
    qr_free(e->top);
    qr_free(e->prompt);
    qr_free(e->prompt_top);
    qr_free(e);
}

/* ---- checks: each names the field, what was found and what is wanted ---- */

static qr_status check_ids(const char *field, const int32_t *ids, size_t count, int32_t vocab, qr_error *err)
{
    if (count && !ids)
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: %zu tokens at NULL", field, count);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return qr_fail(err, QR_BAD_REQUEST, "%s: entry %zu is token %d, the vocabulary has 0 to %d (E39)", field, i,
                           ids[i], vocab - 1);
    return QR_OK;
}

static qr_status check_stops(const qr_request *q, qr_error *err)
{
    if (q->stop_count && !q->stop)
        return qr_fail(err, QR_BAD_ARGUMENT, "stop: %zu strings at NULL", q->stop_count);
    if (q->stop_count > MOST_STOPS)
        return qr_fail(err, QR_BAD_REQUEST, "stop: %zu strings, wanted at most %d", q->stop_count, MOST_STOPS);
    for (size_t i = 0; i < q->stop_count; i++) {
        const char *s = q->stop[i];
        if (!s || !*s)
            return qr_fail(err, QR_BAD_REQUEST, "stop: string %zu is empty", i);
        if (utf8_valid_prefix(s, strlen(s)) != strlen(s))
            return qr_fail(err, QR_BAD_REQUEST, "stop: string %zu is no UTF-8", i);
    }
    if (q->stop_token_count > MOST_STOP_TOKENS)
        return qr_fail(err, QR_BAD_REQUEST, "stop_tokens: %zu, wanted at most %d", q->stop_token_count, MOST_STOP_TOKENS);
    return QR_OK;
}

static qr_status check_numbers(const qr_request *q, int32_t max_model_len, qr_error *err)
{
    if (q->token_count < 1)
        return qr_fail(err, QR_BAD_REQUEST, "tokens: the prompt is empty, at least one token is wanted");
    if (q->token_count >= (size_t)max_model_len)
        return qr_fail(err, QR_BAD_REQUEST, "tokens: the prompt has %zu tokens, the context holds %d with the answer",
                       q->token_count, max_model_len);
    if (q->max_tokens < 0)
        return qr_fail(err, QR_BAD_REQUEST, "max_tokens: %d, wanted 1 or more, or 0 for what the context leaves",
                       q->max_tokens);
    if (q->min_tokens < 0)
        return qr_fail(err, QR_BAD_REQUEST, "min_tokens: %d, wanted 0 or more", q->min_tokens);
    if (q->logprobs < -1 || q->logprobs > MOST_LOGPROBS)
        return qr_fail(err, QR_BAD_REQUEST, "logprobs: %d, wanted -1 (none) to %d", q->logprobs, MOST_LOGPROBS);
    if (q->prompt_logprobs < -1 || q->prompt_logprobs > MOST_LOGPROBS)
        return qr_fail(err, QR_BAD_REQUEST, "prompt_logprobs: %d, wanted -1 (none) to %d", q->prompt_logprobs,
                       MOST_LOGPROBS);
    return QR_OK;
}

/* What sampling_check cannot see: the lists and top_p's open end. */
static qr_status check_sampling(const qr_sampling *s, int32_t vocab, qr_error *err)
{
    if (s->top_p <= 0)
        return qr_fail(err, QR_BAD_REQUEST, "top_p is %g, wanted above 0 and at most 1", s->top_p);
    if (s->logit_bias_count && !s->logit_bias)
        return qr_fail(err, QR_BAD_ARGUMENT, "logit_bias: %zu entries at NULL", s->logit_bias_count);
    if (s->logit_bias_count > (size_t)vocab)
        return qr_fail(err, QR_BAD_REQUEST, "logit_bias: %zu entries, the vocabulary has %d tokens", s->logit_bias_count,
                       vocab);
    if (s->banned_count > (size_t)vocab)
        return qr_fail(err, QR_BAD_REQUEST, "banned: %zu tokens, the vocabulary has %d", s->banned_count, vocab);
    return check_ids("banned", s->banned, s->banned_count, vocab, err);
}

static qr_status check_grammar(const qr_model *model, const qr_request *q, const struct request_bounds *bounds, qr_error *err)
{
    if (!q->grammar)
        return QR_OK;
    if (q->grammar->model != model)
        return qr_fail(err, QR_BAD_ARGUMENT, "grammar: it was opened for another model");
    if (bounds->judged)
        return qr_fail(err, QR_BAD_REQUEST, "grammar: the engine judges drafts by ratio, block or forced acceptance, which know "
                       "nothing of grammars; wanted the verifier match");
    if (q->grammar_after_reasoning && tok_find(model->tokenizer, TOKEN_END_THINK) < 0)
        return qr_fail(err, QR_BAD_REQUEST, "grammar_after_reasoning: the tokenizer has no token %s", TOKEN_END_THINK);
    return QR_OK;
}

static qr_status check(const qr_model *model, const qr_request *q, const struct request_bounds *bounds, qr_error *err)
{
    const int32_t vocab = model->config.vocab_size;
    qr_status st = check_numbers(q, bounds->max_model_len, err);
    if (st == QR_OK && q->prompt_logprobs >= 0 && bounds->last_row_only)
        return qr_fail(err, QR_BAD_REQUEST, "prompt_logprobs: %d, but bounded replay computes the logits of a prompt's last row "
                       "only; wanted -1, or an engine with exact replay (E37)", q->prompt_logprobs);
    if (st == QR_OK)
        st = check_ids("tokens", q->tokens, q->token_count, vocab, err);
    if (st == QR_OK)
        st = check_stops(q, err);
    if (st == QR_OK)
        st = check_ids("stop_tokens", q->stop_tokens, q->stop_token_count, vocab, err);
    if (st == QR_OK)
        st = check_sampling(q->sampling, vocab, err);
    if (st == QR_OK)
        st = check_grammar(model, q, bounds, err);
    return st;
}

/* ---- copies ---- */

static bool copy_ids(const int32_t *ids, size_t count, size_t room, int32_t **out)
{
    *out = qr_calloc(room ? room : 1, sizeof **out);
    if (*out && count)
        memcpy(*out, ids, count * sizeof *ids);
    return *out != NULL;
}

static bool copy_strings(struct request *r, const qr_request *q)
{
    r->stop = qr_calloc(q->stop_count ? q->stop_count : 1, sizeof *r->stop);
    for (size_t i = 0; r->stop && i < q->stop_count; i++) {
        r->stop[i] = qr_strdup(q->stop[i]);
        if (!r->stop[i])
            return false;
        r->stop_count++;
    }
    return r->stop != NULL;
}

/* The model's end tokens, then the request's own. */
static bool copy_ending(const qr_model *model, struct request *r, const qr_request *q)
{
    const struct generation_config *g = &model->generation;
    const int32_t own = model->config.eos_token_id;
    const int32_t *eos = g->eos_count ? g->eos : &own;
    const int32_t eos_count = g->eos_count ? g->eos_count : own >= 0;
    r->end_count = eos_count + (int32_t)q->stop_token_count;
    if (!copy_ids(eos, (size_t)eos_count, (size_t)r->end_count, &r->ends))
        return false;
    for (size_t i = 0; i < q->stop_token_count; i++)
        r->ends[eos_count + (int32_t)i] = q->stop_tokens[i];
    r->ending = (struct ending){.eos = r->ends, .eos_count = eos_count, .ignore_eos = q->ignore_eos,
                                .stop_tokens = r->ends + eos_count, .stop_token_count = (int32_t)q->stop_token_count,
                                .min_tokens = q->min_tokens, .max_tokens = r->limit - r->prompt_count};
    return true;
}

/* What is never drawn, `last` too unless it is none (-1). */
static bool copy_banned(struct request *r, const qr_sampling *s, int32_t last)
{
    if (!copy_ids(s->banned, s->banned_count, s->banned_count + 1, &r->banned))
        return false;
    r->banned_count = (int32_t)s->banned_count;
    if (last >= 0)
        r->banned[r->banned_count++] = last;
    return true;
}

static bool copy_sampling(struct request *r, const qr_sampling *s)
{
    r->bias = qr_calloc(s->logit_bias_count ? s->logit_bias_count : 1, sizeof *r->bias);
    if (!r->bias)
        return false;
    for (size_t i = 0; i < s->logit_bias_count; i++)
        r->bias[i] = (struct logit_bias){.id = s->logit_bias[i].token, .value = (double)s->logit_bias[i].bias};
    r->allow_special = s->allow_special;
    r->sampling = (struct sampling_params){
        .temperature = s->temperature, .top_k = s->top_k, .top_p = s->top_p, .min_p = s->min_p,
        .repetition_penalty = s->repetition_penalty, .frequency_penalty = s->frequency_penalty,
        .presence_penalty = s->presence_penalty, .bias = r->bias, .bias_count = (int32_t)s->logit_bias_count,
        .seed = (uint64_t)s->seed};
    return true;
}

static bool copy(const qr_model *model, struct request *r, const qr_request *q, int32_t max_model_len)
{
    const int64_t wanted = q->max_tokens ? (int64_t)q->token_count + q->max_tokens : max_model_len;
    r->prompt_count = r->count = (int32_t)q->token_count;
    r->limit = wanted < max_model_len ? (int32_t)wanted : max_model_len;
    r->include_stop = q->include_stop;
    r->logprobs = q->logprobs;
    r->prompt_logprobs = q->prompt_logprobs;
    r->priority = q->priority;
    r->after = q->after;
    r->salt = block_key_salt(q->cache_salt);
    r->grammar_after_reasoning = q->grammar_after_reasoning;
    if (q->grammar)
        r->grammar = grammar_hold(q->grammar->grammar);
    if (q->id)
        r->name = qr_strdup(q->id);
    r->final = event_make();
    return r->final && (!q->id || r->name) &&
           copy_ids(q->tokens, q->token_count, q->token_count, &r->tokens) && copy_strings(r, q) &&
           copy_ending(model, r, q) && copy_sampling(r, q->sampling) &&
           copy_banned(r, q->sampling, q->no_calls ? tok_find(model->tokenizer, TOKEN_DSML) : -1);
}

/* The caller's structs, their defaults where there is none. */
static qr_status take_structs(const qr_request *given, qr_request *q, qr_sampling *sampling, qr_error *err)
{
    static const qr_sampling plain = QR_SAMPLING;
    if (!given)
        return qr_fail(err, QR_BAD_ARGUMENT, "qr_request: none was given");
    qr_status st = struct_take("qr_request", given, sizeof *q, q, err);
    if (st != QR_OK)
        return st;
    *sampling = plain;
    if (q->sampling)
        st = struct_take("qr_sampling", q->sampling, sizeof *sampling, sampling, err);
    q->sampling = sampling;
    return st;
}

qr_status request_make(const qr_model *model, const qr_request *given, const struct request_bounds *bounds,
                       struct request **out, qr_error *err)
{
    qr_request q;
    qr_sampling sampling;
    *out = NULL;
    qr_status st = take_structs(given, &q, &sampling, err);
    if (st == QR_OK)
        st = check(model, &q, bounds, err);
    if (st != QR_OK)
        return st;
    struct request *r = qr_calloc(1, sizeof *r);
    if (!r || !copy(model, r, &q, bounds->max_model_len)) {
        request_free(r);
        return qr_fail(err, QR_NO_MEMORY, "no memory for a request of %zu tokens", q.token_count);
    }
    st = sampling_check(&r->sampling, model->config.vocab_size, err);
    if (st != QR_OK) {
        request_free(r);
        return st;
    }
    r->submitted = clock_seconds();
    r->usage.prompt_tokens = r->prompt_count;
    *out = r;
    return QR_OK;
}

void request_free(struct request *r)
{
    if (!r)
        return;
    for (struct event *e = r->first, *next; e; e = next) {
        next = e->next;
        event_free(e);
    }
    grammar_release(r->grammar);
    event_free(r->handed);
    event_free(r->final);
    for (int32_t i = 0; i < r->stop_count; i++)
        qr_free(r->stop[i]);
    qr_free(r->stop);
    qr_free(r->ends);
    qr_free(r->bias);
    qr_free(r->banned);
    qr_free(r->tokens);
    qr_free(r->answer);
    qr_free(r->name);
    qr_free(r);
}
