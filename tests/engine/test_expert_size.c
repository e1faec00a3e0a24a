/* label: release */
/* How many routed experts lie on a device and how many in host memory, as the byte plan says it, on devices that do not exist. */
#include "engine/engine.h"
#include "engine/expert_size.h"
#include "ops/weight_spec.h"
#include "plan/schema.h"
#include "support/models.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((int64_t)1 << 30)

static struct device_memory device_of(int64_t bytes)
{
    return (struct device_memory){.total = bytes,
                                  .free = bytes - 600 * (GIB >> 10),
                                  .scratch = 160 << 20,
                                  .score_band = 128 << 20,
                                  .staging = 64 << 20,
                                  .graphs = 192 << 20,
                                  .weight_chunk = 32 << 20,
                                  .expert_books = 1 << 20,
                                  .expert_views = 512,
                                  .most_seats = 128,
                                  .weight_bytes = weight_spec_bytes,
                                  .staged_bytes = weight_spec_bytes};
}

static qr_status size_of(const struct device_memory *memory, const qr_engine_options *o, struct engine_size *out, qr_error *err)
{
    const struct model_plan plan = plan_of(V4_FLASH);
    const struct engine_place place = {.device = "cpu-portable", .threads = 1, .memory = memory};
    int64_t stored;
    assert_int_equal(schema_total(&plan.config, &stored, NULL), QR_OK);
    return engine_size(&plan, stored, &place, o, out, err);
}

static struct engine_size must_fit(const struct device_memory *memory, const qr_engine_options *o)
{
    struct engine_size size;
    qr_error err = {0};
    if (size_of(memory, o, &size, &err) != QR_OK)
        fail_msg("%s", err.message);
    return size;
}

static int64_t whole(const qr_plan_bytes *p)
{
    return (int64_t)(p->device_weights + p->device_workspace + p->device_graphs + p->device_collective + p->device_beside +
                     p->pages + p->states);
}

static void what_fits_lies_on_the_device(void **state)
{
    (void)state;
    const struct device_memory memory = device_of(220 * GIB);
    qr_engine_options o = QR_ENGINE_OPTIONS;
    const struct engine_size size = must_fit(&memory, &o);
    assert_int_equal(size.bytes.host_experts, 0);
    assert_int_equal(size.bytes.seats, 0);
    assert_int_equal(size.on_device.experts, 43 * 256);
    o.expert_memory = (uint64_t)(size.on_device.experts * size.on_device.expert_bytes);
    assert_int_equal(must_fit(&memory, &o).bytes.host_experts, 0);
}

/* Just too small for all of them and the pools that are wanted. */
static void what_does_not_fit_is_left_in_host_memory(void **state)
{
    (void)state;
    struct device_memory memory = device_of(220 * GIB);
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.gpu_memory_utilization = 1;
    o.kv_ram_bytes = (uint64_t)(2 * GIB);
    const struct engine_size all = must_fit(&memory, &o);
    const int64_t each = all.on_device.expert_bytes;
    memory.free = device_plan_beside(&all.on_device) + 2 * GIB - 50 * each;
    memory.total = memory.free + 600 * (GIB >> 10);
    const struct engine_size some = must_fit(&memory, &o);
    const qr_plan_bytes *p = &some.bytes;
    assert_true(p->host_experts > 50 && p->host_experts < 700);
    assert_int_equal(p->device_experts + p->host_experts, all.on_device.experts);
    assert_int_equal(p->host_expert_bytes, (int64_t)p->host_experts * each);
    assert_int_equal(p->pages + p->states, all.bytes.pages + all.bytes.states);
    assert_true(whole(p) <= memory.total && memory.total - whole(p) < 128 << 20);
    /* as a command asks for it afterwards */
    o.kv_ram_bytes = p->pages + p->states;
    o.max_model_len = p->max_model_len;
    o.expert_memory = (p->device_experts + p->seats) * (uint64_t)each;
    const struct engine_size again = must_fit(&memory, &o);
    assert_int_equal(again.bytes.host_experts, p->host_experts);
    assert_int_equal(again.bytes.seats, p->seats);
}

/* A sixteenth of what may be taken is the pools', or more where they want more. */
static void pools_are_left_a_share(void **state)
{
    (void)state;
    const struct device_plan device = {.memory = device_of(130 * GIB), .utilization = 0.9, .matrices = 150 * GIB,
                                       .experts = 11008, .expert_bytes = 13 << 20};
    struct expert_wish wish = {.by_share = true, .of_layer = 256, .active = 6};
    static const int64_t pools[] = {1 * GIB, 20 * GIB};
    for (int i = 0; i < 2; i++) {
        struct device_plan d = device;
        wish.pools = pools[i];
        must(expert_size_choose(&wish, &d, NULL), NULL);
        assert_true(d.on_host > 0);
        assert_true(d.seats > 64 && d.seats <= 128);
        const int64_t share = (int64_t)(0.9 * (double)d.memory.total), left = device_plan_cache(&d);
        const int64_t wanted = pools[i] > share / 16 ? pools[i] : share / 16;
        assert_true(left >= wanted && left < wanted + (128 << 20));
    }
    struct device_plan none = device;
    none.memory.most_seats = 0; /* a device without */
    must(expert_size_choose(&wish, &none, NULL), NULL);
    assert_int_equal(none.on_host, 0);
}

static void a_budget_of_bytes_is_kept(void **state)
{
    (void)state;
    const struct device_memory memory = device_of(220 * GIB);
    qr_engine_options o = QR_ENGINE_OPTIONS;
    const struct engine_size all = must_fit(&memory, &o);
    const int64_t each = all.on_device.expert_bytes, experts = all.on_device.experts;
    static const struct {
        int64_t wanting, seats;
    } cases[] = {{1, 6}, {6, 6}, {20, 20}, {100, 100}, {150, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o.expert_memory = (uint64_t)((experts - cases[i].wanting) * each + each / 2);
        const struct engine_size size = must_fit(&memory, &o);
        assert_int_equal(size.bytes.seats, cases[i].seats);
        assert_int_equal(size.bytes.host_experts, cases[i].wanting + cases[i].seats);
        assert_int_equal(size.bytes.device_seat_bytes, cases[i].seats * each + (1 << 20));
        assert_true(llabs((int64_t)(all.bytes.device_weights - size.bytes.device_weights) - cases[i].wanting * each) < 64 << 20);
    }
}

static void refusals_say_what_would_do(void **state)
{
    (void)state;
    struct device_memory memory = device_of(220 * GIB);
    qr_engine_options o = QR_ENGINE_OPTIONS;
    const struct engine_size all = must_fit(&memory, &o);
    struct engine_size size;
    qr_error err = {0};
    char wanted[80];
    o.expert_memory = (uint64_t)all.on_device.expert_bytes - 1;
    assert_int_equal(size_of(&memory, &o, &size, &err), QR_REFUSED);
    snprintf(wanted, sizeof wanted, "; %lld would do", (long long)all.on_device.expert_bytes);
    assert_non_null(strstr(err.message, wanted));

    o.expert_memory = (uint64_t)((all.on_device.experts - 140) * all.on_device.expert_bytes); /* more than goes on a smaller one */
    memory = device_of((int64_t)all.bytes.device_weights);
    assert_int_equal(size_of(&memory, &o, &size, &err), QR_REFUSED);
    const char *hint = strstr(err.message, "--expert-memory ");
    assert_non_null(hint);
    assert_non_null(strstr(hint, " would fit"));

    memory = device_of(220 * GIB);
    o.expert_memory = (uint64_t)all.on_device.expert_bytes; /* all but one of them in the memory of this machine */
    if (size_of(&memory, &o, &size, &err) == QR_REFUSED)
        assert_non_null(strstr(err.message, "in pinned host memory"));
}

static void a_device_that_computes_in_host_memory_refuses_the_options_by_name(void **state)
{
    (void)state;
    const struct model_plan plan = plan_of(V4_FLASH);
    const struct engine_place place = {.device = "cpu-portable", .threads = 1};
    qr_engine_options o = QR_ENGINE_OPTIONS;
    struct engine_size size;
    qr_error err = {0};
    int64_t stored;
    assert_int_equal(schema_total(&plan.config, &stored, NULL), QR_OK);
    o.expert_memory = 1 << 20;
    o.expert_use = "use.json";
    assert_int_equal(engine_size(&plan, stored, &place, &o, &size, &err), QR_REFUSED);
    assert_non_null(strstr(err.message, "expert-memory is 1048576: device cpu-portable"));
    assert_non_null(strstr(err.message, "expert-use is use.json: device cpu-portable"));
}

static void the_plan_lists_seats_and_host_memory(void **state)
{
    (void)state;
    const struct device_memory memory = device_of(220 * GIB);
    qr_engine_options o = QR_ENGINE_OPTIONS;
    const struct engine_size all = must_fit(&memory, &o);
    o.expert_memory = (uint64_t)((all.on_device.experts - 50) * all.on_device.expert_bytes);
    const struct engine_size size = must_fit(&memory, &o);
    struct byte_plan plan = {.items = NULL};
    struct buffer text = {0};
    device_plan_items(&size.on_device, &plan);
    byte_plan_text(&plan, &text);
    buffer_append(&text, "", 1);
    assert_false(plan.failed || text.failed);
    static const char *const parts[] = {"matrices but routed experts", "routed experts on the device",
                                        "seats for experts of host memory", "experts in pinned host memory"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text.data, parts[i]))
            fail_msg("%s is missing", parts[i]);
    assert_int_equal(byte_plan_total(&plan, BYTES_DEVICE_WEIGHTS), size.bytes.device_weights);
    assert_int_equal(byte_plan_total(&plan, BYTES_HOST_EXPERTS), size.bytes.host_expert_bytes);
    buffer_free(&text);
    byte_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_lies_on_the_device),
        cmocka_unit_test(what_does_not_fit_is_left_in_host_memory),
        cmocka_unit_test(pools_are_left_a_share),
        cmocka_unit_test(a_budget_of_bytes_is_kept),
        cmocka_unit_test(refusals_say_what_would_do),
        cmocka_unit_test(a_device_that_computes_in_host_memory_refuses_the_options_by_name),
        cmocka_unit_test(the_plan_lists_seats_and_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
