/* label: release */
/* One answer (architecture.md, promise 2): the tokens and log probabilities of a request are the same bits alone or after
 * others, whatever the rows of a step, the threads, the size of a page and the containers of the cache. */
#include "support/engines.h"

#include <stdio.h>
#include <string.h>

#include "support/support.h"
#include "support/tokenizers.h"
#include "support/scratch.h"

enum { PROMPT = 150, ANSWER = 14, REQUESTS = 3 };

static int32_t prompt[PROMPT];

/* Greedy; drawn with everything that looks back; with the log probabilities of the prompt, whose rows come in chunks of
 * their own. */
static void make_requests(qr_request q[REQUESTS], qr_sampling s[REQUESTS])
{
    for (int i = 0; i < REQUESTS; i++) {
        s[i] = (qr_sampling)QR_SAMPLING;
        q[i] = (qr_request)QR_REQUEST;
        q[i].tokens = prompt;
        q[i].token_count = (size_t)(PROMPT - 31 * i);
        q[i].sampling = &s[i];
        q[i].max_tokens = ANSWER;
        q[i].ignore_eos = true;
        q[i].logprobs = 4;
    }
    s[0].temperature = 0;
    s[1].temperature = 1.5;
    s[1].seed = 11;
    s[1].frequency_penalty = 0.5;
    s[1].repetition_penalty = 1.2;
    s[2].seed = 12;
    q[2].prompt_logprobs = 2;
}

static void fill_prompt(int32_t below)
{
    uint64_t seed = 5;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (int32_t)random_below(&seed, (uint32_t)below);
}

struct variant {
    const char *what;
    int threads;
    int32_t rows, block;
    const char *kv, *index;
    int32_t chunk;
};

static void same_under(const char *dir, const struct variant *v, const struct reply *wanted)
{
    qr_request q[REQUESTS];
    qr_sampling s[REQUESTS];
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.max_num_batched_tokens = v->rows;
    options.block_size = v->block;
    options.kv_cache_dtype = v->kv;
    options.index_cache_dtype = v->index;
    options.attn_prefill_chunk_size = v->chunk;
    options.max_model_len = 512;
    struct opened o = engine_open(dir, NULL, v->threads, &options);
    make_requests(q, s);
    for (int i = REQUESTS; i-- > 0;) { /* the last first: each comes after others */
        char what[200];
        snprintf(what, sizeof what, "%s, %s, request %d", dir, v->what, i);
        struct reply r = reply_of(&o, &q[i]);
        assert_same_reply(&r, &wanted[i], what);
        reply_free(&r);
    }
    engine_close(&o);
}

static void answer_alone(const char *dir, int i, struct reply *out)
{
    qr_request q[REQUESTS];
    qr_sampling s[REQUESTS];
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.max_model_len = 512;
    struct opened o = engine_open(dir, NULL, 1, &options);
    make_requests(q, s);
    *out = reply_of(&o, &q[i]);
    assert_int_equal(out->count, ANSWER);
    engine_close(&o);
}

static void hold(const char *dir, const struct variant *variants, int count)
{
    struct reply alone[REQUESTS];
    fill_prompt(250);
    for (int i = 0; i < REQUESTS; i++)
        answer_alone(dir, i, &alone[i]);
    for (int i = 0; i < count; i++)
        same_under(dir, &variants[i], alone);
    for (int i = 0; i < REQUESTS; i++)
        reply_free(&alone[i]);
}

static const struct variant v41[] = {
    {"after others", 1, 0, 0, NULL, NULL, 0},
    {"one row a step", 1, 1, 0, NULL, NULL, 0},
    {"7 rows a step", 1, 7, 0, NULL, NULL, 0},
    {"64 rows a step", 2, 64, 0, NULL, NULL, 0},
    {"2048 rows a step", 2, 2048, 0, NULL, NULL, 0},
    {"three threads", 3, 33, 0, NULL, NULL, 0},
    {"pages of 32 tokens", 2, 50, 32, NULL, NULL, 0},
    {"rows in bf16", 1, 100, 64, "bf16", NULL, 0},
    {"keys in fp8", 2, 100, 0, NULL, "fp8", 0},
    {"bf16 and fp8", 2, 19, 64, "bf16", "fp8", 0},
    {"13 rows of an attention call", 2, 0, 0, NULL, NULL, 13},
    {"one row of an attention call", 2, 0, 0, NULL, NULL, 1},
};
/* Those of them in which the most differs: every step is dear there. */
static const struct variant trained_v41[] = {
    {"7 rows a step", 1, 7, 0, NULL, NULL, 0},
    {"three threads", 3, 33, 0, NULL, NULL, 0},
    {"pages of 32 tokens", 2, 50, 32, NULL, NULL, 0},
    {"bf16 and fp8", 2, 19, 64, "bf16", "fp8", 0},
    {"13 rows of an attention call", 2, 0, 0, NULL, NULL, 13},
};
static const struct variant v4[] = {
    {"after others", 1, 0, 0, NULL, NULL, 0},         {"one row a step", 1, 1, 0, NULL, NULL, 0},
    {"7 rows a step", 2, 7, 0, NULL, NULL, 0},        {"64 rows a step", 3, 64, 0, NULL, NULL, 0},
    {"pages of 256 tokens", 1, 2048, 256, NULL, NULL, 0},
    {"13 rows of an attention call", 2, 0, 0, NULL, NULL, 13},
};
#define COUNT(list) (int)(sizeof(list) / sizeof *(list))

static void a_small_v41_gives_one_answer(void **state)
{
    (void)state;
    char *dir = small_model_folder();
    hold(dir, v41, COUNT(v41));
    scratch_remove(dir);
}

static void the_trained_v41_gives_one_answer(void **state)
{
    (void)state;
    hold("models/tiny-v41", trained_v41, COUNT(trained_v41));
}

static void the_trained_v4_gives_one_answer(void **state)
{
    (void)state;
    hold("models/tiny-v4", v4, COUNT(v4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_v41_gives_one_answer),
        cmocka_unit_test(the_trained_v41_gives_one_answer),
        cmocka_unit_test(the_trained_v4_gives_one_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
