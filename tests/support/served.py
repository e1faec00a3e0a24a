"""A `quire serve` of a test, and what a client says to it."""
import http.client
import json
import os
import signal
import socket
import subprocess
import time

PROGRAM = os.environ["QUIRE_PROGRAM"]
SOURCE = os.environ["QUIRE_SOURCE"]
MODEL = os.path.join(SOURCE, "models", "tiny-v41")


class Served:
    """A server on a free port; its process ends with the block."""

    def __init__(self, *options, model=MODEL):
        self.line = [PROGRAM, "serve", "--model", model, "--port", "0", "--kv-ram-bytes", "60000000", *options]

    def __enter__(self):
        self.process = subprocess.Popen(self.line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        address = self.process.stdout.readline().decode().strip()
        if not address:
            raise SystemExit("no server: " + self.process.stderr.read().decode())
        self.url = address
        self.host, self.port = address.split("//")[1].rsplit(":", 1)
        self.port = int(self.port)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.said = self.process.stderr.read().decode()

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=120)

    def reaches(self):
        """Whether it still takes connections."""
        try:
            self.connect().connect()
            return True
        except OSError:
            return False

    def ask(self, method, path, body=None, headers=None, connection=None):
        """Status, headers and body, which is parsed where it is JSON."""
        c = connection or self.connect()
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        c.request(method, path, body, headers or {})
        r = c.getresponse()
        text = r.read()
        if connection is None:
            c.close()
        kind = r.getheader("content-type") or ""
        return r.status, {k.lower(): v for k, v in r.getheaders()}, json.loads(text) if kind.startswith("application/json") and text else text

    def post(self, path, body, headers=None, connection=None):
        return self.ask("POST", path, body, headers, connection)

    def stream(self, path, body, headers=None):
        """The events of a stream, (name, data), data parsed unless it is [DONE]."""
        c = self.connect()
        c.request("POST", path, json.dumps({**body, "stream": True}), headers or {})
        r = c.getresponse()
        if r.status != 200:
            raise AssertionError(f"{r.status}: {r.read()!r}")
        events, name = [], None
        for line in r.read().decode().split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
                events.append((name, data if data == "[DONE]" else json.loads(data)))
                name = None
        c.close()
        return events

    def metric(self, name):
        text = self.ask("GET", "/metrics")[2].decode()
        for line in text.splitlines():
            if line.startswith(f"quire_{name} "):
                return float(line.rsplit(" ", 1)[1])
        return None

    def raw(self, data, wait=0.0):
        """What comes back for bytes that no client library would send."""
        s = socket.create_connection((self.host, self.port), 60)
        s.sendall(data)
        if wait:
            time.sleep(wait)
        got = b""
        try:
            while piece := s.recv(65536):
                got += piece
        except OSError:
            pass
        s.close()
        return got


class Faults:
    """Counts what is not as it should be."""

    def __init__(self):
        self.count = 0

    def expect(self, what, right, found):
        if not right:
            self.count += 1
            print(f"{what}: {found!r}")


def until(right, seconds=20.0):
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if right():
            return True
        time.sleep(0.05)
    return False
