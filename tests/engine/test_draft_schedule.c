/* label: release */
/* A step verifies as many drafts as a profile says, which changes no bit; a profile that is not the engine's is refused by
 * E10 (speculation.md 6.2 to 6.5). */
#include "engine/draft_schedule.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "engine/engine.h"
#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

#define V41 "models/tiny-v41"
enum { REQUESTS = 4 };

static qr_engine_options options_with(const char *method, const char *profile)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = method;
    o.max_num_seqs = 2;
    o.max_model_len = 512;
    o.kv_ram_bytes = 64 << 20;
    o.speculation_profile = profile;
    return o;
}

/* Writes a profile of the engine that those options make, in which a row takes `row` ms. */
static void write_profile(const char *path, double row, const char *other_config)
{
    const qr_engine_options o = options_with("dspark", NULL);
    struct opened opened = engine_open(V41, NULL, 2, &o);
    const struct qr_model *model = engine_model(opened.engine);
    const struct engine_place place = {.device = model->device, .threads = model->threads, .checkpoint = model->checkpoint};
    struct engine_size size;
    const char *text;
    size_t length;
    struct json_writer *w = json_writer_open(true);
    assert_int_equal(engine_size(&model->plan, (int64_t)checkpoint_bytes(model->checkpoint), &place, &o, &size, NULL), QR_OK);
    struct draft_profile p = {.place = draft_place_of(&model->plan, &place, &size), .taus = {1, 1.2, 1.4, 1.6, 1.8}};
    assert_int_equal(draft_place_hash(model->dir, &p.place, NULL), QR_OK);
    if (other_config)
        snprintf(p.place.config, sizeof p.place.config, "%s", other_config);
    for (int32_t rows = 1; rows <= p.place.rows; rows++)
        draft_cost_add(&p.steps, rows, 1 + row * rows);
    draft_cost_add(&p.drafts, 1, 0.1);
    draft_cost_add(&p.drafts, 2, 0.2);
    draft_profile_write(w, &p);
    assert_int_equal(json_finish(w, &text, &length, NULL), QR_OK);
    assert_int_equal(file_write_atomic(path, text, length, NULL), QR_OK);
    json_writer_close(w);
    engine_close(&opened);
}

static void answers(const char *method, const char *profile, struct reply *replies, qr_draft_metrics *drafts)
{
    static const char *const questions[REQUESTS] = {"Add 17 and 25.", "Tell me a story about a cat.", "Say the word river.",
                                                    "Once upon a time"};
    const qr_engine_options o = options_with(method, profile);
    struct opened opened = engine_open(V41, NULL, 2, &o);
    qr_prompt prompts[REQUESTS];
    qr_handle handles[REQUESTS];
    qr_metrics m = {.size = sizeof m};
    for (int i = 0; i < REQUESTS; i++) {
        qr_sampling sampling = QR_SAMPLING;
        qr_request request = QR_REQUEST;
        prompts[i] = chat_prompt(&opened, questions[i]);
        sampling.temperature = i % 2 ? 0.9 : 0;
        sampling.seed = i;
        request.sampling = &sampling;
        request.tokens = prompts[i].tokens.data;
        request.token_count = prompts[i].tokens.count;
        request.max_tokens = 40;
        request.logprobs = 1;
        assert_int_equal(qr_submit(opened.engine, &request, NULL, NULL, &handles[i], NULL), QR_OK);
    }
    for (int i = 0; i < REQUESTS; i++) {
        reply_rest(&opened, handles[i], &replies[i]);
        qr_prompt_free(&prompts[i]);
    }
    qr_get_metrics(opened.engine, &m);
    *drafts = m.drafts;
    engine_close(&opened);
}

static void lengths_by_confidence_change_no_bit(void **state)
{
    (void)state;
    struct reply without[REQUESTS] = {0};
    qr_draft_metrics drafts, none;
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "profile.json");
    static const double rows[] = {0.01, 0.6, 1000};
    answers("none", NULL, without, &none);
    for (int i = 0; i < 3; i++) {
        struct reply with[REQUESTS] = {0};
        write_profile(path, rows[i], NULL);
        answers("dspark", path, with, &drafts);
        for (int r = 0; r < REQUESTS; r++) {
            assert_same_reply(&without[r], &with[r], "with lengths by confidence");
            reply_free(&with[r]);
        }
        print_message("a row of %g ms: %d proposed, %d verified, %d steps without\n", rows[i], (int)drafts.proposed,
                      (int)drafts.verified, (int)drafts.rests[QR_REST_CONFIDENCE]);
        assert_true(drafts.proposed > 0);
        if (i == 0) /* rows are free */
            assert_true(10 * drafts.verified > 9 * (drafts.proposed - drafts.discarded) - 50);
        if (i == 1) {
            assert_true(drafts.unverified > 0 && drafts.verified > 0);
            assert_true(drafts.acceptance_rate > 0.3);
        }
        if (i == 2) /* nothing is worth a row but what is certain */
            assert_true(drafts.rests[QR_REST_CONFIDENCE] > 0 && drafts.verified < drafts.proposed / 2);
    }
    for (int r = 0; r < REQUESTS; r++)
        reply_free(&without[r]);
    scratch_remove(folder);
}

static void refused(const char *dir, const qr_engine_options *o, const char *says)
{
    qr_plan_bytes plan;
    qr_error err = {0};
    qr_model_options model = QR_MODEL_OPTIONS;
    model.threads = 2;
    assert_refused(qr_plan(source_path(dir), &model, o, &plan, &err), &err, QR_REFUSED, says);
}

static void a_profile_of_another_engine_is_refused_by_e10(void **state)
{
    (void)state;
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "profile.json");
    qr_engine_options o = options_with("dspark", path);
    refused(V41, &o, "E10 speculation profile ");
    write_profile(path, 1, NULL);
    qr_plan_bytes plan;
    qr_model_options two = QR_MODEL_OPTIONS;
    two.threads = 2;
    assert_int_equal(qr_plan(source_path(V41), &two, &o, &plan, NULL), QR_OK);
    o.max_num_seqs = 3;
    refused(V41, &o, "max_requests is 2, an engine with 3 is not covered");
    o = options_with("dspark", path);
    o.kv_cache_dtype = "bf16";
    refused(V41, &o, "kv_cache_dtype is");
    o = options_with("none", path);
    refused(V41, &o, "E10 a speculation profile with nothing that drafts");
    o = options_with("mtp", path);
    refused("models/tiny-v4", &o, "E10 a speculation profile with an mtp drafter");
    o = options_with("dspark", path);
    o.verifier = "ratio";
    refused(V41, &o, "E10 a speculation profile with verifier ratio, wanted match");
    o = options_with("dspark", path);
    o.forced_acceptance_length = 2;
    refused(V41, &o, "E09 a forced acceptance length of 2 with a speculation profile");
    write_profile(path, 1, "00");
    o = options_with("dspark", path);
    refused(V41, &o, "config_sha256 is \"00\", here it is");
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_by_confidence_change_no_bit),
        cmocka_unit_test(a_profile_of_another_engine_is_refused_by_e10),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
