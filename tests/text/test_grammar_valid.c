/* Whatever a schema's grammar lets through is valid by an independent reading of the schema: random answers, drawn token by
 * token from the masks as a model would. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "support/grammars.h"

static uint64_t seed = 11;
static int below(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- validation, keyword by keyword ---- */

static const struct json *root;

static bool same(const struct json *a, const struct json *b)
{
    if (a->kind != b->kind || a->count != b->count)
        return false;
    if (a->kind == JSON_BOOL)
        return a->boolean == b->boolean;
    if (a->kind == JSON_NUMBER)
        return strtod(a->text, NULL) == strtod(b->text, NULL);
    if (a->kind == JSON_STRING)
        return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
    for (const struct json *x = a->child, *y = b->child; x; x = x->next, y = y->next)
        if ((x->key && strcmp(x->key, y->key) != 0) || !same(x, y)) /* those of this test are in order */
            return false;
    return true;
}

static bool is_type(const struct json *v, const char *type)
{
    static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
    if (strcmp(type, "integer") == 0)
        return v->kind == JSON_NUMBER && strtod(v->text, NULL) == (double)(long long)strtod(v->text, NULL);
    return strcmp(names[v->kind], type) == 0;
}

static size_t characters(const struct json *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->length; i++)
        n += ((unsigned char)s->text[i] & 0xc0) != 0x80;
    return n;
}

static double number_of(const struct json *schema, const char *key, double otherwise)
{
    const struct json *v = json_get(schema, key);
    return v ? strtod(v->text, NULL) : otherwise;
}

static bool valid(const struct json *schema, const struct json *v);

static bool valid_object(const struct json *schema, const struct json *v)
{
    const struct json *properties = json_get(schema, "properties"), *required = json_get(schema, "required");
    const struct json *others = json_get(schema, "additionalProperties");
    for (const struct json *m = v->child; m; m = m->next) {
        const struct json *declared = properties ? json_get(properties, m->key) : NULL;
        if (declared ? !valid(declared, m) : others && !valid(others, m))
            return false;
    }
    for (const struct json *r = required ? required->child : NULL; r; r = r->next)
        if (!json_get(v, r->text))
            return false;
    return true;
}

static bool valid_array(const struct json *schema, const struct json *v)
{
    const struct json *prefix = json_get(schema, "prefixItems"), *items = json_get(schema, "items");
    size_t i = 0;
    for (const struct json *e = v->child; e; e = e->next, i++) {
        const struct json *one = prefix && json_at(prefix, i) ? json_at(prefix, i) : items;
        if (one && !valid(one, e))
            return false;
    }
    return v->count >= number_of(schema, "minItems", 0) && v->count <= number_of(schema, "maxItems", 1e9);
}

static bool valid_any(const struct json *list, const struct json *v, int least, int most)
{
    int n = 0;
    for (const struct json *s = list->child; s; s = s->next)
        n += valid(s, v);
    return n >= least && n <= most;
}

static bool valid_type(const struct json *type, const struct json *v)
{
    if (type->kind == JSON_STRING)
        return is_type(v, type->text);
    for (const struct json *t = type->child; t; t = t->next)
        if (is_type(v, t->text))
            return true;
    return false;
}

static const struct json *referred(const char *ref)
{
    if (strcmp(ref, "#") == 0)
        return root;
    return json_get(json_get(root, "$defs"), ref + strlen("#/$defs/"));
}

static bool valid(const struct json *schema, const struct json *v)
{
    if (schema->kind == JSON_BOOL)
        return schema->boolean;
    const struct json *type = json_get(schema, "type"), *list = json_get(schema, "enum"), *one = json_get(schema, "const");
    const struct json *any = json_get(schema, "anyOf"), *all = json_get(schema, "allOf"), *single = json_get(schema, "oneOf");
    const struct json *ref = json_get(schema, "$ref");
    bool good = (!type || valid_type(type, v)) && (!one || same(one, v)) && (!ref || valid(referred(ref->text), v));
    if (list) {
        bool found = false;
        for (const struct json *e = list->child; e; e = e->next)
            found |= same(e, v);
        good &= found;
    }
    good &= !any || valid_any(any, v, 1, 1000);
    good &= !single || valid_any(single, v, 1, 1);
    good &= !all || valid_any(all, v, (int)all->count, (int)all->count);
    if (v->kind == JSON_OBJECT)
        good &= valid_object(schema, v);
    if (v->kind == JSON_ARRAY)
        good &= valid_array(schema, v);
    if (v->kind == JSON_STRING)
        good &= characters(v) >= number_of(schema, "minLength", 0) && characters(v) <= number_of(schema, "maxLength", 1e9);
    if (v->kind == JSON_NUMBER) {
        const double n = strtod(v->text, NULL);
        good &= n >= number_of(schema, "minimum", -1e300) && n <= number_of(schema, "maximum", 1e300);
        good &= n > number_of(schema, "exclusiveMinimum", -1e300) && n < number_of(schema, "exclusiveMaximum", 1e300);
    }
    return good;
}

/* ---- answers ---- */

/* A token of the mask: the end where it fits and half of the time, else any. */
static int32_t draw(const uint32_t *mask)
{
    const int32_t eos = rig.ends[0];
    int32_t count = 0, wanted;
    if (mask[eos >> 5] >> (eos & 31) & 1 && below(2))
        return eos;
    for (int32_t w = 0; w < (rig.trie->vocab + 31) / 32; w++)
        count += __builtin_popcount(mask[w]);
    wanted = below(count);
    for (int32_t id = 0; id < rig.trie->vocab; id++)
        if (mask[id >> 5] >> (id & 31) & 1 && wanted-- == 0)
            return id;
    fail();
    return -1;
}

/* One random answer; false: it did not end in time. */
static bool answer(struct grammar *g, struct buffer *text)
{
    struct grammar_run *run = run_of(&rig, g);
    bool ended = false;
    buffer_clear(text);
    for (int i = 0; i < 60 && !ended; i++) {
        const uint32_t *mask;
        size_t length;
        assert_int_equal(grammar_run_mask(run, &mask, NULL), QR_OK);
        const int32_t id = draw(mask);
        const uint8_t *bytes = tok_bytes(rig.tok, id, &length);
        assert_int_equal(grammar_run_push(run, id, NULL), QR_OK);
        ended = id == rig.ends[0];
        if (!ended)
            assert_true(buffer_append(text, bytes, length));
    }
    grammar_run_close(run);
    return ended;
}

static void random_answers_are_valid(void **state)
{
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":3},\"b\":{\"type\":\"integer\",\"minimum\":-30,\"maximum\":7},"
        "\"c\":{\"enum\":[1,\"x\",null,[2]]}},\"required\":[\"b\"],\"additionalProperties\":false}",
        "{\"type\":\"array\",\"prefixItems\":[{\"const\":\"k\"},{\"type\":\"boolean\"}],\"items\":{\"type\":\"integer\",\"minimum\":98,\"maximum\":1003},\"minItems\":1,\"maxItems\":4}",
        "{\"anyOf\":[{\"type\":\"integer\",\"exclusiveMinimum\":-5,\"exclusiveMaximum\":12},{\"type\":\"string\",\"minLength\":2,\"maxLength\":4},{\"type\":\"null\"}]}",
        "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"enum\":[1,2]},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},"
        "\"required\":[\"v\",\"next\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}",
        "{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":5}},\"required\":[\"a\"]},{\"properties\":{\"a\":{\"minimum\":4},\"b\":{\"type\":\"boolean\"}}}],"
        "\"additionalProperties\":{\"type\":[\"boolean\",\"integer\"],\"maximum\":9,\"minimum\":0}}",
        "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{\"type\":\"null\"}},\"required\":[\"k\",\"n\"],\"additionalProperties\":false},"
        "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"b\",\"c\"]}},\"required\":[\"k\"],\"additionalProperties\":false},{\"type\":\"boolean\"}]}",
        "{\"type\":[\"object\",\"null\"],\"properties\":{\"ab\":{\"type\":\"null\"},\"ac\":{\"type\":\"boolean\"}},\"required\":[\"z\"],\"additionalProperties\":{\"enum\":[0,\"0\"]}}",
    };
    struct buffer text = {0};
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        struct json_document *schema, *value;
        struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, schemas[i]);
        int ended = 0;
        assert_int_equal(json_parse(schemas[i], strlen(schemas[i]), "schema", true, &schema, NULL), QR_OK);
        root = json_root(schema);
        for (int k = 0; k < 40; k++) {
            if (!answer(g, &text))
                continue;
            ended++;
            if (json_parse(text.data, text.length, "answer", false, &value, NULL) != QR_OK || !valid(root, json_root(value)))
                fail_msg("%s: %.*s", schemas[i], (int)text.length, text.data);
            json_close(value);
        }
        assert_true(ended > 10);
        json_close(schema);
        grammar_release(g);
    }
    buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_answers_are_valid)};
    return cmocka_run_group_tests(tests, grammar_set_up, grammar_tear_down);
}
