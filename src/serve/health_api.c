/* GET /health, /ready and /version; POST /sleep and /wake_up (protocol.md 4.9, runtime.md 12.2). */
#include <string.h>

#include "serve/api.h"
#include "serve/members.h"
#include "serve/server.h"

static const double STUCK_AFTER = 10.0; /* seconds without a step while work waits */

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

enum MHD_Result api_health(struct exchange *x)
{
    const bool stuck = server_stuck(x->server, STUCK_AFTER);
    return say_status(x, stuck ? 503 : 200, stuck ? "stuck" : "ok");
}

enum MHD_Result api_ready(struct exchange *x)
{
    const bool draining = atomic_load(&x->server->draining), asleep = atomic_load(&x->server->asleep) != 0;
    return say_status(x, draining || asleep ? 503 : 200, draining ? "draining" : asleep ? "asleep" : "ready");
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

static enum MHD_Result change(struct exchange *x, qr_status (*how)(qr_engine *, unsigned, qr_error *), bool sleeps)
{
    struct refusal refusal = {0};
    qr_error err = {0};
    unsigned tags;
    if (!read_tags(x, &tags, &refusal))
        return exchange_refuse(x, &refusal);
    if (sleeps) /* from now on nothing is taken */
        atomic_fetch_or(&x->server->asleep, tags);
    const qr_status st = how(x->server->engine, tags, &err);
    if (st != QR_OK) {
        refuse_for(&refusal, st, &err, NULL);
        return exchange_refuse(x, &refusal);
    }
    if (!sleeps)
        atomic_fetch_and(&x->server->asleep, ~tags);
    return say_status(x, 200, atomic_load(&x->server->asleep) ? "asleep" : "awake");
}

enum MHD_Result api_sleep(struct exchange *x) { return change(x, qr_engine_sleep, true); }
enum MHD_Result api_wake(struct exchange *x) { return change(x, qr_engine_wake, false); }
