/* label: release */
/* What a device's weights are planned to take is what opening them prepares, to the byte. */
#include <string.h>

#include "support/support.h"

#include "base/alloc.h"
#include "checkpoint/checkpoint.h"
#include "model/weight_bytes.h"
#include "model/weights.h"
#include "ops/weight_spec.h"
#include "plan/settle.h"
#include "support/host_backend.h"

struct weight {
    int64_t unused;
};

struct seen {
    int64_t matrices, largest, slabs, prepared, renewed, rests;
    int64_t on_host, host_bytes; /* matrices that may stay in host memory */
    struct expert_seating seating;
    struct backend host;
};

static qr_status prepare(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    struct seen *seen = b->self;
    (void)err;
    seen->matrices += weight_spec_bytes(spec);
    seen->largest = weight_spec_bytes(spec) > seen->largest ? weight_spec_bytes(spec) : seen->largest;
    seen->prepared++;
    seen->on_host += spec->on_host;
    seen->host_bytes += spec->on_host ? weight_spec_bytes(spec) : 0;
    *out = qr_calloc(1, sizeof **out);
    assert_non_null(*out);
    return QR_OK;
}

static qr_status renew(struct backend *b, struct weight *w, const struct weight_spec *spec, qr_error *err)
{
    struct seen *seen = b->self;
    (void)spec, (void)err;
    w->unused++;
    seen->renewed++;
    return w->unused == seen->rests ? QR_OK : qr_fail(err, QR_INTERNAL, "a weight that was laid out %lld times behind %lld rests",
                                                      (long long)w->unused, (long long)seen->rests);
}

static void rest(struct backend *b) { ((struct seen *)b->self)->rests++; }

static void drop(struct backend *b, struct weight *w)
{
    (void)b;
    qr_free(w);
}

static qr_status slab(struct backend *b, int64_t bytes, void **out, qr_error *err)
{
    struct seen *seen = b->self;
    seen->slabs += bytes;
    return seen->host.allocate(&seen->host, bytes, out, err);
}

static qr_status seat(struct backend *b, const struct expert_seating *wanted, qr_error *err)
{
    struct seen *seen = b->self;
    (void)err;
    assert_int_equal(seen->seating.seats, 0); /* once */
    assert_int_equal(seen->prepared, 0);      /* and before any weight */
    seen->seating = *wanted;
    return QR_OK;
}

static struct backend counting_backend(struct seen *seen)
{
    *seen = (struct seen){.host = host_backend()};
    struct backend b = seen->host;
    b.self = seen;
    b.allocate = slab;
    b.prepare_weight = prepare;
    b.release_weight = drop;
    b.rest_weights = rest;
    b.renew_weight = renew;
    b.seat_experts = seat;
    return b;
}

static const char *const models[] = {"models/tiny-v41",          "models/tiny-v4",           "tests/golden/v41/spec-13.1/model",
                                     "tests/golden/v41/pad/model", "tests/golden/v41/wide/model", "tests/golden/v4/tiny/model",
                                     "tests/golden/v4/wide/model", "tests/golden/v4/fp8exp/model"};
enum { MODELS = sizeof models / sizeof *models };

static void open_plan(const char *dir, enum qr_profile profile, struct checkpoint **ck, struct model_plan *plan)
{
    struct qr_config config;
    qr_error err = {0};
    if (model_folder_open(source_path(dir), &config, ck, &err) != QR_OK || plan_make(&config, profile, plan, &err) != QR_OK)
        fail_msg("%s: %s", dir, err.message);
}

static void check(const char *dir, enum qr_profile profile, bool drafter)
{
    struct checkpoint *ck;
    struct model_plan plan;
    struct weights w;
    struct seen seen;
    struct weight_bytes planned;
    qr_error err = {0};
    open_plan(dir, profile, &ck, &plan);
    struct backend b = counting_backend(&seen);
    const unsigned parts = WEIGHTS_BACKBONE | (drafter ? WEIGHTS_DRAFTER : 0);
    if (weight_bytes_count(&plan, ck, drafter, weight_spec_bytes, weight_spec_bytes, &planned, &err) != QR_OK ||
        weights_open(ck, &plan, parts, &b, NULL, &w, &err) != QR_OK)
        fail_msg("%s: %s", dir, err.message);
    if (planned.matrices != seen.matrices || planned.staged != seen.largest || planned.vectors < seen.slabs)
        fail_msg("%s, profile %d, drafter %d: %lld bytes of matrices planned, %lld prepared; the largest %lld, %lld; vectors %lld, "
                 "%lld", dir, profile, drafter, (long long)planned.matrices, (long long)seen.matrices, (long long)planned.staged,
                 (long long)seen.largest, (long long)planned.vectors, (long long)seen.slabs);
    weights_close(&w);
    checkpoint_close(ck);
}

static void what_is_planned_is_what_is_prepared(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        struct checkpoint *ck;
        struct model_plan plan;
        open_plan(models[i], QR_PROFILE_REFERENCE, &ck, &plan);
        const bool drafts = plan.config.drafter != QR_DRAFTER_NONE, v4 = plan.config.family == QR_FAMILY_V4;
        checkpoint_close(ck);
        for (int drafter = 0; drafter <= drafts; drafter++) {
            check(models[i], QR_PROFILE_REFERENCE, drafter);
            if (v4)
                check(models[i], QR_PROFILE_W8A8, drafter);
        }
    }
}

/* The handles and vectors stay; every tensor comes back once. */
static void behind_a_rest_every_tensor_is_laid_out_once_more(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct checkpoint *ck;
        struct model_plan plan;
        struct weights w;
        struct seen seen;
        qr_error err = {0};
        open_plan(models[i], QR_PROFILE_REFERENCE, &ck, &plan);
        struct backend b = counting_backend(&seen);
        if (weights_open(ck, &plan, WEIGHTS_BACKBONE, &b, NULL, &w, &err) != QR_OK)
            fail_msg("%s", err.message);
        const struct weights before = w;
        const int64_t slabs = seen.slabs;
        for (int round = 1; round <= 2; round++) {
            weights_rest(&w);
            if (weights_rise(ck, &plan, WEIGHTS_BACKBONE, NULL, &w, &err) != QR_OK)
                fail_msg("%s", err.message);
            assert_int_equal(seen.renewed, round * seen.prepared);
            assert_int_equal(seen.slabs, slabs);
            assert_memory_equal(w.layer, before.layer, sizeof w.layer);
            assert_ptr_equal(w.head, before.head);
            assert_int_equal(w.handle_count, before.handle_count);
        }
        weights_close(&w);
        checkpoint_close(ck);
    }
}

/* Of the backbone those that the placement says, w1, w2 and w3 of each, and none of a drafter or shared. */
static void placed_experts_may_stay_in_host_memory(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct checkpoint *ck;
        struct model_plan plan;
        struct expert_placement placement;
        struct weight_bytes planned;
        struct weights w;
        struct seen seen;
        qr_error err = {0};
        open_plan(models[i], QR_PROFILE_REFERENCE, &ck, &plan);
        struct backend b = counting_backend(&seen);
        const int32_t experts = plan.config.n_routed_experts;
        must(weight_bytes_count(&plan, ck, true, weight_spec_bytes, weight_spec_bytes, &planned, &err), &err);
        assert_int_equal(planned.experts, planned.expert * plan.layers * experts);
        must(placement_make(plan.layers, experts, 5, 2, NULL, &placement, &err), &err);
        must(weights_open_placed(ck, &plan, WEIGHTS_BACKBONE | WEIGHTS_DRAFTER, &b, &placement, NULL, &w, &err), &err);
        assert_int_equal(placement.on_host, plan.layers * experts - 5);
        assert_int_equal(seen.on_host, 3 * placement.on_host);
        assert_int_equal(seen.host_bytes, placement.on_host * planned.expert);
        assert_int_equal(seen.seating.on_host, placement.on_host);
        assert_int_equal(seen.seating.seats, 2);
        int64_t each = 0;
        for (int kind = 0; kind < 3; kind++)
            each += weight_spec_bytes(&seen.seating.shape[kind]);
        assert_int_equal(each, planned.expert);
        weights_close(&w);
        b.seat_experts = NULL;
        assert_int_equal(weights_open_placed(ck, &plan, WEIGHTS_BACKBONE, &b, &placement, NULL, &w, &err), QR_UNSUPPORTED);
        assert_non_null(strstr(err.message, "experts in host memory"));
        placement_free(&placement);
        checkpoint_close(ck);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_planned_is_what_is_prepared),
        cmocka_unit_test(behind_a_rest_every_tensor_is_laid_out_once_more),
        cmocka_unit_test(placed_experts_may_stay_in_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
