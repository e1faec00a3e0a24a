/* JSON Schema as grammar: instances of the supported part of the JSON-Schema-Test-Suite's subjects, as they are written
 * here, and what is refused by name. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/grammars.h"

enum { MOST = 12 };

struct table {
    const char *schema;
    const char *good[MOST], *bad[MOST];
};

static void check(const struct table *t)
{
    struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, t->schema);
    for (int i = 0; i < MOST && t->good[i]; i++)
        if (!grammar_accepts(&rig, g, t->good[i], strlen(t->good[i])))
            fail_msg("%s: does not let through %s", t->schema, t->good[i]);
    for (int i = 0; i < MOST && t->bad[i]; i++)
        if (grammar_accepts(&rig, g, t->bad[i], strlen(t->bad[i])))
            fail_msg("%s: lets through %s", t->schema, t->bad[i]);
    grammar_release(g);
}

#define CHECK(tables)                                          \
    do {                                                       \
        (void)state;                                           \
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) \
            check(&tables[i]);                                 \
    } while (0)

static void types_are_kept(void **state)
{
    static const struct table tables[] = {
        {"true", {"1", "\"a\"", "{\"a\": [1, {}]}", "null"}, {"", "x", "tru"}},
        {"{}", {"1", "[]", "{}"}, {"[1"}},
        {"{\"type\":\"integer\"}", {"0", "-7", "123456789012345678901234567890"}, {"1.1", "\"1\"", "01", "true", "null", "+1"}},
        {"{\"type\":\"number\"}", {"1", "1.1", "-2e5"}, {"\"1\"", "null", "1."}},
        {"{\"type\":\"string\"}", {"\"\"", "\"\\u00e9\""}, {"1", "\"", "{}"}},
        {"{\"type\":\"object\"}", {"{}", "{\"a\":1}"}, {"[]", "1"}},
        {"{\"type\":\"array\"}", {"[]", "[1, \"a\", {}]"}, {"{}", "1"}},
        {"{\"type\":\"boolean\"}", {"true", "false"}, {"0", "\"true\"", "null"}},
        {"{\"type\":\"null\"}", {"null"}, {"0", "false"}},
        {"{\"type\":[\"integer\",\"string\"]}", {"1", "\"a\""}, {"1.1", "null", "{}"}},
        {"{\"type\":[\"array\",\"object\",\"null\"]}", {"[1]", "{\"a\":1}", "null"}, {"1", "\"a\""}},
        {"{\"title\":\"t\",\"description\":\"d\",\"default\":3,\"type\":\"null\"}", {"null"}, {"3"}},
    };
    CHECK(tables);
}

static void values_are_those_of_enum_and_const(void **state)
{
    static const struct table tables[] = {
        {"{\"enum\":[1,2,3]}", {"1", "3"}, {"4", "\"1\"", "12"}},
        {"{\"enum\":[6,\"foo\",[],true,{\"foo\":12}]}", {"[]", "{\"foo\":12}", "{\"foo\": 12}", "true", "\"foo\""}, {"null", "{\"foo\":false}", "{\"foo\":12,\"boo\":42}"}},
        {"{\"type\":\"string\",\"enum\":[1,\"a\"]}", {"\"a\""}, {"1"}},
        {"{\"const\":2}", {"2"}, {"5", "\"2\""}},
        {"{\"const\":{\"a\":[1,null]}}", {"{\"a\":[1,null]}", "{\"a\": [1, null]}"}, {"{\"a\":[1]}", "{}"}},
        {"{\"const\":\"a\\\"b\\n\"}", {"\"a\\\"b\\n\""}, {"\"a\""}},
        {"{\"allOf\":[{\"enum\":[1,2]},{\"enum\":[2,3]}]}", {"2"}, {"1", "3"}},
        {"{\"enum\":[false]}", {"false"}, {"0", "true"}},
    };
    CHECK(tables);
}

static void objects_have_their_properties_in_order(void **state)
{
    static const struct table tables[] = {
        {"{\"properties\":{\"foo\":{\"type\":\"integer\"},\"bar\":{\"type\":\"string\"}}}",
         {"{\"foo\":1,\"bar\":\"baz\"}", "{\"bar\":\"b\"}", "{}", "{\"quux\":[]}", "[]", "12", "{\"foo\":1,\"quux\":2,\"x\":3}"},
         {"{\"foo\":1,\"bar\":{}}", "{\"foo\":[],\"bar\":{}}", "{\"fo\\u006f\":[]}", "{\"bar\":\"b\",\"foo\":[]}"}},
        {"{\"type\":\"object\",\"properties\":{\"foo\":{},\"bar\":{}},\"required\":[\"foo\"]}",
         {"{\"foo\":1}", "{\"foo\":1,\"bar\":2}", "{\"foo\":1,\"zoo\":2}"}, {"{\"bar\":1}", "{}", "{\"foo2\":1}"}},
        {"{\"type\":\"object\",\"required\":[\"x\"]}", {"{\"x\":1}", "{\"x\":null,\"y\":2}"}, {"{}", "{\"y\":2}"}},
        {"{\"type\":\"object\",\"properties\":{\"foo\":{},\"bar\":{}},\"additionalProperties\":false}",
         {"{\"foo\":1}", "{}", "{ }", "{\n  \"foo\": 1,\n  \"bar\": 2\n}"}, {"{\"foo\":1,\"quux\":2}", "{\"foo\":1,}", "{\"foo\" :1}", "{\"foo\":  1}"}},
        {"{\"type\":\"object\",\"properties\":{\"foo\":{},\"bar\":{}},\"additionalProperties\":{\"type\":\"boolean\"}}",
         {"{\"foo\":1}", "{\"foo\":1,\"bar\":2,\"quux\":true}", "{\"f\":true}", "{\"fooo\":false}", "{\"\":true}"}, {"{\"foo\":1,\"quux\":12}"}},
        {"{\"additionalProperties\":{\"type\":\"integer\"},\"type\":\"object\"}", {"{\"a\":1,\"b\":2}"}, {"{\"a\":\"1\"}"}},
        {"{\"type\":\"object\",\"properties\":{\"foo\":true,\"bar\":false}}", {"{}", "{\"foo\":1}"}, {"{\"bar\":2}", "{\"foo\":1,\"bar\":2}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\\nb\":{\"type\":\"null\"}},\"additionalProperties\":false}", {"{\"a\\nb\":null}"}, {"{\"a\nb\":null}"}},
        {"{\"type\":\"object\",\"properties\":{\"\xc3\xa9t\":{\"type\":\"null\"}}}", {"{\"\xc3\xa9t\":null}", "{\"\xc3\xa8\":1}", "{\"\xc3\xa9\":1}"}, {"{\"\xc3\xa9t\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"o\":{\"type\":\"object\",\"properties\":{\"i\":{\"type\":\"integer\"}},\"required\":[\"i\"]}},\"required\":[\"o\"]}",
         {"{\"o\":{\"i\":3}}"}, {"{\"o\":{}}", "{\"o\":3}"}},
    };
    CHECK(tables);
}

static void arrays_have_their_elements(void **state)
{
    static const struct table tables[] = {
        {"{\"items\":{\"type\":\"integer\"}}", {"[1, 2, 3]", "[]", "{\"foo\":1}"}, {"[1, \"x\"]", "[1,]", "[,1]"}},
        {"{\"type\":\"array\",\"items\":false}", {"[]"}, {"[1]"}},
        {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", {"[1,\"foo\"]", "[1]", "[1,\"foo\",true]", "[]"}, {"[\"foo\",1]"}},
        {"{\"prefixItems\":[{}],\"items\":{\"type\":\"integer\"}}", {"[\"x\",2,3]", "[null]"}, {"[1,\"x\"]"}},
        {"{\"prefixItems\":[{},{}],\"items\":false,\"type\":\"array\"}", {"[1,2]", "[1]", "[]"}, {"[1,2,3]"}},
        {"{\"minItems\":1,\"type\":\"array\"}", {"[1,2]", "[1]"}, {"[]"}},
        {"{\"maxItems\":2,\"type\":\"array\"}", {"[]", "[1]", "[1,2]"}, {"[1,2,3]"}},
        {"{\"minItems\":2,\"maxItems\":3,\"type\":\"array\",\"items\":{\"type\":\"null\"}}", {"[null,null]", "[null, null, null]"}, {"[null]", "[null,null,null,null]"}},
        {"{\"minItems\":3,\"prefixItems\":[{\"const\":1}],\"type\":\"array\"}", {"[1,2,3]", "[1,2,3,4]"}, {"[1,2]", "[2,2,3]"}},
        {"{\"maxItems\":0,\"type\":\"array\"}", {"[]"}, {"[1]"}},
        {"{\"uniqueItems\":false,\"type\":\"array\"}", {"[1,1]"}, {"1"}},
    };
    CHECK(tables);
}

static void strings_have_their_lengths_and_forms(void **state)
{
    static const struct table tables[] = {
        {"{\"minLength\":2}", {"\"fo\"", "\"foo\"", "1"}, {"\"f\"", "\"\xf0\x9f\x92\xa9\""}},
        {"{\"maxLength\":2,\"type\":\"string\"}", {"\"f\"", "\"\xf0\x9f\x92\xa9\xf0\x9f\x92\xa9\"", "\"\\ud83d\\udca9x\"", "\"\\n\\n\""}, {"\"foo\"", "\"\\n\\n\\n\""}},
        {"{\"minLength\":1,\"maxLength\":1,\"type\":\"string\"}", {"\"a\"", "\"\\\"\""}, {"\"\"", "\"ab\""}},
        {"{\"pattern\":\"^a*$\",\"type\":\"string\"}", {"\"aaa\"", "\"\""}, {"\"abc\""}},
        {"{\"pattern\":\"a+\",\"type\":\"string\"}", {"\"xxaayy\"", "\"a\""}, {"\"xx\""}},
        {"{\"pattern\":\"^x|y$\",\"type\":\"string\"}", {"\"xa\"", "\"ay\"", "\"x\""}, {"\"ax\"", "\"ya\""}},
        {"{\"pattern\":\"^\\\"\\\\n$\",\"type\":\"string\"}", {"\"\\\"\\n\""}, {"\"\"\""}},
        {"{\"format\":\"date\",\"type\":\"string\"}", {"\"1963-06-19\"", "\"2020-01-31\"", "\"2020-02-29\"", "\"2000-02-29\"", "\"2021-02-28\""},
         {"\"2020-01-32\"", "\"2021-02-29\"", "\"2020-02-30\"", "\"1900-02-29\"", "\"2020-04-31\"", "\"2020-13-01\"", "\"2020-00-01\"", "\"1998-1-20\"", "\"06/19/1963\""}},
        {"{\"format\":\"time\",\"type\":\"string\"}", {"\"08:30:06Z\"", "\"08:30:06.283185Z\"", "\"08:30:06+00:20\""}, {"\"24:00:00Z\"", "\"08:60:00Z\"", "\"08:30:06\"", "\"8:3:6Z\"", "\"01:02:03+24:00\""}},
        {"{\"format\":\"date-time\",\"type\":\"string\"}", {"\"1963-06-19T08:30:06.283185Z\"", "\"1990-12-31T15:59:50-08:00\""}, {"\"1990-02-31T15:59:59Z\"", "\"06/19/1963 08:30:06 PST\"", "\"1963-06-19T08:30:06\""}},
        {"{\"format\":\"uuid\",\"type\":\"string\"}", {"\"2EB8AA08-AA98-11EA-B4AA-73B441D16380\"", "\"2eb8aa08-aa98-11ea-b4aa-73b441d16380\""},
         {"\"2eb8aa08-aa98-11ea-b4aa-73b441d1638\"", "\"2eb8aa08-aa98-11ea-73b441d16380\"", "\"2eb8aa08-aa98-11ea-b4ga-73b441d16380\""}},
        {"{\"format\":\"email\",\"type\":\"string\"}", {"\"joe.bloggs@example.com\"", "\"te_t@a.b\""}, {"\"2962\"", "\".test@example.com\"", "\"te..st@example.com\"", "\"a@-b.com\""}},
    };
    CHECK(tables);
}

static void integers_are_in_their_range(void **state)
{
    static const struct table tables[] = {
        {"{\"type\":\"integer\",\"minimum\":1,\"maximum\":12}", {"1", "9", "10", "12"}, {"0", "13", "-1", "01", "120"}},
        {"{\"type\":\"integer\",\"minimum\":-25,\"maximum\":-3}", {"-3", "-10", "-25", "-19"}, {"-2", "-26", "3", "0"}},
        {"{\"type\":\"integer\",\"minimum\":-2,\"maximum\":107}", {"-2", "-1", "0", "99", "107"}, {"-3", "108", "-0"}},
        {"{\"type\":\"integer\",\"minimum\":95}", {"95", "99", "100", "12345678901234567890123"}, {"94", "9", "-95"}},
        {"{\"type\":\"integer\",\"maximum\":5}", {"5", "0", "-1", "-99999999999999999999"}, {"6", "10"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":1,\"exclusiveMaximum\":4}", {"2", "3"}, {"1", "4"}},
        {"{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.5}", {"2", "3"}, {"1", "4"}},
        {"{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807}", {"-9223372036854775808", "9223372036854775807"}, {"-9223372036854775809", "9223372036854775808"}},
        {"{\"type\":\"integer\",\"allOf\":[{\"minimum\":3},{\"maximum\":4}],\"minimum\":1}", {"3", "4"}, {"2", "5"}},
    };
    CHECK(tables);
}

/* Every number of some ranges, told by itself. */
static void ranges_hold_exactly_their_integers(void **state)
{
    static const int ends[][2] = {{0, 0}, {7, 7}, {0, 9}, {8, 11}, {-13, 105}, {95, 312}, {-120, -8}, {99, 100}, {-1, 1}, {110, 119}, {-312, 1000}};
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char schema[120], text[16];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", ends[i][0], ends[i][1]);
        struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, schema);
        struct grammar_run *run = run_of(&rig, g);
        for (int n = -400; n <= 1100; n++) {
            const int length = snprintf(text, sizeof text, "%d", n);
            const bool good = grammar_run_push_bytes(run, text, (size_t)length, NULL) == QR_OK && grammar_run_complete(run);
            if (good != (n >= ends[i][0] && n <= ends[i][1]))
                fail_msg("%s: %d is %d", schema, n, good);
            grammar_run_rewind(run); /* to where the bytes began */
        }
        grammar_run_close(run);
        grammar_release(g);
    }
}

/* The same of numbers with fractions: halves and hundredths, and the ends with zeros behind the point. */
static void ranges_hold_exactly_their_numbers(void **state)
{
    static const struct {
        const char *bounds;
        double least, most;
        bool open_least, open_most;
    } ranges[] = {{"\"minimum\":0", 0, 1e9, 0, 0},
                  {"\"minimum\":0,\"maximum\":1", 0, 1, 0, 0},
                  {"\"exclusiveMinimum\":0,\"exclusiveMaximum\":1", 0, 1, 1, 1},
                  {"\"minimum\":-2,\"exclusiveMaximum\":3.0", -2, 3, 0, 1},
                  {"\"exclusiveMinimum\":-3,\"maximum\":-1", -3, -1, 1, 0},
                  {"\"maximum\":0", -1e9, 0, 0, 0},
                  {"\"exclusiveMaximum\":0", -1e9, 0, 0, 1},
                  {"\"minimum\":2,\"exclusiveMinimum\":2,\"maximum\":11", 2, 11, 1, 0},
                  {"\"minimum\":3,\"maximum\":3", 3, 3, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        char schema[120], text[32];
        snprintf(schema, sizeof schema, "{\"type\":\"number\",%s}", ranges[i].bounds);
        struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, schema);
        struct grammar_run *run = run_of(&rig, g);
        for (int n = -1300; n <= 1300; n++)
            for (int digits = n % 100 == 0 ? 0 : 2; digits < 4; digits++) {
                const double value = n / 100.0;
                const int length = snprintf(text, sizeof text, "%.*f", digits, value);
                const bool want = (ranges[i].open_least ? value > ranges[i].least : value >= ranges[i].least) &&
                                  (ranges[i].open_most ? value < ranges[i].most : value <= ranges[i].most);
                const bool good = grammar_run_push_bytes(run, text, (size_t)length, NULL) == QR_OK && grammar_run_complete(run);
                if (good != want)
                    fail_msg("%s: %s is %d", schema, text, good);
                grammar_run_rewind(run); /* to where the bytes began */
            }
        grammar_run_close(run);
        grammar_release(g);
    }
}

static void schemas_are_combined(void **state)
{
    static const struct table tables[] = {
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"minLength\":2}]}", {"1", "\"ab\""}, {"1.5", "\"a\"", "null"}},
        {"{\"type\":\"string\",\"anyOf\":[{\"maxLength\":2},{\"minLength\":4}]}", {"\"ab\"", "\"abcd\""}, {"\"abc\"", "3"}},
        {"{\"anyOf\":[true,false]}", {"1"}, {"x"}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", {"1", "null"}, {"\"a\""}},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"k\",\"n\"]},"
         "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"b\",\"c\"]}},\"required\":[\"k\"]}]}",
         {"{\"k\":\"a\",\"n\":1}", "{\"k\":\"c\"}", "{\"k\":\"b\",\"n\":\"x\"}"}, {"{\"k\":\"a\"}", "{\"k\":\"d\"}"}},
        {"{\"allOf\":[{\"properties\":{\"bar\":{\"type\":\"integer\"}},\"required\":[\"bar\"]},{\"properties\":{\"foo\":{\"type\":\"string\"}},\"required\":[\"foo\"]}],\"type\":\"object\"}",
         {"{\"bar\":2,\"foo\":\"baz\"}"}, {"{\"foo\":\"baz\"}", "{\"bar\":2}", "{\"bar\":\"x\",\"foo\":\"y\"}"}},
        {"{\"type\":\"object\",\"properties\":{\"bar\":{\"type\":\"integer\"}},\"required\":[\"bar\"],\"allOf\":[{\"properties\":{\"bar\":{\"minimum\":5}}}]}", {"{\"bar\":5}"}, {"{\"bar\":4}"}},
        {"{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{}}}],\"additionalProperties\":false,\"properties\":{\"b\":{}}}", {"{\"b\":1}", "{}"}, {"{\"a\":1}", "{\"a\":1,\"b\":1}"}},
        {"{\"allOf\":[true,{\"type\":\"null\"}]}", {"null"}, {"1"}},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":\"integer\"}}}", {"1"}, {"\"a\""}},
        {"{\"properties\":{\"x\":{\"$ref\":\"#/definitions/t~1a~0b%25\"}},\"type\":\"object\",\"definitions\":{\"t/a~b%\":{\"type\":\"null\"}}}", {"{\"x\":null}"}, {"{\"x\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"foo\":{\"$ref\":\"#\"}},\"additionalProperties\":false}", {"{}", "{\"foo\":{\"foo\":{}}}"}, {"{\"bar\":1}", "{\"foo\":{\"bar\":false}}"}},
        {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},"
         "\"required\":[\"v\",\"next\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}",
         {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"}, {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
        {"{\"$ref\":\"#/$defs/s\",\"maxLength\":2,\"$defs\":{\"s\":{\"type\":\"string\"}}}", {"\"ab\""}, {"\"abc\"", "1"}},
    };
    CHECK(tables);
}

static void what_is_not_supported_is_refused_by_name_and_place(void **state)
{
    static const struct {
        const char *schema, *says, *path;
    } samples[] = {
        {"{\"properties\":{\"a\":{\"multipleOf\":2}}}", "\"multipleOf\"", "#/properties/a"},
        {"{\"not\":{}}", "\"not\"", "#"},
        {"{\"if\":{}}", "\"if\"", "#"},
        {"{\"type\":\"object\",\"patternProperties\":{}}", "\"patternProperties\"", "#"},
        {"{\"type\":\"array\",\"contains\":{}}", "\"contains\"", "#"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems", "#"},
        {"{\"type\":\"number\",\"minimum\":0.5}", "\"minimum\"", "#/minimum"},
        {"{\"type\":\"array\",\"items\":[{}]}", "\"items\"", "#"},
        {"{\"type\":\"string\",\"format\":\"uri\"}", "uri", "#/format"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "look-ahead", "#/pattern"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", "beside", "#/maxLength"},
        {"{\"enum\":[\"a\"],\"maxLength\":3}", "beside", "#/maxLength"},
        {"{\"oneOf\":[{\"minLength\":1},{\"maxLength\":3}]}", "oneOf", "#/oneOf"},
        {"{\"$ref\":\"http://x/y\"}", "$ref", "#/$ref"},
        {"{\"$ref\":\"#/$defs/none\"}", "no schema", "#/$ref"},
        {"{\"$ref\":\"#\"}", "made of itself", NULL},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "", NULL},
        {"{\"properties\":{\"a\":{\"$id\":\"x\"}}}", "$id", "#/properties/a"},
        {"{\"type\":\"text\"}", "type", "#/type"},
        {"{\"type\":7}", "type", "#/type"},
        {"{\"required\":\"a\"}", "required", "#"},
        {"{\"minItems\":-1}", "minItems", "#"},
        {"{\"type\":\"string\",\"maxLength\":100000}", "maxLength", "#/maxLength"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no answer", NULL},
        {"false", "no answer", NULL},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no answer", NULL},
        {"7", "a schema is an object", "#"},
        {"{", "", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        struct grammar *g;
        qr_error err = {0};
        char path[96] = "";
        const char *s = samples[i].schema;
        if (grammar_make(GRAMMAR_JSON_SCHEMA, s, strlen(s), "schema", &g, path, &err) != QR_BAD_REQUEST || g ||
            !strstr(err.message, samples[i].says) || strncmp(err.message, "schema: ", 8) != 0)
            fail_msg("%s: %s", s, err.message);
        if (samples[i].path)
            assert_string_equal(path, samples[i].path);
    }
}

/* As many names as may be declared, of which any may come next. */
static void any_of_1024_properties_may_come(void **state)
{
    (void)state;
    static const char *const good[] = {"{}", "{ }", "{\"p900\":1}", "{\n \"p800\": 1, \"p803\":2}", "{\"p1023\": 1 }", "{\"p800\":1,\n    \"p1023\":2}"},
                      *const bad[] = {"{\"p1024\":1}", "{\"p808\":1,\"p807\":2}", "{\"p\":1}", "{\"p900\":1,}", "{,\"p900\":1}", "{\"p900\":1\"p901\":1}"};
    char *text = qr_calloc(1, 64 << 10), *at = text;
    for (int open = 0; open < 2; open++) {
        at = text + sprintf(text, "{\"type\":\"object\",\"additionalProperties\":%s,\"properties\":{", open ? "{\"type\":\"null\"}" : "false");
        for (int i = open ? 800 : 0; i < 1024; i++)
            at += sprintf(at, "\"p%d\":{\"type\":\"integer\"}%s", i, i < 1023 ? "," : "}}");
        struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, text);
        struct grammar_run *run = run_of(&rig, g);
        mask_is_right(&rig, run);
        for (size_t i = 0; i < sizeof good / sizeof *good; i++)
            if (!grammar_accepts(&rig, g, good[i], strlen(good[i])))
                fail_msg("%d: does not let through %s", open, good[i]);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            if (grammar_accepts(&rig, g, bad[i], strlen(bad[i])))
                fail_msg("%d: lets through %s", open, bad[i]);
        grammar_run_close(run);
        grammar_release(g);
    }
    qr_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_are_kept),
        cmocka_unit_test(values_are_those_of_enum_and_const),
        cmocka_unit_test(objects_have_their_properties_in_order),
        cmocka_unit_test(arrays_have_their_elements),
        cmocka_unit_test(strings_have_their_lengths_and_forms),
        cmocka_unit_test(integers_are_in_their_range),
        cmocka_unit_test(ranges_hold_exactly_their_integers),
        cmocka_unit_test(ranges_hold_exactly_their_numbers),
        cmocka_unit_test(schemas_are_combined),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name_and_place),
        cmocka_unit_test(any_of_1024_properties_may_come),
    };
    return cmocka_run_group_tests(tests, grammar_set_up, grammar_tear_down);
}
