/* A model none of whose layers has compressed rows, as the first layers of V4-Flash are: pages hold no row, and answers are those
 * of any other engine, alone or beside others, cold or cached. */
#include "support/engines.h"

#include "support/scratch.h"
#include "support/support.h"

enum { REQUESTS = 4, PROMPT = 700, SPOKEN = 260, VOCAB = 512 };

static int32_t silent[VOCAB - SPOKEN]; /* ids that the tokenizer has no text for */

static struct opened open_windows(const char *folder, bool caches)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.max_num_seqs = caches ? REQUESTS : 1;
    o.max_model_len = 900;
    o.max_num_batched_tokens = caches ? 100 : 2048;
    o.no_prefix_caching = !caches;
    o.method = "none";
    return engine_open(folder, NULL, 2, &o);
}

static qr_request request(const int32_t *tokens, int i, qr_sampling *s)
{
    qr_request q = QR_REQUEST;
    *s = (qr_sampling)QR_SAMPLING;
    s->seed = i;
    s->banned = silent;
    s->banned_count = VOCAB - SPOKEN;
    q.tokens = tokens;
    q.token_count = (size_t)(PROMPT - 130 * (i % 3));
    q.sampling = s;
    q.max_tokens = 20;
    q.ignore_eos = true;
    q.logprobs = 1;
    return q;
}

static void a_model_of_windows_alone_answers_as_any_other(void **state)
{
    (void)state;
    char *folder = small_folder_of("tests/data/config/small-v4-windows.json");
    int32_t tokens[PROMPT];
    struct reply alone[REQUESTS];
    qr_handle handles[REQUESTS];
    qr_sampling s;
    qr_plan_bytes plan;
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 3 + i * 7 % 200;
    for (int32_t i = SPOKEN; i < VOCAB; i++)
        silent[i - SPOKEN] = i;
    struct opened o = open_windows(folder, false);
    qr_engine_get_plan(o.engine, &plan);
    assert_true(plan.block_bytes > 0 && plan.blocks > PROMPT / 128);
    for (int i = 0; i < REQUESTS; i++) {
        const qr_request q = request(tokens, i, &s);
        alone[i] = reply_of(&o, &q);
        assert_int_equal(alone[i].count, 20);
    }
    engine_close(&o);
    o = open_windows(folder, true);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < REQUESTS; i++) {
            const qr_request q = request(tokens, i, &s);
            assert_int_equal(qr_submit(o.engine, &q, NULL, NULL, &handles[i], NULL), QR_OK);
        }
        for (int i = 0; i < REQUESTS; i++) {
            struct reply r = {0};
            reply_rest(&o, handles[i], &r);
            if (round == 1)
                assert_true(r.usage.cached_tokens > 0);
            assert_same_reply(&alone[i], &r, round ? "cached" : "beside others");
            reply_free(&r);
        }
    }
    engine_close(&o);
    for (int i = 0; i < REQUESTS; i++)
        reply_free(&alone[i]);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_model_of_windows_alone_answers_as_any_other)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
