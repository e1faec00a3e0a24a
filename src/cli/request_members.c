#include "cli/request_members.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/nearest.h"

static const char *const of_any[] = {
    "id", "tokens", "prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "stop",
    "stop_token_ids", "include_stop_str_in_output", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "seed", "logit_bias", "banned", "logprobs", "n", "best_of",
    "cache_salt", "response_format", "guided_json", "guided_regex", "guided_choice", "guided_json_object", "structured_outputs", NULL};

/* Read by the chat template. */
static const char *const of_chat[] = {
    "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "reasoning", "output_config",
    "thinking", "think", "chat_template_kwargs", "continue_final_message", "add_generation_prompt", "vendor_extensions", NULL};

/* Accepted and ignored by every server; `model` may choose how to think. */
static const char *const of_none[] = {"model", "stream", "stream_options", "user", "metadata", "store", "service_tier",
                                      "prediction", "verbosity", "web_search_options", NULL};

/* What an answer would have to obey. */
static const char *const of_nobody[] = {"allowed_token_ids", "bad_words", "guided_grammar", "guided_whitespace_pattern",
                                        "use_beam_search", "truncate_prompt_tokens", NULL};

static bool holds(const char *const *names, const struct json *member)
{
    for (; *names; names++)
        if (strlen(*names) == member->key_length && memcmp(*names, member->key, member->key_length) == 0)
            return true;
    return false;
}

static void look_nearer(const char *const *names, const char *name, const char **nearest)
{
    for (; *names; names++)
        if (edit_distance(name, *names) < edit_distance(name, *nearest))
            *nearest = *names;
}

static void unknown(const struct json *member, char *sentence, size_t size)
{
    char name[64];
    const char *nearest = of_any[0];
    snprintf(name, sizeof name, "%.*s", (int)(member->key_length < 60 ? member->key_length : 60), member->key);
    look_nearer(of_any, name, &nearest);
    look_nearer(of_chat, name, &nearest);
    snprintf(sentence, size, "\"%s\" is no member of a request and is ignored%s", name,
             nearest_hint(name, nearest).text);
}

bool request_members_ignored(const struct json *line, char *sentence, size_t size)
{
    const struct json *messages = json_get(line, "messages");
    const bool chat = messages && messages->kind != JSON_NULL;
    for (const struct json *m = line->child; m; m = m->next) {
        if (holds(of_any, m) || holds(of_none, m) || (holds(of_chat, m) && (chat || m->kind == JSON_NULL)))
            continue;
        if (holds(of_chat, m))
            snprintf(sentence, size, "%.*s says nothing without messages and is ignored", (int)m->key_length, m->key);
        else
            unknown(m, sentence, size);
        return true;
    }
    return false;
}

qr_status request_members_check(const struct json *line, qr_error *err)
{
    static const char *const answers_of[] = {"n", "best_of"};
    for (int i = 0; i < 2; i++) {
        const struct json *n = json_get(line, answers_of[i]);
        int64_t answers = 1;
        if (n && n->kind != JSON_NULL && (!json_int64(n, &answers) || answers != 1))
            return qr_fail(err, QR_BAD_REQUEST, "%s: %.*s, wanted 1: a line has one answer", answers_of[i],
                           (int)(n->text && n->length < 60 ? n->length : 0), n->text ? n->text : "");
    }
    for (const struct json *m = line->child; m; m = m->next)
        if (m->kind != JSON_NULL && holds(of_nobody, m))
            return qr_fail(err, QR_BAD_REQUEST, "%.*s: is not built, and an answer without it is not what was asked for",
                           (int)m->key_length, m->key);
    return QR_OK;
}
