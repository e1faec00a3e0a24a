# label: full
"""Clients that people use, unchanged, against the server: openai, anthropic and lm-eval, of a virtual environment that is made in
the build folder. Without network or PyPI the test is skipped, visibly."""
import json
import os
import subprocess
import sys
import venv

SOURCE, BUILD = os.environ["QUIRE_SOURCE"], os.environ.get("QUIRE_BUILD", os.path.join(os.environ["QUIRE_SOURCE"], "build", "release"))
HOME = os.environ.get("QUIRE_CLIENTS", os.path.join(BUILD, "clients"))
PYTHON = os.path.join(HOME, "bin", "python")
PACKAGES = ["openai", "anthropic", "lm-eval[api]"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "support"))


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def set_up():
    if subprocess.run([PYTHON, "-c", "import openai, anthropic, lm_eval"], capture_output=True).returncode == 0 if os.path.exists(PYTHON) else False:
        return
    try:
        venv.create(HOME, with_pip=True)
    except Exception as e:  # a Python without venv
        skip(f"no virtual environment: {e}")
    done = subprocess.run([PYTHON, "-m", "pip", "install", "-q", *PACKAGES], capture_output=True, text=True)
    if done.returncode:
        skip("the clients cannot be installed: " + (done.stderr.strip().splitlines() or ["?"])[-1])


if os.path.realpath(sys.prefix) != os.path.realpath(HOME):
    set_up()
    sys.exit(subprocess.run([PYTHON, "-B", *sys.argv]).returncode)

import tempfile  # noqa: E402

from anthropic import Anthropic  # noqa: E402
from openai import BadRequestError, NotFoundError, OpenAI  # noqa: E402
from served import Faults, Served  # noqa: E402

f = Faults()
STORY = [{"role": "user", "content": "Tell me a story."}]
SUM = [{"role": "user", "content": "Use the tool: what is 2 plus 3?"}]
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": False}


def openai_chats(client):
    whole = client.chat.completions.create(model="deepseek-v4-flash", messages=STORY, temperature=0, max_tokens=60)
    pieces = list(client.chat.completions.create(model="deepseek-v4-flash", messages=STORY, temperature=0, max_tokens=60, stream=True,
                                                 stream_options={"include_usage": True}))
    said = "".join(c.choices[0].delta.content or "" for c in pieces if c.choices)
    f.expect("openai: a stream", said == whole.choices[0].message.content and pieces[-1].usage.total_tokens == whole.usage.total_tokens, said)
    f.expect("openai: reasoning", whole.choices[0].message.reasoning_content, whole)
    lp = client.chat.completions.create(model="deepseek-v4-flash", messages=STORY, temperature=0, max_tokens=20, logprobs=True, top_logprobs=3)
    f.expect("openai: logprobs", lp.choices[0].logprobs is not None, lp)
    models = [m.id for m in client.models.list()]
    f.expect("openai: models", len(models) == 1, models)
    try:
        client.chat.completions.create(model="gpt-4", messages=STORY)
        f.expect("openai: another model", False, "")
    except NotFoundError as e:
        f.expect("openai: another model", e.code == "model_not_found", e)
    try:
        client.chat.completions.create(model="deepseek-v4-flash", messages=STORY, temperature=9)
        f.expect("openai: a wrong value", False, "")
    except BadRequestError as e:
        f.expect("openai: a wrong value", e.param == "temperature", e)
    text = client.completions.create(model="deepseek-v4-flash", prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=1, echo=True)
    f.expect("openai: completions", text.choices[0].text.startswith("Once upon a time") and text.choices[0].logprobs.token_logprobs[0] is None, text)


def openai_tools(client):
    tool = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": ADD}}
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        for extra in ({}, {"extra_body": {"thinking": {"type": "disabled"}}}):
            got = client.chat.completions.create(model="deepseek-v4-flash", messages=SUM, tools=[tool], tool_choice=choice, temperature=0, max_tokens=300, **extra)
            calls = got.choices[0].message.tool_calls or []
            good = [c for c in calls if c.function.name == "add" and set(json.loads(c.function.arguments)) == {"a", "b"}]
            f.expect(f"openai: a call that must be, {choice}", calls and good and got.choices[0].finish_reason == "tool_calls", got)
    stream = client.chat.completions.create(model="deepseek-v4-flash", messages=SUM, tools=[tool], tool_choice="required", temperature=0, max_tokens=300, stream=True)
    arguments = "".join(c.function.arguments or "" for chunk in stream for c in (chunk.choices[0].delta.tool_calls or []))
    f.expect("openai: a call in pieces", set(json.loads(arguments)) == {"a", "b"}, arguments)
    again = client.chat.completions.create(model="deepseek-v4-flash", temperature=0, max_tokens=40, tools=[tool], messages=SUM + [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "5"}])
    f.expect("openai: after a result", again.choices[0].finish_reason in ("stop", "length", "tool_calls"), again)


def openai_structured(client):
    format = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for temperature in (0, 1):
        got = client.chat.completions.create(model="deepseek-v4-flash", messages=[{"role": "user", "content": "Who are you?"}], response_format=format,
                                             temperature=temperature, seed=3, max_tokens=400)
        person = json.loads(got.choices[0].message.content)
        f.expect("openai: by a schema", set(person) == {"name", "age"} and isinstance(person["age"], int) and 0 <= person["age"] <= 120, person)
    got = client.chat.completions.create(model="deepseek-v4-flash", messages=[{"role": "user", "content": "An object, please."}], temperature=0, max_tokens=200,
                                         response_format={"type": "json_object"}, stop=["\n\n\n"])
    f.expect("openai: any object", got.choices[0].finish_reason == "length" or isinstance(json.loads(got.choices[0].message.content), dict), got)


def openai_responses(client):
    whole = client.responses.create(model="deepseek-v4-flash", input="Tell me a story.", temperature=0, max_output_tokens=80)
    f.expect("openai: a response", whole.status in ("completed", "incomplete") and whole.output_text, whole)
    events = list(client.responses.create(model="deepseek-v4-flash", input="Tell me a story.", temperature=0, max_output_tokens=80, stream=True))
    f.expect("openai: its events", [e.sequence_number for e in events] == list(range(len(events))) and
             "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text, [e.type for e in events])
    tool = {"type": "function", "name": "add", "description": "Add two numbers.", "parameters": ADD, "strict": True}
    call = client.responses.create(model="deepseek-v4-flash", input="Use the tool: what is 2 plus 3?", tools=[tool], tool_choice="required", temperature=0, max_output_tokens=300)
    calls = [o for o in call.output if o.type == "function_call"]
    f.expect("openai: a call in a response", calls and set(json.loads(calls[0].arguments)) == {"a", "b"} and calls[0].id != calls[0].call_id, call)


def anthropic_messages(client, wide):
    whole = client.messages.create(model="claude-any", max_tokens=80, messages=STORY, extra_body={"temperature": 0})
    kinds = [b.type for b in whole.content]
    f.expect("anthropic: a message", whole.stop_reason in ("end_turn", "max_tokens") and "text" in kinds, whole)
    with client.messages.stream(model="claude-any", max_tokens=80, messages=STORY, extra_body={"temperature": 0}) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    f.expect("anthropic: a stream", said == "".join(b.text for b in whole.content if b.type == "text") and [b.type for b in final.content] == kinds, (said, whole))
    thinking = client.messages.create(model="claude-any", max_tokens=2000, messages=STORY, thinking={"type": "enabled", "budget_tokens": 1024})
    f.expect("anthropic: thinking", thinking.content[0].type == "thinking" and thinking.content[0].signature, thinking)
    second = client.messages.create(model="claude-any", max_tokens=20, messages=STORY + [{"role": "assistant", "content": [b.model_dump() for b in thinking.content]},
                                                                                       {"role": "user", "content": "Another one."}])
    f.expect("anthropic: a second turn", second.content, second)
    tool = {"name": "add", "description": "Add two numbers.", "input_schema": ADD}
    call = client.messages.create(model="claude-any", max_tokens=300, messages=SUM, tools=[tool], tool_choice={"type": "any"}, extra_body={"temperature": 0})
    uses = [b for b in call.content if b.type == "tool_use"]
    f.expect("anthropic: a call", uses and set(uses[0].input) == {"a", "b"} and call.stop_reason == "tool_use", call)
    result = client.messages.create(model="claude-any", max_tokens=60, tools=[tool], extra_body={"temperature": 0}, messages=SUM + [
        {"role": "assistant", "content": [b.model_dump() for b in call.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": uses[0].id if uses else "x", "content": "5"}]}])
    f.expect("anthropic: after a result", result.content, result)
    count = client.messages.count_tokens(model="claude-any", messages=STORY)
    system = "You are an agent. Use tools with care. " * (wide // 12 + 1)
    with client.messages.stream(model="claude-any", max_tokens=8, system=system, messages=STORY, extra_body={"temperature": 0}) as stream:
        usage = stream.get_final_message().usage
    f.expect("anthropic: a wide prompt", usage.input_tokens + (usage.cache_read_input_tokens or 0) > wide, usage)
    f.expect("anthropic: count", count.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0), (count, whole.usage))


def harness(s, folder, task, model, path, more):
    """The results of a task that lm-eval runs; none where it failed."""
    done = subprocess.run([PYTHON, "-m", "lm_eval", "--model", model, "--tasks", task, "--include_path", folder, "--output_path", os.path.join(folder, task),
                           "--model_args", f"model=deepseek-chat,base_url={s.url}{path},num_concurrent=4,{more}", *(["--apply_chat_template"] if "chat" in model else [])],
                          capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": os.path.join(folder, "cache"), "OPENAI_API_KEY": "none"})
    found = [os.path.join(at, n) for at, _, names in os.walk(os.path.join(folder, task)) for n in names if n.endswith(".json")]
    f.expect(f"lm-eval runs {task}", done.returncode == 0 and found, (done.returncode, done.stderr[-2500:]))
    return json.load(open(found[0]))["results"][task] if found else {}


def evaluate(s, folder):
    """A tiny multiple-choice task over token ids, and one of answers to chats, by lm-eval."""
    rows = [{"question": f"Tell me story number {i}.", "choices": [" dragon", " zqx"], "gold": 0, "word": "the"} for i in range(4)]
    with open(os.path.join(folder, "rows.jsonl"), "w") as file:
        file.writelines(json.dumps(r) + "\n" for r in rows)
    data = f"""dataset_path: json
dataset_kwargs: {{data_files: {{test: {os.path.join(folder, 'rows.jsonl')}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
    with open(os.path.join(folder, "choose.yaml"), "w") as file:
        file.write(f"task: tiny_story\n{data}output_type: multiple_choice\ndoc_to_choice: choices\ndoc_to_target: gold\nmetric_list: [{{metric: acc}}]\n")
    with open(os.path.join(folder, "tell.yaml"), "w") as file:
        file.write(f"task: tiny_answer\n{data}output_type: generate_until\ndoc_to_target: word\ngeneration_kwargs: {{max_gen_toks: 24, until: [zqx]}}\nmetric_list: [{{metric: exact_match}}]\n")
    results = harness(s, folder, "tiny_story", "local-completions", "/v1/completions", "tokenized_requests=True,tokenizer_backend=remote,max_length=2048")
    f.expect("lm-eval's score", any(k.startswith("acc") and isinstance(v, float) for k, v in results.items()), results)
    results = harness(s, folder, "tiny_answer", "local-chat-completions", "/v1/chat/completions", "max_length=2048")
    f.expect("lm-eval's score of answers", any(k.startswith("exact_match") and isinstance(v, float) for k, v in results.items()), results)


for model in ("tiny-v41", "tiny-v4"):
    with Served("--max-num-seqs", "4", "--quiet", model=os.path.join(SOURCE, "models", model)) as s, tempfile.TemporaryDirectory() as folder:
        client = OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
        openai_chats(client)
        openai_tools(client)
        openai_structured(client)
        openai_responses(client)
        anthropic_messages(Anthropic(base_url=s.url, api_key="none", max_retries=0), 15000 if model == "tiny-v4" else 25000)  # tiny-v4 has no room for more
        evaluate(s, folder)
    f.expect("a quiet end", s.status == 0 and s.said == "", (s.status, s.said[-500:]))
sys.exit(1 if f.count else 0)
