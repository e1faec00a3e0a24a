/* GET /health, /ready and /version; POST /sleep and /wake_up (protocol.md 4.9, runtime.md 12.2). */
#include <string.h>

#include "serve/api.h"
#include "serve/members.h"
#include "serve/server.h"
#include "serve/sleeper.h"

static const double STUCK_AFTER = 10.0; /* seconds without a step while work waits */
enum { RETRY_AFTER = 5 };

static enum MHD_Result say_status(struct exchange *x, int status, const char *word)
{
    struct json_writer *w = json_writer_open(false);
    if (w) {
        json_w_object(w);
        json_w_member_string(w, "status", word);
        json_w_end_object(w);
    }
    const enum MHD_Result r = exchange_json(x, status, w);
    json_writer_close(w);
    return r;
}

/* Behind 503 a client may try again. */
static enum MHD_Result say_well(struct exchange *x, const char *trouble, const char *word)
{
    x->retry_after = trouble ? RETRY_AFTER : 0;
    return say_status(x, trouble ? 503 : 200, trouble ? trouble : word);
}

enum MHD_Result api_health(struct exchange *x)
{
    const struct server *s = x->server;
    return say_well(x, !server_is_loaded(s) ? "loading" : server_stuck(s, STUCK_AFTER) ? "stuck" : NULL, "ok");
}

enum MHD_Result api_ready(struct exchange *x)
{
    const struct server *s = x->server;
    const char *trouble = atomic_load(&s->draining) ? "draining" : !server_is_loaded(s) ? "loading" : atomic_load(&s->asleep) ? "asleep" : NULL;
    return say_well(x, trouble, "ready");
}

enum MHD_Result api_version(struct exchange *x)
{
    const struct server *s = x->server;
    struct json_writer *w = json_writer_open(false);
    if (w) {
        json_w_object(w);
        json_w_member_string(w, "version", qr_version());
        json_w_member_string(w, "commit", quire_commit);
        json_w_member_string(w, "model", s->name);
        json_w_member_string(w, "family", s->info.family);
        json_w_member_string(w, "backend", s->info.backend);
        json_w_member_string(w, "profile", s->info.profile);
        json_w_member_string(w, "prompt_profile", s->info.prompt_profile);
        json_w_end_object(w);
    }
    const enum MHD_Result r = exchange_json(x, 200, w);
    json_writer_close(w);
    return r;
}

/* ---- sleep ---- */

/* {"tags": ["weights", "kv_cache"]}; without a body both. */
static bool read_tags(struct exchange *x, unsigned *out, struct refusal *refusal)
{
    struct json_document *document;
    *out = QR_SLEEP_WEIGHTS | QR_SLEEP_KV_CACHE;
    if (x->body.length == 0)
        return true;
    if (!exchange_body(x, &document, refusal))
        return false;
    const struct json *tags = member_of(json_root(document), "tags");
    bool good = !tags || (tags->kind == JSON_ARRAY && tags->child);
    if (tags)
        *out = 0;
    for (const struct json *tag = good && tags ? tags->child : NULL; tag && good; tag = tag->next) {
        const unsigned bit = json_equals(tag, "weights") ? QR_SLEEP_WEIGHTS : json_equals(tag, "kv_cache") ? QR_SLEEP_KV_CACHE : 0;
        good = bit != 0;
        *out |= bit;
    }
    json_close(document);
    return good || refuse(refusal, 400, NULL, "tags", "tags: wanted a list of \"weights\", \"kv_cache\" or both");
}

static enum MHD_Result change(struct exchange *x, bool sleeps)
{
    struct refusal refusal = {0};
    unsigned tags;
    return read_tags(x, &tags, &refusal) ? sleeper_change(x->server->sleeper, x, tags, sleeps) : exchange_refuse(x, &refusal);
}

enum MHD_Result api_sleep(struct exchange *x) { return change(x, true); }
enum MHD_Result api_wake(struct exchange *x) { return change(x, false); }

enum MHD_Result api_changed(struct exchange *x)
{
    struct refusal refusal = {0};
    bool asleep;
    return change_result(x, &asleep, &refusal) ? say_status(x, 200, asleep ? "asleep" : "awake") : exchange_refuse(x, &refusal);
}
