/* label: faults */
/* Every allocation of a request with a grammar fails once, from opening the grammar to the end of the answer, and of a chat
 * request that asks for one: a status or an event that says so, nothing left behind. */
#include "support/engines.h"

#include <string.h>

#include "base/alloc.h"
#include "support/support.h"

static struct opened o;
static int64_t before; /* pieces of memory; the engine's thread may hold some until it ends */

static int set_up(void **state)
{
    qr_engine_options options = QR_ENGINE_OPTIONS;
    (void)state;
    before = alloc_live();
    options.max_model_len = 256;
    o = engine_open("models/tiny-v41", NULL, 1, &options);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_close(&o);
    return alloc_live() == before ? 0 : -1;
}

static qr_status wait_for(qr_handle handle, qr_error *err)
{
    for (;;) {
        qr_event event;
        qr_status st = qr_poll(o.engine, handle, -1, &event, err);
        if (st == QR_OK && event.finish == QR_FINISH_NONE)
            continue;
        if (st == QR_OK && event.finish == QR_FINISH_ERROR) {
            *err = *event.error;
            st = err->status;
        }
        qr_release(o.engine, handle);
        return st;
    }
}

static qr_status answer(qr_error *err)
{
    static const char choices[] = "[\"yes\",\"no\"]";
    static const int32_t prompt[] = {5, 6, 7};
    qr_sampling sampling = QR_SAMPLING;
    qr_request q = QR_REQUEST;
    qr_grammar *grammar;
    qr_handle handle;
    qr_status st = qr_grammar_open(o.model, QR_GRAMMAR_CHOICE, choices, strlen(choices), &grammar, NULL, err);
    if (st != QR_OK)
        return st;
    sampling.temperature = 0;
    q.tokens = prompt;
    q.token_count = 3;
    q.sampling = &sampling;
    q.max_tokens = 8;
    q.grammar = grammar;
    q.grammar_after_reasoning = false;
    st = qr_submit(o.engine, &q, NULL, NULL, &handle, err);
    qr_grammar_close(grammar);
    return st == QR_OK ? wait_for(handle, err) : st;
}

static qr_status understand(qr_error *err)
{
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":\"json_schema\","
                               "\"json_schema\":{\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}}}";
    qr_chat *chat;
    qr_issue issue;
    const qr_status st = qr_chat_open(o.model, json, strlen(json), NULL, &chat, &issue, err);
    if (st == QR_OK)
        assert_non_null(qr_chat_grammar(chat));
    qr_chat_close(chat);
    return st;
}

static void fail_in_turn(qr_status (*work)(qr_error *err))
{
    qr_error first = {0};
    assert_int_equal(work(&first), QR_OK); /* what a model and an engine make once stays */
    for (int sticky = 0; sticky < 2; sticky++) {
        int harmless = 0; /* room that was not needed could not be given back: nobody minds */
        for (int64_t n = 1;; n++) {
            qr_error err = {0};
            const int64_t made = alloc_count();
            alloc_fault_at(n, sticky);
            const qr_status st = work(&err);
            alloc_fault_at(0, 0);
            if (st == QR_OK && alloc_count() - made < n) { /* the fault was not met */
                assert_true(n > 8);
                break;
            }
            if (st == QR_OK) {
                assert_true(++harmless <= 3);
                continue;
            }
            if (st != QR_NO_MEMORY || err.status != QR_NO_MEMORY || !err.message[0])
                fail_msg("allocation %d failing: %s, \"%s\"", (int)n, qr_status_name(st), err.message);
        }
    }
}

static void a_request_survives(void **state)
{
    (void)state;
    fail_in_turn(answer);
}

static void a_chat_survives(void **state)
{
    (void)state;
    fail_in_turn(understand);
}

int main(void)
{
    if (!alloc_fault_supported()) {
        print_message("this build cannot make allocations fail\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_survives),
        cmocka_unit_test(a_chat_survives),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
