# label: full
"""Structured output over HTTP (docs/structured.md): what answers have to be, on every API, whole and in pieces, and what is
refused by name."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served  # noqa: E402

f = Faults()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "Add 17 and 25."}], "thinking": {"type": "disabled"}, "temperature": 0, "max_tokens": 200}
SHAPE = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 10, "maximum": 99}, "unit": {"enum": ["apples", "pears"]},
                                          "why": {"type": "string", "maxLength": 12}},
         "required": ["sum", "unit", "why"], "additionalProperties": False}
BEGUN = ASK["messages"] + [{"role": "assistant", "content": "It is 4"}]
TOOL = {"type": "function", "function": {"name": "note", "parameters": SHAPE}}


def fits(text):
    value = json.loads(text)
    return list(value) == ["sum", "unit", "why"] and 10 <= value["sum"] <= 99 and value["unit"] in ("apples", "pears") and len(value["why"]) <= 12


def content(s, body, path=CHAT):
    status, _, said = s.post(path, body)
    if status != 200:
        f.expect(str(body), False, said)
        return ""
    choice = said["choices"][0]
    f.expect("it ends by itself", choice["finish_reason"] == "stop", choice)
    return choice["message"]["content"] if path == CHAT else choice["text"]


def answers(s):
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SHAPE, "strict": True}}
    for thinking in ("disabled", "enabled"):
        text = content(s, {**ASK, "thinking": {"type": thinking}, "max_tokens": 500, "response_format": format})
        f.expect(f"a schema, thinking {thinking}", fits(text), text)
    pieces = s.stream(CHAT, {**ASK, "response_format": format})
    text = "".join(d["choices"][0]["delta"].get("content") or "" for _, d in pieces if d != "[DONE]" and d["choices"])
    f.expect("a schema in pieces", fits(text), text)
    for member in ({"guided_json": SHAPE}, {"guided_json": json.dumps(SHAPE)}, {"structured_outputs": {"json": SHAPE}}):
        text = content(s, {**ASK, **member})
        f.expect(str(member), fits(text), text)
    for member in ({"guided_regex": "[0-9]{2}( apples)?"}, {"structured_outputs": {"regex": "[0-9]{2}( apples)?"}}):
        text = content(s, {**ASK, **member})
        f.expect(str(member), re.fullmatch("[0-9]{2}( apples)?", text), text)
    for member in ({"guided_choice": ["forty-two", "42"]}, {"structured_outputs": {"choice": ["forty-two", "42"]}}):
        text = content(s, {**ASK, **member})
        f.expect(str(member), text in ("forty-two", "42"), text)
    text = content(s, {**ASK, "messages": BEGUN, "continue_final_message": True, "guided_choice": ["9 pears", "2 apples"]})
    f.expect("behind a prefix", text in ("9 pears", "2 apples"), text)
    status, _, said = s.post(CHAT, {**ASK, "guided_choice": ["forty-two", "42"], "n": 3, "temperature": 1})
    f.expect("three answers", status == 200 and all(c["message"]["content"] in ("forty-two", "42") for c in said["choices"]), said)
    prompt = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0}
    f.expect("text by a schema", fits(content(s, {**prompt, "response_format": format}, TEXT)), "")
    f.expect("text by choice", content(s, {**prompt, "guided_choice": ["ab", "cd"]}, TEXT) in ("ab", "cd"), "")


def calls(s):
    for choice in ("required", {"type": "function", "function": {"name": "note"}}):
        for thinking in ("disabled", "enabled"):
            status, _, said = s.post(CHAT, {**ASK, "thinking": {"type": thinking}, "max_tokens": 600, "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False})
            made = said["choices"][0]["message"].get("tool_calls") or [] if status == 200 else []
            good = len(made) == 1 and made[0]["function"]["name"] == "note" and fits(made[0]["function"]["arguments"])
            f.expect(f"{choice}, thinking {thinking}", good and said["choices"][0]["finish_reason"] == "tool_calls", said)
    status, _, said = s.post("/v1/messages", {"model": "claude-x", "max_tokens": 400, "messages": ASK["messages"], "temperature": 0,
                                              "tools": [{"name": "note", "input_schema": SHAPE}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}})
    used = [b for b in said.get("content", []) if b["type"] == "tool_use"]
    f.expect("messages", status == 200 and len(used) == 1 and fits(json.dumps(used[0]["input"])), said)
    status, _, said = s.post("/v1/responses", {"input": "Add 17 and 25.", "temperature": 0, "reasoning": {"effort": "none"}, "max_output_tokens": 300,
                                               "text": {"format": {"type": "json_schema", "name": "x", "schema": SHAPE, "strict": True}}})
    text = [c["text"] for o in said.get("output", []) if o["type"] == "message" for c in o["content"]]
    f.expect("responses", status == 200 and len(text) == 1 and fits(text[0]), said)


def refusals(s):
    def refused(what, path, body, word, param=None):
        status, _, said = s.post(path, {**ASK, **body} if path == CHAT else {"prompt": "a", **body} if path == TEXT else body)
        error = said.get("error", {})
        f.expect(what, status == 400 and word in error.get("message", "") and (param is None or error["param"] == param), (status, said))

    refused("a keyword", CHAT, {"guided_json": {"properties": {"a": {"multipleOf": 2}}}}, "multipleOf", "guided_json#/properties/a")
    refused("the same of a format", CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "not", "response_format#")
    refused("a look-ahead", TEXT, {"guided_regex": "(?=a)b"}, "look-ahead", "guided_regex")
    refused("a grammar", CHAT, {"guided_grammar": "root ::= a"}, "guided_grammar", "guided_grammar")
    refused("another grammar", CHAT, {"structured_outputs": {"grammar": "root ::= a"}}, "grammar", "structured_outputs.grammar")
    refused("two at once", CHAT, {"guided_regex": "a", "guided_choice": ["b"]}, "not with guided_regex", "guided_choice")
    refused("beside a format", CHAT, {"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format", "guided_regex")
    refused("beside a forced call", CHAT, {"structured_outputs": {"choice": ["a"]}, "tools": [TOOL], "tool_choice": "required"}, "not with", "structured_outputs.choice")
    refused("a format behind a prefix", CHAT, {"messages": BEGUN, "continue_final_message": True, "response_format": {"type": "json_object"}}, "continue_final_message")
    refused("a word for true", CHAT, {"guided_json_object": "yes"}, "true or false", "guided_json_object")
    refused("a number for true", CHAT, {"structured_outputs": {"json_object": 1}}, "true or false", "structured_outputs.json_object")
    refused("a bad choice", CHAT, {"structured_outputs": {"choice": [1]}}, "no string", "structured_outputs.choice")
    refused("a number", CHAT, {"structured_outputs": {"regex": 1}}, "wanted a string", "structured_outputs.regex")
    refused("a schema of a format", "/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"properties": {"a": {"not": {}}}}}}},
            "not", "text.format#/properties/a")
    refused("no choice", TEXT, {"guided_choice": []}, "at least one", "guided_choice")
    refused("nothing fits", TEXT, {"guided_json": False}, "no answer can fit", "guided_json")


with Served("--max-num-seqs", "4", "--max-model-len", "2048") as s:
    answers(s)
    calls(s)
    refusals(s)
sys.exit(1 if f.count else 0)
