# label: full
"""Every member of every API (protocol.md 4.2 to 4.8) is honoured, refused by its name, or passed over where docs/server.md or
the protocol says so: what is told here of each is what the server does."""
import os
import sys

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served  # noqa: E402

f = Faults()
CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
USER = [{"role": "user", "content": "Tell me a story."}]
BASE = {CHAT: {"messages": USER, "max_tokens": 12, "temperature": 0, "thinking": {"type": "disabled"}},
        TEXT: {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0},
        MESSAGES: {"model": "claude-x", "messages": USER, "max_tokens": 12, "temperature": 0, "thinking": {"type": "disabled"}},
        RESPONSES: {"input": "Tell me a story.", "max_output_tokens": 12, "temperature": 0, "reasoning": {"effort": "none"}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
FLAT = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
USE = {"name": "add", "input_schema": {"type": "object", "properties": {}}}

# Values that are refused, whose param is the member (or begins with it).
DRAWN = {"temperature": [3, -1, "hot"], "top_p": [0, 1.5, "x"], "top_k": ["x", 1.5], "min_p": [2, -0.5], "presence_penalty": [3, "x"],
         "frequency_penalty": [-3, "x"], "repetition_penalty": [0, 1000], "seed": ["x", 1.5], "n": [0, 17, "x"], "stop": [3, [3], [""], [str(i) for i in range(17)]],
         "stop_token_ids": ["x", [-1], [10**9]], "include_stop_str_in_output": [1], "ignore_eos": ["x"], "min_tokens": [-1, "x"], "stream": ["yes"],
         "stream_options": ["x"], "return_token_ids": [1], "logprobs": ["x", 21], "prompt_logprobs": [21, "x"], "logit_bias": [[], {"x": 1}, {"1": 101}, {"9999999": 1}],
         "max_tokens": [-1, "x"], "suffix": ["x", 3], "best_of": [2, "x"], "audio": [{"voice": "x"}], "modalities": [["text", "audio"]], "model": [3, "gpt-4"]}
# Members of this server's own, and of others like it, mean the same whichever API asks.
OWN = {"guided_json": [{"not": {}}, 3], "guided_regex": ["(?=a)", 3], "guided_choice": [[], 3, [1]], "guided_json_object": ["yes", 1],
       "structured_outputs": [3, {"grammar": "a"}, {"json_object": 1}, {"regex": "a", "choice": ["a"]}], "guided_grammar": ["a"], "guided_whitespace_pattern": ["a"],
       "allowed_token_ids": [[1]], "bad_words": [["a"]], "use_beam_search": [True], "truncate_prompt_tokens": [4], "banned": ["x", [10**9]], "cache_salt": ["", 3],
       **{name: DRAWN[name] for name in ("min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "stop_token_ids", "ignore_eos", "min_tokens")}}
REFUSED = {
    CHAT: {**DRAWN, **OWN, "max_tokens": [0, -1, "x"], "max_completion_tokens": [0, "x"], "messages": [None, [], "x", [{"role": "king", "content": "x"}], [{"role": "user", "content": [{"type": "audio"}]}]],
           "top_logprobs": [21, "x", 2], "logprobs_all": ["x"], "tools": ["x", [{"type": "function"}]], "tool_choice": ["maybe", {"type": "function", "function": {"name": "nobody"}}],
           "parallel_tool_calls": ["x"], "response_format": ["x", {"type": "xml"}, {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}], "reasoning_effort": ["huge", 0, 101, True],
           "thinking": [{"type": "x"}, 3], "think": ["x"], "chat_template_kwargs": ["x", {"thinking": "x"}, {"thinking_mode": "x"}, {"drop_thinking": 3}],
           "continue_final_message": [True, "x"], "add_generation_prompt": ["x"], "functions": [[]], "function_call": ["auto"]},
    TEXT: {**DRAWN, **OWN, "prompt": [None, 3, [], [[]], [1.5], {}], "echo": ["x"], "add_special_tokens": ["x"], "parse_special": ["x"],
           "max_tokens": [0, -1, "x"], "response_format": [{"type": "xml"}]},
    MESSAGES: {**OWN, "messages": [[], [{"role": "user", "content": [{"type": "document"}]}]], "max_tokens": [0, "x"], "system": [3], "temperature": [3], "top_p": [0], "top_k": ["x"], "stream": ["x"],
               "stop_sequences": ["x", [""]], "thinking": [{"type": "x"}, {"type": "enabled", "display": "x"}], "output_config": ["x", {"effort": "huge"}, {"format": {"type": "xml"}}],
               "tools": [[{"type": "web_search_20250305", "name": "web_search"}], "x"], "tool_choice": ["x", {"type": "maybe"}, {"type": "tool"}], "model": ["gpt-4"]},
    RESPONSES: {**OWN, "top_k": ["x"], "input": [None, [], 3, [{"type": "local_shell_call"}]], "max_output_tokens": [0, "x"], "temperature": [3], "top_p": [0], "top_logprobs": [21], "stream": ["x"], "include": ["x"],
                "previous_response_id": ["resp_1"], "conversation": ["c"], "prompt": [{"id": "p"}], "background": [True], "reasoning": ["x", {"effort": "huge"}, {"summary": "x"}],
                "text": ["x", {"format": {"type": "xml"}}], "metadata": ["x", {"a": 1}], "tools": [[{"type": "local_shell"}]], "tool_choice": ["maybe", {"type": "web_search"}],
                "parallel_tool_calls": ["x"], "instructions": [3], "model": ["gpt-4"]}}

# Values that change nothing.
PASSED = {
    CHAT: {"user": "me", "suffix": "", "best_of": 1, "guided_json_object": False, "structured_outputs": {"json_object": False, "grammar": None}, "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prediction": {"type": "content", "content": "x"}, "verbosity": "low", "web_search_options": {},
           "modalities": ["text"], "top_k": -1, "min_p": 0, "cache_salt": "mine", "chat_template_kwargs": {"other": 1}, "add_generation_prompt": True, "tool_choice": "none",
           "response_format": {"type": "text"}, "logit_bias": {}, "n": 1, "stop": [], "model": "deepseek-flash[1m]", "no_such_member": 1, "seed": 5},
    TEXT: {"user": "me", "suffix": "", "best_of": 1, "cache_salt": "mine", "add_special_tokens": True, "parse_special": False, "response_format": {"type": "text"}, "no_such_member": 1},
    MESSAGES: {"metadata": {"user_id": "x"}, "container": "x", "mcp_servers": [], "cache_control": {"type": "ephemeral"}, "betas": ["x"], "service_tier": "auto", "tool_choice": {"type": "none"},
               "output_config": {}, "system": "", "cache_salt": "mine", "seed": 5, "structured_outputs": {}, "guided_json_object": False},
    RESPONSES: {"store": True, "truncation": "auto", "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 3,
                "background": False, "previous_response_id": None, "include": ["reasoning.encrypted_content"], "tools": [{"type": "web_search"}], "text": {"verbosity": "low"},
                "top_logprobs": 0, "cache_salt": "mine", "seed": 5, "top_k": -1, "structured_outputs": {}, "guided_json_object": False, "stream_options": {"include_obfuscation": False}}}


def said(path, body):
    """What an answer says, without what it is about."""
    if path in (CHAT, TEXT):
        return [{k: c.get(k) for k in ("message", "text", "finish_reason", "logprobs")} for c in body["choices"]]
    if path == MESSAGES:
        return body["content"], body["stop_reason"]
    return [{k: v for k, v in item.items() if k != "id"} for item in body["output"]]


def refusals(s):
    for path, members in REFUSED.items():
        for member, values in members.items():
            for value in values:
                body = {**BASE[path], member: value}
                status, _, answer = s.post(path, body)
                error = answer.get("error", {}) if isinstance(answer, dict) else {}
                named = member in error.get("message", "") and (path == MESSAGES or (error.get("param") or "").startswith(member)) and error["message"].startswith(member)
                f.expect(f"{path}: {member}: {value!r}", status == (404 if value == "gpt-4" else 400) and (named or value == "gpt-4"), (status, answer))


def passed_over(s, plain):
    for path, members in PASSED.items():
        for member, value in members.items():
            status, _, body = s.post(path, {**BASE[path], member: value})
            f.expect(f"{path}: {member}", status == 200 and said(path, body) == plain[path], (status, body, plain[path]))


def greedy_by_other_means(s, plain):
    for means in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}):
        for path in (CHAT, TEXT):
            body = s.post(path, {**BASE[path], "temperature": 1, **means})[2]
            f.expect(f"{path}: {means}", said(path, body) == plain[path], body)
    body = s.post(MESSAGES, {**BASE[MESSAGES], "temperature": 1, "top_k": 1})[2]
    f.expect("messages: top_k", said(MESSAGES, body) == plain[MESSAGES], body)
    body = s.post(RESPONSES, {**BASE[RESPONSES], "temperature": 1, "top_p": 1e-9})[2]
    f.expect("responses: top_p", said(RESPONSES, body) == plain[RESPONSES], body)


def drawing(s, plain):
    """Members that change which tokens come, or how many."""
    for path in (CHAT, TEXT):
        base = BASE[path]
        first = s.post(path, {**base, "return_token_ids": True})[2]["choices"][0]["token_ids"]
        for change in ({"logit_bias": {str(first[0]): -100}}, {"banned": [first[0]]}, {"repetition_penalty": 2}, {"presence_penalty": 2, "frequency_penalty": 2, "max_tokens": 60},
                       {"guided_regex": "q+"}, {"guided_choice": ["qq"]}, {"guided_json": {"const": 7}}, {"structured_outputs": {"regex": "q+"}}, {"response_format": {"type": "json_object"}}):
            body = s.post(path, {**base, **change})[2]
            unlike = s.post(path, {**base, "max_tokens": change["max_tokens"]})[2] if "max_tokens" in change else None
            f.expect(f"{path}: {change}", said(path, body) != (said(path, unlike) if unlike else plain[path]), body)
        body = s.post(path, {**base, "stop_token_ids": [first[2]]})[2]
        f.expect(f"{path}: stop_token_ids", body["choices"][0]["finish_reason"] == "stop" and body["usage"]["completion_tokens"] <= 3, body)
        body = s.post(path, {**base, "max_tokens": 3})[2]
        f.expect(f"{path}: max_tokens", body["usage"]["completion_tokens"] == 3 and body["choices"][0]["finish_reason"] == "length", body)
        body = s.post(path, {**base, "max_tokens": 200, "min_tokens": 200, "ignore_eos": True})[2]
        f.expect(f"{path}: min_tokens, ignore_eos", body["usage"]["completion_tokens"] == 200, body["usage"])
        seeds = [said(path, s.post(path, {**base, "temperature": 1, "seed": seed})[2]) for seed in (1, 1, 2)]
        f.expect(f"{path}: seed", seeds[0] == seeds[1] != seeds[2], seeds)
        text = plain[path][0].get("text") or plain[path][0]["message"]["content"]
        stop = text[4:6]
        for keeps in (False, True):
            body = s.post(path, {**base, "stop": stop, "include_stop_str_in_output": keeps})[2]["choices"][0]
            got = body.get("text") or body["message"]["content"]
            f.expect(f"{path}: stop", got == text[:text.index(stop) + (len(stop) if keeps else 0)] and body["finish_reason"] == "stop", body)
    for path in (MESSAGES, RESPONSES):
        text = said(path, s.post(path, BASE[path])[2])[0]
        for change in ({"guided_regex": "q{3}"}, {"guided_choice": ["qqq"]}, {"structured_outputs": {"regex": "q{3}"}}, {"guided_json": {"const": 777}}):
            status, _, body = s.post(path, {**BASE[path], **change})
            got = body["content"][0]["text"] if path == MESSAGES else body["output"][0]["content"][0]["text"]
            f.expect(f"{path}: {change}", status == 200 and got in ("qqq", "777"), body)
        for change in ({"repetition_penalty": 2}, {"structured_outputs": {"json_object": True}}):
            body = s.post(path, {**BASE[path], **change})[2]
            f.expect(f"{path}: {change}", said(path, body)[0] != text, body)
        seeds = [said(path, s.post(path, {**BASE[path], "temperature": 1, "seed": seed})[2]) for seed in (1, 1, 2)]
        f.expect(f"{path}: seed", seeds[0] == seeds[1] != seeds[2], seeds)
    body = s.post(CHAT, {**BASE[CHAT], "max_tokens": 9, "max_completion_tokens": 2})[2]
    f.expect("max_completion_tokens wins", body["usage"]["completion_tokens"] == 2, body["usage"])
    body = s.post(MESSAGES, {**BASE[MESSAGES], "stop_sequences": [plain[MESSAGES][0][0]["text"][4:6]]})[2]
    f.expect("stop_sequences", body["stop_reason"] == "stop_sequence" and body["stop_sequence"], body)


def prompts(s):
    """Members that change the prompt, told by /v1/render and by how many tokens it has."""
    def prompt(**members):
        status, _, body = s.post("/v1/render", {"messages": USER, **members})
        f.expect(f"render {members}", status == 200, body)
        return body.get("prompt", "")

    thoughts = {"enabled": prompt(), "disabled": prompt(thinking={"type": "disabled"})}
    f.expect("thinking", thoughts["enabled"].endswith("<think>") and thoughts["disabled"].endswith("</think>"), thoughts)
    for off in ({"thinking": False}, {"think": False}, {"reasoning_effort": "none"}, {"chat_template_kwargs": {"thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}},
                {"chat_template_kwargs": {"thinking_mode": "chat"}}, {"model": "deepseek-chat"}):
        f.expect(str(off), prompt(**off) == thoughts["disabled"], prompt(**off))
    for effort in ({"reasoning_effort": "low"}, {"chat_template_kwargs": {"reasoning_effort": "low"}}, {"chat_template_kwargs": {"thinking_effort": "low"}}, {"reasoning_effort": 50}):
        f.expect(str(effort), "Reasoning Effort: 50 " in prompt(**effort), prompt(**effort))
    f.expect("tools", '"name": "add"' in prompt(tools=[TOOL]) and prompt(tools=[TOOL], tool_choice="none") == prompt(), "")
    f.expect("response_format", '{"type": "json_object"}' in prompt(response_format={"type": "json_object"}), "")
    f.expect("add_generation_prompt", thoughts["enabled"].startswith(prompt(add_generation_prompt=False)) and prompt(add_generation_prompt=False) != thoughts["enabled"], "")
    began = USER + [{"role": "assistant", "content": "It was"}]
    for asks in ({"continue_final_message": True}, {"messages": began[:1] + [{**began[1], "prefix": True}]}):
        f.expect(str(asks), prompt(**{"messages": began, **asks}).endswith("It was"), "")
    old = [{"role": "assistant", "reasoning_content": "Hm.", "content": "A."}, {"role": "user", "content": "B?"}]
    f.expect("drop_thinking", "Hm." not in prompt(messages=USER + old) and "Hm." in prompt(messages=USER + old, chat_template_kwargs={"drop_thinking": False}), "")
    tokens = lambda **more: s.post("/tokenize", {"prompt": "<think>a", **more})[2]["tokens"]
    f.expect("parse_special, add_special_tokens", len(tokens()) == 3 and len(tokens(add_special_tokens=False)) == 2 and len(tokens(parse_special=False)) > 3, tokens())
    f.expect("return_token_strs", s.post("/tokenize", {"prompt": "<think>a", "return_token_strs": True})[2]["token_strs"][1:] == ["<think>", "a"], "")
    for path, one, more in ((CHAT, {"messages": USER}, {"tools": [TOOL]}), (MESSAGES, {}, {"tools": [USE]}), (MESSAGES, {}, {"system": "Be brief."}), (RESPONSES, {}, {"tools": [FLAT]}),
                            (RESPONSES, {}, {"instructions": "Be brief."}), (MESSAGES, {}, {"thinking": {"type": "enabled"}}), (RESPONSES, {}, {"reasoning": {"effort": "low"}}),
                            (MESSAGES, {"thinking": {"type": "adaptive"}}, {"output_config": {"effort": "none"}})):
        sizes = [s.post(path, {**BASE[path], **one, **m})[2]["usage"] for m in ({}, more)]
        counts = [u.get("prompt_tokens") or u["input_tokens"] + u.get("cache_read_input_tokens", 0) for u in sizes]
        f.expect(f"{path}: {more} is in the prompt", counts[0] != counts[1], counts)
    counted = s.post("/v1/messages/count_tokens", {**BASE[MESSAGES], "tools": [USE]})[2]["input_tokens"]
    usage = s.post(MESSAGES, {**BASE[MESSAGES], "tools": [USE]})[2]["usage"]
    f.expect("count_tokens", counted == usage["input_tokens"] + usage["cache_read_input_tokens"], (counted, usage))


def told(s):
    """Members that change what is told."""
    body = s.post(CHAT, {**BASE[CHAT], "n": 2, "logprobs": True, "top_logprobs": 3, "prompt_logprobs": 1, "return_token_ids": True})[2]
    c = body["choices"]
    f.expect("chat", len(c) == 2 and all(len(e["top_logprobs"]) == 3 for e in c[1]["logprobs"]["content"]) and len(c[0]["token_ids"]) == 12 and
             len(body["prompt_logprobs"]) == len(body["prompt_token_ids"]), body)
    body = s.post(CHAT, {**BASE[CHAT], "thinking": {"type": "enabled"}, "logprobs": True, "logprobs_all": True})[2]
    f.expect("logprobs_all", len(body["choices"][0]["logprobs"]["content"]) == body["usage"]["completion_tokens"], body)
    dsml, angle, line = (s.post("/tokenize", {"prompt": text, "add_special_tokens": False})[2]["tokens"] for text in ("｜DSML｜", "<", "\n"))
    for tools in ({}, {"tools": [TOOL]}):
        for bias in ({str(dsml[0]): 100}, {str(angle[0]): 100}, {str(dsml[0]): 98, str(angle[0]): 98, str(line[0]): 98}):
            ask = {**BASE[CHAT], **tools, "logit_bias": bias, "temperature": 1, "seed": 3, "max_tokens": 24, "logprobs": True}
            c = s.post(CHAT, ask)[2]["choices"][0]
            f.expect(f"{bias}: tokens of logprobs are those of the content", c["message"]["content"] == "".join(e["token"] for e in c["logprobs"]["content"]) != "", c)
            f.expect(f"{bias}: no markup of calls without tools", tools or "DSML" not in c["message"]["content"], c)
            pieces = [e["choices"][0] for _, e in s.stream(CHAT, ask) if e != "[DONE]"]
            told_in_pieces = [e for p in pieces for e in (p["logprobs"] or {}).get("content") or []]
            f.expect(f"{bias}: in pieces too", told_in_pieces == c["logprobs"]["content"], told_in_pieces)
    for path in (CHAT, TEXT):
        events = s.stream(path, {**BASE[path], "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
        f.expect(f"{path}: usage in a stream", all("usage" in e for _, e in events[:-1]) and events[-2][1]["choices"] == [] and
                 events[-2][1]["usage"]["completion_tokens"] == 12, events[-2])
        f.expect(f"{path}: none without", not any(e.get("usage") for _, e in s.stream(path, BASE[path])[:-1]), "")
    body = s.post(TEXT, {**BASE[TEXT], "echo": True, "logprobs": True, "n": 2})[2]["choices"]
    f.expect("completions", len(body) == 2 and body[1]["text"].startswith("Once upon a time") and len(body[0]["logprobs"]["tokens"]) > 12, body)
    salted = {**BASE[CHAT], "messages": [{"role": "user", "content": "Of a dragon. " * 60}]}
    cached = [s.post(CHAT, {**salted, **salt})[2]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for salt in
              ({}, {}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"})]
    f.expect("cache_salt", cached == [False, True, False, False, True], cached)


with Served("--max-num-seqs", "4", "--max-model-len", "4096") as s:
    plain = {path: said(path, s.post(path, body)[2]) for path, body in BASE.items()}
    refusals(s)
    passed_over(s, plain)
    greedy_by_other_means(s, plain)
    drawing(s, plain)
    prompts(s)
    told(s)
sys.exit(1 if f.count else 0)
