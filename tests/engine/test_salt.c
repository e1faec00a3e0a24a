/* Salts of requests (protocol.md 4.2): cached pages are shared among requests of one salt alone, and no salt changes a bit. */
#include "support/engines.h"

#include "support/scratch.h"
#include "support/support.h"

enum { PROMPT = 300, BLOCK = 128 };

static struct reply ask(const struct opened *o, const char *salt)
{
    int32_t tokens[PROMPT];
    qr_request q = QR_REQUEST;
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 1 + i % 7;
    q.tokens = tokens;
    q.token_count = PROMPT;
    q.max_tokens = 4;
    q.logprobs = 1;
    q.cache_salt = salt;
    return reply_of(o, &q);
}

static void pages_are_shared_among_requests_of_one_salt_alone(void **state)
{
    (void)state;
    static const struct {
        const char *salt;
        int cached; /* blocks */
    } asks[] = {{NULL, 0}, {"mine", 0}, {"", 2}, {"yours", 0}, {"mine", 2}, {"mine ", 0}, {"yours", 2}, {NULL, 2}};
    char *folder = small_model_folder();
    struct opened o = engine_open(folder, NULL, 1, NULL);
    struct reply first = {0};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        struct reply r = ask(&o, asks[i].salt);
        if (r.usage.cached_tokens != asks[i].cached * BLOCK)
            fail_msg("request %zu: %d tokens cached, wanted %d", i, r.usage.cached_tokens, asks[i].cached * BLOCK);
        if (i == 0) {
            first = r;
            continue;
        }
        assert_same_reply(&first, &r, "a salt");
        reply_free(&r);
    }
    reply_free(&first);
    engine_close(&o);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages_are_shared_among_requests_of_one_salt_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
