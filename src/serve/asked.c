#include "serve/asked.h"

#include <string.h>

#include "base/alloc.h"
#include "serve/guided.h"
#include "serve/server.h"

enum { MOST_ANSWERS = 16, MOST_STOPS = 16 };

static bool check_model(struct exchange *x, const struct json *body, struct refusal *refusal)
{
    const struct json *model = member_of(body, "model");
    if (!model)
        return true;
    if (model->kind != JSON_STRING)
        return refuse(refusal, 400, NULL, "model", "model: wanted a string");
    if (!server_knows(x->server, model->text, model->length, false))
        return refuse(refusal, 404, "model_not_found", "model", "the model \"%.*s\" is not served here, but \"%s\" is",
                      (int)(model->length < 200 ? model->length : 200), model->text, x->server->name);
    return true;
}

/* Members that an answer would have to obey and nobody here does. */
static bool check_unbuilt(const struct json *body, struct refusal *refusal)
{
    static const char *const names[] = {"allowed_token_ids", "bad_words", "guided_grammar", "guided_whitespace_pattern", "functions", "function_call", "audio",
                                        "use_beam_search", "truncate_prompt_tokens"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (member_of(body, names[i]))
            return refuse(refusal, 400, "unsupported_parameter", names[i],
                          "%s: is not built, and an answer without it is not what was asked for", names[i]);
    const struct json *modalities = member_of(body, "modalities");
    for (const struct json *m = modalities ? modalities->child : NULL; m; m = m->next)
        if (!json_equals(m, "text"))
            return refuse(refusal, 400, "unsupported_parameter", "modalities", "modalities: only text is spoken here");
    return true;
}

/* What would have to be made beside what n says. */
static bool check_answers(const struct json *body, int32_t answers, struct refusal *refusal)
{
    const struct json *suffix = member_of(body, "suffix"), *best = member_of(body, "best_of");
    int64_t n = answers;
    if (suffix && !(suffix->kind == JSON_STRING && suffix->length == 0))
        return refuse(refusal, 400, "unsupported_parameter", "suffix", "suffix: text between two others is not made here");
    if (best && (!json_int64(best, &n) || n != answers))
        return refuse(refusal, 400, "unsupported_parameter", "best_of", "best_of: wanted what n is, %d", answers);
    return true;
}

static bool read_flags(const struct json *body, struct asked *a, struct refusal *refusal)
{
    qr_error err = {0};
    const struct json *options = member_of(body, "stream_options");
    if (options && options->kind != JSON_OBJECT)
        return refuse(refusal, 400, NULL, "stream_options", "stream_options: wanted an object");
    qr_status st = member_bool(body, "stream", &a->stream, &err);
    if (st == QR_OK && options)
        st = member_bool(options, "include_usage", &a->include_usage, &err);
    if (st == QR_OK && options)
        st = member_bool(options, "continuous_usage_stats", &a->usage_always, &err);
    if (st == QR_OK)
        st = member_bool(body, "return_token_ids", &a->return_token_ids, &err);
    if (st == QR_OK)
        st = member_bool(body, "logprobs_all", &a->logprobs_all, &err);
    if (st == QR_OK)
        st = member_int(body, "n", 1, MOST_ANSWERS, &a->answers, &err);
    if (st == QR_OK)
        st = member_int(body, "prompt_logprobs", 0, 20, &a->text.request.prompt_logprobs, &err);
    if (st != QR_OK)
        return refuse_member(refusal, st, &err);
    if (a->stream && a->text.request.prompt_logprobs >= 0)
        return refuse(refusal, 400, NULL, "prompt_logprobs", "prompt_logprobs: not with stream");
    return true;
}

static bool check_ranges(const struct asked *a, struct refusal *refusal)
{
    const qr_sampling *s = &a->text.sampling;
    if (s->temperature < 0 || s->temperature > 2)
        return refuse(refusal, 400, NULL, "temperature", "temperature: %g, wanted 0 to 2", s->temperature);
    if (s->top_p <= 0 || s->top_p > 1)
        return refuse(refusal, 400, NULL, "top_p", "top_p: %g, wanted above 0 and at most 1", s->top_p);
    if (s->min_p < 0 || s->min_p > 1)
        return refuse(refusal, 400, NULL, "min_p", "min_p: %g, wanted 0 to 1", s->min_p);
    if (s->repetition_penalty < 0.01 || s->repetition_penalty > 100)
        return refuse(refusal, 400, NULL, "repetition_penalty", "repetition_penalty: %g, wanted 0.01 to 100", s->repetition_penalty);
    if (s->presence_penalty < -2 || s->presence_penalty > 2)
        return refuse(refusal, 400, NULL, "presence_penalty", "presence_penalty: %g, wanted -2 to 2", s->presence_penalty);
    if (s->frequency_penalty < -2 || s->frequency_penalty > 2)
        return refuse(refusal, 400, NULL, "frequency_penalty", "frequency_penalty: %g, wanted -2 to 2", s->frequency_penalty);
    if (a->text.request.stop_count > MOST_STOPS)
        return refuse(refusal, 400, NULL, "stop", "stop: %zu strings, wanted at most %d", a->text.request.stop_count, MOST_STOPS);
    for (size_t i = 0; i < a->text.request.stop_count; i++)
        if (!a->text.request.stop[i][0])
            return refuse(refusal, 400, NULL, "stop", "stop: string %zu is empty", i);
    return true;
}

static bool is_id(const struct exchange *x, int32_t id) { return id >= 0 && id < x->server->info.vocab_size; }

static bool refuse_id(const struct exchange *x, const char *member, int32_t id, struct refusal *refusal)
{
    return refuse(refusal, 400, NULL, member, "%s: %d, wanted token ids from 0 to %d", member, id, x->server->info.vocab_size - 1);
}

static bool check_ids(const struct exchange *x, const struct asked *a, struct refusal *refusal)
{
    const qr_request *q = &a->text.request;
    const qr_sampling *s = &a->text.sampling;
    for (size_t i = 0; i < q->stop_token_count; i++)
        if (!is_id(x, q->stop_tokens[i]))
            return refuse_id(x, "stop_token_ids", q->stop_tokens[i], refusal);
    for (size_t i = 0; i < s->logit_bias_count; i++)
        if (!is_id(x, s->logit_bias[i].token))
            return refuse_id(x, "logit_bias", s->logit_bias[i].token, refusal);
    for (size_t i = 0; i < s->banned_count; i++)
        if (!is_id(x, s->banned[i]))
            return refuse_id(x, "banned", s->banned[i], refusal);
    return true;
}

static void set_defaults(struct exchange *x, bool may_say_nothing, struct asked *a)
{
    static const qr_request request = QR_REQUEST;
    static const qr_sampling sampling = QR_SAMPLING;
    *a = (struct asked){.answers = 1, .text = {.request = request, .sampling = sampling, .may_say_nothing = may_say_nothing}};
    a->text.sampling.temperature = x->server->info.temperature;
    a->text.sampling.top_p = x->server->info.top_p;
    a->text.sampling.seed = (int64_t)random_seed();
}

bool asked_read(struct exchange *x, const struct json *body, bool may_say_nothing, struct asked *out, struct refusal *refusal)
{
    qr_error err = {0};
    set_defaults(x, may_say_nothing, out);
    if (!check_model(x, body, refusal) || !check_unbuilt(body, refusal))
        return false;
    const qr_status st = members_read(body, &out->text, &err);
    bool good = st == QR_OK || refuse_member(refusal, st, &err);
    out->limited = out->text.request.max_tokens > 0;
    good = good && read_flags(body, out, refusal) && check_answers(body, out->answers, refusal) && check_ranges(out, refusal) &&
           check_ids(x, out, refusal) && guided_read(x->server->model, body, may_say_nothing, &out->text, refusal);
    if (!good)
        request_text_free(&out->text);
    return good;
}

bool asked_fit(struct exchange *x, size_t prompt_tokens, int32_t by_default, struct asked *a, struct refusal *refusal)
{
    const int64_t context = x->server->plan.max_model_len, room = context - (int64_t)prompt_tokens;
    qr_request *q = &a->text.request;
    if (room < 1) {
        refuse(refusal, 400, "context_length_exceeded", NULL,
               "the prompt has %zu tokens, the context holds %lld with the answer", prompt_tokens, (long long)context);
        refusal->prompt_tokens = (int64_t)prompt_tokens;
        refusal->context = context;
        return false;
    }
    if (!a->limited)
        q->max_tokens = by_default;
    if (q->max_tokens > room)
        q->max_tokens = (int32_t)room;
    if (q->min_tokens > q->max_tokens)
        q->min_tokens = q->max_tokens;
    return true;
}

bool prompt_how_read(const struct json *body, struct prompt_how *out, struct refusal *refusal)
{
    qr_error err = {0};
    *out = (struct prompt_how){.special = true, .markup = true};
    qr_status st = member_bool(body, "add_special_tokens", &out->special, &err);
    if (st == QR_OK)
        st = member_bool(body, "parse_special", &out->markup, &err);
    return st == QR_OK || refuse_member(refusal, st, &err);
}

bool prompt_tokens(const struct server *s, const struct json *text, const struct prompt_how *how, qr_tokens *out, bool *added,
                   struct refusal *refusal)
{
    qr_error err = {0};
    qr_status st = qr_tokenize(s->model, text->text, text->length, how->markup, out, &err);
    const bool begins = out->count && out->data[0] == s->info.bos;
    *added = st == QR_OK && how->special && !begins && s->info.bos >= 0;
    if (*added) {
        int32_t *grown = qr_realloc(out->data, (out->count + 1) * sizeof *grown);
        if (!grown)
            return refuse(refusal, 500, NULL, NULL, "no memory for the prompt");
        memmove(grown + 1, grown, out->count * sizeof *grown);
        grown[0] = s->info.bos;
        *out = (qr_tokens){.data = grown, .count = out->count + 1};
    }
    if (st != QR_OK)
        return refuse_for(refusal, st, &err, NULL);
    return out->count || refuse(refusal, 400, NULL, "prompt", "prompt: no token in it");
}
