# label: release
"""Anthropic's API over HTTP (protocol.md 4.5): streams to the letter, and what their pieces come to is what the whole says."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served  # noqa: E402

f = Faults()
PATH = "/v1/messages"
HELLO = {"model": "claude-any", "max_tokens": 60, "temperature": 0, "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"name": "get_weather", "description": "The weather of a city.",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]
WEATHER = {**HELLO, "max_tokens": 200, "tools": TOOLS, "messages": [{"role": "user", "content": "What is the weather in Paris?"}]}
OFF = {"thinking": {"type": "disabled"}}


def summed(what, events):
    """The message that a stream comes to; its events are those of 4.5, in their order."""
    names = [name for name, _ in events]
    f.expect(f"{what}: names are types", all(name == data["type"] for name, data in events), names)
    f.expect(f"{what}: order", names[0] == "message_start" and names[1] == "content_block_start" and names[2] == "ping"
             and names[-2:] == ["message_delta", "message_stop"], names)
    message, opened = {**events[0][1]["message"]}, None
    for name, data in events[1:-2]:
        if name == "content_block_start":
            f.expect(f"{what}: index", opened is None and data["index"] == len(message["content"]), data)
            opened = {**data["content_block"], "pieces": ""}
            f.expect(f"{what}: begins empty", not any(opened.get(k) for k in ("text", "thinking", "signature", "input")), data)
            message["content"] = message["content"] + [opened]
        elif name == "content_block_delta":
            d = data["delta"]
            f.expect(f"{what}: of the open block", opened is not None and data["index"] == len(message["content"]) - 1, data)
            key, value = {"thinking_delta": ("thinking", "thinking"), "signature_delta": ("signature", "signature"), "text_delta": ("text", "text"),
                          "input_json_delta": ("pieces", "partial_json")}[d["type"]]
            f.expect(f"{what}: no thought behind its signature", key != "thinking" or not opened["signature"], data)
            opened[key] += d[value]
        elif name == "content_block_stop":
            f.expect(f"{what}: stops once", opened is not None and data["index"] == len(message["content"]) - 1, data)
            if opened["type"] == "tool_use":
                opened["input"] = json.loads(opened["pieces"])
            f.expect(f"{what}: signed", opened["type"] != "thinking" or opened["signature"], opened)
            del opened["pieces"]
            opened = None
        else:
            f.expect(f"{what}: event", name == "ping", name)
    f.expect(f"{what}: all stopped", opened is None, opened)
    message.update(events[-2][1]["delta"])
    message["usage"] = {**message["usage"], **events[-2][1]["usage"]}
    return message


def comparable(message):
    return {**{k: v for k, v in message.items() if k not in ("id", "usage")}, "content": [{k: v for k, v in b.items() if k != "id"} for b in message["content"]],
            "output": message["usage"]["output_tokens"], "input": sum(v for k, v in message["usage"].items() if k != "output_tokens")}


def wholes_and_pieces(s):
    for what, body, kinds, reason in (("a greeting", HELLO, ["thinking", "text"], "end_turn"), ("without thinking", {**HELLO, **OFF}, ["text"], "end_turn"),
                                      ("hidden", {**HELLO, "thinking": {"type": "enabled", "display": "omitted"}}, ["thinking", "text"], "end_turn"),
                                      ("a call", WEATHER, ["thinking", "tool_use"], "tool_use"), ("few tokens", {**HELLO, "max_tokens": 3}, ["thinking"], "max_tokens"),
                                      ("a stop", {**HELLO, "stop_sequences": ["zzz", "How"]}, ["thinking", "text"], "stop_sequence"),
                                      ("nothing", {**HELLO, **OFF, "stop_sequences": ["Hello"]}, ["text"], "stop_sequence")):
        status, headers, body_said = s.post(PATH, body)
        f.expect(what, status == 200 and body_said["type"] == "message" and body_said["role"] == "assistant" and body_said["id"].startswith("msg_"), body_said)
        f.expect(f"{what}: blocks", [b["type"] for b in body_said["content"]] == kinds, body_said["content"])
        f.expect(f"{what}: reason", body_said["stop_reason"] == reason, body_said["stop_reason"])
        f.expect(f"{what}: request id", headers["request-id"] == headers["x-request-id"], headers)
        pieces = summed(what, s.stream(PATH, body))
        f.expect(f"{what}: pieces and whole", comparable(pieces) == comparable(body_said), (pieces, body_said))
    f.expect("the stop that was found", s.post(PATH, {**HELLO, "stop_sequences": ["zzz", "How"]})[2]["stop_sequence"] == "How", "")
    call = s.post(PATH, WEATHER)[2]["content"][-1]
    f.expect("the call", call["name"] == "get_weather" and isinstance(call["input"], dict) and call["id"].startswith("toolu_"), call)
    prefix = s.post(PATH, {**HELLO, **OFF, "messages": HELLO["messages"] + [{"role": "assistant", "content": "Hello"}]})[2]["content"][0]["text"]
    f.expect("a prefix goes on", prefix and not prefix.startswith("Hello"), prefix)
    one = s.post(PATH, {**WEATHER, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}})[2]
    f.expect("one call", [b["type"] for b in one["content"]] == ["thinking", "tool_use"], one)


def cut(s):
    """A call that has no room for its end: what a stream has said of it stays, a whole answer leaves it out."""
    few = {**WEATHER, "max_tokens": s.post(PATH, WEATHER)[2]["usage"]["output_tokens"] - 9}
    events = s.stream(PATH, few)
    blocks = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
    stops = [data["index"] for name, data in events if name == "content_block_stop"]
    f.expect("a cut call in a stream", blocks == ["thinking", "tool_use"] and stops == [0, 1] and events[-2][1]["delta"]["stop_reason"] == "max_tokens", events)
    whole = s.post(PATH, few)[2]
    f.expect("a cut call is left out", [b["type"] for b in whole["content"]] == ["thinking"] and whole["stop_reason"] == "max_tokens", whole)


def held(s):
    """Calls that are demanded, and answers by a schema."""
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"], "additionalProperties": False}
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        said = s.post(PATH, {**HELLO, **OFF, "tools": [{"name": "f", "input_schema": schema, "strict": True}], "tool_choice": choice})[2]
        f.expect("a call that is demanded", said["stop_reason"] == "tool_use" and [list(b["input"]) for b in said["content"]] == [["city"]], said)
    said = s.post(PATH, {**HELLO, "output_config": {"format": {"type": "json_schema", "schema": schema}}})[2]
    f.expect("an answer by a schema", list(json.loads(said["content"][-1]["text"])) == ["city"], said)
    status, _, said = s.post(PATH, {**HELLO, "output_config": {"format": {"type": "json_schema", "schema": {"properties": {"x": {"unevaluatedItems": False}}}}}})
    f.expect("a schema that is not supported", status == 400 and said["error"]["message"].startswith("output_config.format: "), said)


def turns(s):
    """A hidden thought that comes back gives the prompt of one that was shown; the tokens are those of the real encoder."""
    counts = []
    for display in ("summarized", "omitted"):
        asked = {**WEATHER, "thinking": {"type": "enabled", "display": display}}
        said = s.post(PATH, asked)[2]
        f.expect(f"{display}", bool(said["content"][0]["thinking"]) == (display == "summarized"), said["content"][0])
        result = {"role": "user", "content": [{"type": "text", "text": "Short, please."}, {"type": "tool_result", "tool_use_id": said["content"][-1]["id"], "content": "18 degrees"}]}
        asked["messages"] = asked["messages"] + [{"role": "assistant", "content": said["content"]}, result]
        status, _, count = s.post(PATH + "/count_tokens?beta=true", asked)
        f.expect("count", status == 200 and list(count) == ["input_tokens"], count)
        counts.append(count["input_tokens"])
        usage = s.post(PATH, asked)[2]["usage"]
        f.expect("what was counted is what was read", usage["input_tokens"] + usage["cache_read_input_tokens"] == count["input_tokens"], (usage, count))
    f.expect("shown or hidden", counts[0] == counts[1], counts)
    billed = [s.post(PATH + "/count_tokens", {**HELLO, "system": [{"type": "text", "text": f"x-anthropic-billing-header: cch={i};"}, {"type": "text", "text": "Be brief."}]})[2]
              for i in ("1", "22222222")]
    plain = s.post(PATH + "/count_tokens", {**HELLO, "system": "Be brief."})[2]
    f.expect("the billing line is no part of the prompt", billed == [plain, plain], (billed, plain))


def agent(s):
    """Two turns as coding agents send them: a billing line that changes, marks that move, a wide name. The second finds the first in the cache."""
    def asked(number, messages):
        mark = {"cache_control": {"type": "ephemeral"}}
        last = messages[-1]["content"][-1]
        return {"model": "claude-opus-4-1[1m]", "max_tokens": 200, "temperature": 0, "metadata": {"user_id": f"u{number}"}, "context_management": {"edits": []},
                "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number}{number};"}, {"type": "text", "text": "You are an agent.", **mark},
                           {"type": "text", "text": "Use tools. " * 60, **mark}],
                "tools": TOOLS + [{"name": "add", "description": "Add two numbers.", "input_schema": {"type": "object", "properties": {}}, **mark}], "thinking": {"type": "adaptive"},
                "messages": messages[:-1] + [{**messages[-1], "content": messages[-1]["content"][:-1] + [{**last, **mark}]}]}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219", "x-api-key": "none"}
    talk = [{"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]}]
    first = s.post(PATH + "?beta=true", asked(1, talk), headers)[2]
    read = sum(v for k, v in first["usage"].items() if k != "output_tokens")
    f.expect("the first turn", first["stop_reason"] in ("tool_use", "end_turn") and read > 256, first)
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "18 degrees"}]}
    talk += [{"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}]},
             {"role": "user", "content": [result]}]
    second = s.post("/anthropic/v1/messages", asked(2, talk), headers)[2]
    f.expect("the second finds the first", second["usage"]["cache_read_input_tokens"] >= read // 128 * 128, (second, read))


def refusals(s):
    for what, body, status, kind, start in (
            ("no JSON", "{", 400, "invalid_request_error", ""), ("no messages", {"model": "claude-x"}, 400, "invalid_request_error", "messages: "),
            ("a model", {**HELLO, "model": "gpt"}, 404, "not_found_error", "the model \"gpt\""),
            ("a picture", {**HELLO, "system": "x", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "url", "url": "http://x"}}]}]},
             400, "invalid_request_error", "messages[0].content[1]: a picture"),
            ("a tool of the service", {**HELLO, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "invalid_request_error", "tools[0].type: web_search_20250305"),
            ("an effort", {**HELLO, "output_config": {"effort": "huge"}}, 400, "invalid_request_error", "output_config.effort: "),
            ("a temperature", {**HELLO, "temperature": 3}, 400, "invalid_request_error", "temperature: "),
            ("no tools", {**HELLO, "tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice: "),
            ("too long", {**HELLO, "messages": [{"role": "user", "content": "word " * 40000}]}, 400, "invalid_request_error", "the prompt has ")):
        for stream in (False, True):
            got, _, said = s.post(PATH, {**body, "stream": stream} if isinstance(body, dict) else body)
            good = got == status and said["type"] == "error" and said["error"]["type"] == kind and said["error"]["message"].startswith(start) and said["request_id"]
            f.expect(f"{what}", good, (got, said))
    f.expect("a get", s.ask("GET", PATH)[0] == 405, "")
    image = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]}
    text = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "[Unsupported image]"}]}
    both = [s.post(PATH + "/count_tokens", {**HELLO, "messages": [m]})[2] for m in (image, text)]
    f.expect("a picture in a result is named", both[0] == both[1], both)


with Served("--max-num-seqs", "4", "--max-model-len", "16384") as s:
    wholes_and_pieces(s)
    cut(s)
    held(s)
    turns(s)
    refusals(s)
with Served("--ignore-server-tools") as s:
    agent(s)
    status, _, said = s.post(PATH, {**HELLO, "tools": [{"type": "web_search_20250305", "name": "web_search"}]})
    f.expect("tools of the service are passed over", status == 200, said)
f.expect("and told of", "web_search_20250305" in s.said, s.said)
sys.exit(1 if f.count else 0)
