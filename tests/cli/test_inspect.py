# label: once
"""quire inspect on released-size folders, made header-true and sparse by quire synth: totals, parts and the byte plan."""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM = os.environ["QUIRE_PROGRAM"]
CONFIGS = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "data", "config")
faults = 0


def expect(what, found, wanted):
    global faults
    if found != wanted:
        faults += 1
        print(f"{what}: {found}, wanted {wanted}")


def run(*line):
    done = subprocess.run([PROGRAM, *line], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def part(described, kind, name):
    return next(item["bytes"] for item in described["bytes"][kind]["items"] if item["name"] == name)


with tempfile.TemporaryDirectory() as folder:
    for name, tensors, size, files in (("v41-flash", 96085, 510286023000, 48), ("v4-flash", 69187, 159609485896, 46)):
        out = os.path.join(folder, name)
        status, _, said = run("synth", "--config", os.path.join(CONFIGS, name + ".json"), "--out", out, "--values", "none", "--quiet")
        expect(f"synth {name}: {said}", status, 0)
        status, text, said = run("inspect", "--model", out, "--json", "--kv-ram-bytes", str(1 << 30))
        expect(f"inspect {name}: {said}", status, 0)
        described = json.loads(text)
        expect(f"{name} tensors", described["tensors"]["count"], tensors)
        expect(f"{name} bytes", described["tensors"]["bytes"], size)
        expect(f"{name} files", described["tensors"]["files"], files)
        for kind in ("missing", "unexpected", "wrong_shape", "wrong_format"):
            expect(f"{name} {kind}", described["tensors"][kind]["count"], 0)
        mapped = described["bytes"]["weights"]["total"] + described["bytes"]["tables"]["total"]
        expect(f"{name} mapped", mapped, size)
        pools = described["bytes"]["pages"]["total"] + described["bytes"]["states"]["total"]
        expect(f"{name} pools fit", described["cache"]["fits"] and pools <= 1 << 30, True)
        if name == "v41-flash":
            expect("routed experts", part(described, "weights", "routed experts"), 288777830400)
            expect("tables", described["bytes"]["tables"]["total"], 202758032400)
            expect("block", described["cache"]["block_bytes"], 113920)
            expect("context", described["cache"]["max_model_len"], 1048576)

    status, text, said = run("inspect", "--model", os.path.join(folder, "v4-flash"), "--block-size", "64")
    expect("a block below a ratio", (status, text, "E40" in said), (3, "", True))
    status, text, said = run("inspect")
    expect("no model", (status, text, "--model" in said), (2, "", True))
sys.exit(faults != 0)
