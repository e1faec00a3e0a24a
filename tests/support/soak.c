#include "support/soak.h"

#include "support/support.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model/config.json"
#define TINY_V4 "tests/golden/v4/tiny/model/config.json"

/* Each with another pool, order of steps and way of starting again. */
const struct fake_options soak_worlds[SOAK_WORLDS] = {
    {.config = SPEC_V41,
     .blocks = 60,
     .slots = 6,
     .seed = 1,
     .fail_every = 500,
     .sched = {.max_prefill_rows = -1, .prefix_cache = true, .images = true, .image_interval = 64}},
    {.config = SPEC_V41,
     .blocks = 24,
     .slots = 4,
     .seed = 2,
     .sched = {.max_prefill_rows = 64,
               .prefix_cache = true,
               .images = true,
               .image_interval = 32,
               .max_rows = 96,
               .long_prefill_cap = 32}},
    {.config = SPEC_V41,
     .blocks = 40,
     .slots = 5,
     .seed = 3,
     .fail_every = 300,
     .sched = {.max_prefill_rows = 0,
               .prefix_cache = true,
               .images = true,
               .image_interval = 64,
               .encoder_replay = REPLAY_OFF,
               .decoder_replay = REPLAY_OFF}},
    {.config = SPEC_V41, .blocks = 40, .slots = 5, .seed = 4, .sched = {.max_prefill_rows = -1, .prefix_cache = true}},
    {.config = SPEC_V41,
     .blocks = 50,
     .slots = 5,
     .seed = 5,
     .draft_width = 3,
     .accept_percent = 70,
     .sched = {.max_prefill_rows = -1, .prefix_cache = true, .images = true, .image_interval = 64}},
    {.config = SPEC_V41,
     .blocks = 40,
     .slots = 5,
     .seed = 6,
     .fail_every = 400,
     .sched = {.max_prefill_rows = -1, .prefix_cache = true, .images = true, .depth = 2, .image_interval = 64}},
    {.config = SPEC_V41, .blocks = 40, .slots = 5, .seed = 7, .sched = {.max_prefill_rows = -1, .depth = 1}},
    {.config = TINY_V4,
     .block = 128,
     .blocks = 26,
     .slots = 5,
     .seed = 8,
     .sched = {.max_prefill_rows = -1, .prefix_cache = true, .images = true, .image_interval = 128, .max_rows = 200}},
    {.config = SPEC_V41,
     .blocks = 40,
     .slots = 5,
     .seed = 9,
     .fail_every = 400,
     .sched = {.max_prefill_rows = -1,
               .prefix_cache = true,
               .long_prefill_cap = 33,
               .encoder_replay = REPLAY_BOUNDED,
               .decoder_replay = REPLAY_BOUNDED}},
    {.config = SPEC_V41,
     .blocks = 60,
     .slots = 4,
     .seed = 10,
     .sched = {.max_prefill_rows = 70,
               .prefix_cache = true,
               .images = true,
               .image_interval = 32,
               .max_rows = 96,
               .depth = 1,
               .decoder_replay = REPLAY_BOUNDED}},
    {.config = SPEC_V41,
     .blocks = 50,
     .slots = 5,
     .seed = 11,
     .draft_width = 3,
     .accept_percent = 60,
     .sched = {.max_prefill_rows = 0,
               .prefix_cache = true,
               .images = true,
               .image_interval = 64,
               .encoder_replay = REPLAY_OFF,
               .decoder_replay = REPLAY_BOUNDED}},
    {.config = SPEC_V41,
     .blocks = 40,
     .slots = 5,
     .seed = 12,
     .sched = {.max_prefill_rows = -1, .prefix_cache = true, .max_rows = 100, .encoder_replay = REPLAY_BOUNDED}},
    {.config = SPEC_V41,
     .blocks = 40,
     .slots = 5,
     .seed = 13,
     .draft_width = 7,
     .accept_percent = 90,
     .fail_every = 400,
     .sched = {.max_prefill_rows = -1, .prefix_cache = true, .images = true, .image_interval = 32}},
    {.config = TINY_V4,
     .block = 128,
     .blocks = 26,
     .slots = 5,
     .seed = 14,
     .draft_width = 1,
     .accept_percent = 50,
     .sched = {.max_prefill_rows = -1, .prefix_cache = true, .images = true, .image_interval = 128, .max_rows = 200}},
};

enum { FAMILIES = 6, LIVE_MOST = 24 };

static int32_t any_live(struct fake *f)
{
    const int32_t recent = f->request_count < 64 ? f->request_count : 64;
    for (int32_t tries = 0; tries < 8 && recent > 0; tries++) {
        const int32_t n = f->request_count - 1 - (int32_t)fake_random(f, (uint32_t)recent);
        if (fake_of(f, n)->r)
            return n;
    }
    return -1;
}

/* A prompt of some family: the same tokens up to a random point, then its own. */
static void submit(struct fake *f, int32_t longest)
{
    const int32_t count = 1 + (int32_t)fake_random(f, (uint32_t)longest), family = (int32_t)fake_random(f, FAMILIES);
    const int32_t shared = fake_random(f, 4) ? (int32_t)fake_random(f, (uint32_t)count + 1) : count;
    const int32_t answer = 1 + (int32_t)fake_random(f, 24);
    if (fake_random(f, 8)) {
        fake_prompt(f, family, shared, count, answer);
        return;
    }
    int32_t tokens[1024];
    for (int32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)fake_random(f, 9);
    struct fake_given g = FAKE_GIVEN;
    g.tokens = tokens;
    g.count = count;
    g.answer = answer;
    g.room = (int32_t)fake_random(f, 3);
    g.priority = (int32_t)fake_random(f, 3) - 1;
    g.parent = fake_random(f, 2) ? any_live(f) : -1;
    const bool last_only = f->options.sched.decoder_replay == REPLAY_BOUNDED ||
                           f->options.sched.encoder_replay == REPLAY_BOUNDED;
    if (fake_random(f, 2) && !last_only)
        g.first_logits = (int32_t)fake_random(f, (uint32_t)count);
    fake_submit(f, &g);
}

static void event(struct fake *f, int32_t longest)
{
    const int32_t n = any_live(f);
    struct sched_request *r = n < 0 ? NULL : fake_of(f, n)->r;
    switch (fake_random(f, 40)) {
    case 0:
    case 1:
        if (r)
            fake_cancel(f, n);
        break;
    case 2:
    case 3:
        if (r)
            sched_preempt(f->sched, r);
        break;
    case 4:
        if (fake_random(f, 6) == 0)
            sched_drop_cache(f->sched);
        break;
    case 5:
        if (fake_random(f, 3) == 0)
            sched_drop_images(f->sched);
        break;
    case 6:
        if (r)
            sched_relocate(f->sched, r, (int32_t)fake_random(f, (uint32_t)f->options.slots));
        break;
    case 7:
        sched_reverse(f->sched);
        break;
    case 8:
        if (r && f->live < LIVE_MOST && r->count + 60 < longest)
            fake_fork(f, n, 1 + (int32_t)fake_random(f, 20));
        break;
    default:
        if (f->live < LIVE_MOST && fake_random(f, 2) == 0)
            submit(f, longest);
    }
}

void soak(const struct fake_options *options, int64_t steps, struct soak_counts *out)
{
    struct fake f;
    fake_open(&f, options);
    const int32_t pool = (int32_t)(options->blocks - 1) * f.geometry.options.block_tokens - 64;
    const int32_t longest = pool < 400 ? pool : 400;
    while (f.steps < steps) {
        if (!fake_step(&f) || fake_random(&f, 2) == 0)
            event(&f, longest);
    }
    fake_run(&f);
    const struct sched_metrics m = sched_metrics(f.sched);
    *out = (struct soak_counts){f.steps,  f.request_count, m.hits,      m.restores + m.lower_restores,
                                m.reruns, m.preemptions,   m.cancelled, m.failed,
                                f.rows};
    fake_close(&f);
}

void soak_all(int64_t steps)
{
    for (int i = 0; i < SOAK_WORLDS; i++) {
        struct soak_counts c;
        soak(&soak_worlds[i], steps / SOAK_WORLDS, &c);
        print_message(
            "world %d: %lld steps, %lld rows, %lld requests, %lld hits, %lld restored, %lld rerun, %lld preempted, "
            "%lld cancelled, %lld failed\n",
            i, (long long)c.steps, (long long)c.rows, (long long)c.requests, (long long)c.hits, (long long)c.restores,
            (long long)c.reruns, (long long)c.preemptions, (long long)c.cancelled, (long long)c.failed);
        assert_true(c.preemptions > 20 && c.cancelled > 20);
        if (soak_worlds[i].sched.prefix_cache)
            assert_true(c.hits > 20); /* the cache is not silently dead */
        if (soak_worlds[i].sched.images)
            assert_true(c.restores > 5);
    }
}
