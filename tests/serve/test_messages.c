/* Anthropic's requests become chat requests (protocol.md 4.5). */
#include "support/translations.h"

#include <string.h>

#include "base/alloc.h"
#include "serve/messages_read.h"

static bool read_strict(const struct json *body, struct translation *t, struct refusal *refusal)
{
    struct messages_asked asked;
    return messages_read(body, false, NULL, t, &asked, refusal);
}

static bool read_ignoring(const struct json *body, struct translation *t, struct refusal *refusal)
{
    struct messages_asked asked;
    return messages_read(body, true, NULL, t, &asked, refusal);
}

#define HELLO "'messages':[{'role':'user','content':'Hello'}]"
#define BILLING "x-anthropic-billing-header: cc_version=2.1; cch=12ab;"

static const struct translated_case texts[] = {
    {"a question", "{" HELLO "}", "{" HELLO "}", NULL},
    {"members that are honoured",
     "{'model':'tiny','max_tokens':9,'temperature':0.5,'top_p':0.9,'top_k':4,'stream':true,'stop_sequences':['a','b'],"
     "'output_config':{'effort':'max'}," HELLO "}",
     "{'max_tokens':9,'temperature':0.5,'top_p':0.9,'top_k':4,'stream':true,'model':'tiny','stop':['a','b'],"
     "'output_config':{'effort':'max'}," HELLO "}",
     NULL},
    {"members that are not",
     "{'metadata':{'user_id':'u'},'container':'c','mcp_servers':[],'betas':['x'],'service_tier':'auto','cache_control':"
     "{'type':'ephemeral'},'n':3," HELLO "}",
     "{" HELLO "}", NULL},
    {"members of this server's own", "{'guided_regex':'a','cache_salt':'s','seed':4,'top_k':1,'guided_grammar':'x'," HELLO "}",
     "{'top_k':1,'seed':4,'cache_salt':'s','guided_regex':'a','guided_grammar':'x'," HELLO "}", NULL},
    {"null is absent", "{'system':null,'tools':null,'thinking':null,'stop_sequences':null,'temperature':null," HELLO "}", "{" HELLO "}", NULL},
    {"a name of Anthropic's", "{'model':'claude-opus-4-1[1m]'," HELLO "}", "{" HELLO "}", NULL},
    {"a wide name", "{'model':'deepseek-chat[1m]'," HELLO "}", "{'model':'deepseek-chat'," HELLO "}", NULL},
    {"a system text", "{'system':'Be brief.'," HELLO "}",
     "{'messages':[{'role':'system','content':[{'type':'text','text':'Be brief.'}]},{'role':'user','content':'Hello'}]}", NULL},
    {"system blocks, marked and billed",
     "{'system':[{'type':'text','text':'" BILLING "'},{'type':'text','text':'A','cache_control':{'type':'ephemeral'}},"
     "{'type':'text','text':'" BILLING "\\nB'}]," HELLO "}",
     "{'messages':[{'role':'system','content':[{'type':'text','text':'A'},{'type':'text','text':'B'}]},{'role':'user','content':'Hello'}]}", NULL},
    {"a system text that is nothing but billing", "{'system':'" BILLING "'," HELLO "}", "{" HELLO "}", NULL},
    {"the line elsewhere is text", "{'system':'A\\n" BILLING "'," HELLO "}",
     "{'messages':[{'role':'system','content':[{'type':'text','text':'A\\n" BILLING "'}]},{'role':'user','content':'Hello'}]}", NULL},
    {"a later system message", "{'messages':[{'role':'user','content':'a'},{'role':'system','content':[{'type':'text','text':'b'}]}]}",
     "{'messages':[{'role':'user','content':'a'},{'role':'system','content':[{'type':'text','text':'b'}]}]}", NULL},
    {"thinking is on", "{'thinking':{'type':'enabled','budget_tokens':2000,'display':'summarized'}," HELLO "}",
     "{'thinking':{'type':'enabled'}," HELLO "}", NULL},
    {"thinking as it likes", "{'thinking':{'type':'adaptive'}," HELLO "}", "{'thinking':{'type':'adaptive'}," HELLO "}", NULL},
    {"a schema to reply by", "{'output_config':{'format':{'type':'json_schema','schema':{'type':'object'}}}," HELLO "}",
     "{'response_format':{'type':'json_schema','json_schema':{'name':'answer','schema':{'type':'object'}}}," HELLO "}", NULL},
    {"the assistant's last message goes on", "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':'{ '}]}",
     "{'messages':[{'role':'user','content':'a'},{'role':'assistant','prefix':true,'content':'{ '}]}", NULL},
    {"an earlier one does not", "{'messages':[{'role':'assistant','content':'a'},{'role':'user','content':'b'}]}",
     "{'messages':[{'role':'assistant','content':'a'},{'role':'user','content':'b'}]}", NULL},
};

static const struct translated_case blocks[] = {
    {"results before texts, each in its order",
     "{'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':'tool_result','tool_use_id':'2','content':'x'},"
     "{'type':'text','text':'b','cache_control':{'type':'ephemeral'}},{'type':'tool_result','tool_use_id':'1','is_error':true,'content':[{'type':'text','text':'y'}]}]}]}",
     "{'messages':[{'role':'tool','tool_call_id':'2','content':'x'},{'role':'tool','tool_call_id':'1','content':[{'type':'text','text':'y'}]},"
     "{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}]}",
     NULL},
    {"nothing but a result", "{'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':'1'}]}]}",
     "{'messages':[{'role':'tool','tool_call_id':'1','content':''}]}", NULL},
    {"what a result holds", "{'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':'1','content':[{'type':'document','title':'t'},"
     "{'type':'image','source':{'type':'base64','media_type':'image/png','data':'AAAA'}}]}]}]}",
     "{'messages':[{'role':'tool','tool_call_id':'1','content':[{'type':'document'},{'type':'image','image':'data:image/png;base64,AAAA'}]}]}", NULL},
    {"pictures", "{'messages':[{'role':'user','content':[{'type':'image','source':{'type':'url','url':'http://x'}},{'type':'image','source':{'type':'file','file_id':'f'}}]}]}",
     "{'messages':[{'role':'user','content':[{'type':'image','image':'http://x'},{'type':'image'}]}]}", NULL},
    {"a turn of the assistant",
     "{'messages':[{'role':'assistant','content':[{'type':'thinking','thinking':'I see. ','signature':'s'},{'type':'redacted_thinking','data':'d'},"
     "{'type':'thinking','thinking':'Yes.','signature':'s'},{'type':'text','text':'So:'},{'type':'tool_use','id':'1','name':'f','input':{'b':1.50,'a':[]}},"
     "{'type':'tool_use','id':'2','name':'g','input':{}}]},{'role':'user','content':'b'}]}",
     "{'messages':[{'role':'assistant','reasoning_content':'I see. Yes.','content':[{'type':'text','text':'So:'}],'tool_calls':["
     "{'id':'1','type':'function','function':{'name':'f','arguments':{'b':1.50,'a':[]}}},{'id':'2','type':'function','function':{'name':'g','arguments':{}}}]},"
     "{'role':'user','content':'b'}]}",
     NULL},
    {"thinking that was not shown comes back by its signature",
     "{'messages':[{'role':'assistant','content':[{'type':'thinking','thinking':'','signature':'" SIGNATURE_START "SSBzZWU='}]},{'role':'user','content':'b'}]}",
     "{'messages':[{'role':'assistant','reasoning_content':'I see','content':[]},{'role':'user','content':'b'}]}", NULL},
    {"a signature of somebody else",
     "{'messages':[{'role':'assistant','content':[{'type':'thinking','thinking':'','signature':'EqQBCgIYAhIM'}]},{'role':'user','content':'b'}]}",
     "{'messages':[{'role':'assistant','content':[]},{'role':'user','content':'b'}]}", NULL},
    {"a broken one",
     "{'messages':[{'role':'assistant','content':[{'type':'thinking','thinking':'a','signature':''},{'type':'thinking','thinking':'','signature':'" SIGNATURE_START "/w=='}]},{'role':'user','content':'b'}]}",
     "{'messages':[{'role':'assistant','reasoning_content':'a','content':[]},{'role':'user','content':'b'}]}", NULL},
    {"an image of the assistant is for the chat to refuse", "{'messages':[{'role':'assistant','content':[{'type':'image'}]},{'role':'user','content':'b'}]}",
     "{'messages':[{'role':'assistant','content':[{'type':'image'}]},{'role':'user','content':'b'}]}", NULL},
};

#define TOOL "{'name':'f','description':'d','input_schema':{'type':'object'}}"
#define TOOL_THERE "{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'}}}"
#define CHOICE(asked, said) "{'tools':[" TOOL "],'tool_choice':" asked "," HELLO "}", "{'tools':[" TOOL_THERE "]," said "," HELLO "}", NULL

static const struct translated_case tools[] = {
    {"the order of a tool's members is fixed", "{'tools':[{'input_schema':{'type':'object'},'cache_control':{},'description':'d','type':'custom','name':'f'}]," HELLO "}",
     "{'tools':[" TOOL_THERE "]," HELLO "}", NULL},
    {"strict is the last of them", "{'tools':[{'strict':true,'name':'f','input_schema':{}},{'name':'g','strict':false}]," HELLO "}",
     "{'tools':[{'type':'function','function':{'name':'f','parameters':{},'strict':true}},{'type':'function','function':{'name':'g'}}]," HELLO "}", NULL},
    {"auto", CHOICE("{'type':'auto'}", "'tool_choice':'auto'")},
    {"any", CHOICE("{'type':'any'}", "'tool_choice':'required'")},
    {"none", CHOICE("{'type':'none'}", "'tool_choice':'none'")},
    {"one of them", CHOICE("{'type':'tool','name':'f'}", "'tool_choice':{'type':'function','function':{'name':'f'}}")},
    {"one call", CHOICE("{'type':'auto','disable_parallel_tool_use':true}", "'parallel_tool_calls':false,'tool_choice':'auto'")},
};

static const struct translated_case ignored[] = {
    {"tools of the service", "{'tools':[{'type':'web_search_20250305','name':'web_search'}," TOOL "]," HELLO "}", "{'tools':[" TOOL_THERE "]," HELLO "}", NULL},
};

#define USER(block) "{'messages':[{'role':'user','content':[" block "]}]}"
#define ASSISTANT(block) "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':[" block "]}]}"

static const struct translated_case refused[] = {
    {"no messages", "{}", NULL, "messages: wanted a list"},
    {"an empty list", "{'messages':[]}", NULL, "messages: wanted a list"},
    {"a number", "{'messages':[3]}", NULL, "messages[0]: the message is no object"},
    {"no content", "{'messages':[{'role':'user'}]}", NULL, "messages[0].content: wanted"},
    {"a role", "{'messages':[{'role':'user','content':'a'},{'role':'tool','content':'a'}]}", NULL, "messages[1].role: wanted user, assistant or system"},
    {"a document", USER("{'type':'text','text':'a'},{'type':'document'}"), NULL, "messages[0].content[1]: a block of type document in a message of role user"},
    {"a block that is none", USER("3"), NULL, "messages[0].content[0]: the block is no object"},
    {"a call of the user", USER("{'type':'tool_use','id':'1','name':'f','input':{}}"), NULL, "messages[0].content[0]: a block of type tool_use"},
    {"a result of the assistant", ASSISTANT("{'type':'tool_result','tool_use_id':'1'}"), NULL, "messages[1].content[0]: a block of type tool_result"},
    {"a call of the service", ASSISTANT("{'type':'server_tool_use','id':'1','name':'f','input':{}}"), NULL, "messages[1].content[0]: a block of type server_tool_use"},
    {"a result without a call", USER("{'type':'tool_result'}"), NULL, "messages[0].content[0]: the tool_result has no string \"tool_use_id\""},
    {"a result that is a number", USER("{'type':'tool_result','tool_use_id':'1','content':3}"), NULL, "messages[0].content[0]: the content of a tool_result"},
    {"a text without text", USER("{'type':'text'}"), NULL, "messages[0].content[0]: the block of type text has no string"},
    {"thinking without text", ASSISTANT("{'type':'thinking'}"), NULL, "messages[1].content[0]: the block of type thinking"},
    {"a call without a name", ASSISTANT("{'type':'tool_use','id':'1'}"), NULL, "messages[1].content[0]: the tool_use has no strings"},
    {"arguments that are a list", ASSISTANT("{'type':'tool_use','id':'1','name':'f','input':[]}"), NULL, "messages[1].content[0]: the input of the tool_use"},
    {"a system text that is a picture", "{'system':[{'type':'image'}]," HELLO "}", NULL, "system[0]: wanted a block of type text"},
    {"a system text that is a number", "{'system':1," HELLO "}", NULL, "system: wanted"},
    {"a later one", "{'messages':[{'role':'system','content':[{'type':'image'}]}]}", NULL, "messages[0].content[0]: wanted a block of type text"},
    {"a tool of the service", "{'tools':[" TOOL ",{'type':'web_search_20250305','name':'web_search'}]," HELLO "}", NULL, "tools[1].type: web_search_20250305"},
    {"a tool without a name", "{'tools':[{}]," HELLO "}", NULL, "tools[0]: the tool has no string \"name\""},
    {"tools that are none", "{'tools':{}," HELLO "}", NULL, "tools: wanted a list"},
    {"a choice that is a word", "{'tool_choice':'auto'," HELLO "}", NULL, "tool_choice: wanted an object"},
    {"a choice that is unknown", "{'tool_choice':{'type':'some'}," HELLO "}", NULL, "tool_choice.type: found some"},
    {"a choice without a name", "{'tool_choice':{'type':'tool'}," HELLO "}", NULL, "tool_choice.name: wanted"},
    {"thinking that is a word", "{'thinking':'on'," HELLO "}", NULL, "thinking: wanted"},
    {"a display", "{'thinking':{'type':'enabled','display':'loud'}," HELLO "}", NULL, "thinking.display: wanted"},
    {"a format", "{'output_config':{'format':{'type':'xml'}}," HELLO "}", NULL, "output_config.format: wanted"},
    {"an empty stop", "{'stop_sequences':['']," HELLO "}", NULL, "stop_sequences: wanted strings"},
    {"seventeen stops", "{'stop_sequences':['a','a','a','a','a','a','a','a','a','a','a','a','a','a','a','a','a']," HELLO "}", NULL, "stop_sequences: 17 strings"},
};

static void every_member_is_honoured_ignored_or_refused_by_name(void **state)
{
    (void)state;
    check_translations(read_strict, texts, sizeof texts / sizeof *texts);
    check_translations(read_strict, blocks, sizeof blocks / sizeof *blocks);
    check_translations(read_strict, tools, sizeof tools / sizeof *tools);
    check_translations(read_ignoring, ignored, sizeof ignored / sizeof *ignored);
    check_translations(read_strict, refused, sizeof refused / sizeof *refused);
}

static void thinking_may_be_hidden(void **state)
{
    static const char body[] = "{\"thinking\":{\"type\":\"enabled\",\"display\":\"omitted\"},\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    struct json_document *doc;
    struct translation t = {0};
    struct messages_asked asked;
    struct refusal refusal = {0};
    qr_error err = {0};
    (void)state;
    must(json_parse(body, sizeof body - 1, "body", false, &doc, &err), &err);
    assert_true(messages_read(json_root(doc), false, NULL, &t, &asked, &refusal));
    assert_true(asked.hides_thinking);
    translation_free(&t);
    json_close(doc);
}

/* What the chat request is refused for is told in the client's terms. */
static void a_refusal_names_what_the_client_sent(void **state)
{
    static const struct {
        const char *param, *message, *param_told, *told;
    } cases[] = {
        {"messages[0].content[0]", "messages[0].content[0]: x", "system", "system: x"},
        {"messages[1].content[1]", "messages[1].content[1]: x", "messages[0].content[1]", "messages[0].content[1]: x"},
        {"messages[2]", "messages[2]: x", "messages[1]", "messages[1]: x"},
        {"messages[3].content[0]", "messages[3].content[0]: x", "messages[1]", "messages[1]: x"},
        {"messages[9]", "messages[9]: x", "messages[9]", "messages[9]: x"},
        {"tools[0]", "tools[0]: x", "tools[1]", "tools[1]: x"},
        {"response_format.json_schema", "response_format.json_schema: x", "output_config.format", "output_config.format: x"},
        {"response_format.json_schema", "response_format: at x", "output_config.format", "output_config.format: at x"},
        {"response_format#/properties/a", "response_format: at #/properties/a: x", "output_config.format#/properties/a", "output_config.format: at #/properties/a: x"},
        {"messages[1]", "no memory: messages", "messages[0]", "no memory: messages"},
        {"temperature", "temperature: x", "temperature", "temperature: x"},
        {"", "messages[1]: x", "", "messages[1]: x"},
    };
    char *body = quoted("{'system':'s','tools':[{'type':'bash_20250124','name':'bash'}," TOOL "],'messages':[{'role':'user','content':["
                        "{'type':'text','text':'a'},{'type':'text','text':'b'}]},{'role':'user','content':[{'type':'text','text':'c'},"
                        "{'type':'tool_result','tool_use_id':'1'}]}]}");
    struct json_document *doc;
    struct translation t = {0};
    struct refusal refusal = {0};
    qr_error err = {0};
    (void)state;
    must(json_parse(body, strlen(body), "body", false, &doc, &err), &err);
    assert_true(read_ignoring(json_root(doc), &t, &refusal));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuse(&refusal, 400, NULL, cases[i].param, "%s", cases[i].message);
        translation_locate(&t, &refusal);
        assert_string_equal(refusal.param, cases[i].param_told);
        assert_string_equal(refusal.message, cases[i].told);
    }
    translation_free(&t);
    json_close(doc);
    qr_free(body);
}

static void no_memory_is_an_error_of_the_server(void **state)
{
    (void)state;
    check_translation_faults(read_ignoring, "{'system':[{'type':'text','text':'" BILLING "\\nB'}],'tools':[{'type':'x'}," TOOL "],'messages':[{'role':'user','content':["
                                            "{'type':'tool_result','tool_use_id':'1','content':[{'type':'image','source':{'type':'url','url':'http://x'}}]}]},"
                                            "{'role':'assistant','content':[{'type':'thinking','thinking':'','signature':'" SIGNATURE_START "SSBzZWU='}]}]}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_is_honoured_ignored_or_refused_by_name),
        cmocka_unit_test(thinking_may_be_hidden),
        cmocka_unit_test(a_refusal_names_what_the_client_sent),
        fault_test(no_memory_is_an_error_of_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
