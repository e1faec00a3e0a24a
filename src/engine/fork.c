/* fork.c: a request that goes on from what another has said so far (runtime.md 4.10). It is an ordinary request whose
 * prompt is read off the parent under the lock; what they share, pages, it finds in the prefix index. */
#include <string.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "engine/structs.h"

/* The parent's prompt and what it has said, as of now. Fresh memory; the lock is held. */
static qr_status read_parent(const struct qr_engine *engine, qr_handle parent, int32_t **tokens, size_t *count,
                             qr_error *err)
{
    const struct request *r = engine_find(engine, parent);
    if (!r || atomic_load(&r->cancelled))
        return qr_fail(err, QR_BAD_ARGUMENT, "handle %llu: %s", (unsigned long long)parent,
                       r ? "its request was cancelled" : "no live request to go on from");
    *count = (size_t)r->prompt_count + (size_t)r->told;
    *tokens = qr_calloc(*count, sizeof **tokens);
    if (!*tokens)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a fork at %zu tokens", *count);
    memcpy(*tokens, r->tokens, (size_t)r->prompt_count * sizeof **tokens);
    if (r->told > 0)
        memcpy(*tokens + r->prompt_count, r->answer, (size_t)r->told * sizeof **tokens);
    return QR_OK;
}

qr_status qr_fork(qr_engine *engine, qr_handle parent, const qr_request *how,
                  void (*callback)(void *user, const qr_event *event), void *user, qr_handle *out, qr_error *err)
{
    qr_request request = QR_REQUEST;
    int32_t *tokens = NULL;
    qr_status st = how ? struct_take("qr_request", how, sizeof request, &request, err) : QR_OK;
    if (st != QR_OK)
        return st;
    pthread_mutex_lock(&engine->lock);
    st = read_parent(engine, parent, &tokens, &request.token_count, err);
    pthread_mutex_unlock(&engine->lock);
    request.tokens = tokens;
    request.after = parent; /* while that one is still in its prompt */
    if (st == QR_OK)
        st = qr_submit(engine, &request, callback, user, out, err);
    qr_free(tokens);
    return st;
}
