#include "text/chat_effort.h"

#include <string.h>

#define DEFAULT_EFFORT "high"

struct effort_row {
    const char *name;
    enum chat_effort_text v4a, v4b;
    int v41;
};

static const struct effort_row rows[] = {
    {"minimal", EFFORT_TEXT_NONE, EFFORT_TEXT_NONE, 50},
    {"low", EFFORT_TEXT_NONE, EFFORT_TEXT_NONE, 50},
    {"medium", EFFORT_TEXT_NONE, EFFORT_TEXT_MAXIMUM, 75},
    {"high", EFFORT_TEXT_NONE, EFFORT_TEXT_MAXIMUM, 75},
    {"xhigh", EFFORT_TEXT_MAXIMUM, EFFORT_TEXT_MAXIMUM, 75},
    {"max", EFFORT_TEXT_MAXIMUM, EFFORT_TEXT_BEYOND, 100},
    {"ultra", EFFORT_TEXT_MAXIMUM, EFFORT_TEXT_BEYOND, 100},
};

struct effort {
    int number;
    enum chat_effort_text text;
};

/* 1..100 in its one decimal spelling, else 0. */
static int decimal(const char *text, size_t length)
{
    int n = 0;
    if (length == 0 || length > 3 || text[0] == '0')
        return 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        n = n * 10 + (text[i] - '0');
    }
    return n <= 100 ? n : 0;
}

static bool effort_of(enum chat_profile profile, const char *text, size_t length, bool is_name, struct effort *out)
{
    *out = (struct effort){0};
    for (size_t i = 0; is_name && i < sizeof rows / sizeof *rows; i++) {
        if (strlen(rows[i].name) != length || memcmp(rows[i].name, text, length) != 0)
            continue;
        if (profile == CHAT_V41)
            out->number = rows[i].v41;
        else
            out->text = profile == CHAT_V4A ? rows[i].v4a : rows[i].v4b;
        return true;
    }
    out->number = profile == CHAT_V41 ? decimal(text, length) : 0;
    return out->number > 0;
}

/* Behind "none" of a request, or alone. */
static const char *known_efforts(enum chat_profile profile)
{
    return profile == CHAT_V41 ? "minimal, low, medium, high, xhigh, max, ultra or a number from 1 to 100"
                               : "minimal, low, medium, high, xhigh, max or ultra";
}

bool chat_effort_known(enum chat_profile profile, const char *effort)
{
    struct effort found;
    return effort_of(profile, effort, strlen(effort), true, &found);
}

/* ---- the members of a request that speak of thinking ---- */

enum wish { WISH_NONE, WISH_ON, WISH_OFF };

struct resolver {
    enum chat_profile profile;
    struct chat_issue *issue;
    qr_error *err;
    enum wish none;       /* WISH_OFF once an effort outside chat_template_kwargs is "none" */
    enum wish kwargs_none; /* the same within */
    bool found;           /* an effort other than "none" */
    struct effort effort; /* the first of them */
};

static bool is_absent(const struct json *value) { return !value || value->kind == JSON_NULL; }

static qr_status read_bool(struct resolver *r, const struct json *value, const char *param, enum wish *out)
{
    bool on;
    if (is_absent(value))
        return QR_OK;
    if (!json_bool(value, &on))
        return chat_refuse(r->issue, r->err, NULL, param, "this is no boolean");
    if (*out == WISH_NONE)
        *out = on ? WISH_ON : WISH_OFF;
    return QR_OK;
}

/* `thinking`: {"type": "enabled" | "disabled" | "adaptive"}, or a boolean. */
static qr_status read_thinking(struct resolver *r, const struct json *thinking, enum wish *out)
{
    if (is_absent(thinking))
        return QR_OK;
    if (thinking->kind == JSON_BOOL)
        return read_bool(r, thinking, "thinking", out);
    if (thinking->kind != JSON_OBJECT)
        return chat_refuse(r->issue, r->err, NULL, "thinking", "this is neither an object nor a boolean");
    const struct json *type = json_get(thinking, "type");
    if (json_equals(type, "enabled"))
        *out = WISH_ON;
    else if (json_equals(type, "disabled"))
        *out = WISH_OFF;
    else if (!is_absent(type) && !json_equals(type, "adaptive"))
        return chat_refuse(r->issue, r->err, NULL, "thinking.type",
                           "found %.80s, wanted enabled, disabled or adaptive",
                           type->kind == JSON_STRING ? type->text : "something that is no string");
    return QR_OK;
}

static qr_status read_effort(struct resolver *r, const struct json *effort, const char *param, enum wish *none)
{
    struct effort found;
    if (is_absent(effort))
        return QR_OK;
    if (json_equals(effort, "none")) {
        *none = WISH_OFF;
        return QR_OK;
    }
    bool name = effort->kind == JSON_STRING;
    if ((!name && effort->kind != JSON_NUMBER) || !effort_of(r->profile, effort->text, effort->length, name, &found))
        return chat_refuse(r->issue, r->err, NULL, param,
                           "an effort of %.40s, wanted none, %s",
                           name || effort->kind == JSON_NUMBER ? effort->text : "another type", known_efforts(r->profile));
    if (!r->found)
        r->effort = found;
    r->found = true;
    return QR_OK;
}

static qr_status read_efforts(struct resolver *r, const struct json *request, const struct json *kwargs)
{
    const struct {
        const struct json *value;
        const char *param;
        enum wish *none;
    } sources[] = {
        {json_get(json_get(request, "thinking"), "effort"), "thinking.effort", &r->none},
        {json_get(json_get(request, "output_config"), "effort"), "output_config.effort", &r->none},
        {json_get(json_get(request, "reasoning"), "effort"), "reasoning.effort", &r->none},
        {json_get(request, "reasoning_effort"), "reasoning_effort", &r->none},
        {json_get(kwargs, "reasoning_effort"), "chat_template_kwargs.reasoning_effort", &r->kwargs_none},
        {json_get(kwargs, "thinking_effort"), "chat_template_kwargs.thinking_effort", &r->kwargs_none},
    };
    qr_status st = QR_OK;
    for (size_t i = 0; i < sizeof sources / sizeof *sources && st == QR_OK; i++)
        st = read_effort(r, sources[i].value, sources[i].param, sources[i].none);
    return st;
}

static qr_status read_kwargs(struct resolver *r, const struct json *kwargs, enum wish *out)
{
    qr_status st;
    if (!is_absent(kwargs) && kwargs->kind != JSON_OBJECT)
        return chat_refuse(r->issue, r->err, NULL, "chat_template_kwargs", "this is no object");
    if ((st = read_bool(r, json_get(kwargs, "thinking"), "chat_template_kwargs.thinking", out)) != QR_OK)
        return st;
    if ((st = read_bool(r, json_get(kwargs, "enable_thinking"), "chat_template_kwargs.enable_thinking", out)) != QR_OK)
        return st;
    const struct json *mode = json_get(kwargs, "thinking_mode");
    if (is_absent(mode))
        return QR_OK;
    bool on = json_equals(mode, "thinking");
    if (!on && !json_equals(mode, "chat"))
        return chat_refuse(r->issue, r->err, NULL, "chat_template_kwargs.thinking_mode",
                           "wanted \"thinking\" or \"chat\"");
    if (*out == WISH_NONE)
        *out = on ? WISH_ON : WISH_OFF;
    return QR_OK;
}

static enum wish alias_of(const struct json *model)
{
    if (json_equals(model, "deepseek-chat"))
        return WISH_OFF;
    return json_equals(model, "deepseek-reasoner") ? WISH_ON : WISH_NONE;
}

qr_status chat_thinking_resolve(const struct json *request, enum chat_profile profile, bool by_default,
                                const char *effort, struct chat_thinking *out, struct chat_issue *issue, qr_error *err)
{
    struct resolver r = {.profile = profile, .issue = issue, .err = err};
    struct effort fallback;
    const struct json *kwargs = json_get(request, "chat_template_kwargs");
    enum wish asked = WISH_NONE, by_kwargs = WISH_NONE;
    qr_status st;
    if (!effort)
        effort = DEFAULT_EFFORT;
    if (!effort_of(profile, effort, strlen(effort), true, &fallback))
        return qr_fail(err, QR_BAD_ARGUMENT, "the profile %s has no effort \"%.60s\", wanted %s", chat_profile_name(profile), effort,
                       known_efforts(profile));
    if ((st = read_thinking(&r, json_get(request, "thinking"), &asked)) != QR_OK ||
        (st = read_bool(&r, json_get(request, "think"), "think", &asked)) != QR_OK ||
        (st = read_kwargs(&r, kwargs, &by_kwargs)) != QR_OK || (st = read_efforts(&r, request, kwargs)) != QR_OK)
        return st;

    const enum wish order[] = {asked, r.none, by_kwargs, r.kwargs_none, alias_of(json_get(request, "model"))};
    enum wish wish = by_default ? WISH_ON : WISH_OFF;
    for (size_t i = sizeof order / sizeof *order; i-- > 0;)
        if (order[i] != WISH_NONE)
            wish = order[i];
    if (r.found)
        fallback = r.effort;
    *out = (struct chat_thinking){wish == WISH_ON, fallback.number, fallback.text};
    return QR_OK;
}
