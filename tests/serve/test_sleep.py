# label: release
"""A server that sleeps (runtime.md 12.2): it takes nothing, what it had goes on when it is woken, and its end waits for nobody."""
import json
import os
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served, until  # noqa: E402

f = Faults()
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
LONG = {**HELLO, "max_tokens": 2000, "ignore_eos": True}  # still in progress when it is found to be


def begin(s, body, key):
    """A request in progress."""
    c = s.connect()
    c.request("POST", CHAT, json.dumps(body), key)
    f.expect("it runs", until(lambda: s.metric("requests_running") == 1), "")
    return c


def refusals(s, key):
    f.expect("sleep", s.post("/sleep", {"tags": ["weights"]}, key)[2] == {"status": "asleep"}, "")
    status, headers, body = s.post(CHAT, HELLO, key)
    f.expect("a chat", status == 503 and headers.get("retry-after") and body["error"]["code"] == "asleep" and body["error"]["type"] == "server_error", (status, headers, body))
    f.expect("text", s.post("/v1/completions", {"prompt": "a", "stream": True}, key)[0] == 503, "")
    f.expect("responses", s.post("/v1/responses", {"input": "a"}, key)[2]["error"]["code"] == "asleep", "")
    status, _, body = s.post("/v1/messages", {"model": "claude-x", "max_tokens": 4, "messages": HELLO["messages"]}, key)
    f.expect("messages", status == 529 and body["error"]["type"] == "overloaded_error", (status, body))
    f.expect("what the engine is not needed for", s.post("/tokenize", {"prompt": "a"}, key)[0] == 200 and s.ask("GET", "/health")[0] == 200, "")
    f.expect("no tags", s.post("/sleep", {"tags": []}, key)[0] == 400, "")
    f.expect("wake", s.post("/wake_up", None, key)[2] == {"status": "awake"} and s.post(CHAT, HELLO, key)[0] == 200, "")


def in_progress(s, key):
    wanted = s.post(CHAT, LONG, key)[2]["choices"]
    c = begin(s, LONG, key)
    s.post("/sleep", None, key)
    s.post("/wake_up", None, key)
    f.expect("and goes on", json.loads(c.getresponse().read())["choices"] == wanted, "")


with tempfile.TemporaryDirectory() as folder:
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("secret\n")
    key = {"x-api-key": "secret"}
    with Served("--admin-key-file", keys, "--max-model-len", "32768", "--drain-seconds", "100000") as s:
        refusals(s, key)
        in_progress(s, key)
        c = begin(s, {**LONG, "max_tokens": 30000, "stream": True}, key)
        begun = c.getresponse()  # its headers are here: it is a stream from now on
        s.post("/sleep", None, key)
        s.process.send_signal(signal.SIGTERM)  # nothing can go on, so that nothing is waited for
        answer = begun.read().decode()
        f.expect("its client is told", "event: error" in answer and "shutting down" in answer and "[DONE]" not in answer, answer[-300:])
        f.expect("it ends", s.process.wait(60) == 0, "")
sys.exit(1 if f.count else 0)
