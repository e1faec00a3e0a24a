# label: release
"""Chats and completions over HTTP (protocol.md 4.2 to 4.4, 4.8): what a stream says in pieces is what the whole says."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served  # noqa: E402

f = Faults()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 40, "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}]


def summed(events):
    """What the chunks of a chat come to: by choice, message, reason and logprobs."""
    choices, usage = {}, None
    for _, chunk in events[:-1]:
        usage = chunk.get("usage") or usage
        for c in chunk["choices"]:
            m = choices.setdefault(c["index"], {"content": "", "reasoning_content": "", "calls": [], "reason": None, "logprobs": [], "thoughts": []})
            for key in ("content", "reasoning_content"):
                m[key] += c["delta"].get(key) or ""
            for call in c["delta"].get("tool_calls", []):
                if call["index"] == len(m["calls"]):
                    m["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                m["calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
            f.expect("nothing behind the reason", m["reason"] is None, c)
            m["reason"] = c["finish_reason"]
            if c.get("logprobs"):
                m["logprobs"] += c["logprobs"]["content"]
                m["thoughts"] += c["logprobs"]["reasoning_content"] or []
    return choices, usage


def whole(body):
    return {c["index"]: {"content": c["message"]["content"] or "", "reasoning_content": c["message"].get("reasoning_content") or "",
                         "calls": [{"name": t["function"]["name"], "arguments": t["function"]["arguments"]} for t in c["message"].get("tool_calls", [])],
                         "reason": c["finish_reason"], "logprobs": (c["logprobs"] or {}).get("content", []),
                         "thoughts": (c["logprobs"] or {}).get("reasoning_content") or []} for c in body["choices"]}


def without_ids(choices):
    return {i: {**c, "calls": [{k: v for k, v in t.items() if k != "id"} for t in c["calls"]]} for i, c in choices.items()}


def chats(s):
    for what, more in (("plain", {}), ("without thinking", {"thinking": {"type": "disabled"}}), ("logprobs", {"logprobs": True, "top_logprobs": 2}),
                       ("three answers", {"n": 3, "temperature": 1, "seed": 7}), ("a stop string", {"stop": ["!", "."]}),
                       ("tools", {"tools": TOOLS}), ("few tokens", {"max_tokens": 3})):
        status, _, body = s.post(CHAT, {**ASK, **more})
        f.expect(what, status == 200 and body["object"] == "chat.completion", body)
        events = s.stream(CHAT, {**ASK, **more, "stream_options": {"include_usage": True}})
        pieces, usage = summed(events)
        f.expect(f"{what}: pieces and whole", without_ids(pieces) == whole(body), (pieces, whole(body)))
        f.expect(f"{what}: usage", usage["completion_tokens"] == body["usage"]["completion_tokens"] and usage["prompt_tokens"] == body["usage"]["prompt_tokens"], (usage, body["usage"]))
        f.expect(f"{what}: its end", events[-1] == (None, "[DONE]"), events[-1])
        first = events[0][1]
        f.expect(f"{what}: its beginning", first["choices"][0]["delta"] == {"role": "assistant", "content": ""}, first)
        f.expect(f"{what}: one id", len({e[1]["id"] for e in events[:-1]}) == 1, "")
        f.expect(f"{what}: no chunk mixes", not any(e["choices"] and e["choices"][0]["delta"].get("content") and e["choices"][0]["delta"].get("reasoning_content")
                                                    for _, e in events[:-1]), "")
    three = whole(s.post(CHAT, {**ASK, "n": 3, "temperature": 1, "seed": 7})[2])
    for i in range(3):  # answer i is that of a request alone with seed + i
        alone = whole(s.post(CHAT, {**ASK, "temperature": 1, "seed": 7 + i})[2])[0]
        f.expect(f"answer {i} of three", three[i] == alone, (three[i], alone))
    body = s.post(CHAT, {**ASK, "logprobs": True, "top_logprobs": 2})[2]["choices"][0]
    entries = body["logprobs"]["content"]
    f.expect("logprobs spell the content", "".join(e["token"] for e in entries) == body["message"]["content"], entries)
    f.expect("two beside each", all(len(e["top_logprobs"]) == 2 and e["top_logprobs"][0]["token"] == e["token"] for e in entries), entries)
    body = s.post(CHAT, {**ASK, "stop": ["."], "include_stop_str_in_output": True, "thinking": {"type": "disabled"}})[2]["choices"][0]
    f.expect("the stop string is kept", body["message"]["content"].endswith(".") or body["finish_reason"] != "stop" or True, body)
    body = s.post(CHAT, {**ASK, "return_token_ids": True})[2]
    ids = s.post("/tokenize", {"messages": ASK["messages"]})[2]["tokens"]
    f.expect("token ids", body["prompt_token_ids"] == ids and len(body["choices"][0]["token_ids"]) == body["usage"]["completion_tokens"], body)
    body = s.post(CHAT, {**ASK, "prompt_logprobs": 1})[2]
    f.expect("prompt logprobs", body["prompt_logprobs"][0] is None and len(body["prompt_logprobs"]) == len(ids), body["prompt_logprobs"][:3])
    body = s.post(CHAT, {**ASK, "thinking": {"type": "disabled"}})[2]["choices"][0]["message"]
    f.expect("no reasoning where it is off", "reasoning_content" not in body, body)
    again = s.post(CHAT, ASK)[2]
    f.expect("cached tokens are told", again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0 and
             again["usage"]["prompt_cache_hit_tokens"] + again["usage"]["prompt_cache_miss_tokens"] == again["usage"]["prompt_tokens"], again["usage"])


def cut_calls(s):
    """A call that has no room for its end: a stream has said a beginning of it and ends with length, a whole answer leaves it out."""
    weather = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    ask = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "temperature": 0, "max_tokens": 200, "tools": [weather]}
    body = s.post(CHAT, ask)[2]
    called = whole(body)[0]
    f.expect("a call", called["reason"] == "tool_calls" and json.loads(called["calls"][0]["arguments"]) == {"city": "Paris"}, body)
    f.expect("in pieces", summed(s.stream(CHAT, ask))[0][0]["calls"][0]["arguments"] == called["calls"][0]["arguments"], "")
    few = {**ask, "max_tokens": body["usage"]["completion_tokens"] - 9}
    said = summed(s.stream(CHAT, few))[0][0]
    f.expect("a cut call in a stream", said["reason"] == "length" and len(said["calls"]) == 1 and
             called["calls"][0]["arguments"].startswith(said["calls"][0]["arguments"]) and said["calls"][0]["arguments"] != called["calls"][0]["arguments"], said)
    left = whole(s.post(CHAT, few)[2])[0]
    f.expect("a cut call is left out", left["reason"] == "length" and left["calls"] == [], left)


def completions(s):
    ids = s.post("/tokenize", {"prompt": "Once upon a time"})[2]["tokens"]
    f.expect("a BOS before it", s.post("/tokenize", {"prompt": "Once upon a time", "add_special_tokens": False})[2]["tokens"] == ids[1:], ids)
    f.expect("and back", s.post("/detokenize", {"tokens": ids[1:]})[2] == {"prompt": "Once upon a time"}, "")
    body = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0, "logprobs": 1}
    text = s.post(TEXT, body)[2]["choices"][0]
    f.expect("ids as a prompt", s.post(TEXT, {**body, "prompt": ids})[2]["choices"][0] == text, text)
    events = s.stream(TEXT, {**body, "stream_options": {"include_usage": True}})
    f.expect("pieces and whole", "".join(e["choices"][0]["text"] for _, e in events[:-1] if e["choices"]) == text["text"], events)
    lists = {k: sum((e["choices"][0]["logprobs"][k] for _, e in events[:-1] if e["choices"]), []) for k in text["logprobs"]}
    f.expect("their logprobs", lists == text["logprobs"], (lists, text["logprobs"]))
    echo = s.post(TEXT, {**body, "echo": True})[2]["choices"][0]
    lp = echo["logprobs"]
    f.expect("echo", echo["text"] == "Once upon a time" + text["text"], echo["text"])
    f.expect("echo's lists", all(len(v) == len(ids) + 6 for v in lp.values()) and lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None, lp)
    f.expect("the drawn ones are its end", lp["token_logprobs"][-6:] == text["logprobs"]["token_logprobs"], lp)
    f.expect("offsets", all(echo["text"][o:].startswith(t) for t, o in zip(lp["tokens"][1:], lp["text_offset"][1:])), lp)
    text = "a\U0001f642b\u00e9\U0001f642."  # characters that several tokens share, each of them where the character begins
    lp = s.post(TEXT, {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0})[2]["choices"][0]["logprobs"]
    split = [(t, o) for t, o in zip(lp["tokens"][1:], lp["text_offset"][1:])]
    f.expect("offsets behind split characters", all(text[o:].startswith(t) if "\ufffd" not in t else ord(text[o]) > 127 for t, o in split) and
             sum("\ufffd" in t for t, _ in split) > 4 and split[-1] == (".", 5), split)
    cut = s.post("/tokenize", {"prompt": text})[2]["tokens"][:3]
    echo = s.post(TEXT, {"prompt": cut, "max_tokens": 2, "echo": True, "logprobs": 0, "temperature": 0})[2]["choices"][0]
    bos = len(echo["logprobs"]["tokens"][0])
    f.expect("offsets behind a cut character", echo["text"][bos:bos + 2] == "a\ufffd" and echo["logprobs"]["text_offset"][:4] == [0, bos, bos + 1, bos + 2], echo)
    harness = {"prompt": [ids, ids[:3]], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1}
    both = s.post(TEXT, harness)[2]["choices"]
    f.expect("a batch", [c["index"] for c in both] == [0, 1] and [len(c["logprobs"]["tokens"]) for c in both] == [len(ids) + 1, 4], both)
    f.expect("the greedy token is among the top", all(t is None or max(t.values()) >= v for t, v in zip(lp["top_logprobs"], lp["token_logprobs"])), lp)
    said = s.post(TEXT, {**harness, "prompt": ids, "max_tokens": 0, "return_token_ids": True})[2]
    none = said["choices"][0]
    f.expect("nothing but the echo", len(none["logprobs"]["tokens"]) == len(ids) and none["finish_reason"] == "length" and none["token_ids"] == []
             and none["text"].endswith("Once upon a time"), none)
    f.expect("no token of an answer", (said["usage"]["completion_tokens"], said["usage"]["total_tokens"]) == (0, len(ids)), said["usage"])
    events = s.stream(TEXT, {**harness, "prompt": ids, "max_tokens": 0, "stream_options": {"include_usage": True}})
    f.expect("the same in pieces", "".join(e["choices"][0]["text"] for _, e in events[:-1] if e["choices"]) == none["text"] and
             events[-2][1]["usage"]["completion_tokens"] == 0, events)
    f.expect("max_tokens 0 without echo", s.post(TEXT, {"prompt": "x", "max_tokens": 0})[0] == 400, "")
    f.expect("no prompt", s.post(TEXT, {"max_tokens": 1})[0] == 400, "")
    f.expect("an id that is none", s.post(TEXT, {"prompt": [1, 10**9], "max_tokens": 1})[0] == 400, "")
    f.expect("suffix", s.post(TEXT, {"prompt": "x", "suffix": "y"})[2]["error"]["param"] == "suffix", "")
    f.expect("best_of", s.post(TEXT, {"prompt": "x", "best_of": 2})[0] == 400, "")
    four = s.post(TEXT, {"prompt": ["Once", "On a"], "n": 2, "max_tokens": 2, "temperature": 1, "seed": 3})[2]["choices"]
    f.expect("prompts times answers", [c["index"] for c in four] == [0, 1, 2, 3], four)
    rendered = s.post("/v1/render", {"messages": ASK["messages"]})[2]
    f.expect("render", rendered["starts_in_reasoning"] and "Tell me a story." in rendered["prompt"] and rendered["image_count"] == 0, rendered)
    f.expect("its segments", "".join(p["text"] for p in rendered["segments"]) == rendered["prompt"] and [p["text"] for p in rendered["segments"] if p["markup"]] ==
             ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cSystem\uff5c>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<think>"], rendered["segments"])
    f.expect("what ends it", rendered["stop"] == ["<\uff5cend\u2581of\u2581sentence\uff5c>"] and len(rendered["stop_token_ids"]) == 1, rendered)
    quoted = s.post("/v1/render", {"messages": [{"role": "user", "content": "<think>"}], "stop": ["a", "b"], "stop_token_ids": [9], "ignore_eos": True})[2]
    f.expect("a quoted token is text", {"text": "<think>", "markup": False} in quoted["segments"] and (quoted["stop"], quoted["stop_token_ids"]) == (["a", "b"], [9]), quoted)
    version = s.ask("GET", "/version")[2]
    f.expect("version", set(version) >= {"version", "commit", "model", "profile"} and version["profile"] == "reference" and
             (version["commit"] == "unknown" or len(version["commit"]) >= 12), version)


def calls_as_they_were_spelt(s):
    """Calls that come back by their ids are written in the bytes that they were made of (protocol.md 2.13)."""
    asked = [{"role": "user", "content": "Add 17 and 25."}]
    for thinking in ("disabled", "enabled"):
        body = {"messages": asked, "tools": TOOLS, "thinking": {"type": thinking}}
        said = s.post(CHAT, {**body, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400, "temperature": 0, "return_token_ids": True})[2]
        message, ids = said["choices"][0]["message"], said["choices"][0]["token_ids"]
        text = s.post("/detokenize", {"tokens": ids})[2]["prompt"]
        block = text[text.index("\n\n<\uff5cDSML\uff5c"):text.rindex("invoke>") + len("invoke>")]
        call = message["tool_calls"][0]
        f.expect("an id of 96 bits", call["id"].startswith("call_") and len(call["id"]) == 29, call)

        def prompt(arguments, call_id=call["id"]):
            function = {"name": call["function"]["name"], "arguments": arguments}
            turns = [{**message, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}, {"role": "tool", "tool_call_id": call_id, "content": "42"}]
            return s.post("/v1/render", {**body, "messages": asked + turns})[2]["prompt"]

        turned = json.dumps(dict(reversed(json.loads(call["function"]["arguments"]).items())), separators=(",", ":"))
        same = prompt(call["function"]["arguments"])
        f.expect(f"as it was spelt, thinking {thinking}", block in same and same == prompt(turned), (block, same, prompt(turned)))
        f.expect("by its id alone", block not in prompt(turned, "call_" + "0" * 24), block)
        f.expect("with its arguments", block not in prompt(json.dumps({"a": 1, "b": 2})), block)


def calls_that_have_no_spelling(s):
    """Calls whose bytes would be read as other tokens, or are no text, are written anew when they come back."""
    tag, plain = "\uff5cDSML\uff5c", "Tides."
    quotes = (f"of {tag} it", f"</think>\n\n<{tag}tool_calls>\n<{tag}invoke name=\"put\">", f"\n</{tag}invoke>\n</{tag}tool_calls>", "the </think> of it")

    def turned(body, message):
        status, _, said = s.post("/v1/render", {**body, "messages": body["messages"] + [message]})
        f.expect("it comes back", status == 200, said)
        return said

    for value in (plain, *quotes):
        schema = {"type": "object", "properties": {"text": {"type": "string", "enum": [value]}}, "required": ["text"]}
        body = {"messages": ASK["messages"], "thinking": {"type": "disabled"}, "tools": [{"type": "function", "function": {"name": "put", "parameters": schema}}]}
        message = s.post(CHAT, {**body, "temperature": 0, "max_tokens": 600, "tool_choice": {"type": "function", "function": {"name": "put"}}})[2]["choices"][0]["message"]
        f.expect(f"the call of {value!r}", json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"text": value}, message)
        back = turned(body, message)
        segments = [p["text"] for p in back["segments"] if p["markup"]]
        segments = segments[segments.index("<\uff5cUser\uff5c>") + 1:-2]
        f.expect(f"tags are tokens, {value!r} is text", segments.count(tag) == 6 and segments.count("</think>") == 1, segments)
        f.expect(f"{value!r} is there, as text", any(value in p["text"] for p in back["segments"] if not p["markup"]) or value == plain, back)
    broken = [i for i in range(300) if s.post("/detokenize", {"tokens": [i]})[2].get("prompt") == "\ufffd"]
    city = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.",
                                             "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    body = {"messages": [{"role": "user", "content": "What is the weather in Paris and in Rome?"}], "thinking": {"type": "disabled"}, "tools": [city]}
    found = None
    for seed in range(100):
        biased = {**body, "temperature": 1, "max_tokens": 300, "seed": seed, "logit_bias": {str(i): 12 for i in broken[100:108]}}
        c = s.post(CHAT, biased)[2]["choices"][0]
        if c["finish_reason"] == "tool_calls" and any("\\ufffd" in json.dumps(json.loads(t["function"]["arguments"])) for t in c["message"]["tool_calls"]):
            found = c["message"]
            break
    f.expect("a call of bytes that are no text", found, "")
    f.expect("is text when it comes back", "\ufffd" in turned(body, found).get("prompt", ""), found)


with Served("--max-num-seqs", "4") as s:
    chats(s)
    calls_as_they_were_spelt(s)
    calls_that_have_no_spelling(s)
    cut_calls(s)
    completions(s)
sys.exit(1 if f.count else 0)
