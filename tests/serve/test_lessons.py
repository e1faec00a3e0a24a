# label: release
"""What clients have stumbled over elsewhere, and what they need (protocol.md 4.12 and 5; docs/lessons.md says which test is whose)."""
import concurrent.futures
import json
import os
import socket
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import MODEL, Faults, Served, until  # noqa: E402

f = Faults()
CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HELLO = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "max_tokens": 30}
OFF = {"thinking": {"type": "disabled"}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": CITY}}
BOTH = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]
LONG = {**HELLO, **OFF, "max_tokens": 60000, "ignore_eos": True}


def answer(s, body, path=CHAT):
    status, _, said = s.post(path, body)
    f.expect(f"{path}: an answer", status == 200, said)
    return said["choices"][0] if status == 200 and "choices" in said else said


def reasoning(s):
    """Reasoning that is missing, renamed or bare (1, 2, 10)."""
    call = [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]
    counts = []
    for thought in ({}, {"reasoning_content": "Look."}, {"reasoning": "Look."}):
        turn = [*HELLO["messages"], {"role": "assistant", "content": None, "tool_calls": call, **thought}, {"role": "tool", "tool_call_id": "call_1", "content": "18"}]
        counts.append(s.post(CHAT, {**HELLO, "messages": turn, "tools": [TOOL], "max_tokens": 1})[2]["usage"]["prompt_tokens"])
    f.expect("a turn without its reasoning is taken, and both names of it are heard", counts[0] < counts[1] == counts[2], counts)
    ids = answer(s, {**HELLO, "return_token_ids": True, "max_tokens": 8})["token_ids"]
    bare = answer(s, {**HELLO, "tools": [TOOL], "stop_token_ids": [ids[4]]})
    f.expect("bare reasoning is no call", bare["finish_reason"] == "stop" and bare["message"]["reasoning_content"] and not bare["message"]["content"]
             and "tool_calls" not in bare["message"], bare)


def characters(s):
    """Characters of several tokens come whole, and the stream goes on behind them (34, 35, 45)."""
    text = "🐉 née  日本 🎉 ."
    for path, body in ((CHAT, {**HELLO, **OFF, "guided_choice": [text]}), (TEXT, {"prompt": "x", "max_tokens": 60, "guided_choice": [text]})):
        pieces = [e["choices"][0].get("text") or e["choices"][0].get("delta", {}).get("content") or "" for _, e in s.stream(path, body)[:-1] if e["choices"]]
        f.expect(f"{path}: characters are whole", "".join(pieces) == text and "\ufffd" not in "".join(pieces) and len([p for p in pieces if p]) > 5, pieces)
    spelled = answer(s, {**HELLO, **OFF, "guided_choice": [text], "logprobs": True})["logprobs"]["content"]
    f.expect("bytes of tokens", bytes(b for e in spelled for b in e["bytes"]) == text.encode() and len(spelled) > len(text), spelled)


def logprobs(s):
    """A number where a flag is usual, and the other way round (33)."""
    for value, tops in ((True, 0), (1, 1), (3, 3)):
        entries = answer(s, {**HELLO, **OFF, "max_tokens": 3, "logprobs": value})["logprobs"]["content"]
        f.expect(f"a chat's logprobs {value}", [len(e["top_logprobs"]) for e in entries] == [tops] * 3, entries)
    for value, tops in ((True, 1), (1, 1), (3, 3)):
        lists = answer(s, {"prompt": "Once", "temperature": 0, "max_tokens": 3, "logprobs": value}, TEXT)["logprobs"]
        f.expect(f"a text's logprobs {value}", [len(t) for t in lists["top_logprobs"]] == [tops] * 3, lists)
    for path, body in ((CHAT, HELLO), (TEXT, {"prompt": "Once", "max_tokens": 3})):
        f.expect("none", all(answer(s, {**body, "logprobs": value}, path)["logprobs"] is None for value in (False, None)), path)


def limits(s):
    """Limits are told and never a reason to refuse (42, 47); names of all tiers mean the model."""
    model = s.ask("GET", "/v1/models")[2]["data"][0]
    f.expect("limits", model["max_model_len"] == model["context_length"] == 32768 and 0 < model["max_output_tokens"] < 32768, model)
    f.expect("what it can", model["capabilities"] == {"vision": False, "tools": True, "reasoning": True} and "deepseek-flash" in model["aliases"], model)
    for name in ("claude-haiku-4-5", "claude-sonnet-4-5-20250929[1m]", "claude-opus-4-1", "deepseek-flash"):
        status, _, said = s.post(MESSAGES, {**HELLO, "model": name, "max_tokens": 2000000, "stop_sequences": ["a"]})
        f.expect(f"{name}: more than there is room for", status == 200 and said["type"] == "message", said)
    status, _, said = s.post(RESPONSES, {"input": "hi", "max_output_tokens": 2000000, "temperature": 0})
    f.expect("a response may be as long as it likes", status == 200, said)


def envelope(s):
    """Bodies are what the APIs say and nothing around it, with a newline behind them for terminals (46)."""
    for path, body, members in ((CHAT, HELLO, {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}),
                                (TEXT, {"prompt": "x", "max_tokens": 1}, {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}),
                                (MESSAGES, {**HELLO, "model": "claude-x"}, {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"})):
        said = s.post(path, body)[2]
        f.expect(f"{path}: plain", set(said) == members, said)
    for method, path, body in (("GET", "/v1/models", None), ("POST", CHAT, HELLO), ("POST", CHAT, {}), ("GET", "/health", None)):
        c = s.connect()
        c.request(method, path, json.dumps(body) if body is not None else None)
        text = c.getresponse().read()
        f.expect(f"{method} {path}: a line", text.endswith(b"}\n") and text.count(b"\n") == 1, text)
        c.close()
    for path in ("/", "/v1", "/v1/", "/anthropic"):
        f.expect(f"the base {path}", s.ask("GET", path)[0] == s.ask("HEAD", path)[0] == 200, path)


def benchmarks(s):
    """Drivers of benchmarks count what they asked for."""
    for path, body in ((CHAT, HELLO), (CHAT, {**HELLO, **OFF}), (TEXT, {"prompt": "Once upon a time"})):
        for exact in ({"ignore_eos": True}, {"min_tokens": 24}):
            events = s.stream(path, {**body, "temperature": 1, "seed": 5, "max_tokens": 24, "stop": None, "stream_options": {"include_usage": True}, **exact})
            usage, reasons = events[-2][1]["usage"], [c["finish_reason"] for _, e in events[:-1] for c in e["choices"] if c["finish_reason"]]
            f.expect(f"{path} {exact}: tokens", usage["completion_tokens"] == 24 and reasons == ["length"] and events[-2][1]["choices"] == [], (usage, reasons))


def agents(s):
    """Two calls at once, and nothing that is sent late."""
    events = s.stream(MESSAGES, {"model": "claude-x", "max_tokens": 300, "temperature": 0, "messages": BOTH, "tools": [{"name": "get_weather", "description": "The weather of a city.", "input_schema": CITY}]})
    pieces = {}
    for name, data in events:
        if name == "content_block_start" and data["content_block"]["type"] == "tool_use":
            pieces[data["index"]] = ""
        elif name == "content_block_delta" and data["delta"]["type"] == "input_json_delta":
            pieces[data["index"]] += data["delta"]["partial_json"]
    f.expect("two calls", [json.loads(p) for p in pieces.values()] == [{"city": "Paris"}, {"city": "Rome"}] and list(pieces) == list(range(min(pieces), min(pieces) + 2)), pieces)
    made = [i for i in s.post(RESPONSES, {"input": BOTH, "temperature": 0, "max_output_tokens": 300, "tools": [{"type": "function", "name": "get_weather", "parameters": CITY}]})[2]["output"] if i["type"] == "function_call"]
    f.expect("two calls of a response", len(made) == 2 and made[0]["call_id"] != made[1]["call_id"], made)
    one = answer(s, {**HELLO, "messages": BOTH, "tools": [TOOL], "max_tokens": 300, "parallel_tool_calls": False})
    f.expect("one call", len(one["message"]["tool_calls"]) == 1 and one["finish_reason"] == "tool_calls", one)
    f.expect("it is idle", until(lambda: s.metric("requests_running") == 0), "")
    c = s.connect()
    c.request("POST", CHAT, json.dumps({**LONG, "stream": True}))
    response = c.getresponse()
    first = response.readline()
    f.expect("the first piece comes while others are made", first.startswith(b"data: ") and s.metric("requests_running") == 1, (first, s.metric("requests_running")))
    c.close()
    f.expect("it ends", until(lambda: s.metric("requests_running") == 0), "")


def many(s):
    """Harnesses keep many connections and ask on each again and again."""
    ids = s.post("/tokenize", {"prompt": "Once upon a time"})[2]["tokens"]
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
    alone = answer(s, body, TEXT)

    def ask_thrice(_):
        c = s.connect()
        said = [s.post(TEXT, body, connection=c)[2]["choices"][0] for _ in range(3)]
        c.close()
        return said
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        f.expect("all say the same", all(a == alone for said in pool.map(ask_thrice, range(32)) for a in said), alone)


def gone(s):
    """Clients that go away at five points: with half a body, in the queue, in the prompt, in an answer that is streamed and in one
    that is not (28, 29). Nothing of them stays."""
    free, before = s.metric('kv_blocks{state="free"}'), s.metric('requests_finished_total{reason="cancelled"}')
    seat, idle = [], lambda: s.metric("requests_running") + s.metric("requests_waiting") == 0

    def leave(what, body, there):
        text = json.dumps(body).encode()
        c = socket.create_connection((s.host, s.port), 60)
        c.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + (text if there else text[:9]))
        if there:
            f.expect(f"{what}: it is there", until(there), "")
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        c.close()

    running, waiting, prompt = s.metric, lambda: s.metric("requests_waiting") == 1, s.metric("prompt_tokens_total")
    leave("half a body", LONG, None)
    leave("whole answer", LONG, lambda: running("requests_running") == 1)
    f.expect("whole answer: it ends", until(idle), "")
    leave("stream", {**LONG, "stream": True}, lambda: running("requests_running") == 1)
    f.expect("stream: it ends", until(idle), "")
    leave("prompt", {**LONG, "messages": [{"role": "user", "content": "Nobody waits for this. " * 3000}]}, lambda: running("requests_running") == 1)
    f.expect("prompt: it ends", until(idle), "")
    for _ in range(4):
        seat.append(s.connect())
        seat[-1].request("POST", CHAT, json.dumps({**LONG, "stream": True}))
    f.expect("all seats are taken", until(lambda: running("requests_running") == 4), "")
    leave("queue", LONG, waiting)
    f.expect("queue: it ends", until(lambda: s.metric("requests_waiting") == 0), "")
    f.expect("and nobody else", running("requests_running") == 4, "")
    for c in seat:
        c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
    f.expect("everything ends", until(idle), "")
    f.expect("nothing stays", until(lambda: s.metric('kv_blocks{state="free"}') == free), (free, s.metric('kv_blocks{state="free"}')))
    f.expect("each is counted", until(lambda: s.metric('requests_finished_total{reason="cancelled"}') - before == 8), s.metric('requests_finished_total{reason="cancelled"}') - before)
    f.expect("the prompt was not read to its end", s.metric("prompt_tokens_total") - prompt < 12000, s.metric("prompt_tokens_total") - prompt)


def defaults():
    """What a request leaves open is the operator's and the model's to say: thinking (44), the nucleus, who may see the models."""
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(MODEL):
            if name != "generation_config.json":
                os.symlink(os.path.join(MODEL, name), os.path.join(folder, name))
        with open(os.path.join(folder, "generation_config.json"), "w") as file:
            json.dump({"temperature": 2.0, "top_p": 1e-6, "eos_token_id": 1}, file)
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("secret\n")
        with Served("--default-thinking", "off", "--api-key-file", keys, "--open-models", "--reasoning-field", "both", "--quiet", model=folder) as s:
            key = {"authorization": "Bearer secret"}
            free = {k: v for k, v in HELLO.items() if k != "temperature"}
            greedy, own = (s.post(CHAT, body, key)[2]["choices"][0]["message"] for body in (HELLO, {**free, "seed": 3}))
            f.expect("no thinking unless it is asked for", "reasoning_content" not in greedy, greedy)
            f.expect("the model's own nucleus", own == greedy, (own, greedy))
            f.expect("and the client's", s.post(CHAT, {**free, "seed": 3, "top_p": 1}, key)[2]["choices"][0]["message"] != greedy, greedy)
            on = s.post(CHAT, {**HELLO, "thinking": {"type": "enabled"}}, key)[2]["choices"][0]["message"]
            f.expect("thinking, by both names", on["reasoning_content"] and on["reasoning"] == on["reasoning_content"], on)
            f.expect("models without a key", s.ask("GET", "/v1/models")[0] == 200 and s.post(CHAT, HELLO)[0] == 401, "")
            null = {**HELLO, "messages": [*HELLO["messages"], {"role": "assistant", "content": None}, {"role": "user", "content": [{"type": "text", "text": "Go on."}]}]}
            f.expect("content that is null", s.post(CHAT, null, key)[0] == 200, "")


with Served("--max-num-seqs", "4", "--max-model-len", "32768", "--max-num-batched-tokens", "512") as s:
    for part in (reasoning, characters, logprobs, limits, envelope, benchmarks, agents, many, gone):
        part(s)
f.expect("bare reasoning is told of", s.said.count("ended with its reasoning") == 1, s.said)
defaults()
sys.exit(1 if f.count else 0)
