/* label: threads */
#include "support/support.h"

#include <string.h>

#include "base/pool.h"
#include "support/tokenizers.h"

static struct tokenizer *tok;

static const char shared_text[] = "The cat, the dog and 12345 birds:\n\n  日本語テキスト <think>don't</think> ½";

static void encode_once(void *user, int64_t item, int thread)
{
    struct tok_ids *results = user;
    (void)thread;
    tok_encode_markup(tok, shared_text, strlen(shared_text), &results[item], NULL);
}

static void threads_share_one_tokenizer(void **state)
{
    enum { TIMES = 64 };
    struct tok_ids results[TIMES] = {{0}};
    struct worker_pool *pool;
    (void)state;
    tok = bundled_tokenizer();
    assert_int_equal(pool_open(4, &pool, NULL), QR_OK);
    pool_run(pool, TIMES, encode_once, results);
    pool_close(pool);
    for (int i = 0; i < TIMES; i++) {
        assert_true(results[i].count > 0);
        assert_int_equal(results[i].count, results[0].count);
        assert_memory_equal(results[i].data, results[0].data, results[0].count * sizeof(int32_t));
    }
    for (int i = 0; i < TIMES; i++)
        tok_ids_free(&results[i]);
    tok_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_one_tokenizer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
