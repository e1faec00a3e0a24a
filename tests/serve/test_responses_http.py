# label: release
"""Responses over HTTP (protocol.md 4.6): events to the letter, and the final object repeats what they have told."""
import base64
import json
import os
import sys

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served  # noqa: E402

f = Faults()
PATH = "/v1/responses"
HELLO = {"model": "tiny-v41", "max_output_tokens": 60, "temperature": 0, "input": "hi"}
WEATHER = {"type": "function", "name": "get_weather", "description": "The weather of a city.", "strict": False,
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
ASK = {**HELLO, "max_output_tokens": 200, "tools": [WEATHER], "input": [{"role": "user", "content": "What is the weather in Paris?"}]}
OFF = {"reasoning": {"effort": "none"}}
RESPONSE = {"id", "object", "created_at", "status", "model", "output", "usage", "error", "incomplete_details", "tools", "tool_choice", "temperature", "top_p",
            "parallel_tool_calls", "metadata"}


class Told:
    """Reads events one by one, each where it may stand."""

    def __init__(self, what, events):
        self.what, self.events, self.at = what, events, 0
        for i, (name, data) in enumerate(events):
            f.expect(f"{what}: type and number", name == data["type"] and data["sequence_number"] == i, data)

    def next(self, kind, **members):
        name, data = self.events[self.at] if self.at < len(self.events) else ("nothing", {})
        self.at += 1
        if name != "response." + kind:
            raise AssertionError(f"{self.what}: {name}, wanted {kind}")
        for key, value in members.items():
            f.expect(f"{self.what}: {kind}: {key}", data.get(key) == value, data)
        return data

    def is_next(self, kind):
        return self.at < len(self.events) and self.events[self.at][0] == "response." + kind


def text_item(told, i, item, delta, done, place, part=None):
    about = {"item_id": item["id"], "output_index": i, place: 0}
    if part:
        f.expect("its part begins empty", told.next(part + ".added", **about)["part"]["text"] == "", i)
    text = ""
    while told.is_next(delta):
        piece = told.next(delta, **about)
        f.expect("logprobs", ("logprobs" in piece) == (item["type"] == "message") and piece.get("logprobs", []) == [], piece)
        text += piece["delta"]
    told.next(done, **about, text=text)
    if part:
        f.expect("its part is the text", told.next(part + ".done", **about)["part"]["text"] == text, text)
    return text


def call_item(told, i, item, kind, key):
    text = ""
    while told.is_next(kind + ".delta"):
        text += told.next(kind + ".delta", item_id=item["id"], output_index=i)["delta"]
    told.next(kind + ".done", item_id=item["id"], output_index=i, **{key: text})
    return text


def items_of(told):
    """The items that a stream tells."""
    items = []
    while told.is_next("output_item.added"):
        i = len(items)
        item = told.next("output_item.added", output_index=i)["item"]
        f.expect("it goes on", item["status"] == "in_progress", item)
        if item["type"] == "reasoning":
            summary = told.is_next("reasoning_summary_part.added")
            text = (text_item(told, i, item, "reasoning_summary_text.delta", "reasoning_summary_text.done", "summary_index", "reasoning_summary_part") if summary
                    else text_item(told, i, item, "reasoning_text.delta", "reasoning_text.done", "content_index"))
        elif item["type"] == "message":
            text = text_item(told, i, item, "output_text.delta", "output_text.done", "content_index", "content_part")
        elif item["type"] == "function_call":
            text = call_item(told, i, item, "function_call_arguments", "arguments")
        else:
            text = call_item(told, i, item, "custom_tool_call_input", "input")
        whole = told.next("output_item.done", output_index=i)["item"]
        f.expect("one id", whole["id"] == item["id"], whole)
        f.expect("the item holds the text", text in (whole.get("arguments"), whole.get("input")) or any(p["text"] == text for p in whole.get("content", []) + whole.get("summary", [])), whole)
        items.append(whole)
    return items


def told_by(what, events):
    told = Told(what, events)
    for kind in ("created", "in_progress"):
        response = told.next(kind)["response"]
        f.expect(f"{what}: {kind}", response["status"] == "in_progress" and response["output"] == [] and RESPONSE <= set(response), response)
    items = items_of(told)
    last = told.events[told.at][0].split(".")[1]
    response = told.next(last)["response"]
    f.expect(f"{what}: it ends", told.at == len(events) and last == response["status"], (last, response["status"]))
    f.expect(f"{what}: the output is what was told", response["output"] == items, (response["output"], items))
    return response


def comparable(response):
    return {**{k: v for k, v in response.items() if k not in ("id", "created_at", "usage")}, "usage": response["usage"]["output_tokens"],
            "output": [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]}


def wholes_and_pieces(s):
    custom = {"type": "custom", "name": "get_weather", "description": "The weather of a city."}
    space = {"type": "namespace", "name": "city", "description": "Of cities.", "tools": [WEATHER]}
    for what, body, kinds, status in (
            ("a greeting", HELLO, ["reasoning", "message"], "completed"), ("without reasoning", {**HELLO, **OFF}, ["message"], "completed"),
            ("a summary", {**HELLO, "reasoning": {"summary": "auto", "effort": "low"}, "include": ["reasoning.encrypted_content"]}, ["reasoning", "message"], "completed"),
            ("a call", ASK, ["reasoning", "function_call"], "completed"), ("a free-form call", {**ASK, "tools": [{"type": "web_search"}, custom]}, ["reasoning", "custom_tool_call"], "completed"),
            ("a namespace", {**ASK, "tools": [space]}, None, "completed"), ("few tokens", {**HELLO, "max_output_tokens": 3}, ["reasoning"], "incomplete")):
        code, _, said = s.post(PATH, body)
        f.expect(what, code == 200 and said["object"] == "response" and RESPONSE <= set(said) and said["id"].startswith("resp_") and said["store"] is False, said)
        f.expect(f"{what}: items", kinds is None or [i["type"] for i in said["output"]] == kinds, said["output"])
        f.expect(f"{what}: status", said["status"] == status and (said["incomplete_details"] == {"reason": "max_output_tokens"}) == (status == "incomplete"), said)
        f.expect(f"{what}: what was asked", said["tools"] == body.get("tools", []) and said["metadata"] == {} and said["temperature"] == 0, said)
        pieces = told_by(what, s.stream(PATH, body))
        f.expect(f"{what}: pieces and whole", comparable(pieces) == comparable(said), (pieces, said))
    said = s.post(PATH, {**HELLO, "include": ["reasoning.encrypted_content"]})[2]["output"][0]
    f.expect("hidden reasoning", base64.b64decode(said["encrypted_content"]).decode() == said["content"][0]["text"], said)
    call = s.post(PATH, ASK)[2]["output"][-1]
    f.expect("ids of a call", call["id"].startswith("fc_") and call["call_id"].startswith("call_") and call["id"][3:] != call["call_id"][5:], call)
    f.expect("arguments", json.loads(call["arguments"]) == {"city": "Paris"}, call)
    usage = s.post(PATH, HELLO)[2]["usage"]
    f.expect("usage", usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] and 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
             and 0 <= usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"], usage)


def cut(s):
    """A call that has no room for its end: what a stream has said of it stays, incomplete; a whole answer leaves it out."""
    few = {**ASK, "max_output_tokens": s.post(PATH, ASK)[2]["usage"]["output_tokens"] - 9}
    said = told_by("a cut call", s.stream(PATH, few))["output"]
    f.expect("a cut call in a stream", [(i["type"], i["status"]) for i in said] == [("reasoning", "completed"), ("function_call", "incomplete")], said)
    whole = s.post(PATH, few)[2]
    f.expect("a cut call is left out", [i["type"] for i in whole["output"]] == ["reasoning"] and whole["status"] == "incomplete", whole)


def logprobs(s):
    """Log probabilities are those of the chat, with every piece and with the whole."""
    text = lambda response: [part for item in response["output"] if item["type"] == "message" for part in item["content"]][0]
    for effort, thinking in (("none", "disabled"), ("low", "enabled")):
        asked = {**HELLO, "reasoning": {"effort": effort}, "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 200}
        chat = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 200, "logprobs": True,
                                               "top_logprobs": 2, "thinking": {"type": thinking}, "reasoning_effort": "low"})[2]["choices"][0]
        wanted = chat["logprobs"]["content"]
        whole = s.post(PATH, asked)[2]
        f.expect("those of the chat", text(whole)["text"] == chat["message"]["content"] and text(whole)["logprobs"] == wanted and len(wanted[0]["top_logprobs"]) == 2 and
                 whole["top_logprobs"] == 2, (whole, wanted))
        events = s.stream(PATH, asked)
        deltas = [d for n, d in events if n == "response.output_text.delta"]
        f.expect("with every piece", sum((d["logprobs"] for d in deltas), []) == wanted and all(
            "".join(e["token"] for e in d["logprobs"]) == d["delta"] for d in deltas), deltas)
        f.expect("and with the whole", [d["logprobs"] for n, d in events if n == "response.output_text.done"] + [d["part"]["logprobs"] for n, d in events if n == "response.content_part.done"] +
                 [text(events[-1][1]["response"])["logprobs"]] == [wanted] * 3, events[-1])
    said = s.post(PATH, {**HELLO, **OFF, "include": ["message.output_text.logprobs"]})[2]
    f.expect("without others", all(e["top_logprobs"] == [] for e in text(said)["logprobs"]) and "".join(e["token"] for e in text(said)["logprobs"]) == text(said)["text"], said)
    status, _, said = s.post(PATH, {**HELLO, "top_logprobs": 21})
    f.expect("too many", status == 400 and said["error"]["param"] == "top_logprobs", said)


def held(s):
    """Calls that are demanded, and answers by a schema."""
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"], "additionalProperties": False}
    custom = {"type": "custom", "name": "g"}
    asked = {**HELLO, **OFF, "tools": [custom], "tool_choice": {"type": "custom", "name": "g"}}
    said = told_by("a free-form call that is demanded", s.stream(PATH, asked))["output"]
    f.expect("raw text", [i["type"] for i in said] == ["custom_tool_call"] and not said[0]["input"].startswith("{"), said)
    space = {"type": "namespace", "name": "n", "tools": [WEATHER]}
    said = s.post(PATH, {**HELLO, **OFF, "tools": [space], "tool_choice": {"type": "function", "name": "get_weather", "namespace": "n"}})[2]["output"]
    f.expect("a call in a namespace", [(i["name"], i["namespace"], list(json.loads(i["arguments"]))) for i in said] == [("get_weather", "n", ["city"])], said)
    said = s.post(PATH, {**HELLO, "text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}})[2]["output"]
    f.expect("an answer by a schema", "city" in json.loads(said[-1]["content"][0]["text"]), said)


def turns(s):
    """What was said goes back as input: with its text, or with the hidden one alone, the prompt is that of the chat."""
    said = s.post(PATH, {**ASK, "include": ["reasoning.encrypted_content"]})[2]["output"]
    result = {"type": "function_call_output", "call_id": said[-1]["call_id"], "output": [{"type": "input_text", "text": "18 degrees"}]}
    hidden = {k: v for k, v in said[0].items() if k != "content"}
    chat = {"temperature": 0, "max_tokens": 1, "tools": [{"type": "function", "function": {k: WEATHER[k] for k in ("name", "description", "parameters")}}], "messages": ASK["input"] + [
        {"role": "assistant", "content": "", "reasoning_content": said[0]["content"][0]["text"],
         "tool_calls": [{"id": "1", "type": "function", "function": {"name": said[1]["name"], "arguments": said[1]["arguments"]}}]},
        {"role": "tool", "tool_call_id": "1", "content": "18 degrees"}]}
    wanted = s.post("/v1/chat/completions", chat)[2]["usage"]["prompt_tokens"]
    for what, reasoning in (("shown", said[0]), ("hidden", hidden)):
        again = s.post(PATH, {**ASK, "max_output_tokens": 1, "input": ASK["input"] + [reasoning, said[1], result]})[2]
        f.expect(f"{what} reasoning", again["usage"]["input_tokens"] == wanted, (again["usage"], wanted))


def agent(s):
    """Two turns as Codex sends them, which stores nothing and sends all of it again."""
    patch = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk+ end"}}
    shell = {"type": "function", "name": "exec_command", "description": "Runs a command.", "strict": False, "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}
    found = {"type": "namespace", "name": "mcp__mail__", "description": "Mail.", "tools": [{**shell, "name": "send", "defer_loading": True}]}
    asked = {"model": "tiny-v41", "instructions": "You are an agent. " * 40, "tools": [shell, WEATHER, patch, {"type": "web_search", "external_web_access": False},
                                                                                  {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}],
             "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "include": ["reasoning.encrypted_content"],
             "prompt_cache_key": "k", "client_metadata": {"a": "b"}, "text": {"verbosity": "low"}, "service_tier": "auto", "temperature": 0, "max_output_tokens": 150,
             "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
                       {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is the weather in Paris?"}]}]}
    first = told_by("the first turn", s.stream(PATH, asked))
    said = [{k: v for k, v in item.items() if k not in ("id", "status")} for item in first["output"]]
    results = [{"type": item["type"] + "_output", "call_id": item["call_id"], "output": "18 degrees"} for item in said if "call_id" in item]
    more = [{"type": "custom_tool_call", "call_id": "call_p", "name": "apply_patch", "input": "*** Begin Patch"}, {"type": "custom_tool_call_output", "call_id": "call_p", "output": "Done"},
            {"type": "tool_search_call", "call_id": "call_s", "execution": "client", "status": "completed", "arguments": {"query": "mail"}},
            {"type": "tool_search_output", "call_id": "call_s", "execution": "client", "status": "completed", "tools": []}]
    second = told_by("the second turn", s.stream(PATH, {**asked, "input": asked["input"] + said + results + more}))
    f.expect("the second finds the first", second["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"] // 128 * 128, (first["usage"], second["usage"]))
    more[-1]["tools"] = [found]
    third = told_by("tools that were found", s.stream(PATH, {**asked, "max_output_tokens": 5, "input": asked["input"] + said + results + more}))
    f.expect("they are in the prompt", third["usage"]["input_tokens"] > second["usage"]["input_tokens"], third["usage"])


def refusals(s):
    for what, body, param, code in (
            ("stored", {**HELLO, "previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"), ("a conversation", {**HELLO, "conversation": "c"}, "conversation", "unsupported_parameter"),
            ("in the background", {**HELLO, "background": True}, "background", "unsupported_parameter"), ("a model", {**HELLO, "model": "gpt"}, "model", "model_not_found"),
            ("a shell", {**HELLO, "tools": [{"type": "local_shell"}]}, "tools[0]", None), ("a call of it", {**HELLO, "input": [{"type": "local_shell_call"}]}, "input[0]", None),
            ("a picture", {**HELLO, "instructions": "x", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:x"}]}]},
             "input[0].content[1]", "unsupported_content"), ("nothing", {**HELLO, "input": []}, "input", None), ("two of a name", {**HELLO, "tools": [{"type": "web_search"}, WEATHER, WEATHER]}, "tools[2]", None),
            ("an effort", {**HELLO, "reasoning": {"effort": "huge"}}, "reasoning.effort", None), ("a schema", {**HELLO, "text": {"format": {"type": "xml"}}}, "text.format", None)):
        for stream in (False, True):
            status, _, said = s.post(PATH, {**body, "stream": stream})
            f.expect(what, status == (404 if what == "a model" else 400) and said["error"]["param"] == param and said["error"]["code"] == code and param.split("[")[0] in said["error"]["message"], said)


with Served() as s:
    agent(s)
    wholes_and_pieces(s)
    cut(s)
    logprobs(s)
    held(s)
    turns(s)
    refusals(s)
f.expect("hosted tools are told of", "web_search" in s.said, s.said)
sys.exit(1 if f.count else 0)
