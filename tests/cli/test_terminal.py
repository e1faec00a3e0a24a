# label: full release
"""quire chat on a terminal, and interrupts: one stops the answer, at the prompt it drops what was typed."""
import os
import pty
import select
import signal
import subprocess
import sys

PROGRAM = os.environ["QUIRE_PROGRAM"]
MODEL = os.path.join(os.environ["QUIRE_SOURCE"], "models", "tiny-v41")
CHAT = [PROGRAM, "chat", "--model", MODEL, "--kv-ram-bytes", "50000000", "--temperature", "0"]
PATIENCE = 120  # seconds without a byte: then the test has failed
faults = 0


class Screen:
    """Collects what a descriptor says, until it has said some words."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.said = ""

    def more(self):
        if not select.select([self.descriptor], [], [], PATIENCE)[0]:
            return ""
        try:
            return os.read(self.descriptor, 65536).decode(errors="replace")
        except OSError:  # the other end of a terminal is gone
            return ""

    def until(self, words):
        global faults
        while words not in self.said:
            piece = self.more()
            if not piece:
                faults += 1
                print(f"{words!r} does not come after {self.said!r}")
                sys.exit(1)
            self.said += piece
        before, self.said = self.said.split(words, 1)
        return before


def expect(what, right, found):
    global faults
    if not right:
        faults += 1
        print(f"{what}: {found!r}")


# Through pipes: an interrupt ends the answer in progress and nothing else.
with subprocess.Popen([*CHAT, "--ignore-eos", "-n", "20000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE, bufsize=0) as p:
    out, err = Screen(p.stdout.fileno()), Screen(p.stderr.fileno())
    p.stdin.write(b"Tell me a story\n")
    out.said = out.more()
    p.send_signal(signal.SIGINT)
    said = err.until("ended by ")
    err.until("cancelled\n")
    p.stdin.write(b"/system\n/quit\n")
    out.until("system: none")
    expect("status after an interrupt", p.wait() == 0, p.returncode)

# On a terminal; characters are those of UTF-8 whatever the locale is.
child, master = pty.fork()
if child == 0:
    os.environ.update(TERM="dumb", LC_ALL="C")
    os.execv(PROGRAM, [*CHAT, "--ignore-eos", "-n", "20000"])
screen = Screen(master)
screen.until("/help for help.")
screen.until("> ")
os.write(master, b"hal\x03/think\r")  # an interrupt drops the line
screen.until("think: the model's default")
screen.until("> ")
os.write(master, b"Tell me a story\r")
screen.until("story")  # its echo: before the answer the terminal takes no interrupts
screen.until("\n")
screen.said = screen.more()
os.write(master, b"\x03")  # stops the answer
screen.until("ended by cancelled")
screen.until("> ")
os.write(master, "/system caf\xe9\r".encode())
screen.until("> ")
os.write(master, b"/system\r")
screen.until("system: caf\xe9")
screen.until("> ")
os.write(master, b"\x10\x10 au lait\r")  # the line before the last, from the history
screen.until("> ")
os.write(master, b"/system\r")
screen.until("system: caf\xe9 au lait")
screen.until("> ")
os.write(master, b"\x04")  # end of input
expect("status of a terminal", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, screen.said)
sys.exit(faults != 0)
