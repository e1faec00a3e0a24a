"""A headless Chromium, driven over its debugging socket by the standard library alone."""
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `run` evaluates JavaScript and returns its value."""

    def __init__(self, url, width=1200, height=860):
        self.url, self.size = url, f"{width},{height}"

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
             f"--user-data-dir={self.folder.name}", f"--window-size={self.size}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = os.path.join(self.folder.name, "DevToolsActivePort")
        for _ in range(600):
            if os.path.exists(port_file) and open(port_file).read().count("\n") >= 1:
                break
            time.sleep(0.1)
        port = int(open(port_file).read().split("\n")[0])
        targets = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list"))
        address = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        path = address.split(str(port), 1)[1]
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(1)
        self.number, self.seen = 0, []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Page.navigate", url=self.url)
        self.wait("document.readyState === 'complete'")
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.process.terminate()
        self.process.wait(30)
        self.folder.cleanup()

    def _exactly(self, n):
        data = b""
        while len(data) < n:
            piece = self.socket.recv(n - len(data))
            if not piece:
                raise EOFError("the browser has gone")
            data += piece
        return data

    def _receive(self):
        whole = b""
        while True:
            first, second = self._exactly(2)
            length = second & 127
            if length == 126:
                length = struct.unpack(">H", self._exactly(2))[0]
            elif length == 127:
                length = struct.unpack(">Q", self._exactly(8))[0]
            whole += self._exactly(length)
            if first & 128:
                return json.loads(whole)

    def call(self, method, **parameters):
        self.number += 1
        text = json.dumps({"id": self.number, "method": method, "params": parameters}).encode()
        mask = os.urandom(4)
        length = len(text)
        head = bytes([0x81]) + (bytes([128 | length]) if length < 126 else bytes([254]) + struct.pack(">H", length) if length < 65536
                                else bytes([255]) + struct.pack(">Q", length))
        self.socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(text)))
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.seen.append(answer)

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run(script):
                return True
            time.sleep(0.1)
        return False

    def type(self, selector, text):
        self.run(f"document.querySelector({selector!r}).focus()")
        self.call("Input.insertText", text=text)

    def click(self, selector):
        self.run(f"document.querySelector({selector!r}).click()")

    def errors(self):
        """What the page complained of, and every address that it asked beside its own server's."""
        self.run("1")
        said = [e for e in self.seen if e.get("method") == "Runtime.exceptionThrown" or
                (e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] in ("warning", "error"))]
        asked = [e["params"]["request"]["url"] for e in self.seen if e.get("method") == "Network.requestWillBeSent"]
        return said + [u for u in asked if not u.startswith(self.url)]

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
