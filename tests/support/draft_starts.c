#include "support/draft_starts.h"

#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cache/row_places.h"
#include "engine/engine.h"
#include "support/engines.h"
#include "support/support.h"

enum { LONGEST = 700, ANSWER = 5, PASSES = 2 * ANSWER };

/* What the drafter of a request had and said at one place. */
struct pass {
    int32_t known;  /* tokens */
    uint64_t rings; /* of the rows that it reads */
    int32_t drafts[SCHED_MAX_WIDTH], made;
};

struct record {
    struct qr_engine *engine;
    const int32_t *right; /* prompt and answer whose drafts shall be right; NULL: as the drafter says */
    int32_t right_count;
    struct pass pass[PASSES];
    int32_t passes;
};

/* The last W rows below the cursor, of MTP the last W - 1 and the row at hand. */
static uint64_t ring_rows(const struct qr_engine *e, const struct sched_request *r)
{
    const struct model_cache cache = runner_cache(e->runner);
    const struct row_pool pool = {.geometry = cache.geometry, .layout = cache.pool, .base = cache.base};
    const int32_t window = cache.geometry->window, layers = e->model->plan.layers;
    const bool block = e->model->config.drafter == QR_DRAFTER_DSPARK;
    uint64_t sum = 0;
    for (int32_t layer = layers; layer < cache.geometry->ring_layers; layer++)
        for (int32_t p = r->done - window + !block; p < r->done; p++) {
            if (p < 0)
                continue;
            const struct row_bytes row = place_window(&pool, r->slot, layer, p);
            sum = XXH3_64bits_withSeed(row.at, (size_t)row.bytes, sum);
        }
    return sum;
}

static int32_t note(void *user, const struct sched_request *r, int32_t *drafts, int32_t count, int32_t limit)
{
    struct record *record = user;
    if (record->right) {
        const int32_t n = record->right_count - r->count < limit ? record->right_count - r->count : limit;
        memcpy(drafts, record->right + r->count, (size_t)(n > 0 ? n : 0) * sizeof *drafts);
        return n > 0 ? n : 0;
    }
    if (record->passes < PASSES) {
        struct pass *p = &record->pass[record->passes++];
        *p = (struct pass){.known = r->count, .rings = ring_rows(record->engine, r), .made = count};
        memcpy(p->drafts, drafts, (size_t)count * sizeof *drafts);
    }
    return count;
}

static const struct sched_costs every_image_pays = {.row_layer = 1, .step = 1e-3, .byte = 1e-12};

struct side {
    struct opened o;
    bool disturbed;
    struct record record;
};

static void open_side(struct side *s, const struct draft_starts_world *w, const char *decoder, const char *encoder, bool cold,
                      bool drafts)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = drafts ? w->method : "none";
    o.max_model_len = LONGEST + ANSWER + 8;
    o.max_num_batched_tokens = cold ? LONGEST : w->rows;
    o.decoder_replay = decoder;
    o.encoder_replay = encoder;
    o.no_prefix_caching = cold;
    o.state_checkpoint_interval_tokens = w->block ? w->block : 128;
    o.block_size = w->block;
    o.max_num_seqs = w->block ? 12 : 2; /* more pages, so that images find room */
    s->o = engine_open_ids(w->model, 1, &o);
    s->record = (struct record){.engine = s->o.engine};
    s->disturbed = w->disturbed && !cold;
    const struct draft_hook hook = {.replace = note, .user = &s->record};
    if (drafts)
        speculation_hook(s->o.engine->speculation, &hook);
}

static void tokens_of(uint32_t seed, int32_t *out, int32_t count, int32_t vocab)
{
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (int32_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        out[i] = 3 + (int32_t)((state >> 33) % (uint64_t)(vocab - 9));
    }
}

/* Between its tokens. */
static void disturb(struct side *s, qr_handle handle)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(s->o.engine, &m);
    for (uint64_t step = 2; step < 40; step++)
        assert_int_equal(qr_inject(s->o.engine, step % 3 ? QR_INJECT_RELOCATE : QR_INJECT_PREEMPT, handle, m.steps + step, NULL),
                         QR_OK);
}

static struct reply answer_of(struct side *s, const int32_t *tokens, int32_t count, int32_t most)
{
    qr_sampling greedy = QR_SAMPLING;
    qr_request q = QR_REQUEST;
    greedy.temperature = 0;
    q.sampling = &greedy;
    q.tokens = tokens;
    q.token_count = (size_t)count;
    q.max_tokens = most;
    q.ignore_eos = true;
    q.logprobs = 0;
    s->record.passes = 0;
    if (!s->disturbed)
        return reply_of(&s->o, &q);
    struct reply r = {0};
    qr_handle handle;
    qr_error err = {0};
    must(qr_submit(s->o.engine, &q, NULL, NULL, &handle, &err), &err);
    disturb(s, handle);
    reply_rest(&s->o, handle, &r);
    return r;
}

static struct reply answer(struct side *s, const int32_t *tokens, int32_t count)
{
    return answer_of(s, tokens, count, ANSWER);
}

static void same_drafts(const struct record *a, const struct record *b, const char *what)
{
    assert_true(a->passes > 0);
    if (a->passes != b->passes) /* at the same places: what was preempted goes on where it was */
        fail_msg("%s: %d draft passes, cold %d", what, (int)b->passes, (int)a->passes);
    for (int32_t i = 0; i < a->passes; i++) {
        const struct pass *p = &a->pass[i], *q = &b->pass[i];
        if (p->known != q->known || p->rings != q->rings)
            fail_msg("%s: the drafter's rows behind token %d are not those of a cold run", what, (int)p->known);
        if (p->made != q->made || memcmp(p->drafts, q->drafts, (size_t)p->made * sizeof *p->drafts) != 0)
            fail_msg("%s: the drafts behind token %d are not those of a cold run", what, (int)p->known);
    }
}

/* What comes before leaves pages, and where it may an image: the second turn asks for one at the hit. */
static void go_before(const struct draft_starts_world *w, struct side *s, const int32_t *tokens, int32_t suffix)
{
    int32_t before[LONGEST];
    memcpy(before, tokens, (size_t)w->hit * sizeof *tokens);
    tokens_of(5, before + w->hit, 9, s->o.engine->model->config.vocab_size);
    assert_int_equal(qr_inject(s->o.engine, QR_INJECT_DROP_CACHE, 0, 0, NULL), QR_OK);
    for (int turn = 0; turn < 2; turn++, before[w->hit] = 3 + suffix % 99) {
        struct reply r = answer(s, before, w->hit + 9);
        reply_free(&r);
    }
}

/* The same prompt from the same start in an engine that cuts it otherwise, drafts included. */
static void as_twin(struct side *run, struct side *twin, const int32_t *tokens, int32_t count, const struct reply *r, const char *what)
{
    struct reply t = answer(twin, tokens, count);
    assert_same_reply(&t, r, what);
    assert_int_equal(t.usage.cached_tokens, r->usage.cached_tokens);
    same_drafts(&twin->record, &run->record, what);
    reply_free(&t);
}

/* `control`: cold, with drafts; of bounded replay one that starts where `run` does without, and `twin` one that does with drafts. */
static void one(const struct draft_starts_world *w, struct side *run, struct side *control, struct side *twin, int32_t suffix,
                bool bounded, struct draft_starts_counts *out)
{
    const int32_t vocab = run->o.engine->model->config.vocab_size, count = w->hit + suffix;
    int32_t tokens[LONGEST];
    char what[160];
    snprintf(what, sizeof what, "%s, decoder %s, encoder %s, %d shared and %d more", w->model, w->decoder, w->encoder,
             (int)w->hit, (int)suffix);
    assert_in_range(count, 1, LONGEST);
    tokens_of(3, tokens, w->hit, vocab);
    tokens_of(100 + (uint32_t)suffix, tokens + w->hit, suffix, vocab);
    struct side *const warm[] = {run, bounded ? control : NULL, twin};
    for (int side = 0; side < 3 && w->hit > 0; side++)
        if (warm[side])
            go_before(w, warm[side], tokens, suffix);
    struct reply cold = answer(control, tokens, count), r = answer(run, tokens, count);
    assert_same_reply(&cold, &r, what);
    if (!bounded)
        same_drafts(&control->record, &run->record, what);
    if (twin)
        as_twin(run, twin, tokens, count, &r, what);
    out->prompts++;
    out->hits += r.usage.cached_tokens > 0;
    out->drafts += run->record.passes;
    reply_free(&cold);
    reply_free(&r);
}

/* A bounded decoder alone starts its tail where a cold run does, unless it has to go back for it: so the drafts are those too. */
static void as_cold_bounded(const struct draft_starts_world *w, struct side *run, const int32_t *suffixes, int32_t count)
{
    struct side cold;
    const int32_t window = run->o.engine->model->config.sliding_window;
    open_side(&cold, w, "bounded", "exact", true, true);
    for (int32_t i = 0; i < count; i++) {
        struct draft_starts_counts unused = {0};
        if (suffixes[i] >= window)
            one(w, run, &cold, NULL, suffixes[i], false, &unused);
    }
    engine_close(&cold.o);
}

void draft_starts(const struct draft_starts_world *w, const int32_t *suffixes, int32_t count, struct draft_starts_counts *out)
{
    const bool bounded = strcmp(w->decoder, "bounded") == 0 || strcmp(w->encoder, "bounded") == 0;
    struct side run, control, twin;
    *out = (struct draft_starts_counts){0};
    open_side(&run, w, w->decoder, w->encoder, false, true);
    if (strcmp(w->encoder, "off") == 0)
        sched_set_costs(run.o.engine->sched, &every_image_pays);
    if (bounded) {
        struct draft_starts_world other = *w;
        other.rows = w->rows ? w->rows : 2 * (w->block ? w->block : 128) + 80; /* what bounded replay takes beside decode rows, and a few */
        other.disturbed = false;
        open_side(&control, w, w->decoder, w->encoder, false, false);
        open_side(&twin, &other, w->decoder, w->encoder, false, true);
        if (strcmp(w->encoder, "off") == 0)
            sched_set_costs(twin.o.engine->sched, &every_image_pays);
    } else
        open_side(&control, w, "off", "off", true, true);
    for (int32_t i = 0; i < count; i++)
        one(w, &run, &control, bounded ? &twin : NULL, suffixes[i], bounded, out);
    if (bounded && strcmp(w->encoder, "bounded") != 0)
        as_cold_bounded(w, &run, suffixes, count);
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(run.o.engine, &m);
    out->preemptions = (int32_t)m.preemptions;
    engine_close(&run.o);
    engine_close(&control.o);
    if (bounded)
        engine_close(&twin.o);
}

/* One conversation of two turns. */
static void two_turns(struct side *run, struct side *control, int32_t block, int32_t prompt, int32_t said)
{
    const int32_t vocab = run->o.engine->model->config.vocab_size, more = 9;
    int32_t tokens[LONGEST];
    char what[80];
    snprintf(what, sizeof what, "a prompt of %d tokens, an answer of %d, the next turn", (int)prompt, (int)said);
    assert_int_equal(qr_inject(run->o.engine, QR_INJECT_DROP_CACHE, 0, 0, NULL), QR_OK);
    tokens_of(40, tokens, prompt, vocab);
    struct reply cold = answer_of(control, tokens, prompt, said);
    memcpy(tokens + prompt, cold.tokens, cold.count * sizeof *tokens);
    run->record.right = tokens;
    run->record.right_count = prompt + said;
    struct reply first = answer_of(run, tokens, prompt, said);
    run->record.right = NULL;
    assert_same_reply(&cold, &first, what);
    assert_true(first.usage.draft_accepted > 0);
    tokens_of(50, tokens + prompt + said, more, vocab);
    struct reply next_cold = answer(control, tokens, prompt + said + more), next = answer(run, tokens, prompt + said + more);
    assert_same_reply(&next_cold, &next, what);
    assert_int_equal(next.usage.cached_tokens, (prompt + said - 1) / block * block); /* the last token has no row */
    same_drafts(&control->record, &run->record, what);
    reply_free(&cold);
    reply_free(&first);
    reply_free(&next_cold);
    reply_free(&next);
}

void draft_turns(const char *model, const char *method, int32_t block, int32_t prompt, int32_t from, int32_t to)
{
    const struct draft_starts_world w = {.model = model, .method = method, .block = block};
    struct side run, control;
    open_side(&run, &w, "exact", "off", false, true); /* hits by images alone */
    open_side(&control, &w, "off", "off", true, true);
    sched_set_costs(run.o.engine->sched, &every_image_pays);
    for (int32_t said = from; said < to; said++)
        two_turns(&run, &control, block, prompt, said);
    engine_close(&run.o);
    engine_close(&control.o);
}
