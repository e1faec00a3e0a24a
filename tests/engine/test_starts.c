/* label: full */
/* An engine is started and stopped a thousand times, now and then with work in it; nothing is left behind. */
#include "base/alloc.h"
#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

enum { STARTS = 1000 };

static void a_thousand_engines_leave_nothing_behind(void **state)
{
    (void)state;
    char *dir = small_model_folder();
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.kv_ram_bytes = 8 << 20;
    struct opened o = engine_open(dir, NULL, 2, &options);
    const int32_t tokens[5] = {104, 101, 108, 108, 111};
    qr_request q = QR_REQUEST;
    q.tokens = tokens;
    q.token_count = 5;
    q.max_tokens = 3;
    const int64_t live = alloc_live();
    for (int i = 0; i < STARTS; i++) {
        struct opened other = {.model = o.model};
        qr_handle handle;
        assert_int_equal(qr_engine_create(o.model, &options, &other.engine, NULL), QR_OK);
        if (i % 3 == 0)
            assert_int_equal(qr_submit(other.engine, &q, NULL, NULL, &handle, NULL), QR_OK);
        if (i % 5 == 0)
            assert_int_equal(qr_engine_sleep(other.engine, QR_SLEEP_KV_CACHE, NULL), QR_OK);
        qr_engine_destroy(other.engine);
        assert_int_equal(alloc_live(), live);
    }
    engine_close(&o);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thousand_engines_leave_nothing_behind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
