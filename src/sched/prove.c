#include "base/alloc.h"
#include "sched/state.h"

/* As complete.c publishes and admit.c looks, with a request of one block and a token. */
static bool publish_and_find(struct sched *s, struct sched_request *r)
{
    if (!blocks_take(s->blocks, 1, r->blocks))
        return false;
    sched_request_keys(r, &s->root, s->block, 1);
    blocks_publish(s->blocks, r->blocks[0], &r->keys[0], r->tokens);
    blocks_release(s->blocks, r->blocks, 1);
    const int32_t matched = blocks_match(s->blocks, r->keys, r->tokens, r->count, r->blocks);
    blocks_release(s->blocks, r->blocks, matched);
    return matched == 1;
}

qr_status sched_prove_hit(struct sched *s, qr_error *err)
{
    struct sched_request *r = NULL;
    const int32_t count = s->block + 1;
    int32_t *tokens = qr_calloc((size_t)count, sizeof *tokens);
    if (!s->options.prefix_cache || blocks_usable(s->blocks) < 1) {
        qr_free(tokens);
        return QR_OK;
    }
    if (!tokens)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a block of %d tokens", count);
    for (int32_t i = 0; i < count; i++)
        tokens[i] = i;
    const struct request_given given = {
        .tokens = tokens, .count = count, .limit = count + 1, .first_logits = count - 1};
    qr_status st = sched_request_make(&given, s->block, &r, err);
    if (st == QR_OK && !publish_and_find(s, r))
        st = qr_fail(err, QR_INTERNAL,
                     "I5: a block that enters the prefix index is not found in it: no prompt would ever start "
                     "from the cache");
    sched_drop_cache(s);
    sched_request_free(r);
    qr_free(tokens);
    return st;
}
