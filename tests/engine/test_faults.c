/* label: faults */
/* Without memory: opening a model, creating an engine that drafts, an answer and a score fail with a sentence, or succeed; whichever
 * allocation it is that fails, alone or with all that follow, nothing is left behind. */
#include "support/engines.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/shortlists.h"
#include "ops/cpu/reference/reference.h"
#include "support/support.h"
#include "support/scratch.h"

static char *dir;

static int set_up(void **state)
{
    (void)state;
    dir = small_folder_of("tests/data/config/small-v41-dspark.json");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

static const int32_t tokens[24] = {116, 104, 101, 32, 97, 97, 97, 97, 32, 116};

/* A request that uses everything: the text of stop strings, counts of penalties, log probabilities of both kinds. */
static qr_status answer(qr_engine *engine, qr_error *err)
{
    const char *const stops[] = {"no such text", "nor this"};
    const int32_t stop_token = 1, banned = 2;
    const qr_logit_bias bias = {.token = 3, .bias = -1};
    qr_sampling s = QR_SAMPLING;
    qr_request q = QR_REQUEST;
    qr_handle handle;
    s.repetition_penalty = 1.1;
    s.banned = &banned;
    s.logit_bias = &bias;
    s.banned_count = s.logit_bias_count = 1;
    q.tokens = tokens;
    q.token_count = 24;
    q.sampling = &s;
    q.max_tokens = 4;
    q.ignore_eos = true;
    q.stop = stops;
    q.stop_count = 2;
    q.stop_tokens = &stop_token;
    q.stop_token_count = 1;
    q.logprobs = q.prompt_logprobs = 2;
    q.id = "hungry";
    qr_status st = qr_submit(engine, &q, NULL, NULL, &handle, err);
    if (st != QR_OK)
        return st;
    for (;;) {
        qr_event event;
        assert_int_equal(qr_poll(engine, handle, -1, &event, NULL), QR_OK);
        if (event.finish == QR_FINISH_NONE)
            continue;
        if (event.finish == QR_FINISH_ERROR) {
            *err = *event.error;
            st = err->status;
        }
        qr_release(engine, handle);
        return st;
    }
}

static qr_status live(qr_error *err)
{
    qr_model_options model_options = QR_MODEL_OPTIONS;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    qr_model *model;
    qr_engine *engine = NULL;
    double scores[23];
    model_options.threads = 2;
    options.kv_ram_bytes = 1 << 20;
    options.max_model_len = 256;
    options.max_num_batched_tokens = 16;
    options.method = "dspark";
    options.verifier = "block";
    qr_status st = qr_model_open(dir, &model_options, &model, err);
    if (st != QR_OK) {
        assert_null(model);
        return st;
    }
    st = qr_engine_create(model, &options, &engine, err);
    if (st == QR_OK)
        st = answer(engine, err);
    else
        assert_null(engine);
    if (st == QR_OK)
        st = qr_score(engine, tokens, 24, 1, scores, err);
    qr_engine_destroy(engine);
    qr_model_close(model);
    return st;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const int64_t before = alloc_live();
    for (int sticky = 0; sticky < 2; sticky++) {
        int64_t refused = 0, harmless = 0;
        for (int64_t n = 1;; n += 1 + 2 * sticky) { /* one that stays refused differs little from the next */
            qr_error err = {0};
            const int64_t made = alloc_count();
            alloc_fault_at(n, sticky);
            const qr_status st = live(&err);
            alloc_fault_at(0, 0);
            if (alloc_live() != before)
                fail_msg("allocation %lld: %lld left behind", (long long)n, (long long)(alloc_live() - before));
            if (st == QR_OK && alloc_count() - made < n) /* the fault was not met */
                break;
            if (st == QR_OK) { /* the room that an answer did not need could not be given back: nobody minds */
                harmless++;
                continue;
            }
            if (st != QR_NO_MEMORY || err.status != st || !err.message[0])
                fail_msg("allocation %lld: %s: \"%s\"", (long long)n, qr_status_name(st), err.message);
            refused++;
        }
        assert_true(refused > (sticky ? 100 : 300) && harmless <= 1); /* none else is passed over in silence */
    }
}

/* Allocations of an answer of `count` tokens; the second of two, when every buffer has grown. */
static int64_t allocations(const struct opened *o, int32_t count)
{
    qr_sampling s = QR_SAMPLING;
    qr_request q = QR_REQUEST;
    int64_t made = 0;
    s.frequency_penalty = 0.1;
    q.tokens = tokens;
    q.token_count = 24;
    q.sampling = &s;
    q.max_tokens = count;
    q.ignore_eos = true;
    for (int i = 0; i < 2; i++) {
        const int64_t before = alloc_count();
        struct reply r = reply_of(o, &q);
        made = alloc_count() - before;
        assert_int_equal(r.count, count);
        reply_free(&r);
    }
    return made;
}

/* An event takes memory, a step none: more steps for the same prompt take none, and a token takes what its event does. */
static void a_step_allocates_nothing(void **state)
{
    (void)state;
    const char *const models[] = {dir, dir, "models/tiny-v4", dir, dir}, *const devices[] = {"cpu", "cpu-reference", "cpu", "cpu", "cpu"};
    const char *const verifiers[] = {NULL, NULL, NULL, "match", "ratio"};
    for (int i = 0; i < 5; i++) {
        qr_engine_options options = QR_ENGINE_OPTIONS;
        int64_t one_chunk[2];
        for (int32_t rows = 24; rows; rows = rows == 24 ? 5 : 0) {
            options.max_num_batched_tokens = rows;
            options.max_model_len = 256;
            options.method = verifiers[i] ? "dspark" : "none";
            options.verifier = verifiers[i];
            struct opened o = engine_open(models[i], devices[i], 2, &options);
            const int64_t few = allocations(&o, 3), more = allocations(&o, 9);
            if (rows == 24) {
                one_chunk[0] = few;
                one_chunk[1] = more;
                assert_in_range(more - few, 6, 6 * 4); /* the event, its text, what the texts grow by */
            } else {
                assert_int_equal(few, one_chunk[0]);
                assert_int_equal(more, one_chunk[1]);
            }
            engine_close(&o);
        }
    }
}

/* As on a device that finds likeliest ids; a search allocates nothing. */
static void lists_of_rows_may_lack_memory(void **state)
{
    (void)state;
    enum { VOCAB = 64 };
    static const float logits[VOCAB] = {[40] = 3};
    static const int32_t left_out[] = {0, 1};
    const struct id_list never = {left_out, 2};
    const struct sampling_params greedy = {.top_p = 1, .repetition_penalty = 1};
    const struct sampling_row row = {.banned = &never, .banned_lists = 1};
    struct backend *backend;
    int64_t refused = 0;
    qr_error err = {0};
    must(backend_cpu_open("reference", 1, NULL, &backend, &err), &err);
    backend->shortlist = reference_shortlist;
    const int64_t live = alloc_live();
    for (int64_t n = 1;; n++, refused++) {
        struct shortlists *s;
        int32_t token = -1;
        alloc_fault_at(n, 0);
        const qr_status st = shortlists_open(backend, VOCAB, 3, &never, &s, &err);
        alloc_fault_at(0, 0);
        if (st == QR_OK) {
            const int64_t before = alloc_count();
            shortlists_want(s, 2, &greedy, 7, 0, 0);
            must(shortlists_find(s, logits, NULL, &err), &err);
            assert_true(shortlists_draw(s, 2, &greedy, &row, 7, NULL, &token));
            assert_false(shortlists_draw(s, 1, &greedy, &row, 7, NULL, &token));
            assert_int_equal(token, 40);
            assert_int_equal(alloc_count(), before);
        }
        shortlists_close(s);
        assert_int_equal(alloc_live(), live);
        if (st == QR_OK)
            break;
        assert_int_equal(st, QR_NO_MEMORY);
        assert_null(s);
    }
    assert_true(refused > 5);
    backend->close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(lists_of_rows_may_lack_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
