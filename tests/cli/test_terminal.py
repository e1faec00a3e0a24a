# label: release
"""quire chat on a terminal, and interrupts: one stops the answer, at the prompt it drops what was typed."""
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import termios

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

    def until(self, *words):
        """What comes before any of them, and which it is."""
        while not any(w in self.said for w in words):
            piece = self.more()
            if not piece:
                print(f"{words!r} do not come after {self.said!r}")
                sys.exit(1)
            self.said += piece
        found = min((w for w in words if w in self.said), key=self.said.index)
        before, self.said = self.said.split(found, 1)
        return before, found


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
    err.until("ended by ")
    err.until("cancelled\n")
    p.stdin.write(b"/system\n/quit\n")
    out.until("system: none")
    expect("status after an interrupt", p.wait() == 0, p.returncode)


def modes(terminal):
    """Whether it echoes, and takes lines."""
    flags = termios.tcgetattr(terminal)[3]
    return bool(flags & termios.ECHO), bool(flags & termios.ICANON)


def start():
    """A chat on a terminal of its own, at its prompt. Characters are those of UTF-8 whatever the locale is."""
    child, master = pty.fork()
    if child == 0:
        os.environ.update(TERM="dumb", LC_ALL="C")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):  # ignored under nohup
            signal.signal(number, signal.SIG_DFL)
        os.execv(PROGRAM, [*CHAT, "--ignore-eos", "-n", "20000"])
    screen = Screen(master)
    screen.until("/help for help.")
    screen.until("> ")
    return child, master, screen


def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begin_answer(master, screen):
    os.write(master, b"Tell me a story\r")
    screen.until("\x1b[2m")  # what it thinks is dimmed
    while not screen.said:
        screen.said = screen.more()


# An interrupt at the prompt drops the line, as often as one likes, wherever in the line and between which keys it comes.
child, master, screen = start()
for typed in (b"half", b"", b"", b"/think\x02\x02", b"caf\xc3", b"\x1b"):
    os.write(master, typed + b"\x03")
    screen.until("^C\r\n> ")
os.write(master, b"/think\r")
said = screen.until("\n> ")[0]
expect("the line after dropped ones", said == "/think\r\nthink: the model's default\r", said)

# It stops an answer, also an impatient one, and one that comes before the answer has begun is not lost.
begin_answer(master, screen)
os.write(master, b"\x03")
screen.until("ended by cancelled")
screen.until("> ")
begin_answer(master, screen)
for press in range(20):
    os.kill(child, signal.SIGINT)
screen.until("ended by cancelled")
screen.until("> ")
for typed in ("", "T", "story", "\x1b[2m", *["story\r\n"] * 12):
    os.write(master, b"Tell me a story\r")
    if typed:
        screen.until(typed)
    os.write(master, b"\x03")
    said = screen.until("^C\r\n> ", "cancelled\r\n> ", "by length\r\n> ")
    expect("an early interrupt", said[1] != "by length\r\n> ", said)

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
expect("status of a terminal", status_of(child) == 0, screen.said)
expect("a terminal after the end", modes(master) == (True, True), modes(master))

# Who ends the program gets the terminal back as it was.
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV):
    child, master, screen = start()
    expect("a terminal at the prompt", modes(master) == (False, False), modes(master))
    os.kill(child, number)
    status = status_of(child)
    expect(f"status after {number.name}", status == -number, status)
    expect(f"a terminal after {number.name}", modes(master) == (True, True), modes(master))
    os.close(master)
sys.exit(faults != 0)
