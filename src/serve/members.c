#include "serve/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "base/status.h"

uint64_t random_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint64_t)time(NULL) * 0x9E3779B97F4A7C15u;
    return seed >> 11; /* 53 bits: exact in any JSON reader */
}

void request_text_free(struct request_text *r)
{
    qr_tokens_free(&r->tokens);
    qr_free(r->bias);
    qr_free(r->stop);
    qr_free(r->stop_tokens);
    qr_free(r->banned);
    qr_free(r->id);
    qr_chat_close(r->chat);
    qr_grammar_close(r->grammar);
    *r = (struct request_text){0};
}

void request_hold(qr_request *request, const qr_chat *chat)
{
    qr_chat_info info;
    qr_chat_get_info(chat, &info);
    if (!request->grammar)
        request->grammar = qr_chat_grammar(chat);
    request->grammar_after_reasoning = request->grammar && info.starts_in_reasoning;
    request->no_calls = info.tools == 0;
}

void request_text_point(struct request_text *out)
{
    out->request.sampling = &out->sampling;
    out->request.tokens = out->tokens.data;
    out->request.token_count = out->tokens.count;
    out->request.grammar = out->grammar;
    if (out->chat)
        request_hold(&out->request, out->chat);
}

qr_status request_text_chat(struct request_text *out, qr_chat *chat, qr_error *err)
{
    qr_chat_info info;
    qr_chat_get_info(chat, &info);
    out->chat = chat;
    out->tokens.data = qr_calloc(info.token_count + 1, sizeof *out->tokens.data);
    if (!out->tokens.data)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a prompt of %zu tokens", info.token_count);
    memcpy(out->tokens.data, info.tokens, info.token_count * sizeof *info.tokens);
    out->tokens.count = info.token_count;
    request_text_point(out);
    return QR_OK;
}

qr_status member_wrong(qr_error *err, const char *member, const struct json *value, const char *wanted)
{
    if (value && value->text)
        return qr_fail(err, QR_BAD_REQUEST, "%s: %.*s, wanted %s", member, (int)(value->length < 60 ? value->length : 60),
                       value->text, wanted);
    return qr_fail(err, QR_BAD_REQUEST, "%s: wanted %s", member, wanted);
}

static qr_status no_memory(qr_error *err) { return qr_fail(err, QR_NO_MEMORY, "no memory for the request"); }

const struct json *member_of(const struct json *line, const char *name)
{
    const struct json *value = json_get(line, name);
    return value && value->kind != JSON_NULL ? value : NULL;
}

qr_status member_double(const struct json *line, const char *name, double *out, qr_error *err)
{
    const struct json *value = member_of(line, name);
    if (value && !json_double(value, out))
        return member_wrong(err, name, value, "a number");
    return QR_OK;
}

qr_status member_int(const struct json *line, const char *name, int64_t least, int64_t most, int32_t *out,
                          qr_error *err)
{
    const struct json *value = member_of(line, name);
    int64_t n;
    char wanted[80];
    if (!value)
        return QR_OK;
    if (!json_int64(value, &n) || n < least || n > most) {
        snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)least, (long long)most);
        return member_wrong(err, name, value, wanted);
    }
    *out = (int32_t)n;
    return QR_OK;
}

qr_status member_bool(const struct json *line, const char *name, bool *out, qr_error *err)
{
    const struct json *value = member_of(line, name);
    if (value && !json_bool(value, out))
        return member_wrong(err, name, value, "true or false");
    return QR_OK;
}

qr_status member_ids(const struct json *line, const char *name, int32_t **out, size_t *count, qr_error *err)
{
    const struct json *value = member_of(line, name);
    if (!value)
        return QR_OK;
    if (value->kind != JSON_ARRAY)
        return member_wrong(err, name, value, "a list of token ids");
    *out = qr_calloc(value->count + 1, sizeof **out);
    if (!*out)
        return no_memory(err);
    *count = 0;
    for (const struct json *item = value->child; item; item = item->next) {
        int64_t id;
        if (!json_int64(item, &id) || id < 0 || id > INT32_MAX)
            return member_wrong(err, name, item, "a list of token ids");
        (*out)[(*count)++] = (int32_t)id;
    }
    return QR_OK;
}

static qr_status read_stop(const struct json *line, struct request_text *out, qr_error *err)
{
    const struct json *value = member_of(line, "stop");
    if (!value)
        return QR_OK;
    if (value->kind != JSON_STRING && value->kind != JSON_ARRAY)
        return member_wrong(err, "stop", value, "a string or a list of strings");
    const size_t count = value->kind == JSON_STRING ? 1 : value->count;
    out->stop = qr_calloc(count + 1, sizeof *out->stop);
    if (!out->stop)
        return no_memory(err);
    size_t n = 0;
    for (const struct json *item = value->kind == JSON_STRING ? value : value->child; n < count; item = item->next) {
        if (item->kind != JSON_STRING)
            return member_wrong(err, "stop", item, "a string or a list of strings");
        if (strlen(item->text) != item->length)
            return member_wrong(err, "stop", NULL, "strings without a NUL");
        out->stop[n++] = item->text;
    }
    out->request.stop = out->stop;
    out->request.stop_count = n;
    return QR_OK;
}

/* A token id as the key of an object writes it: digits and nothing else. */
static bool key_id(const struct json *item, int32_t *out)
{
    if (item->key_length == 0 || item->key_length > 10 || strspn(item->key, "0123456789") != item->key_length)
        return false;
    const long long id = strtoll(item->key, NULL, 10);
    *out = (int32_t)id;
    return id <= INT32_MAX;
}

static qr_status read_bias(const struct json *line, struct request_text *out, qr_error *err)
{
    const struct json *value = member_of(line, "logit_bias");
    if (!value)
        return QR_OK;
    if (value->kind != JSON_OBJECT)
        return member_wrong(err, "logit_bias", value, "an object from token id to bias");
    out->bias = qr_calloc(value->count + 1, sizeof *out->bias);
    if (!out->bias)
        return no_memory(err);
    size_t n = 0;
    for (const struct json *item = value->child; item; item = item->next) {
        int32_t id;
        double bias;
        if (!key_id(item, &id) || !json_double(item, &bias) || bias < -100 || bias > 100)
            return member_wrong(err, "logit_bias", item, "token ids with biases from -100 to 100");
        out->bias[n++] = (qr_logit_bias){.token = id, .bias = (float)bias};
    }
    out->sampling.logit_bias = out->bias;
    out->sampling.logit_bias_count = n;
    return QR_OK;
}

static qr_status read_sampling(const struct json *line, struct request_text *out, qr_error *err)
{
    qr_sampling *s = &out->sampling;
    const struct json *seed = member_of(line, "seed");
    qr_status st = member_double(line, "temperature", &s->temperature, err);
    if (st == QR_OK)
        st = member_double(line, "top_p", &s->top_p, err);
    if (st == QR_OK)
        st = member_double(line, "min_p", &s->min_p, err);
    if (st == QR_OK)
        st = member_int(line, "top_k", INT32_MIN, INT32_MAX, &s->top_k, err);
    if (st == QR_OK)
        st = member_double(line, "repetition_penalty", &s->repetition_penalty, err);
    if (st == QR_OK)
        st = member_double(line, "frequency_penalty", &s->frequency_penalty, err);
    if (st == QR_OK)
        st = member_double(line, "presence_penalty", &s->presence_penalty, err);
    if (st == QR_OK && seed && !json_int64(seed, &s->seed))
        st = member_wrong(err, "seed", seed, "a whole number of 64 bits");
    if (st == QR_OK)
        st = read_bias(line, out, err);
    if (st == QR_OK)
        st = member_ids(line, "banned", &out->banned, &s->banned_count, err);
    s->banned = out->banned;
    return st;
}

/* true: of the tokens that came; a number: of that many likely ones too. */
static qr_status read_logprobs(const struct json *line, qr_request *out, qr_error *err)
{
    const struct json *value = member_of(line, "logprobs");
    int64_t top;
    bool wanted;
    if (json_bool(value, &wanted))
        out->logprobs = wanted ? 0 : out->logprobs;
    else if (json_int64(value, &top) && top >= 0 && top <= 20)
        out->logprobs = (int32_t)top;
    else if (value)
        return member_wrong(err, "logprobs", value, "true, false or a whole number from 0 to 20");
    return QR_OK;
}

/* Not an empty one, which would part nobody from anybody. */
static qr_status read_salt(const struct json *line, qr_request *out, qr_error *err)
{
    const struct json *value = member_of(line, "cache_salt");
    if (value && (value->kind != JSON_STRING || value->length == 0 || strlen(value->text) != value->length))
        return member_wrong(err, "cache_salt", value->kind == JSON_STRING ? NULL : value, "a string that is not empty and has no NUL");
    if (value)
        out->cache_salt = value->text;
    return QR_OK;
}

/* Digits and nothing else, more of them than an int32_t has or than it can hold. */
static bool is_beyond_int32(const struct json *value)
{
    int64_t number;
    if (json_int64(value, &number))
        return number > INT32_MAX;
    return value && value->kind == JSON_NUMBER && strspn(value->text, "0123456789") == value->length;
}

qr_status member_most(const struct json *line, const char *name, int64_t least, int32_t *out, qr_error *err)
{
    if (!is_beyond_int32(member_of(line, name)))
        return member_int(line, name, least, INT32_MAX, out, err);
    *out = INT32_MAX;
    return QR_OK;
}

static qr_status read_most(const struct json *line, const char *name, struct request_text *out, qr_error *err)
{
    return member_most(line, name, out->may_say_nothing ? 0 : 1, &out->request.max_tokens, err);
}

static qr_status read_limits(const struct json *line, struct request_text *out, qr_error *err)
{
    qr_request *q = &out->request;
    qr_status st = read_most(line, "max_tokens", out, err);
    if (st == QR_OK)
        st = read_most(line, "max_completion_tokens", out, err);
    if (st == QR_OK)
        st = member_int(line, "min_tokens", 0, INT32_MAX, &q->min_tokens, err);
    if (st == QR_OK)
        st = member_bool(line, "ignore_eos", &q->ignore_eos, err);
    if (st == QR_OK)
        st = member_bool(line, "include_stop_str_in_output", &q->include_stop, err);
    if (st == QR_OK)
        st = member_ids(line, "stop_token_ids", &out->stop_tokens, &q->stop_token_count, err);
    q->stop_tokens = out->stop_tokens;
    if (st == QR_OK)
        st = read_logprobs(line, q, err);
    if (st == QR_OK)
        st = read_salt(line, q, err);
    if (st == QR_OK)
        st = read_stop(line, out, err);
    return st;
}

qr_status members_read(const struct json *body, struct request_text *out, qr_error *err)
{
    qr_status st = read_sampling(body, out, err);
    if (st == QR_OK)
        st = read_limits(body, out, err);
    request_text_point(out);
    return st;
}
