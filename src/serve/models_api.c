/* GET /v1/models (protocol.md 4.7). */
#include <string.h>

#include "serve/api.h"
#include "serve/server.h"
#include "serve/translation.h"

static const char *const usual_names[] = {"deepseek-v4-flash", "deepseek-flash", "deepseek-v4.1-flash", "deepseek-chat",
                                          "deepseek-reasoner"};
enum { USUAL_NAMES = sizeof usual_names / sizeof *usual_names };

static bool same(const char *name, const char *asked, size_t length)
{
    return name && strlen(name) == length && memcmp(name, asked, length) == 0;
}

bool server_knows(const struct server *s, const char *model, size_t length, bool anthropic)
{
    length = model_name_length(model, length);
    bool known = same(s->name, model, length) || same(s->info.name, model, length);
    for (size_t i = 0; i < USUAL_NAMES; i++)
        known |= same(usual_names[i], model, length);
    for (size_t i = 0; i < s->settings.alias_count; i++)
        known |= same(s->settings.aliases[i], model, length);
    return known || (anthropic && length > 7 && memcmp(model, "claude-", 7) == 0);
}

static void write_model(const struct server *s, const char *id, struct json_writer *w)
{
    const int32_t context = s->plan.max_model_len;
    json_w_object(w);
    json_w_member_string(w, "id", id);
    json_w_member_string(w, "object", "model");
    json_w_member_int(w, "created", s->created);
    json_w_member_string(w, "owned_by", "quire");
    json_w_member_int(w, "max_model_len", context);
    json_w_member_int(w, "context_length", context);
    json_w_member_int(w, "max_output_tokens", context - 1);
    json_w_key(w, "capabilities");
    json_w_object(w);
    json_w_member_bool(w, "vision", false);
    json_w_member_bool(w, "tools", true);
    json_w_member_bool(w, "reasoning", true);
    json_w_end_object(w);
    json_w_key(w, "aliases");
    json_w_array(w);
    for (size_t i = 0; i < USUAL_NAMES; i++)
        json_w_string(w, usual_names[i]);
    for (size_t i = 0; i < s->settings.alias_count; i++)
        json_w_string(w, s->settings.aliases[i]);
    json_w_end_array(w);
    json_w_end_object(w);
}

enum MHD_Result api_models(struct exchange *x)
{
    struct json_writer *w = json_writer_open(false);
    if (w) {
        json_w_object(w);
        json_w_member_string(w, "object", "list");
        json_w_key(w, "data");
        json_w_array(w);
        write_model(x->server, x->server->name, w);
        json_w_end_array(w);
        json_w_end_object(w);
    }
    const enum MHD_Result r = exchange_json(x, 200, w);
    json_writer_close(w);
    return r;
}

enum MHD_Result api_model(struct exchange *x)
{
    struct refusal refusal = {0};
    if (!server_knows(x->server, x->rest, strlen(x->rest), true)) {
        refuse(&refusal, 404, "model_not_found", "model", "the model \"%.200s\" is not served here, but \"%s\" is", x->rest,
               x->server->name);
        return exchange_refuse(x, &refusal);
    }
    struct json_writer *w = json_writer_open(false);
    if (w)
        write_model(x->server, x->rest, w);
    const enum MHD_Result r = exchange_json(x, 200, w);
    json_writer_close(w);
    return r;
}
