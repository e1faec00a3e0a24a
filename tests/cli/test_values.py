# label: release
"""A wrong value of any option of any command is a wrong line: status 2, and a sentence that names option and value."""
import os
import re
import subprocess
import sys
import tempfile

PROGRAM = os.environ["QUIRE_PROGRAM"]
SOURCE = os.environ["QUIRE_SOURCE"]
MODEL = os.path.join(SOURCE, "models", "tiny-v41")
OPERATOR = os.path.join(SOURCE, "tests", "golden", "ops4", "02-rmsnorm-both-a.safetensors")
LINES = {"run": ["--model", MODEL, "hi"], "chat": ["--model", MODEL], "generate": ["--model", MODEL, "--requests", "absent"],
         "eval": ["--model", MODEL, "--text", "absent"], "trace": ["--model", MODEL, "--tokens", "absent", "--out", "absent"],
         "verify": ["--model", MODEL, "--files-only"], "inspect": ["--model", MODEL], "bench": ["decode", "--model", MODEL],
         "op": ["--in", OPERATOR, "--check"], "synth": ["--config", "absent", "--out", "absent"],
         "quantize": ["--w8a8", "--model", MODEL, "--out", "absent"]}
LINES |= {f"text {part}": ["--tokenizer", MODEL] for part in ("tokenize", "detokenize", "render", "parse", "sample")}
HUGE = "99999999999999999999999"
INTEGERS, NUMBERS = ["x", "", "5x", "0x5", HUGE, "-" + HUGE], ["x", "", "nan", "inf", "0x1p3", "1e999", "-1e9"]
WRONG = {"N": INTEGERS, "K": INTEGERS, "SEED": INTEGERS, "T": NUMBERS, "P": NUMBERS, "R": NUMBERS, "F": NUMBERS, "X": NUMBERS,
         "DIR": [""], "FILE": [""], "DEVICE": ["gpu", "cpux", "cuda:x", "cuda:-1", ""], "N,N,...": ["x", "0", "-1", "1,,2", HUGE],
         "LIST": ["nonsense", "logits,nonsense"]}
faults = 0


def run(*line):
    done = subprocess.run([PROGRAM, *line], capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=scratch)
    return done.returncode, done.stdout, done.stderr


def check(line, *said):
    """Status 2, one sentence that holds what `said` names, and where help is."""
    global faults
    status, out, err = run(*line)
    if status != 2 or out or not all(s in err.splitlines()[0] for s in said) or not re.fullmatch(r".*\nTry '.*'\.\n", err):
        faults += 1
        print(f"quire {' '.join(line)}: status {status}, {out!r}, {err!r}")


def options(command):
    """Each option's written name and its placeholder, or None."""
    for row in run(*command, "--help")[1].split("Options:\n")[1].splitlines():
        if re.match(r"  (-\w,|    --)", row) and "--help" not in row:
            name, _, value = re.split(r"  +", row.strip())[0].split("--")[1].partition(" ")
            yield f"--{name}", value or None


def without(line, name, value):
    at = line.index(name) if name in line else len(line)
    return line[:at] + line[at + 1 + (value is not None):]


with tempfile.TemporaryDirectory() as scratch:
    tried, seen = 0, set()
    for words, line in LINES.items():
        command = words.split()
        for name, value in options(command):
            rest = without(line, name, value)
            if value is None:
                check([*command, *rest, f"{name}=x"], name, "takes no value")
                continue
            check([*command, *rest, name], name, "needs a value")
            wrong = ["nonsense", ""] if "|" in value else WRONG.get(value, [])
            first = value not in seen
            seen.add(value)
            for text in wrong if first else [wrong[0], wrong[-1]] if wrong else []: # the reader of a value is one for all options
                check([*command, *rest, name, text], name, text, "wanted")
                tried += 1
            if wrong in (INTEGERS, NUMBERS):
                status, out, err = run(*command, *rest, name, HUGE if wrong == INTEGERS else "1e999")
                if "wanted an integer" in err or " to " not in err:
                    faults += 1
                    print(f"{words} {name}: no range in {err!r}")
    if tried < 300:
        faults += 1
        print(f"only {tried} values were tried")
    check(["op", "rmsnrom", "--in", OPERATOR, "--check"], '"rmsnrom"', "the nearest is rmsnorm")
    check(["op", "rmsnrom", "--list"], '"rmsnrom"', "the nearest is rmsnorm")
    check(["op", "--list", "--in", OPERATOR], "--list runs nothing")
    check(["op", "--in", OPERATOR, "--out", "x", "--against", "cpu"], "--out says nothing to --against")
    check(["bench", "op", "rmsnrom", "--in", OPERATOR], '"rmsnrom"', "the nearest is rmsnorm")
    for model, effort in (("tiny-v41", "huge"), ("tiny-v41", "101"), ("tiny-v4", "50")):
        status, out, err = run("serve", "--model", os.path.join(SOURCE, "models", model), "--port", "0", "--default-effort", effort)
        if status != 2 or out or not all(word in err for word in ("--default-effort", f'"{effort}"', "minimal, low, medium, high, xhigh, max")):
            faults += 1
            print(f"--default-effort {effort}: status {status}, {out!r}, {err!r}")
sys.exit(faults != 0)
