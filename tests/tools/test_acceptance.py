"""quire acceptance: its report has one entry for each case, says why one is not applicable, and refuses what it does not know."""
import json
import os
import subprocess

PROGRAM = os.environ["QUIRE_PROGRAM"]
MODEL = os.path.join(os.environ["QUIRE_SOURCE"], "tests/golden/v41/spec-13.1/model")


def run(*line):
    return subprocess.run([PROGRAM, "acceptance", *line], capture_output=True, text=True)


def report_of(*line):
    done = run("--model", MODEL, "--json", *line)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


report = report_of("--only", "A21,A13,A22")
assert (report["model"], report["family"], report["backend"][:3]) == ("model", "DeepSeek-V4.1", "cpu"), report
assert [c["id"] for c in report["cases"]] == ["A13", "A21", "A22"]  # in order of their ids
assert [c["result"] for c in report["cases"]] == ["not applicable", "passed", "passed"]
assert (report["passed"], report["failed"], report["not_applicable"]) == (2, 0, 1)
assert "graphs" in report["cases"][0]["why"] and report["cases"][1]["why"] == ""
assert report["cases"][2]["figures"]["rules"] > 30
assert all(c["title"] and c["seconds"] >= 0 for c in report["cases"])

twice = report_of("--only", "A21,A13,A21")
assert [c["id"] for c in twice["cases"]] == ["A13", "A21"], twice  # a name that stands there twice is one case
bounded = report_of("--only", "A12")["cases"][0]
assert bounded["result"] == "passed" and bounded["modes"] == ["exact", "bounded"], bounded  # this model has a decoder to cut

listed = run("--model", MODEL, "--only", "A13,A17,A18,A19,A20,A24,A27")
assert listed.returncode == 0 and listed.stdout.count("not applicable") == 7, listed.stdout
for line, word in ((["--model", MODEL, "--only", "A99"], "A99"), ([], "--model"), (["--model", MODEL, "--only", "A0"], "A0")):
    done = run(*line)
    assert done.returncode == 2 and word in done.stderr, done.stderr
missing = run("--model", MODEL + "-not-there")
assert missing.returncode == 1 and "not-there" in missing.stderr, missing.stderr
