#include "tools/accept_engine.h"

#include <string.h>

#include "base/status.h"
#include "engine/engine.h"
#include "sched/cost.h"

qr_status accept_open(const struct accept *a, const struct accept_setup *s, qr_engine **out, qr_error *err)
{
    qr_engine_options o = model_options_engine(a->options);
    o.block_size = a->block;
    o.max_model_len = a->longest;
    o.max_num_batched_tokens = s->rows ? s->rows : a->rows;
    o.long_prefill_cap = s->cap ? s->cap : a->cap;
    o.max_num_seqs = s->requests ? s->requests : 4;
    o.state_checkpoint_interval_tokens = a->interval;
    o.kv_ram_bytes = 0;
    o.decoder_replay = o.encoder_replay = s->replay;
    o.no_prefix_caching = a->no_cache;
    o.method = "none";
    if (s->drafts > 0) {
        o.method = a->config.drafter == QR_DRAFTER_DSPARK ? "dspark" : "mtp";
        o.num_speculative_tokens = s->drafts;
    }
    TRY(qr_engine_create(a->model, &o, out, err));
    /* Where a device runs the model faster than it copies an image none would be taken, and none could be tested: the costs are
     * those of the processor on every device. */
    qr_plan_bytes bytes;
    qr_engine_get_plan(*out, &bytes);
    const struct sched_costs costs = cost_of_model(cost_rates("cpu"), &a->plan, (int64_t)bytes.weights);
    sched_set_costs((*out)->sched, &costs);
    return QR_OK;
}

/* ---- prompts ---- */

void accept_prompt(const struct accept *a, int32_t family, int32_t shared, int32_t own, int32_t count,
                   struct accept_prompt *out)
{
    const int32_t words = (int32_t)a->words.count;
    out->a = a;
    out->count = count < ACCEPT_LONGEST ? count : ACCEPT_LONGEST;
    for (int32_t p = 0; p < out->count; p++)
        out->tokens[p] = a->words.data[(p + (p < shared ? family : own) * 37) % words];
    if (shared < out->count && shared > 0) /* no two that share a beginning share a token more */
        out->tokens[shared] = own % a->config.vocab_size;
}

/* ---- answers ---- */

qr_sampling accept_greedy(const struct accept_prompt *p)
{
    qr_sampling greedy = QR_SAMPLING;
    greedy.temperature = 0;
    greedy.banned = p->a->banned.data;
    greedy.banned_count = p->a->banned.count;
    return greedy;
}

/* `greedy` is filled in, and must outlive what is returned. */
static qr_request greedy_request(const struct accept_prompt *p, int32_t most, qr_sampling *greedy)
{
    qr_request q = QR_REQUEST;
    *greedy = accept_greedy(p);
    q.sampling = greedy;
    q.tokens = p->tokens;
    q.token_count = (size_t)p->count;
    q.max_tokens = most;
    q.ignore_eos = true;
    q.logprobs = 0;
    return q;
}

qr_status accept_submit(qr_engine *engine, const struct accept_prompt *p, int32_t most, qr_handle after, qr_handle *out,
                        qr_error *err)
{
    qr_sampling greedy;
    qr_request q = greedy_request(p, most, &greedy);
    q.after = after;
    return qr_submit(engine, &q, NULL, NULL, out, err);
}

qr_status accept_submit_stop(qr_engine *engine, const struct accept_prompt *p, int32_t most, int32_t stop, qr_handle *out,
                             qr_error *err)
{
    qr_sampling greedy;
    qr_request q = greedy_request(p, most, &greedy);
    q.stop_tokens = &stop;
    q.stop_token_count = 1;
    return qr_submit(engine, &q, NULL, NULL, out, err);
}

static qr_status take_event(const qr_event *e, struct accept_answer *out, qr_error *err)
{
    if (out->finish != QR_FINISH_NONE)
        return qr_fail(err, QR_INTERNAL, "an event follows the last one");
    if (e->token >= 0 && e->finish == QR_FINISH_CANCELLED)
        return qr_fail(err, QR_INTERNAL, "the last event of a cancelled request brings token %d", e->token);
    if (e->token >= 0 && out->count < ACCEPT_TOKENS) {
        out->tokens[out->count] = e->token;
        out->logprobs[out->count++] = e->logprob.logprob;
    }
    out->finish = e->finish;
    return e->error ? qr_fail(err, e->error->status, "%s", e->error->message) : QR_OK;
}

qr_status accept_finish(qr_engine *engine, qr_handle handle, struct accept_answer *out, qr_error *err)
{
    qr_status st = QR_OK;
    memset(out, 0, sizeof *out);
    while (st == QR_OK && out->finish == QR_FINISH_NONE) {
        qr_event event;
        st = qr_poll(engine, handle, -1, &event, err);
        if (st == QR_OK)
            st = take_event(&event, out, err);
        if (st == QR_OK)
            st = qr_get_usage(engine, handle, &out->usage, err);
    }
    qr_release(engine, handle);
    return st;
}

qr_status accept_ask(qr_engine *engine, const struct accept_prompt *p, int32_t most, struct accept_answer *out,
                     qr_error *err)
{
    qr_handle handle;
    TRY(accept_submit(engine, p, most, 0, &handle, err));
    return accept_finish(engine, handle, out, err);
}

qr_status accept_alone(struct accept *a, const struct accept_prompt *p, int32_t most, struct accept_answer *out,
                       qr_error *err)
{
    return accept_ask(a->control, p, most, out, err);
}

/* Pages below `hit` are in the control's cache, and nothing else: a cold prompt has left them. */
static qr_status warm_control(struct accept *a, const struct accept_prompt *p, int32_t hit, qr_error *err)
{
    struct accept_prompt warm = *p;
    struct accept_answer r;
    TRY(accept_inject(a->control, QR_INJECT_DROP_CACHE, 0, 1, err));
    warm.count = hit + 1;
    warm.tokens[hit] = warm.tokens[hit] == 0;
    return hit > 0 ? accept_ask(a->control, &warm, 1, &r, err) : QR_OK;
}

qr_status accept_alone_from(struct accept *a, const struct accept_prompt *p, int32_t hit, int32_t most,
                            struct accept_answer *out, qr_error *err)
{
    if (!a->bounded)
        return accept_alone(a, p, most, out, err);
    TRY(warm_control(a, p, hit, err));
    TRY(accept_ask(a->control, p, most, out, err));
    return out->usage.cached_tokens == hit
               ? QR_OK
               : qr_fail(err, QR_INTERNAL, "the control starts from %d cached tokens, wanted %d", out->usage.cached_tokens,
                         hit);
}

qr_status accept_same(const struct accept_answer *alone, const struct accept_answer *r, const char *what, qr_error *err)
{
    for (int32_t i = 0; i < alone->count && i < r->count; i++) {
        if (alone->tokens[i] != r->tokens[i])
            return qr_fail(err, QR_INTERNAL, "%s: token %d of the answer is %d, alone and cold %d", what, i,
                           r->tokens[i], alone->tokens[i]);
        if (memcmp(&alone->logprobs[i], &r->logprobs[i], sizeof(float)) != 0)
            return qr_fail(err, QR_INTERNAL, "%s: token %d has log probability %.9g, alone and cold %.9g", what, i,
                           (double)r->logprobs[i], (double)alone->logprobs[i]);
    }
    if (alone->count != r->count || alone->finish != r->finish)
        return qr_fail(err, QR_INTERNAL, "%s: %d tokens ended by %s, alone and cold %d ended by %s", what, r->count,
                       qr_finish_name(r->finish), alone->count, qr_finish_name(alone->finish));
    return QR_OK;
}

qr_status accept_agree(struct accept *a, qr_engine *engine, const struct accept_prompt *p, const char *what,
                       struct accept_answer *out, qr_error *err)
{
    struct accept_answer alone;
    TRY(accept_ask(engine, p, ACCEPT_ANSWER, out, err));
    TRY(accept_alone_from(a, p, out->usage.cached_tokens, ACCEPT_ANSWER, &alone, err));
    return accept_same(&alone, out, what, err);
}

/* ---- engines ---- */

qr_metrics accept_metrics(const qr_engine *engine)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(engine, &m);
    return m;
}

qr_status accept_inject(qr_engine *engine, qr_injection what, qr_handle handle, uint64_t later, qr_error *err)
{
    return qr_inject(engine, what, handle, accept_metrics(engine).steps + later, err);
}

qr_status accept_returned(const qr_engine *engine, const char *what, qr_error *err)
{
    const qr_metrics m = accept_metrics(engine);
    if (m.blocks_free == m.blocks_total && m.slots_free == m.slots_total)
        return QR_OK;
    return qr_fail(err, QR_INTERNAL, "%s: %llu of %llu pages and %llu of %llu slots came back", what,
                   (unsigned long long)m.blocks_free, (unsigned long long)m.blocks_total,
                   (unsigned long long)m.slots_free, (unsigned long long)m.slots_total);
}

qr_status accept_both(struct accept *a, struct accept_figures *f,
                      qr_status (*run)(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err),
                      qr_error *err)
{
    static const char *const modes[] = {"exact", "off"};
    for (int i = 0; i < 2; i++) {
        qr_error found = {0};
        accept_mode(f, modes[i]);
        const qr_status st = run(a, modes[i], f, &found);
        if (st != QR_OK)
            return qr_fail(err, st, "replay %s: %s", modes[i], found.message);
    }
    return QR_OK;
}

/* Pages that cover the window, chunks of a page, prompts of some pages; steps that hold four requests that each start a page
 * lower, so that no chunk depends on who else is there (E04, E29, E30). */
static struct accept bounded_sizes(const struct accept *a)
{
    struct accept b = *a;
    while (b.block < a->config.sliding_window - 1)
        b.block *= 2;
    b.cap = b.interval = b.block;
    b.rows = a->rows > 10 * b.block ? a->rows : 10 * b.block;
    if (b.prompts[0] < 3 * b.block)
        b.prompts[0] = 3 * b.block;
    if (b.prompts[1] < b.block + 17)
        b.prompts[1] = b.block + 17;
    b.bounded = true;
    return b;
}

qr_status accept_bounded(struct accept *a, bool cached, struct accept_figures *f,
                         qr_status (*run)(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err),
                         qr_error *err)
{
    struct accept b = bounded_sizes(a);
    qr_error found = {0};
    if (!accept_has_bounded(a))
        return QR_OK;
    b.no_cache = !cached;
    accept_mode(f, "bounded");
    qr_status st = accept_open(&b, &(struct accept_setup){.replay = "bounded", .requests = 1}, &b.control, &found);
    if (st == QR_OK) {
        st = run(&b, "bounded", f, &found);
        qr_engine_destroy(b.control);
    }
    return st == QR_OK ? QR_OK : qr_fail(err, st, "replay bounded: %s", found.message);
}

qr_status accept_all_modes(struct accept *a, struct accept_figures *f,
                           qr_status (*run)(struct accept *a, const char *replay, struct accept_figures *f,
                                            qr_error *err),
                           qr_error *err)
{
    TRY(accept_both(a, f, run, err));
    return accept_bounded(a, false, f, run, err);
}
