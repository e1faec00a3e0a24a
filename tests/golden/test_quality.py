# label: full once
"""The trained models answer: every eighth request of quality.jsonl through `quire generate`, scored by score.py beside the
answers of the program that trained them. At most two in a hundred fewer may be right."""
import json, math, os, subprocess, sys, tempfile

SOURCE, PROGRAM = os.environ["QUIRE_SOURCE"], os.environ["QUIRE_PROGRAM"]
sys.path.insert(0, os.path.join(SOURCE, "tests/golden/models"))
import score

RUNS = [("tiny-v4", "reference"), ("tiny-v4", "w8a8"), ("tiny-v41", "reference")]
EVERY = 8


def answers(model, profile, lines):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as requests:
        for line in lines:
            requests.write(json.dumps({**line["request"], "id": line["id"]}, ensure_ascii=False) + "\n")
        requests.flush()
        done = subprocess.run([PROGRAM, "generate", "--quiet", "--model", os.path.join(SOURCE, "models", model),
                               "--profile", profile, "--requests", requests.name],
                              stdout=subprocess.PIPE, check=True, encoding="utf-8")
    return {a["id"]: a for a in map(json.loads, done.stdout.splitlines())}


def main():
    for model, profile in RUNS:
        path = os.path.join(SOURCE, "tests/golden/models", model, "quality.jsonl")
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file][::EVERY]
        found = answers(model, profile, lines)
        wrong = [line["id"] for line in lines if "text" not in found[line["id"]]]
        assert not wrong, f"{model} {profile}: no answer to {wrong}"
        right = sum(score.score(line, {"output": found[line["id"]]["text"]}) for line in lines)
        wanted = sum(line["oracle_right"] for line in lines) - math.ceil(0.02 * len(lines))
        print(f"{model} {profile}: {right} of {len(lines)} right, at least {wanted} wanted")
        assert right >= wanted


if __name__ == "__main__":
    main()
