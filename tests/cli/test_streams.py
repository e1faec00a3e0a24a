# label: release
"""The standard streams of the commands: what a person sees of an answer, a reader that goes away, text that is none."""
import os
import subprocess
import sys
import tempfile

PROGRAM = os.environ["QUIRE_PROGRAM"]
MODEL = os.path.join(os.environ["QUIRE_SOURCE"], "models", "tiny-v41")
SMALL = ["--model", MODEL, "--kv-ram-bytes", "50000000", "--temperature", "0"]
faults = 0


def expect(what, right, found):
    global faults
    if not right:
        faults += 1
        print(f"{what}: {found!r}")


def run(*line, **how):
    done = subprocess.run([PROGRAM, *line], capture_output=True, **{"stdin": subprocess.DEVNULL, **how})
    return done.returncode, done.stdout.decode(), done.stderr.decode()


# What the model thinks stands apart from the answer, and no tag of the markup is seen.
found = run("run", *SMALL, "--quiet", "hi")
expect("run", found[0] == 0 and "\n\n" in found[1] and "</think>" not in found[1], found)
found = run("chat", *SMALL, "--quiet", stdin=None, input=b"hi\n")
expect("chat", found[0] == 0 and "\n\n" in found[1] and "</think>" not in found[1], found)

# A reader that goes away is a failed write, and the model stops there.
for line in (["run", *SMALL, "--ignore-eos", "hi"], ["inspect", "--model", MODEL]):
    with subprocess.Popen([PROGRAM, *line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        p.stdout.close()
        said = p.stderr.read().decode()
    expect(f"{line[0]} into a closed pipe", p.returncode == 1 and "standard output: Broken pipe" in said, said)

# A prompt that is no text is named; a file that is no file is not waited for.
with tempfile.TemporaryDirectory() as folder:
    name = os.path.join(folder, "prompt")
    with open(name, "wb") as file:
        file.write(b"a\xff")
    found = run("run", *SMALL, "--file", name)
    expect("a prompt of bytes", found == (1, "", "quire run: the user message is no UTF-8 at byte 1\n"), found)
    pipe = os.path.join(folder, "pipe")
    os.mkfifo(pipe)
    found = run("run", *SMALL, "--file", pipe)
    expect("a prompt in a pipe", found[0] == 1 and "not a regular file" in found[2], found)
    found = run("trace", "--model", MODEL, "--tokens", pipe, "--out", "/dev/null")
    expect("tokens in a pipe", found[0] == 1 and "not a regular file" in found[2], found)

# A line is taken whole or refused.
found = run("chat", *SMALL, "--quiet", stdin=None, input=b"/system a\0b\n/system c\rd\r\n/system\n")
expect("a line with a NUL", found == (1, "system: c\rd\n", "quire chat: the line holds a NUL character at byte 9, wanted text\n"), found)

# One is one.
found = run("run", *SMALL, "--raw", "-n", "1", "a")
expect("one token", "1 token " in found[2] and "1 tokens" not in found[2], found)

found = run("eval", "--model", MODEL, "--requests", "-", stdin=None, input=b'{"id":1,"tokens":[]}\n')
expect("an empty request", found[0] == 1 and "found 0 and 0" in found[1], found)
found = run("eval", "--model", MODEL, "--requests", "-", stdin=None, input=b'{"tokens":[1,2],"context":"x"}')
expect("two forms in a line", found[0] == 1 and "wanted one form of the two" in found[1], found)
for command in ("eval", "generate"):
    found = run(command, "--model", MODEL, "--requests", "/no/such/file")
    expect(f"{command} of an absent file", found[0] == 1 and "No such file" in found[2], found)
sys.exit(faults != 0)
