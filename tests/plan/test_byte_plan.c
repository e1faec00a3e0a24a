#include "support/models.h"
#include "support/support.h"

#include <string.h>

#include "plan/byte_plan.h"
#include "plan/schema.h"

static struct byte_plan weights_of(const char *config)
{
    struct qr_config c = config_of(config);
    struct schema *s;
    struct byte_plan plan = {0};
    assert_int_equal(schema_make(&c, &s, NULL), QR_OK);
    for (int64_t i = 0; i < schema_count(s); i++)
        byte_plan_tensor(&plan, schema_tensors(s)[i].name, schema_tensor_bytes(&schema_tensors(s)[i]));
    schema_free(s);
    assert_false(plan.failed);
    return plan;
}

static int64_t item(const struct byte_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->count; i++)
        if (!strcmp(plan->items[i].name, name))
            return plan->items[i].bytes;
    fail_msg("no item %s", name);
    return 0;
}

/* v41-model.md 14.2. */
static void parts_of_released_v41_are_those_of_the_table(void **state)
{
    (void)state;
    struct byte_plan p = weights_of(V41_FLASH);
    assert_int_equal(item(&p, "routed experts"), 288777830400);
    assert_int_equal(byte_plan_total(&p, BYTES_TABLES), 202758032400);
    assert_int_equal(item(&p, "layers.1.engram"), 384006168 * (int64_t)264);
    assert_int_equal(item(&p, "drafter"), 7932874632);
    assert_int_equal(item(&p, "head"), 1323827200);
    assert_int_equal(item(&p, "shared experts"), 1416960000);
    assert_int_equal(byte_plan_total(&p, BYTES_WEIGHTS) + byte_plan_total(&p, BYTES_TABLES), 510286023000);
    byte_plan_free(&p);
}

/* v4-model.md 12.2. */
static void parts_of_released_v4_are_those_of_the_table(void **state)
{
    (void)state;
    struct byte_plan p = weights_of(V4_FLASH);
    assert_int_equal(item(&p, "drafter"), 3593787756);
    assert_int_equal(item(&p, "routed experts"), 43 * (int64_t)3422552064);
    assert_int_equal(item(&p, "shared experts"), 43 * (int64_t)25167360);
    assert_int_equal(item(&p, "compressors and indexers"), 21 * (int64_t)29906688 + 20 * (int64_t)8651776);
    assert_int_equal(item(&p, "embedding"), 1059061760);
    assert_int_equal(byte_plan_total(&p, BYTES_WEIGHTS), 159609485896);
    byte_plan_free(&p);
}

static void every_tensor_of_an_int8_folder_has_a_part(void **state)
{
    (void)state;
    struct qr_config c = config_of(V4_FLASH);
    struct schema *s;
    struct byte_plan p = {0};
    c.stored_w8a8 = true;
    assert_int_equal(schema_make(&c, &s, NULL), QR_OK);
    for (int64_t i = 0; i < schema_count(s); i++)
        byte_plan_tensor(&p, schema_tensors(s)[i].name, schema_tensor_bytes(&schema_tensors(s)[i]));
    assert_int_equal(item(&p, "routed experts"), 43 * (int64_t)256 * 25198592);
    assert_int_equal(item(&p, "head"), 1059061760);
    assert_true(item(&p, "attention") > 0 && item(&p, "routers") > 0 && item(&p, "hyper-connections") > 0);
    schema_free(s);
    byte_plan_free(&p);
}

static void numbers_are_grouped_by_threes(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(number_grouped(0, out), "0");
    assert_string_equal(number_grouped(999, out), "999");
    assert_string_equal(number_grouped(1000, out), "1,000");
    assert_string_equal(number_grouped(510286023000, out), "510,286,023,000");
    assert_string_equal(number_grouped(-123456, out), "-123,456");
}

static void sizes_too_large_do_not_wrap(void **state)
{
    (void)state;
    struct byte_plan p = {0};
    byte_plan_add(&p, BYTES_PAGES, "a", INT64_MAX / 2, 3);
    byte_plan_add(&p, BYTES_PAGES, "b", 1, 5);
    assert_int_equal(byte_plan_total(&p, BYTES_PAGES), INT64_MAX);
    byte_plan_free(&p);
}

static void both_printed_forms_hold_every_item(void **state)
{
    (void)state;
    struct byte_plan p = {0};
    struct buffer text = {0};
    struct json_writer *w = json_writer_open(false);
    const char *json;
    size_t length;
    byte_plan_add(&p, BYTES_STATES, "window rings, bf16", 2, 5242880);
    byte_plan_grow(&p, BYTES_WEIGHTS, "head", 7);
    byte_plan_text(&p, &text);
    assert_non_null(strstr(text.data, "window rings, bf16"));
    assert_non_null(strstr(text.data, "10,485,760  = 2 x 5,242,880"));
    byte_plan_json(&p, w);
    assert_int_equal(json_finish(w, &json, &length, NULL), QR_OK);
    assert_non_null(strstr(json, "\"states\":{\"total\":10485760,\"items\":[{\"name\":\"window rings, bf16\","
                                 "\"bytes\":10485760,\"count\":2,\"each\":5242880}]}"));
    assert_non_null(strstr(json, "\"weights\":{\"total\":7,\"items\":[{\"name\":\"head\",\"bytes\":7}]}"));
    json_writer_close(w);
    buffer_free(&text);
    byte_plan_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_released_v41_are_those_of_the_table),
        cmocka_unit_test(parts_of_released_v4_are_those_of_the_table),
        cmocka_unit_test(every_tensor_of_an_int8_folder_has_a_part),
        cmocka_unit_test(numbers_are_grouped_by_threes),
        cmocka_unit_test(sizes_too_large_do_not_wrap),
        cmocka_unit_test(both_printed_forms_hold_every_item),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
