/* label: full */
/* Answers under a grammar: they fit it, alone and in a batch, with drafts and without, with thinking and without, the same
 * bits each time; what a chat request asks of its answer becomes such a grammar. */
#include "support/engines.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "support/support.h"

#define USER(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define SHAPE                                                                                                              \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"sum\":{\"type\":\"integer\","  \
    "\"minimum\":10,\"maximum\":99},\"ok\":{\"type\":\"boolean\"}},\"required\":[\"name\",\"sum\",\"ok\"],"                \
    "\"additionalProperties\":false}"
#define FORMAT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":" SHAPE "}}"
#define ADD                                                                                                                \
    "{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{"          \
    "\"a\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99},\"b\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99},"  \
    "\"unit\":{\"type\":\"string\",\"enum\":[\"apples\",\"pears\"]}},\"required\":[\"a\",\"b\",\"unit\"],"                \
    "\"additionalProperties\":false}%s}}"
#define WORDS                                                                                                              \
    "{\"type\":\"function\",\"function\":{\"name\":\"words\",\"parameters\":{\"type\":\"object\",\"properties\":{"        \
    "\"text\":{\"type\":[\"string\",\"null\"],\"maxLength\":8}},\"required\":[\"text\"]}}}"

static struct opened open_with(const char *method, const char *verifier, int32_t at_once)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = method;
    o.verifier = verifier;
    o.num_speculative_tokens = method ? 5 : 0;
    o.max_num_seqs = at_once;
    o.max_model_len = 1024;
    return engine_open("models/tiny-v41", NULL, 2, &o);
}

/* A request: of a chat whose answer has to be something, or with a grammar of its own. */
static const struct asked {
    const char *chat;
    qr_grammar_kind kind;
    const char *grammar; /* NULL: the chat's */
    double temperature;
    int32_t most;
} asks[] = {
    {"{" USER("Add 17 and 25.") ",\"thinking\":false," FORMAT "}", 0, NULL, 0, 120},
    {"{" USER("Tell me of a cat.") ",\"thinking\":false,\"response_format\":{\"type\":\"json_object\"}}", 0, NULL, 0.9, 60},
    {"{" USER("What is 6 plus 7?") ",\"thinking\":false}", QR_GRAMMAR_REGEX, "(The sum is|It is) [0-9]{1,3}\\.", 0, 40},
    {"{" USER("Yes or no?") ",\"thinking\":false}", QR_GRAMMAR_CHOICE, "[\"yes\",\"no\",\"yes, but no\"]", 1.2, 20},
    {"{" USER("Add 3 and 4.") ",\"thinking\":false,\"tool_choice\":\"required\",\"tools\":[" ADD "," WORDS "]}", 0, NULL, 0, 160},
    {"{" USER("Add 3 and 4.") ",\"thinking\":true,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"words\"}},\"tools\":[" ADD "," WORDS "]}", 0, NULL, 0.7, 400},
    {"{" USER("Add 30 and 4.") ",\"thinking\":true," FORMAT "}", 0, NULL, 0, 400},
    {"{" USER("Add 5 and 4 with the tool.") ",\"thinking\":false,\"tools\":[" ADD "]}", 0, NULL, 0.8, 80},
    {"{" USER("Say a date.") ",\"thinking\":false}", QR_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"format\":\"date\"},\"minItems\":1,\"maxItems\":3}", 1, 80},
};
enum { ASKS = sizeof asks / sizeof *asks };

struct made {
    qr_chat *chat;
    qr_grammar *own;
    qr_sampling sampling;
    qr_request request;
};

static void ask(const struct opened *o, int i, struct made *m)
{
    const struct asked *a = &asks[i];
    qr_chat_info info;
    qr_error err = {0};
    char json[4096];
    snprintf(json, sizeof json, a->chat, ",\"strict\":true");
    if (qr_chat_open(o->model, json, strlen(json), NULL, &m->chat, NULL, &err) != QR_OK)
        fail_msg("%s", err.message);
    qr_chat_get_info(m->chat, &info);
    m->own = NULL;
    if (a->grammar)
        assert_int_equal(qr_grammar_open(o->model, a->kind, a->grammar, strlen(a->grammar), &m->own, NULL, NULL), QR_OK);
    m->sampling = (qr_sampling)QR_SAMPLING;
    m->sampling.temperature = a->temperature;
    m->sampling.seed = 40 + i;
    m->request = (qr_request)QR_REQUEST;
    m->request.tokens = info.tokens;
    m->request.token_count = info.token_count;
    m->request.sampling = &m->sampling;
    m->request.max_tokens = a->most;
    m->request.logprobs = 2;
    m->request.grammar = m->own ? m->own : qr_chat_grammar(m->chat);
    m->request.grammar_after_reasoning = info.starts_in_reasoning;
    assert_non_null(m->request.grammar);
}

static void forget(struct made *m)
{
    qr_grammar_close(m->own);
    qr_chat_close(m->chat);
}

/* ---- what an answer says ---- */

struct said {
    struct buffer content, name, arguments;
    int calls;
    qr_answer_end end;
};

static void take(struct said *s, const qr_delta *d, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (d[i].kind == QR_DELTA_CONTENT)
            buffer_append(&s->content, d[i].text, d[i].length);
        if (d[i].kind == QR_DELTA_CALL)
            buffer_append(&s->name, d[i].text, d[i].length);
        if (d[i].kind == QR_DELTA_ARGUMENTS)
            buffer_append(&s->arguments, d[i].text, d[i].length);
        s->calls += d[i].kind == QR_DELTA_CALL_END;
    }
}

static struct said read_answer(const struct made *m, const struct reply *r)
{
    struct said s = {.calls = 0};
    qr_parser *p;
    qr_parser_state state;
    const qr_delta *deltas;
    size_t count;
    const qr_event last = {.token = -1, .finish = r->finish, .stop_token = r->stop_token, .stop_string = -1};
    assert_int_equal(qr_parser_open(m->chat, NULL, &p, NULL), QR_OK);
    for (size_t i = 0; i < r->count; i++) {
        assert_int_equal(qr_parser_push(p, r->tokens[i], &deltas, &count, NULL), QR_OK);
        take(&s, deltas, count);
    }
    assert_int_equal(qr_parser_finish(p, &last, &deltas, &count, NULL), QR_OK);
    take(&s, deltas, count);
    qr_parser_get_state(p, &state);
    s.end = state.end;
    qr_parser_close(p);
    assert_true(buffer_append(&s.content, "", 1) && buffer_append(&s.name, "", 1) && buffer_append(&s.arguments, "", 1));
    return s;
}

static void free_said(struct said *s)
{
    buffer_free(&s->content);
    buffer_free(&s->name);
    buffer_free(&s->arguments);
}

static void is_shape(const char *text)
{
    struct json_document *doc;
    int64_t sum = 0;
    if (json_parse(text, strlen(text), "answer", true, &doc, NULL) != QR_OK)
        fail_msg("no JSON: %s", text);
    const struct json *o = json_root(doc);
    assert_int_equal(o->count, 3);
    assert_int_equal(json_get(o, "name")->kind, JSON_STRING);
    assert_true(json_int64(json_get(o, "sum"), &sum) && sum >= 10 && sum <= 99);
    assert_int_equal(json_get(o, "ok")->kind, JSON_BOOL);
    json_close(doc);
}

static void is_addition(const char *text)
{
    struct json_document *doc;
    int64_t a = -1, b = -1;
    if (json_parse(text, strlen(text), "arguments", true, &doc, NULL) != QR_OK)
        fail_msg("no JSON: %s", text);
    const struct json *unit = json_get(json_root(doc), "unit");
    assert_true(json_int64(json_get(json_root(doc), "a"), &a) && a >= 0 && a <= 99);
    assert_true(json_int64(json_get(json_root(doc), "b"), &b) && b >= 0 && b <= 99);
    assert_true(json_equals(unit, "apples") || json_equals(unit, "pears"));
    assert_int_equal(json_root(doc)->count, 3);
    json_close(doc);
}

/* What must hold of answer i, which has come to its end. */
static void check(int i, const struct made *m, const struct reply *r)
{
    struct said s = read_answer(m, r);
    print_message("request %d, %zu tokens: %.160s %s(%.160s)\n", i, r->count, s.content.data, s.name.data, s.arguments.data);
    if (r->finish == QR_FINISH_ERROR)
        fail_msg("request %d: %s", i, r->error.message);
    if (i != 1 && i != 7)
        assert_int_equal(s.end, i == 4 || i == 5 ? QR_ANSWER_TOOL_CALLS : QR_ANSWER_STOP);
    if (i == 0 || i == 6)
        is_shape(s.content.data);
    if (i == 1)
        assert_int_equal(s.content.data[0], '{');
    if (i == 2)
        assert_true(strncmp(s.content.data, "The sum is ", 11) == 0 || strncmp(s.content.data, "It is ", 6) == 0);
    if (i == 3)
        assert_true(strcmp(s.content.data, "yes") == 0 || strcmp(s.content.data, "no") == 0 || strcmp(s.content.data, "yes, but no") == 0);
    if (i == 4) {
        assert_true(s.calls >= 1);
        assert_true(strncmp(s.name.data, "add", 3) == 0 || strncmp(s.name.data, "words", 5) == 0);
        if (s.calls == 1 && strcmp(s.name.data, "add") == 0)
            is_addition(s.arguments.data);
    }
    if (i == 5) {
        assert_int_equal(s.calls, 1);
        assert_string_equal(s.name.data, "words");
        assert_non_null(strstr(s.arguments.data, "\"text\": "));
    }
    if (i == 7 && s.calls == 1)
        is_addition(s.arguments.data);
    if (i == 8)
        assert_int_equal(s.content.data[0], '[');
    free_said(&s);
}

static void answers_fit_their_grammars_with_the_same_bits_alone_drafted_and_in_a_batch(void **state)
{
    (void)state;
    struct opened o = open_with(NULL, NULL, 1);
    struct reply alone[ASKS];
    struct made made[ASKS];
    for (int i = 0; i < ASKS; i++) {
        ask(&o, i, &made[i]);
        alone[i] = reply_of(&o, &made[i].request);
        check(i, &made[i], &alone[i]);
        forget(&made[i]);
    }
    engine_close(&o);
    for (int drafted = 0; drafted < 2; drafted++) {
        qr_handle handles[ASKS];
        int steps = 0;
        o = open_with(drafted ? "dspark" : NULL, NULL, 4);
        for (int i = 0; i < ASKS; i++) {
            ask(&o, i, &made[i]);
            assert_int_equal(qr_submit(o.engine, &made[i].request, NULL, NULL, &handles[i], NULL), QR_OK);
            forget(&made[i]); /* the request keeps what it needs */
        }
        for (int i = 0; i < ASKS; i++) {
            struct reply r = {0};
            char what[64];
            snprintf(what, sizeof what, "request %d, %s", i, drafted ? "drafted in a batch" : "in a batch");
            reply_rest(&o, handles[i], &r);
            assert_same_reply(&alone[i], &r, what);
            steps += r.usage.draft_steps;
            reply_free(&r);
        }
        assert_true(!drafted || steps > 0);
        engine_close(&o);
    }
    for (int i = 0; i < ASKS; i++)
        reply_free(&alone[i]);
}

static void a_row_of_which_bans_leave_nothing_is_an_error_of_its_request_alone(void **state)
{
    (void)state;
    struct opened o = open_with(NULL, NULL, 2);
    struct made plain, banned;
    qr_tokens yes;
    int32_t ids[600];
    qr_handle handles[2];
    struct reply r[2] = {{0}, {0}};
    ask(&o, 3, &plain);
    ask(&o, 3, &banned);
    qr_grammar_close(banned.own);
    assert_int_equal(qr_grammar_open(o.model, QR_GRAMMAR_CHOICE, "[\"yyy\"]", 7, &banned.own, NULL, NULL), QR_OK);
    assert_int_equal(qr_tokenize(o.model, "yyy", 3, false, &yes, NULL), QR_OK);
    size_t count = 0;
    for (int32_t id = 0; id < 4000 && count < 600; id++) { /* every token that begins with a y */
        size_t length;
        const unsigned char *bytes = qr_token_bytes(o.model, id, &length);
        if (length > 0 && bytes[0] == 'y')
            ids[count++] = id;
    }
    banned.sampling.banned = ids;
    banned.sampling.banned_count = count;
    banned.request.grammar = banned.own;
    assert_int_equal(qr_submit(o.engine, &banned.request, NULL, NULL, &handles[0], NULL), QR_OK);
    assert_int_equal(qr_submit(o.engine, &plain.request, NULL, NULL, &handles[1], NULL), QR_OK);
    for (int i = 0; i < 2; i++)
        reply_rest(&o, handles[i], &r[i]);
    assert_int_equal(r[0].finish, QR_FINISH_ERROR);
    assert_int_equal(r[0].error.status, QR_BAD_REQUEST);
    assert_non_null(strstr(r[0].error.message, "grammar"));
    check(3, &plain, &r[1]);
    for (int i = 0; i < 2; i++)
        reply_free(&r[i]);
    qr_tokens_free(&yes);
    forget(&plain);
    forget(&banned);
    engine_close(&o);
}

static void an_answer_of_a_session_is_what_its_members_ask_for(void **state)
{
    (void)state;
    static const char members[] = "{\"thinking\":false," FORMAT "}", question[] = "{\"role\":\"user\",\"content\":\"Add 17 and 25.\"}";
    struct opened o = open_with(NULL, NULL, 1);
    qr_session *session;
    qr_sampling greedy = QR_SAMPLING;
    qr_request how = QR_REQUEST;
    qr_handle handle;
    qr_event event;
    qr_text text;
    struct json_document *doc;
    greedy.temperature = 0;
    how.sampling = &greedy;
    how.max_tokens = 120;
    assert_int_equal(qr_session_open(o.engine, &session, NULL), QR_OK);
    assert_int_equal(qr_session_set(session, members, strlen(members), NULL), QR_OK);
    assert_int_equal(qr_session_append(session, question, strlen(question), NULL), QR_OK);
    assert_int_equal(qr_session_start(session, &how, &handle, NULL), QR_OK);
    do
        assert_int_equal(qr_session_poll(session, -1, &event, NULL), QR_OK);
    while (event.finish == QR_FINISH_NONE);
    assert_int_equal(event.finish, QR_FINISH_STOP);
    assert_int_equal(qr_session_write(session, &text, NULL), QR_OK);
    assert_int_equal(json_parse(text.data, text.length, "session", true, &doc, NULL), QR_OK);
    is_shape(json_get(json_at(json_get(json_root(doc), "messages"), 1), "content")->text);
    json_close(doc);
    qr_text_free(&text);
    qr_session_close(session);
    engine_close(&o);
}

static void no_row_is_spent_on_drafts_that_a_grammar_forbids(void **state)
{
    (void)state;
    const char *unlikely = "q{60}";
    struct reply replies[2];
    qr_metrics m = {.size = sizeof m};
    for (int drafted = 0; drafted < 2; drafted++) {
        struct opened o = open_with(drafted ? "dspark" : NULL, NULL, 1);
        struct made made;
        ask(&o, 2, &made);
        qr_grammar_close(made.own);
        assert_int_equal(qr_grammar_open(o.model, QR_GRAMMAR_REGEX, unlikely, strlen(unlikely), &made.own, NULL, NULL), QR_OK);
        made.request.grammar = made.own;
        replies[drafted] = reply_of(&o, &made.request);
        qr_get_metrics(o.engine, &m);
        forget(&made);
        engine_close(&o);
    }
    assert_same_reply(&replies[0], &replies[1], "a word that nobody would draft");
    assert_true(m.drafts.proposed > 0 && m.drafts.rests[QR_REST_GRAMMAR] > 0 && m.drafts.verified < m.drafts.proposed / 2);
    assert_int_equal(m.drafts.proposed, m.drafts.verified + m.drafts.unverified + m.drafts.discarded);
    for (int i = 0; i < 2; i++)
        reply_free(&replies[i]);
}

static void verifiers_that_know_no_grammar_refuse_it(void **state)
{
    (void)state;
    static const char *const verifiers[] = {"ratio", "block"};
    for (int i = 0; i < 2; i++) {
        struct opened o = open_with("dspark", verifiers[i], 1);
        struct made m;
        qr_handle handle;
        qr_error err = {0};
        ask(&o, 3, &m);
        assert_refused(qr_submit(o.engine, &m.request, NULL, NULL, &handle, &err), &err, QR_BAD_REQUEST, "grammar");
        forget(&m);
        engine_close(&o);
    }
}

static void a_chat_that_asks_for_nothing_has_no_grammar(void **state)
{
    (void)state;
    qr_model *model;
    qr_chat *chat;
    char json[4096];
    assert_int_equal(qr_model_open(source_path("models/tiny-v41"), NULL, &model, NULL), QR_OK);
    snprintf(json, sizeof json, "{" USER("Hi") ",\"tools\":[" ADD "]}", "");
    assert_int_equal(qr_chat_open(model, json, strlen(json), NULL, &chat, NULL, NULL), QR_OK);
    assert_null(qr_chat_grammar(chat));
    qr_chat_close(chat);
    qr_model_close(model);
}

static void a_schema_that_is_not_supported_is_refused_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *json, *param, *word;
    } wrong[] = {
        {"{" USER("Hi") ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":{\"a\":{\"not\":{}}}}}}}",
         "response_format#/properties/a", "\"not\""},
        {"{" USER("Hi") ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"patternProperties\":{}}}}]}",
         "tools#", "patternProperties"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"{\"}],\"continue_final_message\":true,\"thinking\":false,"
         "\"response_format\":{\"type\":\"json_object\"}}",
         "continue_final_message", "response_format"},
    };
    qr_model *model;
    assert_int_equal(qr_model_open(source_path("models/tiny-v41"), NULL, &model, NULL), QR_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        qr_chat *chat;
        qr_issue issue;
        qr_error err = {0};
        assert_refused(qr_chat_open(model, wrong[i].json, strlen(wrong[i].json), NULL, &chat, &issue, &err), &err, QR_BAD_REQUEST, wrong[i].word);
        assert_null(chat);
        assert_int_equal(issue.status, 400);
        assert_string_equal(issue.param, wrong[i].param);
    }
    /* a tool that is not strict is held to its names where its schema says more than is supported */
    qr_chat *chat;
    const char *loose = "{" USER("Hi") ",\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                        "\"parameters\":{\"type\":\"object\",\"patternProperties\":{},\"properties\":{\"a\":{\"type\":\"string\"}}}}}]}";
    assert_int_equal(qr_chat_open(model, loose, strlen(loose), NULL, &chat, NULL, NULL), QR_OK);
    assert_non_null(qr_chat_grammar(chat));
    qr_chat_close(chat);
    qr_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_row_is_spent_on_drafts_that_a_grammar_forbids),
        cmocka_unit_test(answers_fit_their_grammars_with_the_same_bits_alone_drafted_and_in_a_batch),
        cmocka_unit_test(a_row_of_which_bans_leave_nothing_is_an_error_of_its_request_alone),
        cmocka_unit_test(an_answer_of_a_session_is_what_its_members_ask_for),
        cmocka_unit_test(verifiers_that_know_no_grammar_refuse_it),
        cmocka_unit_test(a_chat_that_asks_for_nothing_has_no_grammar),
        cmocka_unit_test(a_schema_that_is_not_supported_is_refused_with_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
