/* Calls as grammar: blocks that an answer to a chat request may hold, in the spelling of each prompt profile, and those that it
 * may not. Texts are cut into tokens as the prompt would be; the DSML token is written ｜DSML｜. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/grammars.h"

/* Whether the answer to the request may be that text; its end included. */
static bool may_be(enum chat_profile profile, const char *request, const char *text)
{
    const struct chat_options options = chat_options_default(profile);
    struct json_document *doc;
    struct chat chat;
    struct grammar *g;
    struct tok_ids ids = {0};
    const char *param;
    qr_error err = {0};
    assert_int_equal(json_parse(request, strlen(request), "request", false, &doc, NULL), QR_OK);
    assert_int_equal(chat_render(json_root(doc), &options, &chat, NULL, NULL), QR_OK);
    if (grammar_make_answer(&chat, profile, rig.tok, NULL, &g, NULL, &param, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_non_null(g);
    chat_free(&chat); /* the grammar needs neither */
    json_close(doc);
    struct grammar_run *run = run_of(&rig, g);
    assert_int_equal(tok_encode_markup(rig.tok, text, strlen(text), &ids, NULL), QR_OK);
    bool good = true;
    for (size_t i = 0; i < ids.count && good; i++)
        good = grammar_run_push(run, ids.data[i], NULL) == QR_OK;
    good &= grammar_run_complete(run);
    grammar_run_close(run);
    grammar_release(g);
    tok_ids_free(&ids);
    return good;
}

static void check(enum chat_profile profile, const char *request, const char *const *texts, bool want)
{
    for (; *texts; texts++)
        if (may_be(profile, request, *texts) != want)
            fail_msg("wanted %d: %s", want, *texts);
}

#define TOOL(extra)                                                                                                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{"         \
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"maximum\":9,\"minimum\":1},"                       \
    "\"note\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"city\"],\"additionalProperties\":false}" extra "}}"
#define BARE "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}"
#define REQUEST(rest) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," rest "}"
#define FORCED REQUEST("\"tools\":[" TOOL("") "," BARE "],\"tool_choice\":\"required\"")

/* V4.1's spelling. */
#define OPEN "\n\n<｜DSML｜ calls>"
#define CALL(name, inside) "\n<｜DSML｜ invoke name=\"" name "\">\n" inside "\n</｜DSML｜ invoke>"
#define TEXT(key, value) "<｜DSML｜ parameter name=\"" key "\" string=\"true\">" value "</｜DSML｜ parameter>"
#define JSON(key, value) "<｜DSML｜ parameter name=\"" key "\" string=\"false\">" value "</｜DSML｜ parameter>"
#define CLOSE "\n</｜DSML｜ calls>"

static void a_required_call_is_a_block_of_declared_calls(void **state)
{
    static const char *const good[] = {
        OPEN CALL("get", TEXT("city", "Paris")) CLOSE,
        OPEN CALL("get", TEXT("city", "a < b </p> \"q\"\n") "\n" JSON("days", "9")) CLOSE,
        OPEN CALL("get", TEXT("city", "") "\n" JSON("note", "null")) CLOSE,
        OPEN CALL("get", TEXT("city", "x") "\n" TEXT("note", "null")) CLOSE,
        OPEN CALL("now", "") CLOSE,
        OPEN CALL("now", "") CALL("get", TEXT("city", "x")) CLOSE,
        NULL,
    };
    static const char *const bad[] = {
        "",
        "Hello",
        OPEN CLOSE,
        OPEN CALL("got", TEXT("city", "Paris")) CLOSE,
        OPEN CALL("get", "") CLOSE,
        OPEN CALL("get", JSON("city", "\"Paris\"")) CLOSE,
        OPEN CALL("get", TEXT("city", "x") "\n" JSON("days", "10")) CLOSE,
        OPEN CALL("get", TEXT("city", "x") "\n" TEXT("days", "9")) CLOSE,
        OPEN CALL("get", JSON("days", "9") "\n" TEXT("city", "x")) CLOSE,
        OPEN CALL("get", TEXT("city", "x") "\n" JSON("more", "9")) CLOSE,
        OPEN CALL("get", TEXT("city", "x") "\n" TEXT("city", "y")) CLOSE,
        OPEN CALL("get", "{\"city\": \"Paris\"}") CLOSE,
        OPEN CALL("get", TEXT("city", "Paris")),
        OPEN CALL("get", TEXT("city", "Paris")) CLOSE "more",
        "Hello" OPEN CALL("now", "") CLOSE,
        "\n\n<｜DSML｜tool_calls>" CALL("now", "") CLOSE,
        NULL,
    };
    (void)state;
    check(CHAT_V41, FORCED, good, true);
    check(CHAT_V41, FORCED, bad, false);
}

static void a_named_tool_is_called_once(void **state)
{
    static const char request[] =
        REQUEST("\"tools\":[" TOOL("") "," BARE "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}");
    static const char *const good[] = {OPEN CALL("now", "") CLOSE, NULL};
    static const char *const bad[] = {OPEN CALL("get", TEXT("city", "x")) CLOSE, OPEN CALL("now", "") CALL("now", "") CLOSE, NULL};
    static const char one_by_one[] = REQUEST("\"tools\":[" BARE "],\"tool_choice\":\"required\",\"parallel_tool_calls\":false");
    (void)state;
    check(CHAT_V41, request, good, true);
    check(CHAT_V41, request, bad, false);
    check(CHAT_V41, one_by_one, good, true);
    check(CHAT_V41, one_by_one, &bad[1], false);
}

static void v4_has_its_own_spelling(void **state)
{
    static const char *const good[] = {
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter name=\"city\" string=\"true\">x</｜DSML｜parameter>"
        "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        NULL};
    static const char *const bad[] = {OPEN CALL("now", "") CLOSE, NULL};
    (void)state;
    check(CHAT_V4B, FORCED, good, true);
    check(CHAT_V4B, FORCED, bad, false);
}

/* The forced beginning is what the prompt's own text would be cut into, and nothing else. */
static void the_beginning_is_forced_by_its_ids(void **state)
{
    struct json_document *doc;
    struct chat chat;
    struct grammar *g;
    struct tok_ids ids = {0};
    struct prompt p = {.count = 0};
    const struct chat_options options = chat_options_default(CHAT_V41);
    const char *param;
    (void)state;
    assert_int_equal(json_parse(FORCED, strlen(FORCED), "request", false, &doc, NULL), QR_OK);
    assert_int_equal(chat_render(json_root(doc), &options, &chat, NULL, NULL), QR_OK);
    assert_int_equal(grammar_make_answer(&chat, CHAT_V41, rig.tok, NULL, &g, NULL, &param, NULL), QR_OK);
    chat_write_forced_call(&p, CHAT_V41);
    assert_int_equal(prompt_ids(&p, rig.tok, &ids, NULL), QR_OK);
    struct grammar_run *run = run_of(&rig, g);
    for (size_t i = 0; i < ids.count; i++) {
        assert_int_equal(mask_is_right(&rig, run), 1);
        assert_int_equal(grammar_run_push(run, ids.data[i], NULL), QR_OK);
    }
    assert_true(mask_is_right(&rig, run) > 1);
    grammar_run_close(run);
    grammar_release(g);
    tok_ids_free(&ids);
    prompt_free(&p);
    chat_free(&chat);
    json_close(doc);
}

static void keep_line(void *user, enum qr_log_level level, const char *line)
{
    assert_int_equal(level, QR_LOG_WARN);
    snprintf(user, 300, "%s", line);
}

/* What becomes of a forced call of a tool with such parameters. */
static qr_status make_parameters(const char *parameters, const char *extra, char said[300], qr_error *err)
{
    const struct chat_options options = chat_options_default(CHAT_V41);
    const struct qr_log log = {.write = keep_line, .user = said, .level = QR_LOG_WARN};
    char request[800];
    const char *param;
    struct json_document *doc;
    struct chat chat;
    struct grammar *g = NULL;
    said[0] = '\0';
    snprintf(request, sizeof request,
             REQUEST("\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"write\"%s,"
                     "\"parameters\":%s}}]"), extra, parameters);
    assert_int_equal(json_parse(request, strlen(request), "request", false, &doc, NULL), QR_OK);
    assert_int_equal(chat_render(json_root(doc), &options, &chat, NULL, NULL), QR_OK);
    const qr_status st = grammar_make_answer(&chat, CHAT_V41, rig.tok, &log, &g, NULL, &param, err);
    grammar_release(g);
    chat_free(&chat);
    json_close(doc);
    return st;
}

/* Of parameters that take a large grammar. */
static qr_status make_large(int least, const char *extra, char said[300], qr_error *err)
{
    char parameters[200];
    snprintf(parameters, sizeof parameters, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":%d},"
             "\"b\":{\"type\":\"string\",\"minLength\":%d}}}", least, least);
    return make_parameters(parameters, extra, said, err);
}

static void a_schema_that_is_too_large_is_a_hint_that_the_log_tells_of_or_refused_by_name(void **state)
{
    (void)state;
    qr_error err = {0};
    char said[300];
    assert_int_equal(make_large(4, "", said, &err), QR_OK);
    assert_string_equal(said, "");
    assert_int_equal(make_large(16000, "", said, &err), QR_OK);
    assert_non_null(strstr(said, "the schema of the tool write is only a hint"));
    assert_non_null(strstr(said, "16384 nodes"));
    assert_int_equal(make_large(16000, ",\"strict\":true", said, &err), QR_BAD_REQUEST);
    assert_non_null(strstr(err.message, "the parameters of write take too large a grammar: more than 131072 nodes"));
    assert_int_equal(make_large(20000, "", said, &err), QR_OK); /* not supported at all */
    assert_non_null(strstr(said, "minLength"));
    assert_int_equal(make_parameters("{\"type\":\"string\"}", "", said, &err), QR_OK);
    assert_non_null(strstr(said, "nothing is held to: no call could fit it"));
    assert_int_equal(make_parameters("{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", "", said, &err), QR_OK);
    assert_non_null(strstr(said, "the declared names are held to: no call could fit it"));
    assert_int_equal(make_parameters("{\"type\":\"object\",\"properties\":{\"a>b\":{}}}", "", said, &err), QR_OK);
    assert_non_null(strstr(said, "a>b"));
    assert_int_equal(make_parameters("{\"type\":\"object\",\"properties\":{\"a>b\":{}}}", ",\"strict\":true", said, &err), QR_BAD_REQUEST);
    assert_non_null(strstr(err.message, "a>b"));
}

/* More tools than a grammar holds the schemas of: the first are held to theirs, others to their names, the last to nothing, and a
 * strict one behind them to its own. */
static void tools_that_are_not_strict_are_never_too_many(void **state)
{
    static const char *const good[] = {OPEN CALL("tool_0", TEXT("p0", "a") "\n" JSON("p1", "3")) CLOSE, OPEN CALL("tool_60", JSON("p1", "[]")) CLOSE,
                                       OPEN CALL("tool_299", TEXT("any", "x") "\n" JSON("more", "{}")) CLOSE, OPEN CALL("strict", JSON("p1", "3")) CLOSE, NULL};
    static const char *const bad[] = {OPEN CALL("tool_0", JSON("p1", "[]")) CLOSE, OPEN CALL("tool_0", TEXT("any", "x")) CLOSE, OPEN CALL("tool_60", TEXT("any", "x")) CLOSE,
                                      OPEN CALL("tool_300", TEXT("any", "x")) CLOSE, OPEN CALL("strict", JSON("p1", "[]")) CLOSE, NULL};
    const struct chat_options options = chat_options_default(CHAT_V41);
    (void)state;
    char *request = qr_calloc(1, 1 << 20), said[300] = "", properties[1200] = "", *at = request;
    const struct qr_log log = {.write = keep_line, .user = said, .level = QR_LOG_WARN};
    const char *param;
    struct json_document *doc;
    struct chat chat;
    struct grammar *g = NULL;
    qr_error err = {0};
    for (int i = 0; i < 20; i++)
        sprintf(properties + strlen(properties), "%s\"p%d\":{\"type\":\"%s\"}", i ? "," : "", i, i % 2 ? "integer" : "string");
    at += sprintf(at, "{\"messages\":[{\"role\":\"user\",\"content\":\"Go.\"}],\"tool_choice\":\"required\",\"thinking\":false,\"tools\":[");
    for (int i = 0; i < 300; i++)
        at += sprintf(at, "{\"type\":\"function\",\"function\":{\"name\":\"tool_%d\",\"parameters\":{\"type\":\"object\",\"properties\":{%s},"
                      "\"additionalProperties\":false}}},", i, properties);
    sprintf(at, "{\"type\":\"function\",\"function\":{\"name\":\"strict\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"p1\":{\"type\":"
                "\"integer\"}},\"additionalProperties\":false}}}]}");
    must(json_parse(request, strlen(request), "request", false, &doc, &err), &err);
    must(chat_render(json_root(doc), &options, &chat, NULL, &err), &err);
    must(grammar_make_answer(&chat, CHAT_V41, rig.tok, &log, &g, NULL, &param, &err), &err);
    assert_non_null(strstr(said, "the schema of the tool tool_299 is only a hint, of its parameters nothing is held to: with the tools before it"));
    grammar_release(g);
    chat_free(&chat);
    json_close(doc);
    check(CHAT_V41, request, good, true);
    check(CHAT_V41, request, bad, false);
    qr_free(request);
}

static void strict_tools_leave_text_free_and_hold_calls(void **state)
{
    static const char request[] = REQUEST("\"tools\":[" TOOL(",\"strict\":true") "," BARE "]");
    static const char *const good[] = {
        "", "Hello", "a < b </ c <", "Look:" OPEN CALL("get", TEXT("city", "x") "\n" JSON("days", "3")) CLOSE, OPEN CALL("now", "") CLOSE, NULL};
    static const char *const bad[] = {
        "Look:" OPEN CALL("get", JSON("days", "3")) CLOSE, "Look:" OPEN CALL("gets", "") CLOSE, "a ｜DSML｜ b", "</｜DSML｜ calls>",
        OPEN CALL("now", "") CLOSE " and more", "</think>", NULL};
    (void)state;
    check(CHAT_V41, request, good, true);
    check(CHAT_V41, request, bad, false);
}

static void a_format_beside_tools_is_json_or_calls(void **state)
{
    static const char request[] = REQUEST("\"tools\":[" BARE "],\"response_format\":{\"type\":\"json_object\"}");
    static const char *const good[] = {"{\"a\": 1}", OPEN CALL("now", "") CLOSE, NULL};
    static const char *const bad[] = {"Hello", "[]", "{}" OPEN CALL("now", "") CLOSE, NULL};
    (void)state;
    check(CHAT_V41, request, good, true);
    check(CHAT_V41, request, bad, false);
}

/* A schema that says more than is supported is no reason to refuse a call of a tool that is not strict. */
static void other_tools_are_held_to_their_names(void **state)
{
    static const char request[] =
        REQUEST("\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                "\"properties\":{\"u\":{\"type\":\"string\",\"format\":\"uri\"},\"n\":{\"type\":\"number\",\"multipleOf\":2}},\"required\":[\"u\"]}}}]");
    static const char *const good[] = {OPEN CALL("f", TEXT("u", "x:y") "\n" JSON("n", "3")) CLOSE, OPEN CALL("f", "") CLOSE, NULL};
    static const char *const bad[] = {OPEN CALL("f", JSON("u", "1")) CLOSE, OPEN CALL("f", TEXT("v", "1")) CLOSE, NULL};
    (void)state;
    check(CHAT_V41, request, good, true);
    check(CHAT_V41, request, bad, false);
}

static void a_hint_leaves_out_names_that_cannot_be_spelled_and_holds_to_none_where_none_is_declared(void **state)
{
    static const char some[] = REQUEST("\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                                       "\"type\":\"object\",\"properties\":{\"a>b\":{},\"u\":{\"type\":\"string\"}}}}}]");
    static const char none[] = REQUEST("\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                                       "\"type\":\"object\",\"patternProperties\":{\"^x\":{}}}}}]");
    static const char *const declared[] = {OPEN CALL("f", TEXT("u", "x")) CLOSE, OPEN CALL("f", "") CLOSE, NULL};
    static const char *const others[] = {OPEN CALL("f", JSON("z", "3")) CLOSE, OPEN CALL("f", TEXT("a", "1") "\n" JSON("z", "{}")) CLOSE, NULL};
    (void)state;
    check(CHAT_V41, some, declared, true);
    check(CHAT_V41, some, others, false);
    check(CHAT_V41, none, declared, true);
    check(CHAT_V41, none, others, true);
}

static void parameters_that_nobody_declared_come_where_the_schema_lets_them(void **state)
{
    static const char request[] =
        REQUEST("\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                "\"properties\":{\"ab\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"integer\"}}}}]");
    static const char *const good[] = {OPEN CALL("f", JSON("ab", "null") "\n" JSON("a", "3") "\n" JSON("abc", "4")) CLOSE, OPEN CALL("f", JSON("z", "1")) CLOSE, NULL};
    static const char *const bad[] = {OPEN CALL("f", JSON("ab", "3")) CLOSE, OPEN CALL("f", JSON("", "3")) CLOSE, OPEN CALL("f", TEXT("z", "1")) CLOSE, NULL};
    (void)state;
    check(CHAT_V41, request, good, true);
    check(CHAT_V41, request, bad, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_required_call_is_a_block_of_declared_calls),
        cmocka_unit_test(a_named_tool_is_called_once),
        cmocka_unit_test(v4_has_its_own_spelling),
        cmocka_unit_test(the_beginning_is_forced_by_its_ids),
        cmocka_unit_test(a_schema_that_is_too_large_is_a_hint_that_the_log_tells_of_or_refused_by_name),
        cmocka_unit_test(strict_tools_leave_text_free_and_hold_calls),
        cmocka_unit_test(a_format_beside_tools_is_json_or_calls),
        cmocka_unit_test(other_tools_are_held_to_their_names),
        cmocka_unit_test(a_hint_leaves_out_names_that_cannot_be_spelled_and_holds_to_none_where_none_is_declared),
        cmocka_unit_test(parameters_that_nobody_declared_come_where_the_schema_lets_them),
        cmocka_unit_test(tools_that_are_not_strict_are_never_too_many),
    };
    return cmocka_run_group_tests(tests, grammar_set_up, grammar_tear_down);
}
