# label: release
"""An engine that stands still, as if it were deep in a long prompt or wedged: streams of each API have their headers and signs of
life, /health says 503, and afterwards everybody gets what an idle server says. Text that is withheld is such a silence too.
Sleep and wake take as long as the engine stands still, and nobody else waits for them."""
import ctypes
import json
import os
import signal
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served, until  # noqa: E402

f = Faults()
ASK = {"temperature": 0, "stream": True}
HELLO = {**ASK, "messages": [{"role": "user", "content": "Tell me a story."}]}
BODIES = {"/v1/chat/completions": {**HELLO, "max_tokens": 60}, "/v1/completions": {**ASK, "prompt": "Once upon a time", "max_tokens": 60},
          "/v1/messages": {**HELLO, "model": "claude-x", "max_tokens": 60}, "/v1/responses": {**ASK, "input": "Tell me a story.", "max_output_tokens": 60}}
ENDLESS = {**HELLO, "thinking": {"type": "disabled"}, "max_tokens": 60000, "ignore_eos": True}
SIGNS = {"/v1/chat/completions": ": keepalive", "/v1/completions": ": keepalive", "/v1/messages": "event: ping", "/v1/responses": "event: response.in_progress"}
USUAL = {"/v1/messages": 1, "/v1/responses": 1}  # that every stream has
SEIZE, INTERRUPT, DETACH, ANY_THREAD = 0x4206, 0x4207, 17, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Reader(threading.Thread):
    """Reads a stream to its end, or until it is told to leave."""

    def __init__(self, s, path, body):
        super().__init__(daemon=True)
        self.s, self.path, self.body, self.status, self.lines = s, path, body, None, []
        self.connection = s.connect()
        self.start()

    def run(self):
        self.connection.request("POST", self.path, json.dumps(self.body))
        response = self.connection.getresponse()
        self.status = response.status
        try:
            for line in response:
                self.lines.append(line.decode().rstrip("\n"))
        except (OSError, ValueError):
            pass

    def signs(self):
        return self.lines.count(SIGNS[self.path]) - USUAL.get(self.path, 0)

    def events(self):
        return [json.loads(line[6:]) for line in list(self.lines) if line.startswith("data: {")]

    def text(self):
        """All words, whatever the API calls them."""
        said = ""
        for e in self.events():
            for choice in e.get("choices", []):
                said += choice.get("text", "") + "".join(choice.get("delta", {}).get(k) or "" for k in ("reasoning_content", "content"))
            delta = e.get("delta", "")
            said += delta if isinstance(delta, str) else delta.get("thinking", "") + delta.get("text", "")
        return said


def threads(s):
    """Ids of the server's threads, and how long each has worked."""
    at = f"/proc/{s.process.pid}/task"
    return {int(t): sum(map(int, open(f"{at}/{t}/stat").read().rsplit(")", 1)[1].split()[11:13])) for t in os.listdir(at)}


def stop(s):
    """Stops the engine's thread, which has worked most, where it holds nothing that others need: the metrics are told, and
    the keeper lets a stream begin."""
    thread = max(threads(s).items(), key=lambda t: t[1])[0]
    if libc.ptrace(SEIZE, thread, None, None) != 0:
        print(f"skipped: a test may not stop a thread here ({os.strerror(ctypes.get_errno())})")
        sys.exit(1 if f.count else 77)
    while True:
        libc.ptrace(INTERRUPT, thread, None, None)
        os.waitpid(thread, ANY_THREAD)
        c = s.connect()
        c.timeout = 5
        try:
            s.ask("GET", "/metrics", connection=c)
            c.request("POST", "/v1/completions", json.dumps(BODIES["/v1/completions"]))
            c.getresponse()
            return thread
        except OSError:
            libc.ptrace(7, thread, None, None)  # goes on
        finally:
            c.close()


def stands_still(s):
    alone = {}
    for path, body in BODIES.items():
        reader = Reader(s, path, body)
        reader.join(120)
        alone[path] = reader.text()
    endless = Reader(s, "/v1/chat/completions", ENDLESS)
    f.expect("it is at work", until(endless.text), endless.lines)
    thread = stop(s)
    readers = [Reader(s, path, body) for path, body in BODIES.items()]
    f.expect("headers come before any token", until(lambda: all(r.status == 200 for r in readers), 30) and not any(r.text() for r in readers), [r.lines for r in readers])
    f.expect("signs of life", until(lambda: all(r.signs() > 0 for r in [endless, *readers]), 60), [(r.path, r.signs()) for r in readers])
    f.expect("the server says that it is stuck", until(lambda: s.ask("GET", "/health")[0] == 503, 30), s.ask("GET", "/health"))
    f.expect("and is alive otherwise", s.ask("GET", "/v1/models")[0] == 200 and s.ask("GET", "/ready")[0] == 200, "")
    libc.ptrace(DETACH, thread, None, None)
    for r in readers:
        r.join(120)
        f.expect(f"{r.path}: the words of an idle server", r.text() == alone[r.path] != "", (r.text(), alone[r.path]))
    endless.connection.sock.shutdown(2)
    numbers = [e["sequence_number"] for e in readers[-1].events()]
    f.expect("signs of life are numbered too", readers[-1].path == "/v1/responses" and numbers == list(range(len(numbers))), numbers)
    f.expect("it is well again", until(lambda: s.ask("GET", "/health")[0] == 200), s.ask("GET", "/health"))


def withholds(s):
    """An answer of one letter for ever, which may become the stop string until the end: nothing of it can be said."""
    letter = s.post("/tokenize", {"prompt": "a", "add_special_tokens": False})[2]["tokens"]
    f.expect("one token", len(letter) == 1, letter)
    reader = Reader(s, "/v1/chat/completions", {**ENDLESS, "stop": ["a" * 60000 + "b"],
                                                "logit_bias": {str(letter[0]): 100}})
    f.expect("signs of life while text is withheld", until(lambda: reader.signs() > 0, 60) and not reader.text(), reader.lines[-3:])
    f.expect("it is at work", s.metric("requests_running") == 1, "")
    reader.connection.sock.shutdown(2)


def changes(s, key, path, count):
    """So many at once, from more connections than there are threads to answer them."""
    asked = [s.connect() for _ in range(count)]
    for c in asked:
        c.request("POST", path, None, key)
    return asked


def others_are_answered(s, what):
    for _ in range(8):
        c = s.connect()
        c.timeout = 10
        try:
            f.expect(what, s.ask("GET", "/health", connection=c)[0] == 200, "")
        except OSError as e:
            f.expect(what, False, e)
        c.close()


def changes_slowly(s, key):
    body = {**BODIES["/v1/completions"], "stream": False}
    alone = s.post("/v1/completions", body)[2]["choices"]
    thread = stop(s)
    asked = changes(s, key, "/sleep", 12)
    others_are_answered(s, "others, while it lies down")
    f.expect("it takes nothing by now", s.post("/v1/completions", body)[0] == 503, "")
    libc.ptrace(DETACH, thread, None, None)
    f.expect("all are told", [json.loads(c.getresponse().read()) for c in asked] == 12 * [{"status": "asleep"}], "")

    thread = stop(s)
    asked = changes(s, key, "/wake_up", 12)
    others_are_answered(s, "others, while it wakes")
    asked.pop().sock.shutdown(2)
    asked += changes(s, key, "/sleep", 1)
    f.expect("not before it is awake", s.ask("GET", "/ready")[0] == 503, "")
    libc.ptrace(DETACH, thread, None, None)
    said = [json.loads(c.getresponse().read()) for c in asked]
    f.expect("a sleep behind them", said[-1] == {"status": "asleep"} and s.ask("GET", "/ready")[0] == 503, said)
    f.expect("awake", s.post("/wake_up", None, key)[2] == {"status": "awake"} and s.post("/v1/completions", body)[2]["choices"] == alone, "")

    s.post("/sleep", None, key)
    thread = stop(s)
    asked = changes(s, key, "/wake_up", 12)
    others_are_answered(s, "others, once more")
    s.process.send_signal(signal.SIGTERM)
    f.expect("no new connection", until(lambda: not s.reaches()), "")
    libc.ptrace(DETACH, thread, None, None)
    for c in asked:
        answer = c.getresponse()
        f.expect("who waited is told", answer.status == 200 or answer.getheader("retry-after"), answer.status)


with Served("--threads", "1", "--max-num-seqs", "4", "--quiet") as s:
    stands_still(s)
    withholds(s)
f.expect("a quiet end", s.status == 0 and s.said == "", (s.status, s.said))
with tempfile.NamedTemporaryFile("w") as keys:
    keys.write("secret\n")
    keys.flush()
    with Served("--threads", "1", "--admin-key-file", keys.name, "--quiet") as s:
        changes_slowly(s, {"x-api-key": "secret"})
    f.expect("a quiet end while it wakes", s.status == 0 and s.said == "", (s.status, s.said))
sys.exit(1 if f.count else 0)
