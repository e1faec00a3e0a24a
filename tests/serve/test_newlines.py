# label: full
"""--nonstream-keepalive (protocol.md 4.11): an answer that takes long begins with newlines, and is the same JSON."""
import json
import os
import socket
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served, until  # noqa: E402

f = Faults()
ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3000, "ignore_eos": True, "temperature": 0}  # still in progress when it is put to sleep
KEY = {"x-api-key": "secret"}


def head_of(c):
    """All up to the first byte of the body; what has come of it."""
    got = b""
    while b"\r\n\r\n" not in got or not got.partition(b"\r\n\r\n")[2]:
        got += c.recv(65536)
    return got


def long_answer(s, path, body):
    """Sent, and put to sleep while it runs, until it has begun to be answered."""
    c = socket.create_connection((s.host, s.port), 60)
    text = json.dumps(body).encode()
    c.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
    f.expect("it runs", until(lambda: s.metric("requests_running") == 1), "")
    s.post("/sleep", None, KEY)
    return c, head_of(c)


def rest_of(c, got):
    """The body, taken out of its chunks."""
    while piece := c.recv(65536):
        got += piece
    chunks, body = got.partition(b"\r\n\r\n")[2], b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        body, chunks = body + chunks[:int(size, 16)], chunks[int(size, 16) + 2:]
    return body


with tempfile.TemporaryDirectory() as folder:
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("secret\n")
    with Served("--admin-key-file", keys, "--nonstream-keepalive", "--max-model-len", "32768") as s:
        wanted = s.post("/v1/chat/completions", ASK)[2]["choices"]
        c, got = long_answer(s, "/v1/chat/completions", ASK)
        f.expect("it begins with a newline", got.startswith(b"HTTP/1.1 200") and b"application/json" in got and b"\r\n\r\n1\r\n\n" in got, got)
        s.post("/wake_up", None, KEY)
        body = rest_of(c, got)
        f.expect("and is the same", body.startswith(b"\n") and json.loads(body)["choices"] == wanted, body[:200])
        status, headers, _ = s.post("/v1/chat/completions", {**ASK, "max_tokens": 2})
        f.expect("a short one has a length", status == 200 and "content-length" in headers, headers)
        c, got = long_answer(s, "/v1/completions", {"prompt": "a", "max_tokens": 30000, "ignore_eos": True})
    body = rest_of(c, got)
    f.expect("one that fails says so", json.loads(body)["error"]["type"] == "server_error", body)
f.expect("a quiet end", s.status == 0, (s.status, s.said))
sys.exit(1 if f.count else 0)
