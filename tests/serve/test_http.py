# label: release
"""The server's transport (protocol.md 4.1, 4.10, 4.11): routes, keys, limits, clients that go away, its beginning and end."""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import MODEL, PROGRAM, Faults, Served, until  # noqa: E402

f = Faults()
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
LONG = {**HELLO, "max_tokens": 20000, "ignore_eos": True}


def transport(s):
    status, headers, models = s.ask("GET", "/v1/models", headers={"x-request-id": "mine-1"})
    f.expect("models", status == 200 and models["data"][0]["id"] == "tiny-v41" and models["data"][0]["context_length"] > 0, models)
    f.expect("a client's request id", headers.get("x-request-id") == "mine-1", headers)
    f.expect("an insane request id", s.ask("GET", "/health", headers={"x-request-id": "a b"})[1]["x-request-id"].startswith("req_"), "")
    for path in ("/models", "/beta/models", "/anthropic/v1/models", "/v1/models/", "/v1/models?x=y"):
        f.expect(path, s.ask("GET", path)[0] == 200, path)
    f.expect("one model", s.ask("GET", "/v1/models/deepseek-chat")[2]["id"] == "deepseek-chat", "")
    f.expect("no such model", s.ask("GET", "/v1/models/gpt")[0] == 404, "")
    status, _, body = s.ask("GET", "/nope")
    f.expect("no such path", status == 404 and body["error"]["type"] == "invalid_request_error", body)
    status, headers, body = s.ask("GET", CHAT)
    f.expect("wrong method", status == 405 and headers.get("allow") == "POST" and body["error"]["message"].endswith("wanted POST"), (status, headers))
    f.expect("its line ends", s.raw(b"PUT /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").endswith(b"}\n"), "")
    status, headers, body = s.ask("HEAD", "/health")
    f.expect("HEAD", status == 200 and body == b"", (status, body))
    f.expect("OPTIONS", s.ask("OPTIONS", CHAT)[0] == 204, "")
    f.expect("no CORS unless asked for", "access-control-allow-origin" not in headers, headers)

    c = s.connect()  # one connection for many requests, refused ones among them
    for path in ("/health", "/nope", "/v1/models", "/health"):
        s.ask("GET", path, connection=c)
    first = c.sock.getsockname()
    f.expect("keep-alive", s.post(CHAT, HELLO, connection=c)[0] == 200 and c.sock and c.sock.getsockname() == first, c.sock)
    c.close()

    text = json.dumps(HELLO).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
    got = s.raw(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
    f.expect("Expect: 100-continue", got.startswith(b"HTTP/1.1 100") and b"HTTP/1.1 200" in got, got[:200])
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (text[:7], text[7:])) + b"0\r\n\r\n"
    f.expect("a chunked body", b"HTTP/1.1 200" in s.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked), "")
    got = s.raw(head + b"Content-Length: 99999999999\r\n\r\n")
    f.expect("a body that is too large", b" 413 " in got.split(b"\r\n")[0] and b"at most" in got, got[:300])
    got = s.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 200000 + b"\r\n\r\n")
    f.expect("headers that are too large", b" 431 " in got.split(b"\r\n")[0], got[:100])
    for path in (b"/health%00", b"/health%00x", b"/v1/models/tiny-v41%00zz?a=b"):
        got = s.raw(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        f.expect(path, got.startswith(b"HTTP/1.1 400") and b"%00" in got and got.endswith(b"}\n"), got)
    got = s.raw(b"GET http://x:80/v1/models/tiny-v41 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    f.expect("a request with its host", got.startswith(b"HTTP/1.1 200"), got)
    f.expect("a NUL in a query", s.ask("GET", "/health?a=%00")[0] == 200, "")
    body = s.ask("GET", "/%fe%61%ff")[2]
    f.expect("a path that is no text", body["error"]["message"] == "there is no /?a? here", body)
    f.expect("no HTTP at all", s.raw(b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 "), "")
    f.expect("not even two words", s.raw(b"\x16\x03\x01\r\n\r\n") == b"" and s.ask("GET", "/health")[0] == 200, "")


def bodies(s):
    def refused(what, body, status, word, param=None):
        got, _, answer = s.post(CHAT, body)
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        f.expect(what, got == status and word in error.get("message", "") and (param is None or error.get("param") == param), (got, answer))

    refused("no body", None, 400, "empty")
    refused("no JSON", "{", 400, "not valid JSON")
    refused("no object", "[1]", 400, "object")
    refused("deep JSON", '{"messages":' + "[" * 300 + "]" * 300 + "}", 400, "deeper")
    refused("many values", '{"messages":[' + "0," * (1 << 21) + "0]}", 400, "2097152 values")
    refused("no messages", {}, 400, "messages")
    refused("a wrong type", {**HELLO, "temperature": "hot"}, 400, "temperature", "temperature")
    refused("an empty salt", {**HELLO, "cache_salt": ""}, 400, "not empty", "cache_salt")
    refused("a penalty that leaves no number", {**HELLO, "repetition_penalty": 1e-308}, 400, "0.01", "repetition_penalty")
    for most in (3000000000, 10 ** 25):
        f.expect("more tokens than there are", s.post(CHAT, {**HELLO, "max_tokens": most, "stop": ["!"]})[0] == 200, most)
        f.expect("more tokens of responses", s.post("/v1/responses", {"input": "Hello", "max_output_tokens": most, "reasoning": {"effort": "none"}, "guided_choice": ["a"]})[0] == 200, most)
    refused("fewer tokens than there are", {**HELLO, "max_tokens": -10 ** 25}, 400, "max_tokens", "max_tokens")
    refused("a wrong value", {**HELLO, "temperature": 3}, 400, "0 to 2", "temperature")
    refused("another model", {**HELLO, "model": "gpt-4"}, 404, "tiny-v41", "model")
    refused("too many answers", {**HELLO, "n": 17}, 400, "n", "n")
    refused("a message of a wrong type", {"messages": [{"role": "user", "content": 7}]}, 400, "", "messages[0].content")
    refused("sound", {**HELLO, "modalities": ["text", "audio"]}, 400, "modalities", "modalities")
    refused("a long prompt", {"messages": [{"role": "user", "content": "x y " * 70000}]}, 400, "tokens")
    f.expect("its code", s.post(CHAT, {"messages": [{"role": "user", "content": "x y " * 70000}]})[2]["error"]["code"] == "context_length_exceeded", "")
    f.expect("unknown members are ignored", s.post(CHAT, {**HELLO, "no_such_member": 1, "model": "deepseek-chat[1m]"})[0] == 200, "")


def large(s):
    """Nobody waits until large requests have been read, more of them than there are threads that hold connections."""
    text = json.dumps({"messages": [{"role": "user", "content": "\n" * 4000000}]}).encode()
    asked = []
    for _ in range(5):
        asked.append(socket.create_connection((s.host, s.port), 60))
        asked[-1].sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
        time.sleep(0.05)
    f.expect("others are answered", all(s.ask("GET", "/health")[0] == 200 for _ in range(12)), "")
    # One after the other none has been read by now; on the threads that hold connections two or more have.
    read = [c for c in asked if select.select([c], [], [], 0)[0]]
    f.expect("before large ones have been read", len(read) < 2, len(read))
    asked.pop().close()
    for c in asked:
        got = b""
        while piece := c.recv(65536):
            got += piece
        f.expect("then they are", b" 400 " in got.split(b"\r\n")[0] and b"context_length_exceeded" in got, got[:300])
    padding = {"padding": "x" * (1 << 20)}
    alone = s.post(CHAT, {**HELLO, "logprobs": True})[2]["choices"]
    f.expect("a large one's answer", s.post(CHAT, {**HELLO, **padding, "logprobs": True})[2]["choices"] == alone, "")
    f.expect("its stream", s.stream(CHAT, {**HELLO, **padding})[-1] == (None, "[DONE]"), "")
    for path, body, status in (("/tokenize", {"prompt": "a"}, 200), ("/v1/messages/count_tokens", {**HELLO, "model": "claude-x"}, 200), ("/tokenize", {"prompt": 5}, 400)):
        f.expect(f"large: {path}", s.post(path, {**body, **padding})[0] == status, "")


def clients_that_go(s):
    """A request whose client is gone stops within a step, streamed or not, at any moment."""
    for stream in (False, True):
        for seconds in (0.0, 0.5):
            c = s.connect()
            c.request("POST", CHAT, json.dumps({**LONG, "stream": stream}))
            f.expect("it runs", until(lambda: s.metric("requests_running") == 1), s.metric("requests_running"))
            time.sleep(seconds)
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            c.close()
            f.expect("a client that went away", until(lambda: s.metric("requests_running") == 0), (stream, seconds))
    cancelled = lambda: s.metric('requests_finished_total{reason="cancelled"}')
    f.expect("cancelled ones are counted", until(lambda: cancelled() == 4), cancelled())
    # a client that shuts down its side and still reads has a second, in which a busy machine may not get as far
    text = json.dumps(HELLO).encode()
    for _ in range(20):
        c = socket.create_connection((s.host, s.port), 60)
        c.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        c.shutdown(socket.SHUT_WR)
        got = b""
        while piece := c.recv(65536):
            got += piece
        if got:
            break
    f.expect("a half-closed client", b"HTTP/1.1 200" in got and b"chatcmpl-" in got, got[:200])
    for wrong in (b"Host: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", b"Host: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                  b"Content-Length: 2\r\n\r\n{}"):
        got = s.raw(b"POST /tokenize HTTP/1.1\r\n" + wrong)
        f.expect("a request that can be read in two ways", got.startswith(b"HTTP/1.1 400") and got.count(b"HTTP/1.1") == 1, got[:300])
    f.expect("it is counted", s.ask("GET", "/metrics")[2].count(b"disconnects_total{phase=") == 3, "")


def slow_reader(s):
    """Who does not read stalls nobody else."""
    c = socket.create_connection((s.host, s.port), 60)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    text = json.dumps({**LONG, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    c.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
    f.expect("it runs", until(lambda: s.metric("requests_running") == 1), "")
    f.expect("another is answered", s.post(CHAT, HELLO)[0] == 200, "")
    c.close()
    f.expect("it ends", until(lambda: s.metric("requests_running") == 0), "")


def begins(folder):
    """What is wrong with its own settings is told before anything of the model."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for what, word in ((["--api-key-file", folder], folder), (["--admin-key-file", os.path.join(folder, "none")], "none"), (["--host", "nowhere"], "nowhere is no address"),
                           (["--port", str(taken.getsockname()[1])], "in use"), (["--tls-key", "a"], "both or none")):
            done = subprocess.run([PROGRAM, "serve", "--model", os.path.join(folder, "no-model"), "--port", "0", *what], capture_output=True, text=True, timeout=60)
            f.expect(f"{what}", done.returncode in (1, 2) and word in done.stderr and "model" not in done.stderr and done.stderr.count("\n") == 1, done)
            done = subprocess.run([PROGRAM, "serve", "--model", MODEL, "--log-level", "info", "--port", "0", *what], capture_output=True, text=True, timeout=60)
            f.expect(f"{what}, before the plan", word in done.stderr and "plan" not in done.stderr, done)


def loads(ends):
    """It answers while it loads: here it cannot go on before what it says on its standard error is read."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    filled = 0
    try:
        while True:
            filled += os.write(writes, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writes, True)
    s = Served()
    s.host, s.port = "127.0.0.1", port
    with subprocess.Popen([*s.line, "--port", str(port), "--log-level", "info"], stdout=subprocess.PIPE, stderr=writes) as process:
        os.close(writes)

        def listens():
            try:
                return s.ask("GET", "/ready")
            except OSError:
                return None
        f.expect("it listens", until(listens), process.poll())
        for path in ("/ready", "/health"):
            status, headers, body = s.ask("GET", path)
            f.expect(f"{path} while it loads", status == 503 and headers.get("retry-after") and body == {"status": "loading"}, (status, headers, body))
        for status, headers, body in (s.ask("GET", "/v1/models"), s.post(CHAT, HELLO), s.ask("GET", "/metrics"), s.ask("GET", "/")):
            f.expect("anything else", status == 503 and headers.get("retry-after") and body["error"]["code"] == "loading" and body["error"]["type"] == "server_error", (status, headers, body))
        f.expect("messages", s.post("/v1/messages", HELLO)[0] == 529, "")
        f.expect("what is wrong with the path", s.ask("GET", "/nope")[0] == 404 and s.ask("GET", CHAT)[0] == 405, "")
        if ends:
            process.send_signal(signal.SIGTERM)
        with os.fdopen(reads, "rb") as said:
            said.read(filled)
            if not ends:
                f.expect("its address comes with its answers", process.stdout.readline() == f"http://127.0.0.1:{port}\n".encode(), "")
                f.expect("then it answers", s.ask("GET", "/ready")[0] == 200 and s.post(CHAT, HELLO)[0] == 200, "")
                process.send_signal(signal.SIGTERM)
            f.expect("the end", process.wait(60) == 0 and (b"ended while the model was loaded" in said.read()) == ends and not process.stdout.read(), process.returncode)


with tempfile.TemporaryDirectory() as folder:
    begins(folder)
loads(ends=True)
loads(ends=False)

with Served("--max-num-seqs", "4", "--max-model-len", "32768") as s:
    transport(s)
    bodies(s)
    large(s)
    clients_that_go(s)
    slow_reader(s)
    f.expect("ready", s.ask("GET", "/ready")[0] == 200, "")
    f.expect("sleep without an admin key", s.post("/sleep", None)[0] == 403, "")
f.expect("a quiet end", s.status == 0, (s.status, s.said))

with tempfile.TemporaryDirectory() as folder:
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("# ours\nsecret-1\n\nsecret-2\n")
    with Served("--api-key-file", keys, "--admin-key-file", keys, "--cors", "*", "--max-queue", "1", "--max-num-seqs", "1",
                "--max-model-len", "32768", "--drain-seconds", "60") as s:
        for headers in ({}, {"authorization": "Bearer secret"}, {"authorization": "Bearer secret-11"}, {"x-api-key": ""}):
            status, _, body = s.post(CHAT, HELLO, headers)
            f.expect(f"{headers}", status == 401 and body["error"]["code"] == "invalid_api_key", (status, body))
        for headers in ({"authorization": "Bearer secret-1"}, {"x-api-key": "secret-2"}):
            f.expect(f"{headers}", s.post(CHAT, HELLO, headers)[0] == 200, headers)
        key = {"x-api-key": "secret-1"}
        f.expect("health needs no key", s.ask("GET", "/health")[0] == 200, "")
        f.expect("models need one", s.ask("GET", "/v1/models")[0] == 401, "")
        f.expect("CORS", s.ask("OPTIONS", CHAT)[1].get("access-control-allow-origin") == "*", "")

        # sleep and wake
        f.expect("sleep", s.post("/sleep", {"tags": ["kv_cache"]}, key)[2] == {"status": "asleep"} and s.ask("GET", "/ready")[0] == 503, "")
        for path in ("/sleep", "/wake_up"):
            for tags in (["x"], [], "weights", [1], {}):
                status, _, body = s.post(path, {"tags": tags}, key)
                f.expect(f"{path}: {tags}", status == 400 and body["error"]["param"] == "tags" and '"kv_cache"' in body["error"]["message"], body)
        f.expect("wake", s.post("/wake_up", None, key)[2] == {"status": "awake"} and s.post(CHAT, HELLO, key)[0] == 200, "")

        # one runs, one waits, a third is told to come back
        running, waiting = s.connect(), s.connect()
        running.request("POST", CHAT, json.dumps({**LONG, "stream": True}), key)
        f.expect("one runs", until(lambda: s.metric("requests_running") == 1), "")
        waiting.request("POST", CHAT, json.dumps(HELLO), key)
        f.expect("one waits", until(lambda: s.metric("requests_waiting") == 1), "")
        status, headers, body = s.post(CHAT, HELLO, key)
        f.expect("a full queue", status == 429 and headers.get("retry-after") and body["error"]["type"] == "rate_limit_error", (status, headers, body))

        begun = running.getresponse()  # its headers are here: it is a stream from now on
        # the first signal drains, the second ends what is left with an error event
        s.process.send_signal(signal.SIGTERM)
        f.expect("no new connection", until(lambda: not s.reaches()), "")
        f.expect("it drains", s.process.poll() is None, "")
        s.process.send_signal(signal.SIGTERM)
        answer = begun.read().decode()
        f.expect("an error event ends the stream", "event: error" in answer and "[DONE]" not in answer, answer[-300:])
        got = waiting.getresponse()
        f.expect("who waited is told", got.status == 503 and got.getheader("retry-after"), got.status)
    f.expect("the end", s.status == 0, (s.status, s.said))

sys.exit(1 if f.count else 0)
