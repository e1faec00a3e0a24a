#include "engine/expert_use.h"

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

enum { MOST_BYTES = 64 << 20 };
static const uint64_t most_visits = (uint64_t)1 << 40; /* of one expert */

static int64_t count_of(const struct expert_use *u) { return (int64_t)u->layers * u->experts; }

static bool any(const struct expert_use *u, const uint64_t *visits)
{
    for (int64_t i = 0; visits && i < count_of(u); i++)
        if (visits[i])
            return true;
    return false;
}

/* ---- reading ---- */

static qr_status same_number(const struct json *root, const char *member, int32_t wanted, const char *path, qr_error *err)
{
    int64_t found;
    if (!json_int64(json_get(root, member), &found))
        return qr_fail(err, QR_BAD_FILE, "%s: %s is missing or no number", path, member);
    if (found != wanted)
        return qr_fail(err, QR_BAD_FILE, "%s: %s is %lld, wanted %d", path, member, (long long)found, wanted);
    return QR_OK;
}

static qr_status read_layer(const struct json *list, int32_t layer, struct expert_use *u, qr_error *err)
{
    int32_t e = 0;
    if (list->kind != JSON_ARRAY || list->count != (size_t)u->experts)
        return qr_fail(err, QR_BAD_FILE, "%s: layer %d is no list of %d numbers", u->path, layer, u->experts);
    for (const struct json *number = list->child; number; number = number->next, e++) {
        int64_t visits;
        if (!json_int64(number, &visits) || visits < 0 || (uint64_t)visits > most_visits)
            return qr_fail(err, QR_BAD_FILE, "%s: expert %d of layer %d has no number of visits", u->path, e, layer);
        u->visits[(int64_t)layer * u->experts + e] = (uint64_t)visits;
    }
    return QR_OK;
}

static qr_status read_root(const struct json *root, struct expert_use *u, qr_error *err)
{
    int32_t layer = 0;
    TRY(same_number(root, "format", EXPERT_USE_FORMAT, u->path, err));
    TRY(same_number(root, "layers", u->layers, u->path, err));
    TRY(same_number(root, "experts", u->experts, u->path, err));
    const struct json *all = json_get(root, "visits");
    if (!all || all->kind != JSON_ARRAY || all->count != (size_t)u->layers)
        return qr_fail(err, QR_BAD_FILE, "%s: visits are no list of %d layers", u->path, u->layers);
    for (const struct json *list = all->child; list; list = list->next)
        TRY(read_layer(list, layer++, u, err));
    return QR_OK;
}

static qr_status read_file(struct expert_use *u, qr_error *err)
{
    struct json_document *doc;
    char *text;
    size_t length;
    TRY(file_read(u->path, MOST_BYTES, &text, &length, err));
    qr_status st = json_parse(text, length, u->path, true, &doc, err);
    if (st == QR_OK) {
        st = read_root(json_root(doc), u, err);
        json_close(doc);
    }
    qr_free(text);
    return st;
}

qr_status expert_use_open(const char *path, const struct model_plan *plan, const struct qr_log *log, struct expert_use *out,
                          qr_error *err)
{
    qr_error found = {0};
    *out = (struct expert_use){.layers = plan->layers, .experts = plan->config.n_routed_experts};
    if (!path)
        return QR_OK;
    out->path = qr_strndup(path, strlen(path));
    out->visits = qr_calloc((size_t)count_of(out) + 1, sizeof *out->visits);
    if (!out->path || !out->visits) {
        expert_use_close(out);
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the visits of experts", path);
    }
    const qr_status st = access(path, F_OK) == 0 ? read_file(out, &found) : QR_OK;
    if (st == QR_NO_MEMORY) {
        expert_use_close(out);
        return qr_fail(err, st, "%s", found.message);
    }
    if (st != QR_OK) {
        qr_logf(log, QR_LOG_WARN, "use of experts is neither known nor kept: %s", found.message);
        expert_use_close(out);
    }
    return QR_OK;
}

bool expert_use_is_known(const struct expert_use *u) { return any(u, u->visits); }

void expert_use_close(struct expert_use *u)
{
    qr_free(u->path);
    qr_free(u->visits);
    *u = (struct expert_use){.path = NULL};
}

/* ---- writing ---- */

static void add(struct expert_use *u, const uint64_t *visits)
{
    uint64_t most = 0;
    for (int64_t i = 0; i < count_of(u); i++) {
        const uint64_t more = visits[i] < most_visits ? visits[i] : most_visits;
        u->visits[i] += more;
        most = u->visits[i] > most ? u->visits[i] : most;
    }
    for (; most > most_visits; most /= 2)
        for (int64_t i = 0; i < count_of(u); i++)
            u->visits[i] /= 2;
}

static void write_root(const struct expert_use *u, struct json_writer *w)
{
    json_w_object(w);
    json_w_member_int(w, "format", EXPERT_USE_FORMAT);
    json_w_member_int(w, "layers", u->layers);
    json_w_member_int(w, "experts", u->experts);
    json_w_key(w, "visits");
    json_w_array(w);
    for (int32_t layer = 0; layer < u->layers; layer++) {
        json_w_array(w);
        for (int32_t e = 0; e < u->experts; e++)
            json_w_int(w, (int64_t)u->visits[(int64_t)layer * u->experts + e]);
        json_w_end_array(w);
    }
    json_w_end_array(w);
    json_w_end_object(w);
}

qr_status expert_use_keep(struct expert_use *u, const uint64_t *visits, qr_error *err)
{
    const char *text;
    size_t length;
    if (!u->path || !any(u, visits))
        return QR_OK;
    add(u, visits);
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory to write it", u->path);
    write_root(u, w);
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK)
        st = file_write_atomic(u->path, text, length, err);
    json_writer_close(w);
    return st;
}
