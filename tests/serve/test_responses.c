/* Responses requests become chat requests (protocol.md 4.6). */
#include "support/translations.h"

#include <string.h>

#include "base/alloc.h"
#include "serve/responses_read.h"

static bool read(const struct json *body, struct translation *t, struct refusal *refusal)
{
    struct responses_asked asked = {0};
    const bool good = responses_read(body, NULL, t, &asked, refusal);
    response_tools_free(&asked.tools);
    return good;
}

#define HELLO "'input':'Hello'"
#define HELLO_THERE "'tools':[],'messages':[{'role':'user','content':'Hello'}]"

static const struct translated_case members[] = {
    {"a question", "{" HELLO "}", "{" HELLO_THERE "}", NULL},
    {"members that are honoured",
     "{'model':'tiny[1m]','max_output_tokens':9,'temperature':0.5,'top_p':0.9,'stream':true,'parallel_tool_calls':false,"
     "'reasoning':{'effort':'low','summary':'auto'},'tool_choice':'none','instructions':'Be brief.'," HELLO "}",
     "{'temperature':0.5,'top_p':0.9,'stream':true,'parallel_tool_calls':false,'model':'tiny','max_tokens':9,'reasoning':{'effort':'low'},"
     "'tools':[],'tool_choice':'none','messages':[{'role':'system','content':'Be brief.'},{'role':'user','content':'Hello'}]}",
     NULL},
    {"members that are not",
     "{'store':true,'truncation':'auto','metadata':{'a':'b'},'user':'u','prompt_cache_key':'k','service_tier':'auto','background':false,"
     "'previous_response_id':null,'conversation':null,'max_tool_calls':3,'include':['file_search_call.results'],'n':3,'text':{'verbosity':'low'}," HELLO "}",
     "{" HELLO_THERE "}", NULL},
    {"a schema to reply by", "{'text':{'format':{'type':'json_schema','name':'x','strict':true,'schema':{'type':'object'}}}," HELLO "}",
     "{'response_format':{'type':'json_schema','json_schema':{'name':'x','strict':true,'schema':{'type':'object'}}}," HELLO_THERE "}", NULL},
    {"log probabilities", "{'top_logprobs':2," HELLO "}", "{'logprobs':true,'top_logprobs':2," HELLO_THERE "}", NULL},
    {"the same by include", "{'include':['message.output_text.logprobs']," HELLO "}", "{'logprobs':true,'top_logprobs':0," HELLO_THERE "}", NULL},
    {"any object", "{'text':{'format':{'type':'json_object'}}," HELLO "}", "{'response_format':{'type':'json_object'}," HELLO_THERE "}", NULL},
};

#define INPUT(items) "{'input':[" items "]}"
#define CHAT(messages) "{'tools':[],'messages':[" messages "]}"
#define CALL(id, name) "{'id':'" id "','type':'function','function':{'name':'" name "','arguments':'{}'}}"

static const struct translated_case items[] = {
    {"messages, with and without a type",
     INPUT("{'type':'message','role':'developer','content':[{'type':'input_text','text':'a'}]},{'role':'system','content':'b'},"
           "{'role':'user','content':[{'type':'input_text','text':'c'},{'type':'input_image','image_url':'data:x','detail':'low'}]},"
           "{'type':'message','id':'msg_1','status':'completed','role':'assistant','content':[{'type':'output_text','text':'d','annotations':[]},{'type':'refusal','refusal':'e'}]}"),
     CHAT("{'role':'developer','content':[{'type':'text','text':'a'}]},{'role':'system','content':'b'},"
          "{'role':'user','content':[{'type':'text','text':'c'},{'type':'input_image','image_url':'data:x','detail':'low'}]},"
          "{'role':'assistant','content':[{'type':'text','text':'d'},{'type':'text','text':'e'}]}"),
     NULL},
    {"reasoning belongs to the message behind it",
     INPUT("{'type':'reasoning','id':'rs_1','summary':[],'content':[{'type':'reasoning_text','text':'Hm.'}]},{'role':'assistant','content':'a'},{'role':'user','content':'b'}"),
     CHAT("{'role':'assistant','reasoning_content':'Hm.','content':'a'},{'role':'user','content':'b'}"), NULL},
    {"or to the call", INPUT("{'type':'reasoning','summary':[{'type':'summary_text','text':'A'},{'type':'summary_text','text':'B'}],'encrypted_content':'SSBzZWU='},"
                             "{'type':'function_call','id':'fc_1','call_id':'1','name':'f','arguments':'{}'}"),
     CHAT("{'role':'assistant','reasoning_content':'A\\n\\nB','content':'','tool_calls':[" CALL("1", "f") "]}"), NULL},
    {"what this server has hidden", INPUT("{'type':'reasoning','summary':[],'encrypted_content':'SSBzZWU='},{'role':'assistant','content':'a'}"),
     CHAT("{'role':'assistant','reasoning_content':'I see','content':'a'}"), NULL},
    {"what others have hidden", INPUT("{'type':'reasoning','summary':[],'encrypted_content':'gAAAAABo_w=='},{'role':'assistant','content':'a'}"),
     CHAT("{'role':'assistant','content':'a'}"), NULL},
    {"reasoning that nothing follows", INPUT("{'type':'reasoning','content':[{'type':'reasoning_text','text':'Hm.'}],'summary':[]},{'role':'user','content':'b'}"),
     CHAT("{'role':'assistant','reasoning_content':'Hm.','content':''},{'role':'user','content':'b'}"), NULL},
    {"a message, its calls and their results",
     INPUT("{'role':'assistant','content':'a'},{'type':'function_call','call_id':'1','name':'f','arguments':'{}'},{'type':'additional_tools','tools':[]},"
           "{'type':'function_call','call_id':'2','name':'g','arguments':'{}'},{'type':'function_call_output','call_id':'1','output':'x'},"
           "{'type':'function_call_output','call_id':'2','output':[{'type':'input_text','text':'y'},{'type':'input_image','image_url':'data:x'},{'type':'input_file','file_id':'f'}]},"
           "{'type':'function_call','call_id':'3','name':'h','arguments':'{}'}"),
     CHAT("{'role':'assistant','content':'a','tool_calls':[" CALL("1", "f") "," CALL("2", "g") "]},{'role':'tool','tool_call_id':'1','content':'x'},"
          "{'role':'tool','tool_call_id':'2','content':[{'type':'text','text':'y'},{'type':'input_image','image_url':'data:x'},{'type':'input_file'}]},"
          "{'role':'assistant','content':'','tool_calls':[" CALL("3", "h") "]}"),
     NULL},
    {"a free-form call", INPUT("{'type':'custom_tool_call','id':'ctc_1','call_id':'1','name':'apply_patch','input':'*** Begin'},{'type':'custom_tool_call_output','call_id':'1','output':'ok'}"),
     CHAT("{'role':'assistant','content':'','tool_calls':[{'id':'1','type':'function','function':{'name':'apply_patch','arguments':{'input':'*** Begin'}}}]},"
          "{'role':'tool','tool_call_id':'1','content':'ok'}"), NULL},
    {"a call in a namespace", INPUT("{'type':'function_call','call_id':'1','name':'f','namespace':'ns','arguments':'{}'}"),
     CHAT("{'role':'assistant','content':'','tool_calls':[{'id':'1','type':'function','namespace':'ns','function':{'name':'f','arguments':'{}'}}]}"), NULL},
    {"a search for tools, which brings one",
     INPUT("{'type':'tool_search_call','call_id':'1','execution':'client','status':'completed','arguments':{'query':'mail'}},"
           "{'type':'tool_search_output','call_id':'1','tools':[{'type':'function','name':'f'}]}"),
     "{'tools':[{'type':'function','function':{'name':'f'}}],'messages':[{'role':'assistant','content':'','tool_calls':[{'id':'1','type':'function','function':"
     "{'name':'tool_search','arguments':{'query':'mail'}}}]},{'role':'tool','tool_call_id':'1','content':'[{\\'type\\':\\'function\\',\\'name\\':\\'f\\'}]'}]}", NULL},
    {"parts that the chat answers for", INPUT("{'role':'user','content':[{'type':'input_file','file_id':'f'},{'type':'input_image','file_id':'f'}]}"),
     CHAT("{'role':'user','content':[{'type':'input_file'},{'type':'input_image'}]}"), NULL},
};

#define PARAMETERS "'parameters':{'type':'object'}"
#define ONE_STRING(more) "'parameters':{'type':'object','properties':{'input':{'type':'string'" more "}},'required':['input']}"
#define TOOLS(list) "{'tools':[" list "]," HELLO "}"
#define THERE(list) "{'tools':[" list "],'messages':[{'role':'user','content':'Hello'}]}"
#define FUNCTION(members) "{'type':'function','function':{" members "}}"

static const struct translated_case tools[] = {
    {"a function", TOOLS("{'type':'function'," PARAMETERS ",'strict':true,'description':'d','name':'f'}"),
     THERE(FUNCTION("'name':'f','description':'d'," PARAMETERS ",'strict':true")), NULL},
    {"that is not strict", TOOLS("{'type':'function','name':'f','strict':false}"), THERE(FUNCTION("'name':'f'")), NULL},
    {"a free-form tool", TOOLS("{'type':'custom','name':'f','description':'d','format':{'type':'text'}}"), THERE(FUNCTION("'name':'f','description':'d'," ONE_STRING(""))), NULL},
    {"and its grammar", TOOLS("{'type':'custom','name':'f','format':{'type':'grammar','syntax':'lark','definition':'start: X'}}"),
     THERE(FUNCTION("'name':'f'," ONE_STRING(",'description':'Follows this grammar (lark):\\nstart: X'"))), NULL},
    {"a namespace", TOOLS("{'type':'namespace','name':'ns','description':'about','tools':[{'type':'function','name':'f'},{'type':'custom','name':'g'}]}"),
     THERE("{'type':'function','namespace':{'name':'ns','description':'about'},'function':{'name':'f'}},"
           "{'type':'function','namespace':{'name':'ns','description':'about'},'function':{'name':'g'," ONE_STRING("") "}}"), NULL},
    {"hosted tools are passed over",
     TOOLS("{'type':'web_search_preview'},{'type':'web_search'},{'type':'code_interpreter','container':'c'},{'type':'file_search'},{'type':'image_generation'},{'type':'mcp'},{'type':'tool_search'}"),
     THERE(""), NULL},
    {"a search that the client runs", TOOLS("{'type':'tool_search','execution':'client','description':'d'," PARAMETERS "}"), THERE(FUNCTION("'name':'tool_search','description':'d'," PARAMETERS)), NULL},
    {"tools in the input, none twice", "{'tools':[{'type':'function','name':'f'}],'input':[{'type':'additional_tools','role':'developer','tools':[{'type':'function','name':'f'},{'type':'function','name':'g'}]},{'role':'user','content':'Hello'}]}",
     THERE(FUNCTION("'name':'f'") "," FUNCTION("'name':'g'")), NULL},
    {"a tool that is chosen", "{'tools':[{'type':'custom','name':'f'}],'tool_choice':{'type':'custom','name':'f'}," HELLO "}",
     "{'tools':[" FUNCTION("'name':'f'," ONE_STRING("")) "],'tool_choice':{'type':'function','function':{'name':'f'}},'messages':[{'role':'user','content':'Hello'}]}", NULL},
    {"any", "{'tools':[],'tool_choice':'required'," HELLO "}", "{'tools':[],'tool_choice':'required','messages':[{'role':'user','content':'Hello'}]}", NULL},
};

static const struct translated_case refused[] = {
    {"no input", "{}", NULL, "input: wanted"},
    {"a number", "{'input':3}", NULL, "input: wanted"},
    {"a stored response", "{'previous_response_id':'resp_1'," HELLO "}", NULL, "previous_response_id: "},
    {"a conversation", "{'conversation':'conv_1'," HELLO "}", NULL, "conversation: "},
    {"a prompt", "{'prompt':{'id':'p'}," HELLO "}", NULL, "prompt: "},
    {"the background", "{'background':true," HELLO "}", NULL, "background: "},
    {"more log probabilities than there are", "{'top_logprobs':21," HELLO "}", NULL, "top_logprobs: "},
    {"a limit", "{'max_output_tokens':0," HELLO "}", NULL, "max_output_tokens: "},
    {"a summary", "{'reasoning':{'summary':'long'}," HELLO "}", NULL, "reasoning.summary: wanted"},
    {"metadata", "{'metadata':{'a':1}," HELLO "}", NULL, "metadata: wanted"},
    {"instructions", "{'instructions':[]," HELLO "}", NULL, "instructions: wanted"},
    {"an item of another kind", INPUT("{'role':'user','content':'a'},{'type':'local_shell_call','action':{}}"), NULL, "input[1]: an item of type local_shell_call"},
    {"a reference", INPUT("{'type':'item_reference','id':'x'}"), NULL, "input[0]: an item of type item_reference"},
    {"an item that is none", INPUT("3"), NULL, "input[0]: the item is no object"},
    {"a role", INPUT("{'role':'tool','content':'a'}"), NULL, "input[0].role: wanted"},
    {"content", INPUT("{'role':'user','content':3}"), NULL, "input[0].content: wanted"},
    {"a part", INPUT("{'role':'user','content':[3]}"), NULL, "input[0].content: a part"},
    {"a result", INPUT("{'type':'function_call_output','call_id':'1','output':3}"), NULL, "input[0].output: wanted"},
    {"a call without a name", INPUT("{'type':'function_call','call_id':'1','arguments':'{}'}"), NULL, "input[0]: the call has no string \"name\""},
    {"a free-form call without its text", INPUT("{'type':'custom_tool_call','call_id':'1','name':'f'}"), NULL, "input[0]: the call has no string \"input\""},
    {"a shell", TOOLS("{'type':'web_search'},{'type':'local_shell'}"), NULL, "tools[1]: a tool of type local_shell"},
    {"a computer", TOOLS("{'type':'computer_use_preview'}"), NULL, "tools[0]: a tool of type computer_use_preview"},
    {"a tool without a name", TOOLS("{'type':'function'}"), NULL, "tools[0]: the tool has no name"},
    {"a tool without a type", TOOLS("{'name':'f'}"), NULL, "tools[0]: the tool is no object"},
    {"one in the input", INPUT("{'type':'additional_tools','tools':[{'type':'function','name':'f'},{'type':'shell'}]}"), NULL, "input[0].tools[1]: a tool of type shell"},
    {"a namespace in a namespace", TOOLS("{'type':'namespace','name':'a','tools':[{'type':'namespace','name':'b','tools':[]}]}"), NULL, "tools[0]: a tool of type namespace"},
    {"a hosted tool that is chosen", "{'tool_choice':{'type':'web_search'}," HELLO "}", NULL, "tool_choice: web_search cannot be chosen"},
    {"a list to choose from", "{'tool_choice':{'type':'allowed_tools','mode':'auto','tools':[]}," HELLO "}", NULL, "tool_choice: allowed_tools cannot be chosen"},
};

static void every_item_and_member_is_honoured_ignored_or_refused_by_name(void **state)
{
    (void)state;
    check_translations(read, members, sizeof members / sizeof *members);
    check_translations(read, items, sizeof items / sizeof *items);
    check_translations(read, tools, sizeof tools / sizeof *tools);
    check_translations(read, refused, sizeof refused / sizeof *refused);
}

static void the_answer_knows_what_was_asked(void **state)
{
    char *body = quoted("{'input':'a','include':['reasoning.encrypted_content'],'reasoning':{'summary':'detailed'},'tools':[{'type':'function','name':'ns::f'},"
                        "{'type':'custom','name':'g'},{'type':'namespace','name':'ns','tools':[{'type':'custom','name':'g'}]},{'type':'tool_search','execution':'client'}]}");
    static const struct {
        const char *name;
        enum tool_form form;
        size_t space;
    } tools_there[] = {{"ns::f", TOOL_FUNCTION, 0}, {"g", TOOL_CUSTOM, 0}, {"ns::g", TOOL_CUSTOM, 2}, {"tool_search", TOOL_SEARCH, 0}};
    struct json_document *doc;
    struct translation t = {0};
    struct responses_asked asked = {0};
    struct refusal refusal = {0};
    qr_error err = {0};
    (void)state;
    must(json_parse(body, strlen(body), "body", false, &doc, &err), &err);
    assert_true(responses_read(json_root(doc), NULL, &t, &asked, &refusal));
    assert_true(asked.summary && asked.encrypted);
    assert_int_equal(asked.tools.count, sizeof tools_there / sizeof *tools_there);
    for (size_t i = 0; i < asked.tools.count; i++) {
        const struct response_tool *tool = response_tools_find(&asked.tools, tools_there[i].name, strlen(tools_there[i].name));
        assert_ptr_equal(tool, &asked.tools.items[i]);
        assert_int_equal(tool->form, tools_there[i].form);
        assert_int_equal(tool->space, tools_there[i].space);
    }
    assert_null(response_tools_find(&asked.tools, "f", 1));
    response_tools_free(&asked.tools);
    translation_free(&t);
    json_close(doc);
    qr_free(body);
}

static void what_is_not_stored_has_a_code(void **state)
{
    static const char body[] = "{\"previous_response_id\":\"resp_1\",\"input\":\"a\"}";
    struct json_document *doc;
    struct translation t = {0};
    struct refusal refusal = {0};
    qr_error err = {0};
    (void)state;
    must(json_parse(body, sizeof body - 1, "body", false, &doc, &err), &err);
    assert_false(read(json_root(doc), &t, &refusal));
    assert_string_equal(refusal.code, "unsupported_parameter");
    assert_string_equal(refusal.param, "previous_response_id");
    translation_free(&t);
    json_close(doc);
}

static void no_memory_is_an_error_of_the_server(void **state)
{
    (void)state;
    check_translation_faults(read, "{'instructions':'x','tools':[{'type':'namespace','name':'ns','tools':[{'type':'function','name':'f'}]},{'type':'custom','name':'g','format':{'definition':'d'}}],"
                                   "'input':[{'type':'reasoning','summary':[],'encrypted_content':'SSBzZWU='},{'type':'tool_search_call','call_id':'1','arguments':{}},"
                                   "{'type':'tool_search_output','call_id':'1','tools':[{'type':'function','name':'h'}]}]}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_and_member_is_honoured_ignored_or_refused_by_name),
        cmocka_unit_test(the_answer_knows_what_was_asked),
        cmocka_unit_test(what_is_not_stored_has_a_code),
        fault_test(no_memory_is_an_error_of_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
