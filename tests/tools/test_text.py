"""quire text tokenize and detokenize: one answer line for each line, whatever the line is."""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM = os.environ["QUIRE_PROGRAM"]
SOURCE = os.environ["QUIRE_SOURCE"]
TINY = os.path.join(SOURCE, "models", "tiny-v41")
faults = 0


def fault(text):
    global faults
    faults += 1
    print(text)


def answers(part, lines, *options):
    """The answers to `lines` (bytes or objects), which must be as many."""
    text = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    run = subprocess.run([PROGRAM, "text", part, "--tokenizer", TINY, *options], input=text, capture_output=True)
    found = [json.loads(line) for line in run.stdout.decode().split("\n")[:-1]]
    if run.returncode or run.stderr or len(found) != len(lines):
        fault(f"{part} {options}: status {run.returncode}, {len(found)} of {len(lines)} lines, {run.stderr!r}")
        found += [{}] * (len(lines) - len(found))
    return found


def expect(what, found, wanted):
    if found != wanted:
        fault(f"{what}: {found!r}, wanted {wanted!r}")


def expect_error(what, found, id, part):
    if found.get("id") != id or part not in found.get("error", "") or len(found) != 2:
        fault(f"{what}: {found!r}, wanted an error with {part!r}")


def split_lines(text):
    return [json.loads(line) for line in text.split("\n") if line]


with open(os.path.join(SOURCE, "tests/golden/text/tiny_v41.jsonl"), encoding="utf-8") as file:
    golden = split_lines(file.read())
encode = [g for g in golden if g["kind"] == "encode"]
decode = [g for g in golden if g["kind"] == "decode"]
for g, a in zip(encode, answers("tokenize", encode)):
    expect("tokenize " + g["id"], a, {"id": g["id"], "ids": g["ids"]})
for g, a in zip(encode, answers("tokenize", encode, "--markup")):
    expect("tokenize --markup " + g["id"], a, {"id": g["id"], "ids": g["ids_with_markup"]})
for g, a in zip(decode, answers("detokenize", decode, "--stream")):
    expect("detokenize --stream " + g["id"], a, {"id": g["id"], "emit": g["emit"], "flush": g["flush"]})
for g, a in zip(decode, answers("detokenize", decode)):
    expect("detokenize " + g["id"], a, {"id": g["id"], "text": "".join(g["emit"]) + g["flush"]})

# Bytes that are no UTF-8, and the same as text.
hex_and_text = answers("tokenize", [{"id": 1, "bytes_hex": "61ff00C3"}, {"id": 2, "text": "a\ufffd\0\ufffd"}])
expect("bytes_hex", hex_and_text[0].get("ids"), hex_and_text[1].get("ids"))

# Bad lines are answered in their place and the rest goes on.
bad = [
    (b"", None, "line 1"),
    (b"{", None, "not valid JSON"),
    (b"[1]", None, "not a JSON object"),
    (b'{"id":1,"text":"\xff"}', None, "not valid JSON"),
    (b'{"id":1,"text":"\\ud800"}', None, "line 5"),
    ({"id": "x"}, "x", "text or bytes_hex"),
    ({"id": 3, "text": "a", "bytes_hex": "61"}, 3, "text or bytes_hex"),
    ({"id": 4, "text": 7}, 4, "no string"),
    ({"id": 5, "bytes_hex": "6"}, 5, "pairs"),
    ({"id": None, "bytes_hex": "6g"}, None, '"6g"'),
    (json.dumps({"id": 6, "bytes_hex": "a中"}, ensure_ascii=False).encode(), 6, "hexadecimal"),
    (b'{"id":' + b"[" * 300 + b"]" * 300 + b"}", None, "text or bytes_hex"),
    (b"[" * 100000, None, "nest"),
]
found = answers("tokenize", [line for line, _, _ in bad] + [{"id": "end", "text": "Hello"}])
for (line, id, part), a in zip(bad, found):
    expect_error(repr(line)[:60], a, id, part)
expect("the line after bad ones", found[-1].get("id"), "end")

bad = [
    ({"id": 1}, 1, "no list"),
    ({"id": 2, "ids": "a"}, 2, "no list"),
    ({"id": 3, "ids": [1, -1]}, 3, "no id"),
    ({"id": 4, "ids": [1.5]}, 4, "no id"),
    ({"id": 5, "ids": [10**30]}, 5, "no id"),
    ({"id": 6, "ids": [4096]}, 6, "id 4096 is outside the vocabulary"),
]
for options in ([], ["--stream"]):
    for (line, id, part), a in zip(bad, answers("detokenize", [line for line, _, _ in bad], *options)):
        expect_error(repr(line), a, id, part)


def status(line, wanted, said):
    run = subprocess.run([PROGRAM, "text", *line], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if run.returncode != wanted or said not in run.stdout + run.stderr:
        fault(f"quire text {' '.join(line)}: status {run.returncode}, {run.stdout!r}, {run.stderr!r}")


status([], 2, "Usage: quire text PART")
status(["--help"], 0, "tokenize")
status(["tokenise"], 2, "the nearest is tokenize")
status(["tokenize"], 2, "--tokenizer DIR is missing")
status(["tokenize", "--tokenizer", "no/such"], 1, "no/such/tokenizer.json: cannot open")
status(["tokenize", "--tokenizer", TINY, "--in", "no/such"], 1, "no/such: cannot open")
status(["tokenize", "--tokenizer", TINY, "--out", "no/such"], 1, "no/such: cannot create")
status(["tokenize", "--tokenizer", TINY], 0, "")

with tempfile.TemporaryDirectory() as dir:
    given, written = os.path.join(dir, "in"), os.path.join(dir, "out")
    with open(given, "w", encoding="utf-8") as file:
        file.write('{"id":1,"text":"' + "long " * 300000 + '"}')
    status(["tokenize", "--tokenizer", TINY, "--in", given, "--out", written], 0, "")
    with open(written, encoding="utf-8") as file:
        line = split_lines(file.read())
    if len(line) != 1 or len(line[0].get("ids", [])) < 300000:
        fault(f"a long line from a file gave {len(line)} lines")
sys.exit(faults != 0)
