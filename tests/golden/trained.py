"""The trained models against golden/models, by the pass lines of its README. Each check prints what it found and returns
whether that is within the line; a model that the program cannot run has failed."""
import array
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.environ.get("QUIRE_SOURCE") or pathlib.Path(__file__).parents[2])
PROGRAM = os.environ.get("QUIRE_PROGRAM") or str(ROOT / "build/release/quire")
GOLDEN = ROOT / "tests/golden/models"
MODELS = ("tiny-v41", "tiny-v4")

sys.dont_write_bytecode = True
sys.path.insert(0, str(GOLDEN))
import score  # noqa: E402


def lines(model, name):
    with open(GOLDEN / model / name, encoding="utf8") as f:
        return [json.loads(line) for line in f]


def quire(model, *words):
    """Standard output of a command on the model; a failure ends the test with what the program said."""
    run = subprocess.run([PROGRAM, words[0], "--model", str(ROOT / "models" / model), "--quiet", *words[1:]],
                         capture_output=True, text=True, encoding="utf8")
    if run.returncode != 0:
        sys.exit(f"quire {' '.join(words)}: status {run.returncode}: {run.stderr}")
    return run.stdout


def answers(model, command, requests, *options):
    """What `quire generate` or `quire eval` says to the requests, by id."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "requests.jsonl")
        path.write_text("".join(json.dumps(r) + "\n" for r in requests), encoding="utf8")
        out = [json.loads(line) for line in quire(model, command, "--requests", str(path), *options).splitlines()]
    if sorted(r["id"] for r in requests) != sorted(o["id"] for o in out):
        sys.exit(f"quire {command}: {len(requests)} requests, {len(out)} answers")
    for o in out:
        if "error" in o:
            sys.exit(f"quire {command}: {o['id']}: {o['error']}")
    return {o["id"]: o for o in out}


# ---- greedy choices, forced on the reference's ----


def logits_of(path):
    """name -> (rows, columns, values) of the logits in a file of `quire trace`."""
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    out = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if not name.endswith("logits"):
            continue
        if t["dtype"] != "F32" or len(t["shape"]) != 2:
            sys.exit(f"{name}: {t['dtype']} {t['shape']}, wanted rows of float32")
        values = array.array("f", data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
        if sys.byteorder == "big":
            values.byteswap()
        out[name] = (*t["shape"], values)
    return out


def choices(model, cases, *options):
    """The largest logit's id at every position that predicts one of a case's `tokens`; the smaller id of equal ones."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = pathlib.Path(folder, "tokens.json"), pathlib.Path(folder, "out.safetensors")
        tokens.write_text(json.dumps([{"tokens": c["prompt_ids"] + c["tokens"]} for c in cases]))
        quire(model, "trace", "--tokens", str(tokens), "--out", str(out), "--want", "logits", *options)
        logits = logits_of(out)
    found = []
    for i, c in enumerate(cases):
        rows, vocab, values = logits[f"seq{i}.logits"]
        if rows != len(c["prompt_ids"]) + len(c["tokens"]):
            sys.exit(f"{c['id']}: {rows} rows of logits")
        first = len(c["prompt_ids"]) - 1
        row = [values[(first + j) * vocab:(first + j + 1) * vocab] for j in range(len(c["tokens"]))]
        found.append([r.index(max(r)) for r in row])
    return found


def greedy(model, *options):
    cases, at_once = lines(model, "greedy.jsonl"), 10
    found = []
    for i in range(0, len(cases), at_once):
        found += choices(model, cases[i:i + at_once], *options)
    total = equal = 0
    right = True
    for c, chosen in zip(cases, found):
        for i, (token, margin) in enumerate(zip(c["tokens"], c["margin"])):
            total += 1
            equal += chosen[i] == token
            if chosen[i] != token and margin >= 2:
                right = False
                print(f"{model} {c['id']}: token {i} is {chosen[i]}, the golden's {token} by a margin of {margin}")
    print(f"{model} greedy {' '.join(options)}: {equal} of {total} choices are the golden's, at least 98.5 % wanted")
    return right and equal >= 0.985 * total and total > 1000


# ---- negative log likelihood of held-out prose ----


def nll(model, field, *options):
    cases = lines(model, "nll.jsonl")
    said = answers(model, "eval", [{"id": c["id"], "tokens": c["tokens"]} for c in cases], *options)
    right = True
    for c in cases:
        o = said[c["id"]]
        if o["n"] != c["n"] or not abs(o["nll"] - c[field]) <= 0.02 * c[field]:
            right = False
            print(f"{model} {c['id']}: nll {o['nll']} of {o['n']} tokens, the golden's {c[field]} of {c['n']}, within 2 %")
    found, wanted = sum(said[c["id"]]["nll"] for c in cases), sum(c[field] for c in cases)
    print(f"{model} {field}: {found:.3f}, {100 * (found / wanted - 1):+.4f} % of the golden's {wanted:.3f}, 0.5 % allowed")
    return right and math.isfinite(found) and abs(found - wanted) <= 0.005 * wanted and len(cases) > 0


# ---- right answers ----


def quality(model, each, *options):
    """The first `each` requests of every kind (None: all): right as often as the oracle, less two in a hundred."""
    kinds = {}
    for case in lines(model, "quality.jsonl"):
        kinds.setdefault(case["kind"], []).append(case)
    cases = [c for kind in kinds.values() for c in kind[:each]]
    said = answers(model, "generate", [{"id": c["id"], **c["request"]} for c in cases], *options)
    right = sum(score.score(c, {"output": said[c["id"]]["text"]}) for c in cases)
    oracle = sum(c["oracle_right"] for c in cases)
    if each is None:
        scores = json.loads((GOLDEN / model / "scores.json").read_text())["all"]
        if scores["of"] != len(cases):
            sys.exit(f"{model}: {len(cases)} cases, scores.json has {scores['of']}")
        oracle = scores["right"]
    print(f"{model} quality: {right} of {len(cases)} right, the oracle {oracle}")
    return right >= oracle - 0.02 * len(cases) and len(cases) >= 60


def end(results):
    sys.exit(0 if results and all(results) else 1)
