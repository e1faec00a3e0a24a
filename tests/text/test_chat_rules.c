/* Rules of chat requests that the goldens leave to others. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "text/chat.h"
#include "text/chat_json.h"

/* ---- JSON as Python writes it (2.7) ---- */

static void assert_written(const char *json, const char *want)
{
    struct json_document *doc;
    struct buffer out = {0};
    assert_int_equal(json_parse(json, strlen(json), "test", false, &doc, NULL), QR_OK);
    chat_json_write(&out, json_root(doc));
    assert_string_equal(out.data, want);
    buffer_free(&out);
    json_close(doc);
}

static void numbers_look_as_in_python(void **state)
{
    static const char *const pairs[][2] = {
        {"0", "0"},
        {"-0", "0"},
        {"-0.0", "-0.0"},
        {"0e5", "0.0"},
        {"-12", "-12"},
        {"1.10", "1.1"},
        {"1e2", "100.0"},
        {"1e15", "1000000000000000.0"},
        {"1e16", "1e+16"},
        {"123456789012345678", "123456789012345678"},
        {"12345678901234567.0", "1.2345678901234568e+16"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"0.00012345", "0.00012345"},
        {"1.5e300", "1.5e+300"},
        {"5e-324", "5e-324"},
        {"2.5e-10", "2.5e-10"},
        {"1e22", "1e+22"},
        {"1e23", "1e+23"},
        {"9007199254740993.0", "9007199254740992.0"},
        {"0.1", "0.1"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"100.5", "100.5"},
        {"1e999", "Infinity"},
        {"-1e999", "-Infinity"},
        {"1E5", "100000.0"},
        {"3.0", "3.0"},
        {"999999999999999.9", "999999999999999.9"},
        {"9999999999999998.0", "9999999999999998.0"},
        {"1.0000000000000002", "1.0000000000000002"},
        {"99999999999999999999999999999999999999999999999999", "99999999999999999999999999999999999999999999999999"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        assert_written(pairs[i][0], pairs[i][1]);
}

static void strings_and_objects_look_as_in_python(void **state)
{
    (void)state;
    assert_written("[ ]", "[]");
    assert_written("{ }", "{}");
    assert_written("{\"a\":[1,{\"b\":null}],\"c\":true,\"d\":false}",
                   "{\"a\": [1, {\"b\": null}], \"c\": true, \"d\": false}");
    assert_written("\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\\\/\\u007f\\u00e9\\ud83d\\ude00\"",
                   "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\x7fé😀\"");
    assert_written("{\"a\":1,\"b\":2,\"a\":3,\"c\":4,\"b\":{\"x\":1,\"x\":2}}",
                   "{\"a\": 3, \"b\": {\"x\": 2}, \"c\": 4}");
    /* A key may hold NUL. */
    assert_written("{\"a\\u0000b\":1,\"a\\u0000c\":2}", "{\"a\\u0000b\": 1, \"a\\u0000c\": 2}");
}

/* ---- requests ---- */

struct given {
    struct json_document *doc;
    struct chat chat;
    struct chat_issue issue;
    qr_error err;
    qr_status status;
};

static struct given render_with(const char *request, const struct chat_options *options)
{
    struct given g = {0};
    if (json_parse(request, strlen(request), "request", false, &g.doc, &g.err) != QR_OK)
        fail_msg("%s: %s", request, g.err.message);
    g.status = chat_render(json_root(g.doc), options, &g.chat, &g.issue, &g.err);
    return g;
}

static struct given render(const char *request, enum chat_profile profile)
{
    struct chat_options options = chat_options_default(profile);
    return render_with(request, &options);
}

static void done(struct given *g)
{
    chat_free(&g->chat);
    json_close(g->doc);
}

static void assert_prompt(const char *request, enum chat_profile profile, const char *want)
{
    struct given g = render(request, profile);
    if (g.status != QR_OK)
        fail_msg("%s: %s", request, g.err.message);
    assert_string_equal(g.chat.prompt.text.data, want);
    done(&g);
}

/* `param`: where the refusal points to. */
static void assert_refused(const char *request, enum chat_profile profile, const char *code, const char *param)
{
    struct given g = render(request, profile);
    if (g.status != QR_BAD_REQUEST)
        fail_msg("%s was not refused", request);
    assert_int_equal(g.issue.status, 400);
    assert_string_equal(g.issue.param, param);
    assert_true(strncmp(g.err.message, param, strlen(param)) == 0);
    if (code)
        assert_string_equal(g.issue.code, code);
    else
        assert_null(g.issue.code);
    done(&g);
}

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Q\"}]"
#define OFF ",\"thinking\":false}"
#define BOS "<｜begin▁of▁sentence｜>"
#define EFFORT(n) "Reasoning Effort: " n " (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

static void every_effort_has_its_number_or_text(void **state)
{
    static const struct {
        const char *name;
        enum chat_effort_text v4a, v4b;
        int v41;
    } want[] = {
        {"\"minimal\"", EFFORT_TEXT_NONE, EFFORT_TEXT_NONE, 50},
        {"\"low\"", EFFORT_TEXT_NONE, EFFORT_TEXT_NONE, 50},
        {"\"medium\"", EFFORT_TEXT_NONE, EFFORT_TEXT_MAXIMUM, 75},
        {"\"high\"", EFFORT_TEXT_NONE, EFFORT_TEXT_MAXIMUM, 75},
        {"\"xhigh\"", EFFORT_TEXT_MAXIMUM, EFFORT_TEXT_MAXIMUM, 75},
        {"\"max\"", EFFORT_TEXT_MAXIMUM, EFFORT_TEXT_BEYOND, 100},
        {"\"ultra\"", EFFORT_TEXT_MAXIMUM, EFFORT_TEXT_BEYOND, 100},
        {"null", EFFORT_TEXT_NONE, EFFORT_TEXT_MAXIMUM, 75},
    };
    char request[200];
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        snprintf(request, sizeof request, "{" USER ",\"reasoning_effort\":%s}", want[i].name);
        struct given a = render(request, CHAT_V4A), b = render(request, CHAT_V4B), c = render(request, CHAT_V41);
        assert_true(a.chat.thinking.on && a.chat.thinking.text == want[i].v4a);
        assert_true(b.chat.thinking.on && b.chat.thinking.text == want[i].v4b);
        assert_true(c.chat.thinking.on && c.chat.thinking.number == want[i].v41);
        done(&a);
        done(&b);
        done(&c);
    }
}

static void efforts_of_the_wrong_kind_are_refused(void **state)
{
    static const char *const bad[] = {"\"050\"", "\"0\"", "\"101\"", "\"\"", "\"+5\"", "5.0",
                                      "1e1",     "-1",    "true",    "[]",   "{}",     "\"1000\""};
    char request[200];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(request, sizeof request, "{" USER ",\"reasoning_effort\":%s" OFF, bad[i]);
        assert_refused(request, CHAT_V41, NULL, "reasoning_effort");
    }
    assert_refused("{" USER ",\"reasoning\":{\"effort\":\"x\"}}", CHAT_V41, NULL, "reasoning.effort");
    assert_refused("{" USER ",\"output_config\":{\"effort\":7}}", CHAT_V4B, NULL, "output_config.effort");
    assert_refused("{" USER ",\"thinking\":{\"type\":\"on\"}}", CHAT_V41, NULL, "thinking.type");
    assert_refused("{" USER ",\"thinking\":\"on\"}", CHAT_V41, NULL, "thinking");
    assert_refused("{" USER ",\"think\":1}", CHAT_V41, NULL, "think");
    assert_refused("{" USER ",\"chat_template_kwargs\":[]}", CHAT_V41, NULL, "chat_template_kwargs");
    assert_refused("{" USER ",\"chat_template_kwargs\":{\"thinking_mode\":\"x\"}}", CHAT_V41, NULL,
                   "chat_template_kwargs.thinking_mode");
    assert_refused("{" USER ",\"chat_template_kwargs\":{\"drop_thinking\":0}}", CHAT_V41, NULL,
                   "chat_template_kwargs.drop_thinking");
}

static bool thinks(const char *request)
{
    struct given g = render(request, CHAT_V41);
    assert_int_equal(g.status, QR_OK);
    bool on = g.chat.thinking.on;
    assert_int_equal(g.chat.start, on ? CHAT_REASONING : CHAT_CONTENT);
    done(&g);
    return on;
}

static void the_first_source_that_speaks_of_thinking_decides(void **state)
{
    (void)state;
    assert_false(thinks("{" USER ",\"think\":false}"));
    assert_true(thinks("{" USER ",\"think\":true,\"reasoning_effort\":\"none\"}"));
    assert_true(thinks("{" USER ",\"thinking\":true,\"think\":false}"));
    assert_false(thinks("{" USER ",\"reasoning\":{\"effort\":\"none\"},\"chat_template_kwargs\":{\"thinking\":true}}"));
    assert_true(thinks("{" USER ",\"chat_template_kwargs\":{\"enable_thinking\":true,\"reasoning_effort\":\"none\"}}"));
    assert_true(thinks("{" USER ",\"chat_template_kwargs\":{\"thinking\":true,\"enable_thinking\":false}}"));
    assert_false(thinks("{" USER ",\"model\":\"deepseek-chat\"}"));
    assert_true(
        thinks("{" USER ",\"model\":\"deepseek-chat\",\"chat_template_kwargs\":{\"thinking_mode\":\"thinking\"}}"));
    assert_false(thinks("{" USER ",\"model\":\"deepseek-reasoner\",\"reasoning_effort\":\"none\"}"));
    assert_false(
        thinks("{" USER ",\"model\":\"deepseek-reasoner\",\"chat_template_kwargs\":{\"thinking_effort\":\"none\"}}"));
    assert_true(thinks("{" USER ",\"thinking\":null,\"reasoning_effort\":null,\"chat_template_kwargs\":null}"));
}

static void the_server_decides_where_a_request_is_silent(void **state)
{
    struct chat_options options = chat_options_default(CHAT_V41);
    (void)state;
    options.thinking = false;
    options.effort = "7";
    struct given g = render_with("{" USER "}", &options);
    assert_string_equal(g.chat.prompt.text.data, BOS "<｜User｜>Q<｜Assistant｜></think>");
    done(&g);
    g = render_with("{" USER ",\"thinking\":true}", &options);
    assert_string_equal(g.chat.prompt.text.data, BOS "<｜System｜>" EFFORT("7") "<｜User｜>Q<｜Assistant｜><think>");
    done(&g);
    options.profile = CHAT_V4B;
    g = render_with("{" USER "}", &options);
    assert_int_equal(g.status, QR_BAD_ARGUMENT);
    done(&g);
}

static void without_a_generation_prompt_the_conversation_just_ends(void **state)
{
    (void)state;
    assert_prompt("{" USER ",\"add_generation_prompt\":false" OFF, CHAT_V41, BOS "<｜User｜>Q");
    assert_prompt("{\"messages\":[{\"role\":\"system\",\"content\":\"S\"}],\"add_generation_prompt\":false" OFF,
                  CHAT_V41, BOS "<｜System｜>S");
    assert_prompt("{\"messages\":[{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":\"A\"}],"
                  "\"add_generation_prompt\":false" OFF,
                  CHAT_V4B, BOS "<｜User｜>Q<｜Assistant｜></think>A<｜end▁of▁sentence｜>");
    assert_refused("{" USER ",\"add_generation_prompt\":1}", CHAT_V41, NULL, "add_generation_prompt");
}

static bool continues(const char *last, enum chat_section start)
{
    char request[300];
    snprintf(request, sizeof request,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",%s}],"
             "\"continue_final_message\":true}",
             last);
    struct given g = render(request, CHAT_V41);
    assert_int_equal(g.status, QR_OK);
    assert_int_equal(g.chat.start, start);
    bool continued = g.chat.continued;
    done(&g);
    return continued;
}

static void the_parser_is_told_what_is_continued(void **state)
{
    (void)state;
    assert_true(continues("\"content\":\"A\"", CHAT_CONTENT));
    assert_false(continues("\"content\":\"\"", CHAT_CONTENT));
    assert_false(continues("\"content\":null", CHAT_CONTENT));
    assert_true(
        continues("\"content\":[{\"type\":\"text\",\"text\":\"\"},{\"type\":\"text\",\"text\":\"\"}]", CHAT_CONTENT));
    assert_true(continues("\"content\":null,\"reasoning\":\"r\"", CHAT_REASONING));
    assert_true(continues("\"content\":\"A\",\"reasoning\":\"r\"", CHAT_CONTENT));
    assert_true(continues("\"tool_calls\":[{\"function\":{\"name\":\"t\"}}]", CHAT_CONTENT));
    struct given g = render("{" USER "}", CHAT_V41);
    assert_false(g.chat.continued);
    done(&g);
}

/* ---- messages ---- */

static void refusals_name_the_place(void **state)
{
    static const struct {
        const char *messages, *code, *param;
    } bad[] = {
        {"null", NULL, "messages"},
        {"{}", NULL, "messages"},
        {"[1]", NULL, "messages[0]"},
        {"[{\"content\":\"x\"}]", NULL, "messages[0]"},
        {"[{\"role\":7}]", NULL, "messages[0]"},
        {"[{\"role\":\"user\",\"content\":7}]", NULL, "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":{}}]", NULL, "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[\"x\"]}]", NULL, "messages[0].content[0]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", NULL, "messages[0].content[0]"},
        {"[{\"role\":\"user\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"},{\"type\":\"image_"
         "url\"}]}]",
         "image_bad_url", "messages[1].content[1]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"u\",\"detail\":\"x\"}}]}]",
         NULL, "messages[0].content[0]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"file\",\"file\":{\"file_id\":\"f\"}}]}]", "image_bad_url",
         "messages[0].content[0]"},
        {"[{\"role\":\"developer\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"u\"}]}]", "image_role",
         "messages[0].content[0]"},
        {"[{\"role\":\"assistant\",\"reasoning\":7}]", NULL, "messages[0]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", NULL, "messages[0]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", NULL, "messages[0].tool_calls[0]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", NULL, "messages[0].tool_calls[0]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"a::b::c\"}}]}]", NULL,
         "messages[0].tool_calls[0]"},
    };
    char request[400];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(request, sizeof request, "{\"messages\":%s}", bad[i].messages);
        assert_refused(request, CHAT_V41, bad[i].code, bad[i].param);
    }
    assert_refused("[]", CHAT_V41, NULL, "request");
    assert_refused("{}", CHAT_V41, NULL, "messages");
}

static void pictures_are_listed_in_the_order_of_their_places(void **state)
{
    struct given g = render(
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"u1\"},"
        "{\"type\":\"input_image\",\"image_url\":\"u2\",\"detail\":\"low\"},{\"type\":\"image\",\"image\":\"u3\"},"
        "{\"type\":\"file\",\"file\":{\"file_data\":\"u4\"}}]},{\"role\":\"assistant\",\"tool_calls\":["
        "{\"id\":\"a\",\"function\":{\"name\":\"t\"}},{\"id\":\"b\",\"function\":{\"name\":\"t\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"u6\"}}"
        "]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},"
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"u5\",\"detail\":\"high\"}}]}]}",
        CHAT_V41);
    static const char *const sources[] = {"u1", "u2", "u3", "u4", "u5", "u6"};
    size_t markup = 0;
    (void)state;
    assert_int_equal(g.status, QR_OK);
    assert_int_equal(g.chat.image_count, 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(g.chat.images[i]->source, sources[i]);
    assert_string_equal(g.chat.images[1]->detail, "low");
    assert_string_equal(g.chat.images[4]->detail, "high");
    assert_null(g.chat.images[0]->detail);
    assert_string_equal(g.chat.images[4]->param, "messages[3].content[1]");
    for (size_t i = 0; i < g.chat.prompt.count; i++) {
        const struct prompt_segment *s = &g.chat.prompt.segments[i];
        markup += s->markup && s->length == strlen(TOKEN_IMAGE) &&
                  memcmp(g.chat.prompt.text.data + s->offset, TOKEN_IMAGE, s->length) == 0;
    }
    assert_int_equal(markup, 6);
    done(&g);
}

static void an_unknown_part_of_a_tool_result_is_named_in_its_place(void **state)
{
    (void)state;
    assert_prompt(
        "{\"messages\":[{\"role\":\"tool\",\"content\":[{\"type\":\"audio\"},{\"type\":\"text\",\"text\":\"x\"}]}]" OFF,
        CHAT_V41, BOS "<｜User｜><tool_result>[Unsupported audio]\n\nx</tool_result><｜Assistant｜></think>");
}

static void arguments_that_are_no_object_become_one_parameter(void **state)
{
    static const char *const pairs[][2] = {
        {"\"\"", ""},
        {"\"7\"", "7"},
        {"\"null\"", "null"},
        {"[1,2.50]", "[1, 2.5]"},
        {"7", "7"},
        {"true", "true"},
        {"\"\\\"x\\\"\"", "\"x\""},
        {"\"{\\\"a\\\": NaN}\"", "{\"a\": NaN}"},
        {"\"{} {}\"", "{} {}"},
        {"\"{\\\"a\\\": \\\"\\\\ud800\\\"\"", "{\"a\": \"\\ud800\""}, /* broken besides */
        {"\"{\\\"a\\\": \\\"\\n\\\"}\"", "{\"a\": \"\n\"}"},
    };
    char request[400], want[400];
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        snprintf(request, sizeof request,
                 "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"t\",\"arguments\":%"
                 "s}}]}],"
                 "\"add_generation_prompt\":false" OFF,
                 pairs[i][0]);
        snprintf(want, sizeof want,
                 BOS "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"t\">\n<｜DSML｜ parameter name=\"arguments\" "
                     "string=\"true\">%s</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
                     "calls><｜end▁of▁sentence｜>",
                 pairs[i][1]);
        assert_prompt(request, CHAT_V41, want);
    }
    assert_refused("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"t\",\"arguments\":"
                   "\"\\\"{\\\\\\\"a\\\\\\\": \\\\\\\"\\\\\\\\ud800\\\\\\\"}\\\"\"}}]}]}",
                   CHAT_V41, NULL, "messages[0].tool_calls[0]"); /* in the second string */
}

/* ---- tools and the form of the answer ---- */

#define TOOLS "\"tools\":[{\"function\":{\"name\":\"t\"}},{\"namespace\":\"n\",\"function\":{\"name\":\"t\"}}]"

static void tools_are_declared_by_their_qualified_names(void **state)
{
    struct given g = render(
        "{" USER "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"namespace\":\"n\",\"function\":{\"name\":\"t\"}},"
        "\"parallel_tool_calls\":false}",
        CHAT_V41);
    (void)state;
    assert_int_equal(g.status, QR_OK);
    assert_int_equal(g.chat.tools.count, 2);
    assert_int_equal(g.chat.tool_choice, TOOL_CHOICE_NAMED);
    assert_string_equal(g.chat.forced->name, "n::t");
    assert_false(g.chat.parallel_calls);
    assert_ptr_equal(tool_list_find(&g.chat.tools, "t", 1), &g.chat.tools.items[0]);
    assert_null(tool_list_find(&g.chat.tools, "n::", 3));
    done(&g);
    g = render("{" USER "," TOOLS ",\"tool_choice\":\"none\"}", CHAT_V41);
    assert_int_equal(g.chat.tools.count, 0);
    assert_null(tool_list_find(&g.chat.tools, "t", 1));
    assert_true(g.chat.parallel_calls);
    done(&g);
}

static void wrong_tools_are_refused(void **state)
{
    static const struct {
        const char *members, *param;
    } bad[] = {
        {"\"tools\":{}", "tools"},
        {"\"tools\":[1]", "tools[0]"},
        {"\"tools\":[{\"type\":\"web_search\"}]", "tools[0]"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools[0]"},
        {"\"tools\":[{\"function\":{\"name\":\"\"}}]", "tools[0]"},
        {"\"tools\":[{\"function\":{\"name\":\"a\\u0000b\"}}]", "tools[0]"},
        {"\"tools\":[{\"namespace\":\"n\\u0000\",\"function\":{\"name\":\"t\"}}]", "tools[0]"},
        {"\"tools\":[{\"function\":{\"name\":\"t\"}},{\"function\":{\"name\":\"t\"}}]", "tools[1]"},
        {"\"tools\":[{\"namespace\":7,\"function\":{\"name\":\"t\"}}]", "tools[0]"},
        {"\"tools\":[{\"namespace\":\"a\",\"function\":{\"name\":\"t\",\"namespace\":\"b\"}}]", "tools[0]"},
        {"\"tools\":[{\"namespace\":\"a::b\",\"function\":{\"name\":\"t\"}}]", "tools[0]"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"tool_choice\":\"any\"," TOOLS, "tool_choice"},
        {"\"tool_choice\":7," TOOLS, "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\"}," TOOLS, "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"u\"}}," TOOLS, "tool_choice"},
        {"\"parallel_tool_calls\":1", "parallel_tool_calls"},
        {"\"response_format\":7", "response_format"},
        {"\"response_format\":{\"type\":\"xml\"}", "response_format"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":7}}",
         "response_format.json_schema"},
        {"\"continue_final_message\":7", "continue_final_message"},
    };
    char request[400];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(request, sizeof request, "{" USER ",%s}", bad[i].members);
        assert_refused(request, CHAT_V41, NULL, bad[i].param);
    }
}

static void a_schema_to_reply_by_follows_the_tools(void **state)
{
    struct given g =
        render("{" USER "," TOOLS ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\","
               "\"schema\":{\"type\":\"object\"}}}" OFF,
               CHAT_V41);
    (void)state;
    assert_int_equal(g.status, QR_OK);
    assert_non_null(
        strstr(g.chat.prompt.text.data,
               "to invoke tool calls.\n\n\n## Response Format:\n\nYou MUST strictly adhere to the following "
               "schema to reply:\n{\"type\": \"object\"}<｜User｜>"));
    assert_true(g.chat.format && json_equals(json_get(g.chat.format, "type"), "object"));
    done(&g);
}

static void a_forced_call_is_begun_as_the_model_would(void **state)
{
    struct prompt p = {0};
    (void)state;
    chat_write_forced_call(&p, CHAT_V41);
    assert_string_equal(p.text.data, "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"");
    assert_int_equal(prompt_markup_count(&p), 2);
    prompt_free(&p);
    chat_write_forced_call(&p, CHAT_V4B);
    assert_string_equal(p.text.data, "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"");
    prompt_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_look_as_in_python),
        cmocka_unit_test(strings_and_objects_look_as_in_python),
        cmocka_unit_test(every_effort_has_its_number_or_text),
        cmocka_unit_test(efforts_of_the_wrong_kind_are_refused),
        cmocka_unit_test(the_first_source_that_speaks_of_thinking_decides),
        cmocka_unit_test(the_server_decides_where_a_request_is_silent),
        cmocka_unit_test(without_a_generation_prompt_the_conversation_just_ends),
        cmocka_unit_test(the_parser_is_told_what_is_continued),
        cmocka_unit_test(refusals_name_the_place),
        cmocka_unit_test(pictures_are_listed_in_the_order_of_their_places),
        cmocka_unit_test(an_unknown_part_of_a_tool_result_is_named_in_its_place),
        cmocka_unit_test(arguments_that_are_no_object_become_one_parameter),
        cmocka_unit_test(tools_are_declared_by_their_qualified_names),
        cmocka_unit_test(wrong_tools_are_refused),
        cmocka_unit_test(a_schema_to_reply_by_follows_the_tools),
        cmocka_unit_test(a_forced_call_is_begun_as_the_model_would),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
