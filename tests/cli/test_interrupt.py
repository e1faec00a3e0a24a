"""quire generate that is interrupted: whole answers and what there is of the others are written, and one sentence says so."""
import json
import os
import signal
import subprocess
import sys

PROGRAM = os.environ["QUIRE_PROGRAM"]
MODEL = os.path.join(os.environ["QUIRE_SOURCE"], "models/tiny-v41")
# The member that nobody reads brings a warning when the request begins.
LINES = [{"id": 0, "tokens": [5], "max_tokens": 2, "ignore_eos": True},
         {"id": 1, "tokens": [5, 6], "max_tokens": 30000, "ignore_eos": True, "begun": True},
         {"id": 2, "tokens": [7], "max_tokens": 2}]
LINES += [{"id": i, "tokens": [7], "max_tokens": 2} for i in range(3, 8)]

with subprocess.Popen([PROGRAM, "generate", "--model", MODEL, "--temperature", "0", "--requests", "-"], stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as p:
    p.stdin.write("".join(json.dumps(line) + "\n" for line in LINES))
    p.stdin.close()
    assert '"begun" is no member of a request' in p.stderr.readline()
    p.send_signal(signal.SIGINT)
    answers = [json.loads(line) for line in p.stdout]
    said, status = p.stderr.read(), p.wait()

assert status == 1, (status, said)
assert said == ("quire generate: interrupted: 1 of 8 requests have their answer, what there is of the others is written too\n"), said
assert [a["id"] for a in answers] == list(range(8)), answers
assert answers[0]["finish_reason"] == "length" and len(answers[0]["tokens"]) == 2, answers[0]
assert answers[1]["finish_reason"] == "cancelled" and len(answers[1]["tokens"]) < 30000, answers[1]
assert all(a["error"] == "interrupted before it was begun" for a in answers[2:]), answers
sys.exit(0)
