"""quire text render and parse: the goldens through the program, and lines that cannot be done."""
import json
import os
import subprocess
import sys

PROGRAM = os.environ["QUIRE_PROGRAM"]
SOURCE = os.environ["QUIRE_SOURCE"]
TINY = os.path.join(SOURCE, "models", "tiny-v41")
faults = 0


def fault(text):
    global faults
    faults += 1
    print(text)


def answers(part, lines, *options):
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    run = subprocess.run([PROGRAM, "text", part, "--tokenizer", TINY, *options], input=text, capture_output=True)
    found = [json.loads(line) for line in run.stdout.decode().split("\n")[:-1]]
    if run.returncode or run.stderr or len(found) != len(lines):
        fault(f"{part} {options}: status {run.returncode}, {len(found)} of {len(lines)} lines, {run.stderr!r}")
        found += [{}] * (len(lines) - len(found))
    return found


def expect(what, found, wanted):
    if found != wanted:
        fault(f"{what}: {found!r}, wanted {wanted!r}")


def golden(kind, name):
    with open(os.path.join(SOURCE, "tests/golden", kind, name), encoding="utf-8") as file:
        return [json.loads(line) for line in file.read().split("\n") if line]


# render: what a golden line says, but for the ids, which are those of this vocabulary.
prompts = golden("chat", "prompts.jsonl")
for profile in ("v4a", "v4b", "v41"):
    cases = [g for g in prompts if g["profile"] == profile]
    lines = [{"id": g["id"], **g["request"], "vendor_extensions": g.get("vendor_extensions", False)} for g in cases]
    for g, a in zip(cases, answers("render", lines, "--prompt-profile", profile)):
        if "error" in g:
            if list(a) != ["id", "error"] or a["id"] != g["id"]:
                fault(f"{g['id']}: {a!r}, wanted an error")
            continue
        expect(g["id"], list(a), ["id", "prompt", "ids", "markup_tokens", "image_count", "start_state"])
        for key in ("id", "prompt", "markup_tokens", "image_count", "start_state"):
            expect(g["id"] + " " + key, a.get(key), g[key])
        text = answers("detokenize", [{"id": 0, "ids": a["ids"]}])[0].get("text") if g is cases[0] else g["prompt"]
        expect(g["id"] + " ids", text, g["prompt"])

# The option allows what a line may allow for itself.
reminder = {"id": 1, "messages": [{"role": "latest_reminder", "content": "x"}, {"role": "user", "content": "y"}]}
expect("extensions", "prompt" in answers("render", [reminder], "--vendor-extensions")[0], True)
expect("no extensions", "error" in answers("render", [reminder])[0], True)


def ids_of(text):
    return answers("tokenize", [{"id": 0, "text": text}], "--markup")[0]["ids"]


# parse.
tools = [{"name": "tide", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}]
call = ('r</think>Look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="tide">\n<｜DSML｜ parameter name="port" '
        'string="true">Brest</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>')
wanted = {"id": "x", "reasoning": "r", "content": "Look.",
          "tool_calls": [{"name": "tide", "arguments": '{"port": "Brest"}'}], "finish_reason": "tool_calls"}
line = {"id": "x", "ids": ids_of(call), "start": "reasoning", "tools": tools}
expect("parse", answers("parse", [line])[0], wanted)
wrapped = dict(line, tools=[{"type": "function", "function": tools[0]}])
expect("parse tools of a request", answers("parse", [wrapped])[0], wanted)
stopped = dict(line, stop="ok")
expect("parse with a stop", answers("parse", [stopped])[0],
       dict(wanted, content="Lo", tool_calls=[], finish_reason="stop"))

# The deltas sum up to the answer.
answer = answers("parse", [line], "--deltas")[0]
deltas = answer.pop("deltas")
expect("parse --deltas", answer, wanted)
for kind, text in (("reasoning", "r"), ("content", "Look."), ("arguments", '{"port": "Brest"}')):
    expect("sum of " + kind, "".join(d["text"] for d in deltas if d["kind"] == kind), text)
expect("order", [d["kind"] for d in deltas if d["kind"].startswith("call")], ["call", "call_end"])

bad = [
    ({"id": 1}, "ids"),
    ({"id": 2, "ids": [-1]}, "ids"),
    ({"id": 3, "ids": [99999999]}, "99999999"),
    ({"id": 4, "ids": [], "start": "middle"}, "start"),
    ({"id": 5, "ids": [], "stop": [""]}, "stop[0]"),
    ({"id": 6, "ids": [], "stop": 7}, "stop"),
    ({"id": 7, "ids": [], "tools": [{}]}, "tools[0]"),
    ({"id": 8, "ids": [], "end": "soon"}, "end"),
    ({"id": 9, "ids": [], "ignore_eos": 1}, "ignore_eos"),
]
for (line, part), a in zip(bad, answers("parse", [line for line, _ in bad])):
    if a.get("id") != line["id"] or part not in a.get("error", "") or len(a) != 2:
        fault(f"{line!r}: {a!r}, wanted an error with {part!r}")

sys.exit(faults > 0)
