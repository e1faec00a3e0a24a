#include "serve/routes.h"

#include <string.h>
#include <strings.h>

#include "serve/api.h"
#include "serve/job.h"

static const struct route routes[] = {
    {"POST", "/chat/completions", TONGUE_OPENAI, DOOR_KEY, api_chat, job_resume},
    {"POST", "/completions", TONGUE_OPENAI, DOOR_KEY, api_completions, job_resume},
    {"POST", "/messages", TONGUE_ANTHROPIC, DOOR_KEY, api_messages, job_resume},
    {"POST", "/messages/count_tokens", TONGUE_ANTHROPIC, DOOR_KEY, api_count_tokens, NULL},
    {"POST", "/responses", TONGUE_OPENAI, DOOR_KEY, api_responses, job_resume},
    {"GET", "/models", TONGUE_OPENAI, DOOR_MODELS, api_models, NULL},
    {"GET", "/models/*", TONGUE_OPENAI, DOOR_MODELS, api_model, NULL},
    {"POST", "/tokenize", TONGUE_OPENAI, DOOR_KEY, api_tokenize, NULL},
    {"GET", "/tokenizer_info", TONGUE_OPENAI, DOOR_KEY, api_tokenizer_info, NULL},
    {"POST", "/detokenize", TONGUE_OPENAI, DOOR_KEY, api_detokenize, NULL},
    {"POST", "/render", TONGUE_OPENAI, DOOR_KEY, api_render, NULL},
    {"GET", "/health", TONGUE_OPENAI, DOOR_WELL, api_health, NULL},
    {"GET", "/ready", TONGUE_OPENAI, DOOR_WELL, api_ready, NULL},
    {"GET", "/version", TONGUE_OPENAI, DOOR_OPEN, api_version, NULL},
    {"GET", "/metrics", TONGUE_OPENAI, DOOR_OPEN, api_metrics, NULL},
    {"GET", "/", TONGUE_OPENAI, DOOR_OPEN, api_page, NULL},
    {"POST", "/sleep", TONGUE_OPENAI, DOOR_ADMIN, api_sleep, api_changed},
    {"POST", "/wake_up", TONGUE_OPENAI, DOOR_ADMIN, api_wake, api_changed},
};
enum { ROUTES = sizeof routes / sizeof *routes };

size_t route_count(void) { return ROUTES; }
size_t route_number(const struct route *route) { return (size_t)(route - routes); }
const struct route *route_at(size_t number) { return &routes[number]; }

/* A request may name its host before the path, as clients of proxies do (RFC 9112, 3.2.2). */
static const char *behind_host(const char *target)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        const size_t length = strlen(schemes[i]);
        if (strncasecmp(target, schemes[i], length) != 0)
            continue;
        const char *path = strchr(target + length, '/');
        return path ? path : "/";
    }
    return target;
}

static const char *behind_prefix(const char *path)
{
    static const char *const prefixes[] = {"/anthropic/v1", "/anthropic", "/beta", "/v1"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const size_t length = strlen(prefixes[i]);
        if (strncmp(path, prefixes[i], length) == 0 && path[length] == '/')
            return path + length;
        if (strcmp(path, prefixes[i]) == 0) /* the base that a client was told */
            return "/";
    }
    return path;
}

/* A path may end in slashes that mean nothing. */
static bool same_path(const char *path, const char *wanted, const char **rest)
{
    const size_t length = strlen(wanted);
    if (wanted[length - 1] == '*') {
        *rest = path + length - 1;
        return strncmp(path, wanted, length - 1) == 0 && **rest;
    }
    *rest = path + length;
    return strncmp(path, wanted, length) == 0 && strspn(*rest, "/") == strlen(*rest);
}

const struct route *route_find(const char *method, const char *path, const char **rest, bool *known, const char **other)
{
    path = behind_prefix(behind_host(path));
    *known = false;
    for (size_t i = 0; i < ROUTES; i++) {
        const struct route *r = &routes[i];
        if (!same_path(path, r->path, rest))
            continue;
        if (strcmp(method, r->method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0))
            return r;
        *known = true;
        *other = r->method;
    }
    return NULL;
}
