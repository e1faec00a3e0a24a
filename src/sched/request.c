#include "sched/request.h"

#include <string.h>

#include "base/alloc.h"

static qr_status check(const struct request_given *g, int32_t block_tokens, qr_error *err)
{
    if (g->count < 1 || g->limit <= g->count)
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "request %llu: %d tokens of at most %d, wanted 1 or more and room for one more",
                       (unsigned long long)g->id, g->count, g->limit);
    if (g->first_logits < 0 || g->first_logits >= g->count)
        return qr_fail(err, QR_BAD_ARGUMENT, "request %llu: logits from row %d of %d", (unsigned long long)g->id,
                       g->first_logits, g->count);
    if (block_tokens < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "request %llu: blocks of %d tokens", (unsigned long long)g->id,
                       block_tokens);
    return QR_OK;
}

static bool allocate(struct sched_request *r, const struct request_given *g, int32_t block_tokens)
{
    const size_t limit = (size_t)g->limit, blocks = limit / (size_t)block_tokens + 1;
    r->tokens = qr_calloc(limit, sizeof *r->tokens);
    r->blocks = qr_calloc(blocks, sizeof *r->blocks);
    r->keys = qr_calloc(blocks, sizeof *r->keys);
    if (g->image_mask)
        r->image_mask = qr_calloc(limit, 1);
    if (g->content)
        r->content = qr_calloc(limit, sizeof *r->content);
    return r->tokens && r->blocks && r->keys && (!g->image_mask || r->image_mask) && (!g->content || r->content);
}

int64_t sched_request_bytes_for(int32_t limit, int32_t block_tokens)
{
    const struct sched_request *r = NULL;
    const int64_t blocks = limit / block_tokens + 1;
    return (int64_t)sizeof *r + limit * (int64_t)(sizeof *r->tokens + sizeof *r->image_mask) +
           blocks * (int64_t)(sizeof *r->blocks + sizeof *r->keys);
}

qr_status sched_request_make(const struct request_given *given, int32_t block_tokens, struct sched_request **out,
                             qr_error *err)
{
    qr_status st = check(given, block_tokens, err);
    if (st != QR_OK)
        return st;
    struct sched_request *r = qr_calloc(1, sizeof *r);
    if (!r || !allocate(r, given, block_tokens)) {
        sched_request_free(r);
        return qr_fail(err, QR_NO_MEMORY, "no memory for a request of %d tokens", given->limit);
    }
    const size_t count = (size_t)given->count;
    memcpy(r->tokens, given->tokens, count * sizeof *r->tokens);
    if (r->image_mask)
        memcpy(r->image_mask, given->image_mask, count);
    if (r->content)
        memcpy(r->content, given->content, count * sizeof *r->content);
    r->id = given->id;
    r->priority = given->priority;
    r->salt = given->salt;
    r->owner = given->owner;
    r->prompt = r->count = given->count;
    r->limit = given->limit;
    r->first_logits = given->first_logits;
    r->slot = r->boundary = r->demand = r->image_due = r->cached_tokens = -1;
    *out = r;
    return QR_OK;
}

void sched_request_free(struct sched_request *r)
{
    if (!r)
        return;
    qr_free(r->tokens);
    qr_free(r->blocks);
    qr_free(r->keys);
    qr_free(r->image_mask);
    qr_free(r->content);
    qr_free(r);
}

void sched_request_keys(struct sched_request *r, const struct block_key *root, int32_t block_tokens, int32_t blocks)
{
    const bool salted = r->key_count == 0 && (r->salt.low || r->salt.high); /* only the first block sees it */
    const struct block_key own = salted ? block_key_salted(root, &r->salt) : *root;
    for (; r->key_count < blocks; r->key_count++) {
        const int64_t first = (int64_t)r->key_count * block_tokens;
        const struct block_key *parent = r->key_count ? &r->keys[r->key_count - 1] : &own;
        r->keys[r->key_count] =
            block_key_next(parent, r->tokens + first, r->content ? r->content + first : NULL, block_tokens);
    }
}

const char *sched_state_name(enum sched_state state)
{
    static const char *const names[] = {"new", "held", "waiting", "prefill", "decode", "finished"};
    return (unsigned)state < sizeof names / sizeof *names ? names[state] : "unknown";
}

const char *finish_name(enum finish finish)
{
    static const char *const names[] = {"none", "stop", "length", "cancelled", "failed"};
    return (unsigned)finish < sizeof names / sizeof *names ? names[finish] : "unknown";
}
