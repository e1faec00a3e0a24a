"""The program's own line: version, help, wrong commands, exit statuses."""
import os
import subprocess
import sys

PROGRAM = os.environ["QUIRE_PROGRAM"]
faults = 0


def expect(line, status, out="", err=""):
    """Runs quire; each of `out` and `err` must occur in its stream, and an empty one means that nothing is said there."""
    global faults
    run = subprocess.run([PROGRAM, *line], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    right = run.returncode == status
    for said, wanted in ((run.stdout, out), (run.stderr, err)):
        right = right and (wanted in said if wanted else said == "")
    if not right:
        faults += 1
        print(f"quire {' '.join(line)}: status {run.returncode}, {run.stdout!r}, {run.stderr!r}")


expect(["--version"], 0, out="quire 0.")
expect(["--version", "x"], 2, err='argument "x" is one too many')
expect(["--help"], 0, out="Usage: quire COMMAND")
expect(["help"], 0, out="Usage: quire COMMAND")
expect([], 2, err="Usage: quire COMMAND")
expect(["txet"], 2, err="unknown command txet; the nearest is text")
expect(["--verison"], 2, err="unknown option --verison; the nearest is --version")
expect(["serve"], 2, err="--model DIR is missing")
expect(["help", "txet"], 2, err="the nearest is text")

# Every command in the list explains itself, and knows what it does not know.
listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout.split("Commands:\n")[1]
names = [line.split()[0] for line in listed.splitlines()]
if "text" not in names:
    faults += 1
    print(f"the list of commands is {names}")
for name in names:
    expect([name, "--help"], 0, out=f"Usage: quire {name}")
    expect(["help", name], 0, out=f"Usage: quire {name}")
    expect([name, "--no-such-option"], 2, err="--no-such-option")

# What is not built is taken and refused, but no hint leads there.
expect(["run", "--model", "x", "--draft-widht", "2"], 2, err="the nearest is --")
said = subprocess.run([PROGRAM, "run", "--draft-widht", "2"], capture_output=True, text=True).stderr
nearest = said.split("the nearest is ")[1].split()[0]
if nearest not in subprocess.run([PROGRAM, "run", "--help"], capture_output=True, text=True).stdout:
    faults += 1
    print(f"the help of run does not list {nearest}")

with open("/dev/full", "w") as full:
    run = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    if run.returncode != 1 or "standard output" not in run.stderr:
        faults += 1
        print(f"a full disk: status {run.returncode}, {run.stderr!r}")
sys.exit(faults != 0)
