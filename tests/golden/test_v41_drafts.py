# label: release
"""The pass lines of golden/v41's README for drafts: rings and drafts made from the golden's taps, on the reference path
and on the fast one; and no cut of the pass changes a bit of them."""
import array
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

PROGRAM = os.environ["QUIRE_PROGRAM"]
GOLDEN = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "golden", "v41")
DEVICES = os.environ.get("QUIRE_TEST_DEVICE", "cpu-reference cpu").split()
WAYS = (["--chunks", "3,1,129"], ["--decode-from", "0"], ["--block-size", "32", "--threads", "3"],
        ["--kv-cache-dtype", "bf16"])
faults = 0


def expect(what, right):
    global faults
    if not right:
        faults += 1
        print(f"wrong: {what}")


def load(path):
    """The arrays of a safetensors file, flat."""
    with open(path, "rb") as f:
        data = f.read()
    size, = struct.unpack("<Q", data[:8])
    out = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            values = array.array({"F32": "f", "I32": "i", "U8": "B"}[t["dtype"]])
            first, end = t["data_offsets"]
            values.frombytes(data[8 + size + first:8 + size + end])
            out[name] = values
    return out


def trace(folder, case, golden, device, extra=()):
    """The draft arrays of one case, and the file they stand in."""
    tokens = {k: case[k] for k in ("tokens", "next_token", "draft_prefixes") if k in case}
    asked, out = os.path.join(scratch, "asked.json"), os.path.join(scratch, "out.safetensors")
    with open(asked, "w") as f:
        json.dump(tokens, f)
    subprocess.run([PROGRAM, "trace", "--quiet", "--model", os.path.join(folder, "model"), "--tokens", asked, "--out", out,
                    "--want", "draft", "--force", golden, "--device", device, *extra], check=True)
    with open(out, "rb") as f:
        return load(out), f.read()


def differences(a, b):
    return [abs(x - y) for x, y in zip(a, b)]


def check_folder(name, device):
    folder = os.path.join(GOLDEN, name)
    with open(os.path.join(folder, "model", "config.json")) as f:
        config = json.load(f)["text_config"]
    window = config["sliding_window"]
    with open(os.path.join(folder, "cases.json")) as f:
        cases = json.load(f)["cases"]
    equal = tokens = 0
    logits, confidences, medians = [], [], []
    for case in cases:
        golden = os.path.join(folder, case["file"])
        want, got = load(golden), trace(folder, case, golden, device)[0]
        for array_name in (n for n in want if n.startswith("draft.")):
            a, b, kind = got[array_name], want[array_name], array_name.split(".")[2]
            where = f"{name} {case['file']} {device}: {array_name}"
            expect(f"{where} has {len(a)} values, wanted {len(b)}", len(a) == len(b))
            if kind == "tokens":
                equal, tokens = equal + sum(x == y for x, y in zip(a, b)), tokens + len(b)
            elif kind == "logits":
                logits += differences(a, b)
                medians.append(statistics.median(differences(a, b)))
            elif kind == "conf_logit":
                confidences += differences(a, b)
            elif kind == "ring":
                wrong = sum(x != y for x, y in zip(a, b))
                expect(f"{where}: {wrong} of {len(b)} bytes differ", wrong <= 2 or wrong <= 0.015 * len(b))
    where = f"{name} {device}"
    expect(f"{where} has drafts", tokens > 0)
    expect(f"{where}: {equal} of {tokens} tokens equal", equal >= 0.97 * tokens)
    expect(f"{where}: mean difference of logits {statistics.fmean(logits)}", statistics.fmean(logits) <= 0.03)
    expect(f"{where}: median difference of logits {statistics.median(logits)}", statistics.median(logits) <= 5e-4)
    expect(f"{where}: mean difference of confidences {statistics.fmean(confidences)}", statistics.fmean(confidences) <= 0.2)
    if window > 64:
        near = sum(m <= 5e-4 for m in medians)
        expect(f"{where}: {near} of {len(medians)} prefixes near", near >= 0.75 * len(medians))


def check_cuts(name, device):
    folder = os.path.join(GOLDEN, name)
    with open(os.path.join(folder, "cases.json")) as f:
        cases = json.load(f)["cases"]
    for case in cases:
        golden = os.path.join(folder, case["file"])
        whole = trace(folder, case, golden, device)[1]
        for way in WAYS:
            expect(f"{name} {case['file']} {device}: {' '.join(way)} changes bits",
                   trace(folder, case, golden, device, way)[1] == whole)


with tempfile.TemporaryDirectory() as scratch:
    for folder_name in ("spec-13.1", "wide", "pad"):
        for a_device in DEVICES:
            check_folder(folder_name, a_device)
        check_cuts(folder_name, DEVICES[-1])
sys.exit(faults != 0)
